//! The engine's sessions: their ends, when they count as idle, and the drain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::engine::call_records::{ALICE, tool_call, try_admit};
use crate::kit::common::{
    Bench, NEW, OLD, ask, call, call_json, id, listen, notify, read_now, respond, resume, slow, unused,
};
use crate::kit::relaying::sign;
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, EngineError, NoWake, Options, Sent, SessionHandle};
use tailrope_core::exchange::{Request, Requester, Terms};
use tailrope_core::protocol::{Dialect, Reason, Refusal, RequestId, StreamNonce};
use tailrope_core::session::{OutgoingKind, Session, Steps};
use tailrope_core::store::Limits;
use tailrope_core::stream::{CloseReason, Drain, EventKind, Input, Pacing};

// Ends of sessions

#[test]
fn f_54_ending_a_session_ends_every_call_and_frees_everything() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let live = call(&session, 1);
    let detached = call(&session, 2);
    drop(detached);
    let batch = session.call(&[id(3), id(4)], None, Arc::new(NoWake), 0).unwrap();
    respond(&session, 4).unwrap();
    let finished = call(&session, 5);
    respond(&session, 5).unwrap();
    let standalone = listen(&session);
    let parked = listen(&session);
    for number in 1..=3 {
        notify(&session, number, "a").unwrap();
    }
    session.end();
    session.end();
    assert_eq!(bench.read(&live).frames()[2..], [json!({"tombstone": {"error": -32603, "id": 1}})]);
    assert_eq!(bench.read(&batch).frames()[3..], [json!({"tombstone": {"error": -32603, "id": 3}})]);
    assert_eq!(bench.read(&finished).frames()[1..], [json!({"event": 1, "is": {"result": 5}})]);
    for connection in [&standalone, &parked] {
        assert!(read_now(connection).end.is_some());
    }
    unused(&bench);
    assert_eq!(respond(&session, 1), Err(EngineError::SessionEnded));
    assert!(bench.engine.session("s", None).is_none() && !session.close_standalone(None, None));
    assert_eq!(session.listen(Arc::new(NoWake), 0).unwrap_err().status, 404);
    bench.session("s", NEW);
    assert_eq!(bench.engine.stats().sessions, 1, "the name is free again");
}

#[test]
fn a_session_that_ends_tells_a_client_that_has_read_nothing_yet_everything() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    for _ in 0..2_000 {
        notify(&session, 1, &"x".repeat(200)).unwrap();
    }
    session.end();
    let frames = bench.read(&connection).frames();
    assert_eq!(frames.len(), 1 + 2_000 + 1);
    assert_eq!(frames[2_001], json!({"tombstone": {"error": -32603, "id": 1}}));
}

#[test]
fn a_closed_engine_takes_nothing_and_a_forked_one_says_so() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.engine.close();
    assert!(bench.read(&connection).text.contains("-32603"));
    let opened = bench.engine.open_session("t", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0);
    assert!(matches!(opened, Err(EngineError::Closed)));
    unused(&bench);
    bench.engine.mark_forked();
    let opened = bench.engine.open_session("t", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0);
    assert!(matches!(opened, Err(EngineError::Forked)));
}

#[test]
fn a_child_of_a_fork_waits_for_no_lock_of_its_parent() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let (connection, lost) = (call(&session, 1), call(&session, 2));
    let hooks = bench.engine.hook_log();
    let looking_up =
        bench.engine.look_up_session("u", None, None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
    // What a thread of the parent holds when it forks is locked in the child, for ever: here the session and the store.
    store.stands_still.store(true, Ordering::SeqCst);
    let of_parent = session.clone();
    std::thread::spawn(move || notify(&of_parent, 1, "held"));
    while store.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let (told, tells) = channel();
    std::thread::spawn(move || {
        let engine = &bench.engine;
        engine.mark_forked();
        engine.tick();
        engine.drain(Drain::after(1));
        engine.close();
        engine.release();
        assert_eq!((engine.next_deadline(), engine.is_idle()), (Ms::NEVER, true));
        let stats = engine.stats();
        assert_eq!((stats.sessions, stats.streams, stats.sessions_opened), (0, 0, 1));
        assert!(engine.session("s", None).is_none());
        assert!(matches!(looking_up.take(), Some(Err(EngineError::Forked))));
        assert_eq!(notify(&session, 1, "x"), Err(EngineError::Forked));
        assert!(session.listen(Arc::new(NoWake), 0).is_err() && !session.close_standalone(None, None));
        assert!(connection.poll(1 << 20).chunks.is_empty());
        session.end();
        session.let_go();
        lost.lost();
        let (results, came) = channel();
        let stored = results.clone();
        hooks.store(
            "scope",
            "1",
            EventKind::Progress,
            "{}".into(),
            Box::new(move |id| stored.send(id.is_err()).unwrap()),
        );
        hooks.replay("scope", "an id", Box::new(move |replay| results.send(replay.is_err()).unwrap()));
        hooks.drop_scope("scope");
        assert_eq!(came.iter().collect::<Vec<_>>(), [true, true]);
        drop((looking_up, connection, lost, hooks, session, bench));
        told.send(()).unwrap();
    });
    assert_eq!(tells.recv_timeout(Duration::from_secs(30)), Ok(()), "nobody waits");
}

