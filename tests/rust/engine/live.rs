//! The live page's snapshots: what they show, that no payload is in them, that they are bounded, and that nothing is
//! remembered while nobody looks.

use std::sync::Arc;

use serde_json::{Value, json};
use tailrope_core::engine::{Connection, NoWake, Options, OutgoingMessage, SessionHandle};
use tailrope_core::exchange::Requester;
use tailrope_core::store::Limits;
use tailrope_core::stream::Drain;

use crate::engine::call_records::{ALICE, SECRET, admit, tool_call};
use crate::kit::common::{Bench, NEW, id, notify, respond, resume};
use crate::kit::tasks;

const NAMED: Requester<'static> = Requester { log_user: Some("Alice of Acme"), ..ALICE };

/// A snapshot as the page reads it. What no snapshot may show is looked for in each.
fn snapshot(bench: &Bench) -> Value {
    let text = bench.engine.live_snapshot().expect("the engine is open");
    for hidden in [SECRET, "a-token", "arguments", "progressToken"] {
        assert!(!text.contains(hidden), "{text}");
    }
    serde_json::from_str(&text).expect("it is JSON")
}

fn call(session: &SessionHandle, number: i64, requester: Requester<'_>) -> Connection {
    let admission = admit(session, &tool_call(number), requester);
    session.open(&admission, false, Arc::new(NoWake), 0).expect("it may begin")
}

fn session_of_alice(bench: &Bench) -> SessionHandle {
    let session = bench.session("s", NEW);
    session.claim(&ALICE).unwrap();
    session
}

fn progress(session: &SessionHandle) {
    let payload =
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"message": SECRET}}).to_string();
    session.send(OutgoingMessage::notification(Some(&id(1)), payload.as_bytes())).unwrap();
}

#[test]
fn a_call_is_shown_with_its_connections_closes_losses_and_resumes_until_it_has_ended_and_no_payload_ever() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    session.claim(&NAMED).unwrap();
    let first = call(&session, 1, NAMED);
    bench.advance(100);
    // It came before anybody looked.
    let shown = snapshot(&bench);
    let row = &shown["calls"][0];
    let wanted = json!(["tools/call", "echo", "1", "Alice of Acme", "connected", 100, [[0, null, null, 0]]]);
    assert_eq!(
        json!([row["method"], row["tool"], row["request"], row["user"], row["state"], row["age_ms"], row["spans"]]),
        wanted
    );
    let sessions = &shown["sessions"];
    assert_eq!((&sessions[0]["user"], &sessions[0]["running"]), (&json!("Alice of Acme"), &json!(1)));
    assert_ne!(sessions[0]["session"], "s", "the id is a credential");

    progress(&session);
    let cursor = bench.read(&first).last_id();
    session.close_connection(&id(1), None, None);
    bench.read(&first);
    bench.advance(1_000);
    let row = &snapshot(&bench)["calls"][0];
    assert_eq!((&row["state"], &row["events"]), (&json!("awaited"), &json!(1)));
    assert_eq!((&row["spans"][0][2], &row["spans"][0][1]), (&json!("asked"), &json!(1_000)));

    let second = resume(&session, &cursor);
    bench.read(&second);
    drop(second);
    let shown = snapshot(&bench);
    let row = &shown["calls"][0];
    assert_eq!(json!([row["spans"][1][2], row["spans"][1][3], row["resumes"]]), json!(["lost", 1, 1]));
    assert_eq!(shown["reads"], json!({"connected": 0, "elsewhere": 0, "awaited": 1, "away": 0, "json": 0}));
    assert_eq!((&shown["stats"]["closes_asked"], &shown["stats"]["connections_lost"]), (&json!(1), &json!(1)));

    let third = resume(&session, &cursor);
    session
        .send(OutgoingMessage::response(
            &id(1),
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{SECRET}"}}"#).as_bytes(),
        ))
        .unwrap();
    bench.read(&third);
    let shown = snapshot(&bench);
    assert_eq!((&shown["calls"], &shown["all_calls"]), (&json!([]), &json!(0)));
    let row = &shown["ended"][0];
    let spans: Value = row["spans"].as_array().unwrap().iter().map(|span| span[2].clone()).collect();
    assert_eq!(
        (&row["outcome"], &row["weight"], spans),
        (&json!("result"), &json!("well"), json!(["asked", "lost", "complete"]))
    );
    assert_eq!(bench.engine.stats().calls_result, 1);
}

