//! What needs no server and no process of its own: vectors, random schedules, the engine, stores in memory and in files.
//! One program, because to link one costs more than most of these tests.

#[macro_use]
mod kit;

mod client {
    mod followed;
    mod properties;
    mod vectors;
}

mod engine {
    mod adoption;
    mod ahead;
    mod answers;
    mod call_records;
    mod failovers;
    mod greetings;
    mod host_store;
    pub(crate) mod lines;
    mod live;
    mod lost_logs;
    mod many_adoptions;
    mod notes;
    mod paces;
    mod places;
    mod properties;
    mod races;
    mod records;
    mod refusals;
    mod relay;
    mod relay_faults;
    mod relay_records;
    mod relay_refusals;
    mod servers;
    mod sessions;
    mod set_backs;
    mod silent_store;
    mod stores;
    mod streams;
    mod task_faults;
    mod task_owners;
    mod task_records;
    mod task_subscriptions;
    mod tasks;
    mod timeouts;
    mod world;

    #[cfg(feature = "sqlite")]
    mod elsewhere;
    #[cfg(feature = "sqlite")]
    mod forged;
    #[cfg(feature = "sqlite")]
    mod heirs;
    #[cfg(all(feature = "sqlite", feature = "testing"))]
    mod hook_log;
    #[cfg(feature = "sqlite")]
    mod order;
    mod reach;
    #[cfg(feature = "sqlite")]
    mod relay_sqlite;
    #[cfg(feature = "sqlite")]
    mod takeovers;
}

mod exchange {
    mod faults;
    mod join;
    mod origin;
    mod principal;
    mod relayed;
    mod server_name;
    mod turns;
}

mod protocol {
    mod readers;
    mod vectors;
}

mod session {
    mod handshake;
}

mod stores {
    mod folder;
    mod host;
    mod liveness;
    mod memory;

    #[cfg(all(feature = "sqlite", feature = "testing"))]
    mod sealed;

    #[cfg(feature = "sqlite")]
    mod sqlite {
        mod file;
        mod forged;
        mod inbox;
        mod owners;
        mod store;
    }
}

mod stream {
    mod cuts;
    mod properties;
    mod vectors;
    mod world;
}

mod task {
    mod calls;
    mod declaration;
    mod properties;
    mod requests;
    mod subscriptions;
    mod views;
    mod world;
}
