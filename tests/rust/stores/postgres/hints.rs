//! What the PostgreSQL store tells of logs that other processes write.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{Epoch, EventStore, Hold, StoreOptions, session_name};
use tailrope_stores::PostgresStore;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::bell::{Bell, hint_times, read_by};
use super::database::{Administrator, Database, Namespaces, at, namespace, told};
use crate::kit::events::sized;
use crate::kit::eventually::{PATIENCE, eventually};

#[test]
fn a_hint_follows_each_event() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    hint_times(&writing, &reading, 20);
}

#[test]
fn a_reader_is_told_after_its_notifications_were_interrupted() {
    let database = Database::new();
    let address = database.address("");
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&writing, Ms(0));
    let mut log = caller.open("s", 1);
    let bell = Bell::reading(&reading, &log);
    for _ in 0..5 {
        caller.push(&mut log, &[sized(10)]);
        bell.settle();
        let seen = bell.rings();
        database.end_connections();
        caller.push(&mut log, &[sized(10)]);
        bell.wait(seen);
    }
    log.assert_stored(&Caller::new(&reading, Ms(0)), 0, "I3");
}

#[test]
fn hints_for_very_many_logs_all_come() {
    const LOGS: u64 = 1_500;
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&writing, Ms(0));
    let mut logs: Vec<Log> = (0..LOGS).map(|number| caller.open(&format!("s {}", number % 10), number)).collect();
    let bells: Vec<Arc<Bell>> = logs.iter().map(|log| Bell::reading(&reading, log)).collect();
    bells[0].settle();
    let seen: Vec<u64> = bells.iter().map(|bell| bell.rings()).collect();
    std::thread::scope(|scope| {
        for logs in logs.chunks_mut(100) {
            let writing = &writing;
            scope.spawn(move || {
                let caller = Caller::new(writing, Ms(0));
                logs.iter_mut().for_each(|log| caller.push(log, &[sized(10)]));
            });
        }
    });
    for (bell, seen) in bells.iter().zip(seen) {
        bell.wait(seen);
    }
    // A session that goes is told for each of its logs.
    let seen: Vec<u64> = bells.iter().map(|bell| bell.rings()).collect();
    writing.drop_session("s 3", caller.epoch);
    for number in (3..LOGS as usize).step_by(10) {
        bells[number].wait(seen[number]);
    }
}

// What it takes of the server

/// Hears what store objects are notified of.
struct Ear {
    address: String,
    server: Administrator,
    runtime: Runtime,
    client: Client,
    heard: UnboundedReceiver<(String, String)>,
}

impl Ear {
    fn new(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (says, heard) = unbounded_channel();
        let client = runtime.block_on(async {
            let server = told("TAILROPE_TEST_POSTGRES");
            let (client, mut connection) = tokio_postgres::connect(&server, NoTls).await.expect("the server is there");
            tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(notified) = message {
                        let _ = says.send((notified.channel().to_owned(), notified.payload().to_owned()));
                    }
                }
            });
            client
        });
        Self { address: address.to_owned(), server: Administrator::new(), runtime, client, heard }
    }

    /// One more store object, and its channel.
    fn open(&self) -> (PostgresStore, String) {
        let channels = format!(
            "SELECT string_agg('tailrope:' || lpad(to_hex(id), 16, '0'), ' ') FROM {}.owner",
            namespace(&self.address)
        );
        let is_made = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{}'", namespace(&self.address));
        let known = if self.server.number(&is_made) == 0 { None } else { self.server.ask(&channels) };
        let known = known.unwrap_or_default();
        let store = at(&self.address, &StoreOptions::default());
        let all = self.server.ask(&channels).expect("it is there");
        let channel = all.split(' ').find(|channel| !known.contains(channel)).expect("it is new").to_owned();
        let listen = format!("LISTEN \"{channel}\"");
        self.runtime.block_on(self.client.batch_execute(&listen)).expect("it listens");
        (store, channel)
    }

    /// The next notification, its channel first, but for those of a store object to itself.
    fn next(&mut self) -> (String, String) {
        self.runtime.block_on(async {
            loop {
                let heard = tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("rule 13: it is told");
                let heard = heard.expect("the server is there");
                if !heard.1.is_empty() {
                    return heard;
                }
            }
        })
    }

    /// The channels of the next two.
    fn next_two(&mut self) -> BTreeSet<String> {
        [self.next(), self.next()].map(|(channel, _)| channel).into()
    }
}

fn hint(log: &Log) -> String {
    format!("{}{}", session_name(&log.key.session), log.key.nonce.hex())
}