#[test]
fn a_user_is_named_only_by_the_function_for_that() {
    let bench = Bench::new(Options::default());
    let session = session_of_alice(&bench);
    let _first = call(&session, 1, ALICE);
    let shown = snapshot(&bench);
    assert_eq!((&shown["calls"][0]["user"], &shown["sessions"][0]["user"]), (&Value::Null, &Value::Null));
    assert!(!shown.to_string().contains("alice"));
}

#[test]
fn gaps_and_calls_that_end_badly_are_shown_with_why() {
    let limits = Limits { max_events_per_stream: 2, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = session_of_alice(&bench);
    snapshot(&bench);
    let first = call(&session, 1, ALICE);
    let cursor = bench.read(&first).last_id();
    drop(first);
    for name in ["a", "b", "c"] {
        notify(&session, 1, name).unwrap();
    }
    let second = resume(&session, &cursor);
    bench.read(&second);
    let row = &snapshot(&bench)["calls"][0];
    assert_eq!(json!([row["gaps"], row["lost"][0][1]]), json!([1, 1]));
    assert!(session.cancelled(&id(1)));
    let row = &snapshot(&bench)["ended"][0];
    assert_eq!(json!([row["outcome"], row["weight"], row["cause"]]), json!(["cancelled", "told", "Request cancelled"]));
}

#[test]
fn nothing_is_remembered_before_somebody_looks_and_after_nobody_does() {
    let bench = Bench::new(Options::default());
    let session = session_of_alice(&bench);
    let ran = |number: i64| {
        let connection = call(&session, number, ALICE);
        respond(&session, number).unwrap();
        bench.read(&connection);
    };
    ran(1);
    assert_eq!(snapshot(&bench)["ended"], json!([]));
    ran(2);
    assert_eq!(snapshot(&bench)["ended"][0]["request"], "2");
    bench.advance(150_000);
    ran(3);
    let shown = snapshot(&bench);
    assert_eq!(
        (&shown["ended"], &shown["watched_ms"], &shown["stats"]["calls_result"]),
        (&json!([]), &json!(0), &json!(3))
    );
}

#[test]
fn a_snapshot_is_bounded_however_many_sessions_there_are() {
    let bench = Bench::new(Options::default());
    let sessions: Vec<_> = (0..1_000).map(|number| bench.session(&format!("s{number}"), NEW)).collect();
    let open = |session: &SessionHandle| {
        bench.clock.advance(1);
        call(session, 1, Requester::default())
    };
    let _connections: Vec<_> = sessions.iter().map(open).collect();
    let shown = snapshot(&bench);
    let rows = |name: &str| shown[name].as_array().unwrap().len();
    assert_eq!((rows("calls"), rows("sessions"), rows("ended")), (200, 100, 0));
    assert_eq!((&shown["all_calls"], &shown["all_sessions"]), (&json!(1_000), &json!(1_000)));
    assert_eq!((&shown["reads"]["connected"], &shown["calls"][0]["age_ms"]), (&json!(1_000), &json!(0)));
    assert!(shown.to_string().len() < 100_000);
}

#[test]
fn a_task_is_shown_by_its_tool_and_how_it_stands() {
    let bench = Bench::new(Options::default());
    let caller = tasks::open(&bench);
    assert_eq!(snapshot(&bench)["tasks"], json!([]));
    caller.become_task(&bench);
    let shown = snapshot(&bench);
    let task = &shown["tasks"][0];
    assert_eq!((&task["tool"], &task["status"], &shown["all_tasks"]), (&json!("slow"), &json!("working"), &json!(1)));
}

#[test]
fn a_drain_is_shown_and_a_closed_engine_shows_nothing() {
    let bench = Bench::new(Options::default());
    assert_eq!((&snapshot(&bench)["draining_ms"], &snapshot(&bench)["health"]["status"]), (&Value::Null, &json!("ok")));
    let engine_id = snapshot(&bench)["id"].clone();
    bench.engine.drain(Drain::after(1));
    bench.clock.advance(70);
    let shown = snapshot(&bench);
    assert_eq!(
        json!([shown["draining_ms"], shown["health"]["drain"]["draining"], shown["id"]]),
        json!([70, true, engine_id])
    );
    bench.engine.close();
    assert_eq!(bench.engine.live_snapshot(), None);
}
