//! The PostgreSQL store behind a pooler and behind TLS, and what is measured of it: how soon it hints, how much room it takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, check, check_shared};
use tailrope_core::store::{Durability, EventStore, Limits, StoreOptions};

use super::bell::hint_times;
use super::database::{Administrator, Database, Namespaces, at, namespace, told, two, with_clock};
use crate::kit::events::{sized, terminal};
use crate::kit::eventually::eventually;

#[test]
fn it_keeps_the_contract_through_a_pooler() {
    let namespaces = Namespaces::pooled();
    check(&|| Arc::new(at(&namespaces.address(), &StoreOptions::default())));
    check_shared(&|| two(&namespaces));
    // Without an address to listen at, the logs are looked at.
    let namespaces = Namespaces::pooled_without_listen();
    check_shared(&|| two(&namespaces));
}

#[test]
fn it_keeps_the_contract_when_every_commit_waits_for_the_disk() {
    let namespaces = Namespaces::direct();
    let options = StoreOptions { durability: Durability::Power, ..StoreOptions::default() };
    check(&|| Arc::new(at(&namespaces.address(), &options)));
}

#[test]
fn connections_are_encrypted_and_certificates_checked() {
    let (tls, ca) = (told("TAILROPE_TEST_POSTGRES_TLS"), told("TAILROPE_TEST_POSTGRES_TLS_CA"));
    let (of_client, key) = (ca.replace("ca.pem", "client.pem"), ca.replace("ca.pem", "client.key"));
    let (_, place) = tls.rsplit_once('@').expect("it has a password");
    let (plain, certified) = (tls.replace("tailrope:", "plain:"), format!("postgres://certified@{place}"));
    let identity = format!("sslcert={of_client}&sslkey={key}");
    // Any name leads there; the certificate has two.
    let other = tls.replace("127.0.0.1", "other.example");
    let options = StoreOptions::default();
    for (number, address) in [
        // None of these says that it wants encryption, and the server wants it.
        format!("{tls}?sslmode=allow"),
        format!("{tls}?sslmode=prefer"),
        format!("{tls}?sslmode=require&channel_binding=require"),
        format!("{tls}?sslmode=verify-ca&sslrootcert={ca}"),
        format!("{other}?sslmode=verify-ca&sslrootcert={ca}&hostaddr=127.0.0.1"),
        format!("{tls}?sslrootcert={ca}"),
        format!("{}?sslmode=verify-full&sslrootcert={ca}", tls.replace("127.0.0.1", "localhost")),
        // Here the server wants none.
        format!("{plain}?sslmode=disable"),
        format!("{plain}?sslmode=allow"),
        format!("{plain}?sslmode=prefer"),
        format!("{certified}?sslmode=verify-full&sslrootcert={ca}&{identity}"),
    ]
    .into_iter()
    .enumerate()
    {
        let address = format!("{address}&namespace=tls_{}_{number}", std::process::id());
        let store =
            tailrope_stores::postgres::open(&address, &options).unwrap_or_else(|error| panic!("{address}: {error}"));
        let caller = Caller::new(&store, Ms(0));
        let mut log = caller.open("session", 1);
        caller.push(&mut log, &[sized(100_000)]);
        log.assert_stored(&caller, 0, "TLS");
    }
    for (address, what) in [
        (format!("{tls}?sslmode=disable"), "refuses the user"),
        (format!("{plain}?sslmode=require"), "refuses the user"),
        (format!("{tls}?sslmode=verify-full"), "authority that is not trusted"),
        (format!("{tls}?sslmode=verify-ca"), "authority that is not trusted"),
        (format!("{tls}?sslmode=require&sslrootcert={of_client}"), "authority that is not trusted"),
        (format!("{other}?sslmode=verify-full&sslrootcert={ca}&hostaddr=127.0.0.1"), "is for another name"),
        (format!("{tls}?sslmode=verify-full&sslrootcert=/no/such/file"), "cannot be read as certificates"),
        (format!("{tls}?sslcert={of_client}&sslkey={of_client}"), "sslcert and sslkey: the file with our key"),
        (format!("{certified}?sslmode=require"), "refuses the user"),
    ] {
        let error = tailrope_stores::postgres::open(&address, &options)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains(what) && !error.contains("ss%2Fword"), "{address}: {error}");
    }
}

