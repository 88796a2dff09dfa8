//! The engine over a store that its host wrote: what the host is asked to do, and how cursors that its
//! own window does not hold are answered.

use std::sync::Arc;

use crate::kit::common::{Bench, NEW, notification, read_now, response};
use tailrope_core::engine::{Connection, EngineError, NoWake, Options, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::protocol::RequestId;
use tailrope_core::store::{HostOperation, HostReplay, HostRequest, HostStore, Limits, StoreError};

fn id(number: i64) -> RequestId {
    RequestId::integer(number)
}

/// What the host has stored: the stream, the id and the payload of each event.
#[derive(Default)]
struct Host {
    rows: Vec<(String, String, Option<bytes::Bytes>)>,
}

impl Host {
    /// Does what the engine asks for, replays excepted: these are returned.
    fn work(&mut self, session: &SessionHandle) -> Vec<HostOperation> {
        let mut replays = Vec::new();
        loop {
            let operations = session.take_operations();
            if operations.is_empty() {
                return replays;
            }
            for operation in operations {
                let HostRequest::Store { stream, payload } = &operation.request else {
                    replays.push(operation);
                    continue;
                };
                let event_id = format!("e{}", self.rows.len() + 1);
                self.rows.push((stream.clone(), event_id.clone(), payload.clone()));
                session.stored(operation.number, &event_id);
            }
        }
    }

    /// What it replays after an id.
    fn replay(&self, operation: &HostOperation) -> HostReplay {
        let HostRequest::Replay { last_event_id } = &operation.request else { panic!("{operation:?}") };
        let Some(at) = self.rows.iter().position(|(_, event_id, _)| event_id == last_event_id) else {
            return HostReplay::default();
        };
        let stream = &self.rows[at].0;
        let after = self.rows[at + 1..].iter().filter(|(of, ..)| of == stream);
        let events = after.map(|(_, event_id, payload)| (Some(event_id.as_str().into()), payload.clone())).collect();
        HostReplay { stream: Some(stream.clone()), events }
    }
}

fn bench(limits: Limits) -> (Bench, SessionHandle, Host) {
    let store = Arc::new(HostStore::new(limits));
    let bench = Bench::new(Options { store: Some(store), limits, ..Options::default() });
    let session = bench.session("s", NEW);
    (bench, session, Host::default())
}

fn call(session: &SessionHandle, number: i64) -> Connection {
    session.call(&[id(number)], None, Arc::new(NoWake), 0).expect("the id is free")
}

fn resume(session: &SessionHandle, last_event_id: &str) -> Connection {
    session.resume(last_event_id, None, Arc::new(NoWake), 0).expect("the session is open")
}

fn notify(session: &SessionHandle, number: i64, name: &str) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::notification(Some(&id(number)), &notification(name)))
}

fn respond(session: &SessionHandle, number: i64) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::response(&id(number), &response(&id(number))))
}

/// The names of the notifications in an answer.
fn names(text: &str) -> Vec<&str> {
    let after = text.split("notifications/").skip(1);
    after.map(|rest| rest.split('"').next().unwrap_or_default()).collect()
}

#[test]
fn i13_an_event_that_is_too_large_is_not_given_to_the_host() {
    let (_bench, session, mut host) = bench(Limits { max_event_bytes: 400, ..Limits::default() });
    let _connection = call(&session, 1);
    host.work(&session);
    let sent = notify(&session, 1, &"x".repeat(1_000));
    assert!(matches!(sent, Err(EngineError::Store(StoreError::TooLarge { max: 400, .. }))), "{sent:?}");
    assert_eq!(session.take_operations(), [], "what is refused is in no log, also not in the host's");
}

#[test]
fn i8_a_cursor_whose_events_left_the_window_is_answered_by_the_hosts_replay() {
    // The second stream's events push the first one's out of the window.
    let (bench, session, mut host) = bench(Limits { max_bytes_per_session: 6_500, ..Limits::default() });
    let first = call(&session, 1);
    host.work(&session);
    for name in 0..40 {
        notify(&session, 1, &format!("a{name}")).unwrap();
        host.work(&session);
    }
    let cursor = bench.read(&first).ids()[2].clone();
    let _second = call(&session, 2);
    host.work(&session);
    for name in 0..20 {
        notify(&session, 2, &format!("b{name}")).unwrap();
        host.work(&session);
    }
    let resumed = resume(&session, &cursor);
    let replays = host.work(&session);
    assert_eq!(replays.len(), 1, "the host has what the window lost: {}", bench.read(&resumed).text);
    session.replayed(replays[0].number, Ok(host.replay(&replays[0])));
    let text = bench.read(&resumed).text;
    assert!(!text.contains(": gap"), "{text}");
    assert_eq!(names(&text), (2..40).map(|name| format!("a{name}")).collect::<Vec<_>>());
}

