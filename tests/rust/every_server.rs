//! The same stores with every kind of server there is, and what has to be measured: `make test-full` runs it.
//! `tests/services/with --list` names the kinds; without one of them its tests fail.

#[macro_use]
mod kit;

mod stores {
    mod postgres {
        mod bell;
        mod database;
        mod poolers;
        mod rights;
    }

    mod redis {
        mod nodes;
        mod rights;
        mod server;
    }
}