#[test]
fn i11_streams_are_forgotten_when_their_retention_is_over() {
    let limits = Limits { retention_ms: 10_000, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let calls: Vec<Connection> = (1..=50).map(|number| call(&session, number)).collect();
    let cursors: Vec<String> = calls.iter().map(|connection| bench.read(connection).last_id()).collect();
    for number in 1..=50 {
        respond(&session, number).unwrap();
    }
    drop(calls);
    assert_eq!(bench.engine.stats().streams, 50);
    let due = bench.engine.next_deadline();
    assert!(due > Ms(0), "{due}");
    for _ in 0..3 {
        bench.advance(bench.engine.due_in_ms().max(1_000));
    }
    bench.advance(20_000);
    bench.advance(20_000);
    assert_eq!((bench.engine.stats().streams, bench.engine.stats().bytes), (0, 0));
    let answered = bench.read(&resume(&session, &cursors[0]));
    assert_eq!(answered.frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
}

// Idle sessions

const IDLE_MS: u64 = 10_000;

fn idle_in_ms(session: &SessionHandle, idle_ms: u64) -> Option<u64> {
    session.set_idle_ms(idle_ms);
    session.idle_in_ms()
}

/// The ids of the sessions that a tick in `ms` tells as idle.
fn idle_after(bench: &Bench, ms: u64) -> Vec<String> {
    bench.clock.advance(ms);
    let mut idle: Vec<String> = bench.engine.tick().iter().map(|session| session.id().to_owned()).collect();
    idle.sort_unstable();
    idle
}

#[test]
fn i11_a_tick_tells_which_sessions_are_idle() {
    let bench = Bench::new(Options { session_idle_ms: IDLE_MS, max_detached_ms: 50_000, ..Options::default() });
    let (_quiet, heard, listening) = (bench.session("a", NEW), bench.session("b", NEW), bench.session("c", NEW));
    let longer = bench.session("d", NEW);
    longer.set_idle_ms(15_000);
    let never = bench.session("e", NEW);
    never.set_idle_ms(0);
    let standalone = listen(&listening);
    assert!(bench.engine.due_in_ms() <= IDLE_MS / 4, "what a handler does sets times that nobody tells the host");
    assert_eq!(idle_after(&bench, IDLE_MS - 1), Vec::<String>::new());
    sign(&heard);
    assert_eq!(idle_after(&bench, 1), ["a"]);
    assert_eq!(idle_after(&bench, 1), Vec::<String>::new(), "a host that keeps it is not told at every tick");
    assert_eq!(idle_after(&bench, 4_999), ["a", "d"], "but again");
    longer.end();
    assert_eq!(idle_after(&bench, 5_000), ["a", "b"]);
    standalone.lost();
    assert_eq!(idle_after(&bench, 49_999), ["a", "b"], "its client may come back");
    assert_eq!(idle_after(&bench, 10_000), ["a", "b", "c"]);
    let detached = call(&never, 1);
    detached.lost();
    assert_eq!(idle_after(&bench, 50_000), ["a", "b", "c", "e"], "its request runs without its client");
}

#[test]
fn i7_a_session_admits_requests_of_its_own_principal_alone() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    session.claim(&ALICE).unwrap();
    for named in [None, Some(""), Some("bob"), Some("Alice")] {
        let refusal = try_admit(&session, &tool_call(1), Requester { named, ..Requester::default() }).unwrap_err();
        assert_eq!((refusal.status, refusal.reason), (404, Reason::UnknownSession), "{named:?}");
    }
    assert!(try_admit(&session, &tool_call(1), ALICE).is_ok());
}

#[test]
fn i11_a_request_is_a_sign_of_its_own_client_alone() {
    let bench = Bench::new(Options { session_idle_ms: IDLE_MS, ..Options::default() });
    let session = bench.session("s", NEW);
    bench.advance(6_000);
    let asked = |named| {
        let requester = Requester { named, ..Requester::default() };
        let _refused = session.admit(&Request { requester, ..Request::default() }, &Terms::default());
        session.idle_in_ms()
    };
    assert_eq!(asked(Some("somebody else")), Some(IDLE_MS - 6_000));
    assert_eq!(asked(None), Some(IDLE_MS), "also one that is refused");
}

#[test]
fn i11_a_session_without_anything_is_idle_after_its_time() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(IDLE_MS));
    assert_eq!(idle_in_ms(&session, 0), None, "no idle time is set");
    bench.advance(4_000);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(IDLE_MS - 4_000));
    sign(&session);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(IDLE_MS), "a message is a sign of life");
    bench.advance(IDLE_MS + 1);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(0));
}