#[test]
fn i8_a_finished_stream_that_left_the_window_is_answered_by_the_hosts_replay() {
    let (bench, session, mut host) = bench(Limits { max_bytes_per_session: 6_000, ..Limits::default() });
    let first = call(&session, 1);
    host.work(&session);
    notify(&session, 1, "a").unwrap();
    host.work(&session);
    let cursor = bench.read(&first).ids()[0].clone();
    drop(first);
    respond(&session, 1).unwrap();
    host.work(&session);
    let _second = call(&session, 2);
    host.work(&session);
    for _ in 0..60 {
        notify(&session, 2, "b").unwrap();
        host.work(&session);
    }
    let resumed = resume(&session, &cursor);
    let replays = host.work(&session);
    assert_eq!(replays.len(), 1, "{:?}", bench.read(&resumed));
    session.replayed(replays[0].number, Ok(host.replay(&replays[0])));
    let answered = bench.read(&resumed);
    assert_eq!(names(&answered.text), ["a"]);
    assert!(answered.text.contains("\"result\"") && answered.end.is_some());
}

#[test]
fn i8_what_was_stored_while_the_host_replayed_is_not_missing_in_silence() {
    let (bench, session, mut host) = bench(Limits { max_events_per_stream: 5, ..Limits::default() });
    let first = call(&session, 1);
    host.work(&session);
    let mut count = 0;
    let mut more = |host: &mut Host, events: usize| {
        for _ in 0..events {
            count += 1;
            notify(&session, 1, &format!("n{count}")).unwrap();
            host.work(&session);
        }
    };
    more(&mut host, 1);
    let cursor = bench.read(&first).last_id();
    drop(first);
    more(&mut host, 19);
    let resumed = resume(&session, &cursor);
    let replays = host.work(&session);
    // The host reads, and before it has handed over what it read, the window moves past all of that.
    let replay = host.replay(&replays[0]);
    more(&mut host, 20);
    session.replayed(replays[0].number, Ok(replay));
    for again in host.work(&session) {
        let replay = host.replay(&again);
        session.replayed(again.number, Ok(replay));
    }
    let text = bench.read(&resumed).text;
    assert_eq!(names(&text), (2..=40).map(|count| format!("n{count}")).collect::<Vec<_>>(), "{text}");
}

#[test]
fn i9_a_priming_that_the_host_does_not_store_fails_no_event() {
    for is_answered in [true, false] {
        let (bench, session, mut host) = bench(Limits::default());
        let connection = call(&session, 1);
        bench.read(&connection);
        let operations = session.take_operations();
        assert!(matches!(operations[..], [HostOperation { request: HostRequest::Store { payload: None, .. }, .. }]));
        if is_answered {
            session.not_stored(operations[0].number, "its disk is full".to_owned());
        } else {
            bench.advance(30_000);
        }
        notify(&session, 1, "a").unwrap();
        respond(&session, 1).unwrap();
        host.work(&session);
        let answered = bench.read(&connection);
        assert_eq!(names(&answered.text), ["a"], "{answered:?}");
        assert!(answered.text.contains("\"result\"") && answered.end.is_some(), "{answered:?}");
        assert_eq!(host.rows.len(), 2, "and it is not asked for again: {:?}", host.rows);
    }
}

#[test]
fn i2_the_priming_position_of_a_stream_is_stored_before_its_first_event() {
    let (bench, session, mut host) = bench(Limits::default());
    let connection = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    host.work(&session);
    let payloads = host.rows.iter().map(|(.., payload)| payload.is_some());
    assert_eq!(payloads.collect::<Vec<_>>(), [false, true]);
    assert_eq!(bench.read(&connection).ids(), ["e1", "e2"], "and so it is read");
}

#[test]
fn i11_a_session_that_ends_leaves_no_replay_behind() {
    let store = Arc::new(HostStore::new(Limits::default()));
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    for number in 0..10 {
        let session = bench.session(&format!("s{number}"), NEW);
        let resumed = resume(&session, "999");
        assert_eq!(session.take_operations().len(), 1);
        session.end();
        assert!(read_now(&resumed).end.is_some());
    }
    assert_eq!(store.unanswered(), 0);
}

#[test]
fn i11_a_connection_that_is_lost_leaves_no_replay_behind() {
    let store = Arc::new(HostStore::new(Limits::default()));
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.session("s", NEW);
    drop(resume(&session, "999"));
    assert_eq!(session.take_operations(), [], "nobody waits for it");
    assert_eq!(store.unanswered(), 0);
}

#[test]
fn what_one_engine_calls_off_is_not_the_other_ones() {
    let store = Arc::new(HostStore::new(Limits::default()));
    // Both count their operations alike.
    let [one, two] = [0, 1].map(|_| {
        let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
        let session = bench.session(if store.unanswered() == 0 { "s" } else { "t" }, NEW);
        let connection = session.call(&[id(1)], None, Arc::new(NoWake), 0).unwrap();
        bench.read(&connection);
        (bench, session, connection)
    });
    assert_eq!(store.unanswered(), 2);
    one.0.advance(30_000);
    assert_eq!(store.unanswered(), 1);
    assert!(one.1.take_operations().is_empty(), "it is called off");
    assert_eq!(two.1.take_operations().len(), 1);
}