#[test]
fn a_store_object_is_notified_of_what_concerns_it_alone() {
    let namespaces = Namespaces::direct();
    let mut ear = Ear::new(&namespaces.address());
    let [(owner, of_owner), (reading, of_reading), (other, of_other)] = [(); 3].map(|()| ear.open());
    let two = |one: &String, other: &String| BTreeSet::from([one.clone(), other.clone()]);
    let caller = Caller::new(&owner, Ms(0));
    let (mut log, mut home) = (caller.open("s", 1), caller.open("s", 2));
    read_by(&owner, &home);
    caller.push(&mut home, &[sized(10)]);
    caller.push(&mut log, &[sized(10)]);
    read_by(&reading, &log);
    assert_eq!(ear.next(), (of_owner.clone(), hint(&log)), "what is read at home is told to nobody");
    caller.push(&mut home, &[sized(10)]);
    caller.push(&mut log, &[sized(10)]);
    assert_eq!(ear.next(), (of_reading.clone(), hint(&log)));
    read_by(&other, &log);
    assert_eq!(ear.next_two(), two(&of_owner, &of_reading));
    assert_eq!(caller.finish(&log, b"end"), Ok(()));
    assert_eq!(ear.next_two(), two(&of_reading, &of_other));
    // A message is told to the owner alone, also by who follows other logs.
    let answer = Log::new("s", 3);
    Caller::new(&reading, Ms(0)).post(&answer, b"message").expect("it waits");
    assert_eq!(ear.next(), (of_owner.clone(), format!("{}+", session_name("s"))));
    // What it is an answer to is withdrawn: that is told to those who wait for it, but the one that withdraws it.
    Caller::new(&other, Ms(0)).post(&answer, b"a copy").expect("it is there");
    assert_eq!(ear.next_two(), two(&of_owner, &of_reading));
    assert_eq!(Caller::new(&other, Ms(0)).withdraw(&answer, b"withdrawn"), Ok(true));
    assert_eq!(ear.next(), (of_reading.clone(), hint(&answer)));
    // An heir that ends at once has told that it is one.
    let name = namespace(&ear.address).to_owned();
    ear.server.run(&format!("ALTER FUNCTION {name}.tell RENAME TO told"));
    let heir = Caller::new(&other, Ms(0)).with(Epoch { number: 2, salt: 9 });
    let hold = Hold { epoch: heir.epoch, seen: Some(caller.epoch), record: None };
    assert_eq!(heir.try_hold("s", &hold).map(|running| running.len()), Ok(1));
    assert_eq!(ear.next(), (of_owner, session_name("s").to_string()));
    // What could not be told is told later.
    other.drop_stream(&log.key, heir.epoch);
    assert!(heir.log(&log).is_none());
    ear.server.run(&format!("ALTER FUNCTION {name}.told RENAME TO tell"));
    assert_eq!(ear.next(), (of_reading, hint(&log)));
}

#[test]
fn what_nobody_told_is_seen_in_time_by_looks_at_what_is_read_here_and_written_elsewhere() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let log = Caller::new(&writing, Ms(0)).open("s", 1);
    let own = Caller::new(&reading, Ms(0)).open("own", 2);
    let (server, name) = (Administrator::new(), namespace(&address));
    server.run(&format!(
        "CREATE TABLE {name}.looked (names bytea[]);
         ALTER FUNCTION {name}.heads RENAME TO heads_of;
         CREATE FUNCTION {name}.heads(me bigint, names bytea[])
         RETURNS TABLE (
             at bigint, is_mine boolean, nonce bytea, head bigint, is_finished boolean, readers bigint, waiting bigint
         )
         LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO {name}.looked VALUES (names);
             RETURN QUERY SELECT * FROM {name}.heads_of(me, names);
         END $$"
    ));
    let looks = |which: &str| server.number(&format!("SELECT count(*) FROM {name}.looked WHERE {which}"));
    let (_own, bell) = (Bell::reading(&reading, &own), Bell::reading(&reading, &log));
    eventually("notifications come through", || looks("names = ARRAY['s'::bytea]") > 0);
    server.run(&format!("DELETE FROM {name}.looked"));
    let seen = bell.rings();
    // As when a process ends before it has told what it wrote.
    server.run(&format!("UPDATE {name}.stream SET head = head + 1 WHERE nonce = '\\x{}'", log.key.nonce.hex()));
    bell.wait(seen);
    assert_eq!(looks("names <> ARRAY['s'::bytea]"), 0, "an owner need not look at its sessions");
}