#[test]
fn f_51_a_session_with_an_open_connection_is_never_idle() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let standalone = listen(&session);
    bench.advance(24 * 3_600_000);
    assert_eq!(idle_in_ms(&session, IDLE_MS), None);
    drop(standalone);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(60_000), "its client may come back");
}

#[test]
fn f_51_a_running_request_keeps_its_session_until_max_detached_ms() {
    let bench = Bench::new(Options { max_detached_ms: 500_000, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert_eq!(idle_in_ms(&session, IDLE_MS), None);
    drop(connection);
    for idle_ms in [IDLE_MS, 0] {
        assert_eq!(idle_in_ms(&session, idle_ms), Some(500_000), "also where no idle time is set");
    }
    bench.advance(1_000);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(499_000));
    respond(&session, 1).unwrap();
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(59_000), "its result waits for its client");
}

#[test]
fn f_51_a_pending_poll_keeps_its_session_for_ten_retries() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    session.close_connection(&id(1), Some(20_000), None);
    assert_eq!(bench.read(&first).end, Some(CloseReason::Asked));
    let other = call(&session, 2);
    respond(&session, 2).unwrap();
    assert_eq!(bench.read(&other).end, Some(CloseReason::Complete));
    let detached = idle_in_ms(&session, IDLE_MS).unwrap();
    assert_eq!(detached, 3_600_000, "its request runs");
    session.cancelled(&id(1));
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(199_980), "its end waits for its client");
    let answered = call(&session, 3);
    session.close_connection(&id(3), Some(20_000), None);
    bench.read(&answered);
    assert_eq!(idle_in_ms(&session, 5_000_000), Some(3_600_000));
}

#[test]
fn f_51_a_pending_poll_keeps_its_session_also_when_its_stream_is_complete() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    session.close_connection(&id(1), Some(100_000), None);
    bench.read(&connection);
    respond(&session, 1).unwrap();
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(1_000_000), "its client was told to come back in 100 s");
}

#[test]
fn i7_a_cancellation_names_exactly_one_request() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connections = [call(&session, 1), call_json(&session, 2)];
    for text in ["1", "2"] {
        assert!(!session.cancelled(&RequestId::text_id(text)), "1 and \"1\" are two ids");
    }
    assert_eq!([respond(&session, 1), respond(&session, 2)], [Ok(Sent::Stored), Ok(Sent::Stored)]);
    drop(connections);
}

#[test]
fn i11_questions_without_an_answer_are_remembered_up_to_a_bound() {
    let mut session = Session::new(Ms(0), Pacing::default());
    let (nonce, _) = session.standalone_or(Ms(0), StreamNonce([1; 12]), &mut Steps::new());
    for (number, token) in (0..5_000).zip(1..) {
        let question = RequestId::integer(number);
        let mut steps = Steps::new();
        let payload = bytes::Bytes::from_static(b"{}");
        session.publish(Ms(0), nonce, OutgoingKind::Request, Some(&question), payload, token, &mut steps).unwrap();
        session.handle(Ms(0), nonce, Input::Appended, &mut steps).unwrap();
    }
    let mut is_known = |number| session.settle_question(&RequestId::integer(number)).is_some();
    let known = (0..5_000).filter(|number| is_known(*number)).collect::<Vec<i64>>();
    assert_eq!((known.len(), known[0]), (1_024, 3_976), "the oldest are forgotten first");
}

