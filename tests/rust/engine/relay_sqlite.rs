//! Requests that are relayed through a store which takes its time, and gives hints of its own.

use std::time::{Duration, Instant};

use serde_json::json;
use tailrope_core::engine::SessionHandle;
use tailrope_core::stream::CloseReason;

use crate::kit::common::{Answered, Bench, NEW, notify, read_now, respond};
use crate::kit::folder::Folder;
use crate::kit::processes::{PATIENCE, ended, events, find, process, read_until_in};
use crate::kit::relaying::{initialized, open_in, relay, relay_delete, serve, tool_call};

/// The owner's host at work, until it has dispatched something.
pub(super) fn dispatched(owner: &Bench, session: &SessionHandle, others: &[&Bench]) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let done = serve(session);
        if !done.is_empty() {
            return done;
        }
        assert!(Instant::now() < deadline, "what is relayed comes");
        owner.advance(1);
        others.iter().for_each(|bench| bench.advance(1));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Alice's session, once the store knows it.
pub(super) fn known(bench: &Bench) -> SessionHandle {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(session) = find(bench, "s", Some("alice")).unwrap() {
            return session;
        }
        assert!(Instant::now() < deadline, "the store knows the session");
    }
}

#[test]
fn everything_is_relayed_through_a_file() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_in(&here, NEW);
    let connection = relay(&known(&there), &tool_call(1));
    assert_eq!(dispatched(&here, &session, &[&there]), ["tools/call 1"]);
    notify(&session, 1, "a").unwrap();
    respond(&session, 1).unwrap();
    let answered = read_until_in(&[&there, &here], &connection, ended);
    assert_eq!((answered.status, answered.end), (Some(200), Some(CloseReason::Complete)));
    assert!(answered.frames()[0]["priming"].is_number(), "I5: {}", answered.text);
    assert_eq!(events(&answered), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})]);
    let accepted = relay(&known(&there), &initialized());
    assert_eq!(read_until_in(&[&there, &here], &accepted, ended).status, Some(202));
    assert_eq!(dispatched(&here, &session, &[&there]), ["notifications/initialized"]);
    let deleted = relay_delete(&known(&there));
    assert_eq!(dispatched(&here, &session, &[&there]), ["DELETE"]);
    assert_eq!(read_until_in(&[&there, &here], &deleted, ended).status, Some(200));
    drop((connection, accepted, deleted));
    assert_eq!((there.engine.stats().sessions, there.engine.stats().connections), (0, 0), "I11");
}

#[test]
fn many_calls_are_relayed_at_once_and_each_runs_once() {
    const CALLS: i64 = 300;
    let folder = Folder::new();
    let (here, there, third) = (process(&folder, 0), process(&folder, 50_000), process(&folder, 0));
    let session = open_in(&here, NEW);
    let known = [known(&there), known(&third)];
    let (all, benches) = ([&here, &there, &third], [&there, &third]);
    let connections: Vec<_> = (0..CALLS).map(|at| relay(&known[at as usize % 2], &tool_call(at))).collect();
    let mut begun = Vec::new();
    while begun.len() < connections.len() {
        for call in dispatched(&here, &session, &benches) {
            let number = call.rsplit(' ').next().unwrap().parse().unwrap();
            respond(&session, number).unwrap();
            begun.push(number);
        }
    }
    begun.sort_unstable();
    assert_eq!(begun, (0..CALLS).collect::<Vec<i64>>());
    for (at, connection) in (0..).zip(&connections) {
        let answered = read_until_in(&all, connection, ended);
        assert_eq!(events(&answered), [json!({"event": 1, "is": {"result": at}})]);
    }
    assert_eq!(read_now(&connections[0]).text, Answered::default().text);
}