#[test]
fn a_hint_follows_its_event_within_milliseconds() {
    for namespaces in [Namespaces::direct(), Namespaces::pooled(), Namespaces::pooled_without_listen()] {
        let address = namespaces.address();
        let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
        hint_times(&writing, &reading, 20);
        let times = hint_times(&writing, &reading, 100);
        let (median, most) = (times[50], times[98]);
        // Without notifications, or without looking, it would be half a second and more. The rest is what a loaded
        // machine may add.
        assert!(median < Duration::from_millis(250), "{median:?} {most:?}");
    }
}

#[test]
fn behind_a_pooler_notifications_are_not_relied_on() {
    // It says that it listens, and never hears anything.
    let namespaces = Namespaces::new(told("TAILROPE_TEST_PGBOUNCER"), "");
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let times = hint_times(&writing, &reading, 100);
    assert!(times[50] < Duration::from_millis(250), "rule 13: {:?}", times[50]);
}

#[test]
fn short_sessions_that_nobody_ends_reach_a_plateau() {
    const SESSIONS: u64 = 300;
    // A vacuum frees nothing that a transaction beside it, in the same database, may still see.
    let database = Database::new();
    let (address, namespace) = (database.address(""), "store");
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, retention_ms: 5_000, ..Limits::default() });
    let server = database.inside();
    let rows = |table: &str| server.number(&format!("SELECT count(*) FROM {namespace}.{table}"));
    let mut sizes = Vec::new();
    for round in 0..6 {
        // A process that is killed says no goodbye; one that says it leaves as much behind.
        let store = at(&address, &options);
        let caller = Caller::new(&store, Ms(0));
        for number in 0..SESSIONS {
            let session = format!("{round} {number}");
            let mut log = caller.open(&session, number);
            caller.push(&mut log, &[sized(300), sized(300), terminal()]);
        }
        drop(store);
        time.fetch_add(70_000, Ordering::SeqCst);
        let next = at(&address, &options);
        eventually("I11: what is over goes", || {
            next.sweep(Ms(0));
            ["event", "trash", "stream", "session"].map(rows) == [0; 4] && rows("owner") == 1
        });
        drop(next);
        // The server does this by itself every minute or so.
        for table in ["event", "trash", "stream", "session", "tally", "owner"] {
            server.run(&format!("VACUUM {namespace}.{table}"));
        }
        sizes.push(server.number(&format!(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = '{namespace}'::regnamespace"
        )));
    }
    assert!(sizes[5] <= sizes[1] * 3 / 2, "I11: {sizes:?}");
}

#[test]
fn rows_that_are_gone_make_room_before_the_server_looks() {
    const ROUNDS: i64 = 3;
    let namespaces = Namespaces::direct();
    let application = format!("vacuum-{}", std::process::id());
    let address = format!("{}&application_name={application}", namespaces.address());
    let store = at(&address, &StoreOptions { owner_lost_ms: 1_000, ..StoreOptions::default() });
    let (administrator, name) = (Administrator::new(), namespace(&address));
    administrator.run(&format!("ALTER TABLE {name}.event SET (autovacuum_enabled = false)"));
    let caller = Caller::new(&store, Ms(0));
    let events = vec![sized(200); 100];
    let mut kb = Vec::new();
    let vacuums = format!("SELECT vacuum_count FROM pg_stat_all_tables WHERE relid = '{name}.event'::regclass");
    let connections = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application}'");
    for _ in 0..ROUNDS {
        let before = administrator.number(&vacuums);
        for number in 0..150 {
            let mut log = caller.open("busy", number);
            caller.push(&mut log, &events);
            store.drop_stream(&log.key, caller.epoch);
        }
        eventually("the room is to be used again", || {
            assert!(administrator.number(&connections) <= 4, "none is made for it");
            administrator.number(&vacuums) > before
        });
        let size = format!("SELECT pg_total_relation_size('{name}.event') / 1024");
        kb.push(administrator.number(&size));
    }
    assert!(kb[2] < kb[0] * 2, "kB after each round: {kb:?}");
}
