//! The stores behind one Redis and one PostgreSQL server, which are real and fail:
//! `tests/services/with redis postgres -- cargo test -p tailrope-stores --features redis,postgres,testing --test servers`.

#[macro_use]
mod kit;

mod stores {
    mod postgres {
        mod bell;
        mod database;
        mod faults;
        mod forged;
        mod hints;
        mod inbox;
        mod owners;
        pub(crate) mod proxy;
        mod store;
        pub(crate) mod trips;
    }

    mod redis {
        mod faults;
        mod forged;
        mod inbox;
        mod layout;
        mod owners;
        mod server;
        mod store;
        mod trips;
    }
}