#[test]
fn i13_an_answer_under_the_text_of_a_number_settles_the_question_of_that_number() {
    let mut session = Session::new(Ms(0), Pacing::default());
    let (nonce, _) = session.standalone_or(Ms(0), StreamNonce([1; 12]), &mut Steps::new());
    let (own, payload) = (RequestId::integer(7), bytes::Bytes::from_static(b"{}"));
    session.publish(Ms(0), nonce, OutgoingKind::Request, Some(&own), payload, 1, &mut Steps::new()).unwrap();
    assert!(session.settle_question(&RequestId::text_id("07")).is_none());
    assert!(session.settle_question(&RequestId::text_id("7")).is_some());
    assert!(session.settle_question(&own).is_none());
}

#[test]
fn i11_forgotten_questions_leave_the_log_like_other_events() {
    let limits = Limits { max_events_per_stream: 2_000, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let cursor = bench.read(&call(&session, 1)).last_id();
    for number in 0..5_000 {
        ask(&session, 1, &format!("question {number}")).unwrap();
    }
    for _ in 0..2_000 {
        notify(&session, 1, "news").unwrap();
    }
    let frames = bench.read(&resume(&session, &cursor)).frames();
    let news = frames.iter().filter(|frame| frame.get("is") == Some(&json!("news"))).count();
    assert_eq!(news, 2_000 - 1_024, "only the questions that are remembered hold room");
}

#[test]
fn i11_the_oldest_question_is_forgotten_first_wherever_it_was_asked() {
    let limits = Limits { max_events_per_stream: 100, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let cursors: Vec<String> = (1..3).map(|number| bench.read(&call(&session, number)).last_id()).collect();
    for _ in 0..50 {
        notify(&session, 1, "news").unwrap();
    }
    ask(&session, 1, "first").unwrap();
    ask(&session, 2, "second").unwrap();
    let others = call(&session, 3);
    for number in 0..1_023 {
        ask(&session, 3, &format!("question {number}")).unwrap();
    }
    drop(others);
    for number in (1..3).flat_map(|number| [number; 200]) {
        notify(&session, number, "news").unwrap();
    }
    let is_there = |cursor: &String| bench.read(&resume(&session, cursor)).text.contains("roots/list");
    assert_eq!((is_there(&cursors[0]), is_there(&cursors[1])), (false, true));
}

#[test]
fn i11_a_session_has_so_many_requests_in_flight_and_no_more() {
    let bench = Bench::new(Options { max_requests_per_session: 3, ..Options::default() });
    let session = bench.session("s", NEW);
    let connections = [call(&session, 1), call_json(&session, 2)];
    let batch = |ids: &[i64]| {
        let ids: Vec<RequestId> = ids.iter().map(|number| RequestId::integer(*number)).collect();
        session.call(&ids, None, Arc::new(NoWake), 0).map_err(|refusal| refusal.status)
    };
    assert_eq!(batch(&[3, 4]).unwrap_err(), 429);
    let third = batch(&[3]).unwrap();
    assert_eq!(session.call_json(&[id(4)], None, Arc::new(NoWake), 0).unwrap_err().status, 429);
    assert_eq!(batch(&[4]).unwrap_err(), 429);
    // Another session is not concerned, and the next one fits when one has ended.
    call(&bench.session("t", NEW), 1);
    respond(&session, 2).unwrap();
    drop((batch(&[4]).unwrap(), third, connections));
}

#[test]
fn a_completed_call_leaves_nothing_pending() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&connection).end, Some(CloseReason::Complete));
    drop(connection);
    assert_eq!(idle_in_ms(&session, IDLE_MS), Some(IDLE_MS));
}

// Drain

#[test]
fn i11_a_drain_of_ten_thousand_streams_spreads_their_clients_over_its_time() {
    let bench = Bench::new(Options::default());
    let sessions: Vec<_> = (0..1_000).map(|number| bench.session(&number.to_string(), NEW)).collect();
    let calls: Vec<_> = sessions.iter().flat_map(|session| (1..=10).map(|number| call(session, number))).collect();
    bench.engine.drain(Drain { retry_ms: 5_000, spread_ms: 20_000 });
    let mut clients_in_a_second = [0; 20];
    for connection in &calls {
        let answered = bench.read(connection);
        assert_eq!(answered.end, Some(CloseReason::Drain));
        let retry_ms = answered.frames().iter().filter_map(|frame| frame["retry_ms"].as_u64()).next_back();
        let behind_ms = retry_ms.and_then(|retry_ms| retry_ms.checked_sub(5_000)).expect("no client comes earlier");
        clients_in_a_second[usize::try_from(behind_ms.min(19_999) / 1_000).unwrap()] += 1;
    }
    // Chance gives each second 500, and hardly ever a third more or less.
    assert!(clients_in_a_second.iter().all(|count| (350..=650).contains(count)), "{clients_in_a_second:?}");
    assert_eq!(bench.engine.stats().connections, 0);
}

#[test]
fn f_44_a_drain_closes_new_sessions_with_a_retry_and_waits_for_the_calls_of_old_ones() {
    let bench = Bench::new(Options::default());
    let new = bench.session("new", NEW);
    let old = bench.session("old", OLD);
    let new_call = call(&new, 1);
    let old_call = call(&old, 1);
    let json_call = call_json(&new, 2);
    let ending = call_json(&new, 3);
    let streams = [&new, &old].map(listen);
    let cursor = bench.read(&new_call).last_id();
    notify(&new, 1, "a").unwrap();
    notify(&old, 1, "a").unwrap();
    bench.engine.drain(Drain::after(5_000));
    assert!(bench.engine.is_draining());
    let answered = bench.read(&new_call);
    assert_eq!(answered.end, Some(CloseReason::Drain));
    assert_eq!(answered.frames()[0], json!({"event": 1, "is": "a"}));
    let retry_ms = answered.frames()[1]["retry_ms"].as_u64().unwrap();
    assert!((5_000..=7_500).contains(&retry_ms), "a floor, spread: {retry_ms}");
    for connection in &streams {
        assert_eq!(bench.read(connection).end, Some(CloseReason::Drain));
    }
    // What comes during the drain is answered and ended, too.
    let late = [resume(&new, &cursor), listen(&new), listen(&old), call(&new, 7)].map(|late| bench.read(&late));
    assert!(late.iter().all(|late| late.end == Some(CloseReason::Drain)), "{late:#?}");
    assert_eq!(late[0].frames()[1..2], [json!({"event": 1, "is": "a"})]);
    // A call whose client cannot be told to come back does not begin: its client asks again.
    let refused = |begun: Result<Connection, Refusal>| begun.expect_err("it is refused").status;
    assert_eq!(refused(old.call(&[id(7)], None, Arc::new(NoWake), 0)), 503);
    assert_eq!(refused(new.call_json(&[id(8)], None, Arc::new(NoWake), 0)), 503);
    // Nor does a session: its client opens one elsewhere, or when the server is there again.
    for revision in [OLD, NEW] {
        assert_eq!(refused(new.call(&[id(9)], Some(revision), Arc::new(NoWake), 0)), 503);
    }
    // Such calls that run already are waited for.
    assert_eq!((old.in_flight(), new.in_flight()), (1, 4));
    respond(&new, 3).unwrap();
    assert!(read_now(&ending).text.contains(r#""id":3"#));
    bench.advance(4_500);
    assert_eq!((read_now(&json_call).text, bench.engine.drained(None)), (String::new(), None));
    bench.advance(250);
    let answered = bench.read(&old_call);
    let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32603, "id": 1}})];
    assert_eq!((answered.frames(), answered.end), (want.to_vec(), Some(CloseReason::Complete)));
    assert!(read_now(&json_call).text.contains("-32603"));
    assert_eq!((old.in_flight(), new.in_flight()), (0, 2));
    let later = bench.session("later", NEW);
    assert_eq!(bench.read(&call(&later, 1)).end, Some(CloseReason::Drain));
    assert_eq!(bench.engine.stats().connections, 0);
    assert_eq!(respond(&new, 1), Ok(Sent::Stored), "the work of a call that can be resumed goes on");
}

#[test]
fn f_44_a_drain_of_one_session_leaves_the_others_alone() {
    let bench = Bench::new(Options::default());
    let [leaving, staying] = ["leaving", "staying"].map(|id| bench.session(id, NEW));
    let calls = [&leaving, &staying].map(|session| call(session, 1));
    leaving.drain();
    assert!(!bench.engine.is_draining());
    assert_eq!(bench.read(&calls[0]).end, Some(CloseReason::Drain));
    // What comes later, too.
    assert_eq!(bench.read(&call(&leaving, 2)).end, Some(CloseReason::Drain));
    assert_eq!(leaving.call_json(&[id(3)], None, Arc::new(NoWake), 0).expect_err("it is refused").status, 503);
    assert_eq!(leaving.in_flight(), 2);
    notify(&staying, 1, "a").unwrap();
    let answered = bench.read(&calls[1]);
    assert_eq!((answered.frames().pop(), answered.end), (Some(json!({"event": 1, "is": "a"})), None));
}
