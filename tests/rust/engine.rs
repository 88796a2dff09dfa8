//! The engine with a clock that stands still: what it sends, when it counts a session as idle, what
//! a slow or broken store does to it, and that no wake-up is lost.

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Answered, Bell, Bench, NEW, OLD, SECRET, SlowStore, notification, read_now, response};
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{
    Connection, Engine, EngineError, NoWake, Options, OutgoingMessage, Sent, SessionHandle, Wake,
};
use tailrope_core::protocol::jsonrpc::read;
use tailrope_core::protocol::{Cursor, Dialect, EventId, IdEncoder, RequestId, Revision, StreamNonce};
use tailrope_core::session::{OutgoingKind, Session};
use tailrope_core::store::Limits;
use tailrope_core::stream::{CloseReason, Input, Pacing};

fn id(number: i64) -> RequestId {
    RequestId::integer(number)
}

fn call(session: &SessionHandle, number: i64) -> Connection {
    session.call(&[id(number)], None, Arc::new(NoWake), 0).expect("the id is free")
}

fn call_json(session: &SessionHandle, number: i64) -> Connection {
    session.call_json(&id(number), None, Arc::new(NoWake), 0).expect("the id is free")
}

fn listen(session: &SessionHandle) -> Connection {
    session.listen(Arc::new(NoWake), 0).expect("the session is open")
}

fn resume(session: &SessionHandle, last_event_id: &str) -> Connection {
    session.resume(last_event_id, None, Arc::new(NoWake), 0).expect("the id is of our form")
}

fn notify(session: &SessionHandle, number: i64, name: &str) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::notification(Some(&id(number)), &notification(name)))
}

fn respond(session: &SessionHandle, number: i64) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::response(&id(number), &response(&id(number))))
}

fn ask(session: &SessionHandle, number: i64, question: &str) -> Result<Sent, EngineError> {
    let question = RequestId::text_id(question);
    let payload = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list"}}"#, question.to_json());
    session.send(OutgoingMessage::request(&question, Some(&id(number)), payload.as_bytes()))
}

fn slow(options: Options) -> (Bench, Arc<SlowStore>) {
    let store = SlowStore::new(Limits::default());
    (Bench::new(Options { store: Some(Arc::clone(&store) as _), ..options }), store)
}

fn unused(bench: &Bench) {
    let stats = bench.engine.stats();
    assert_eq!((stats.sessions, stats.connections, stats.streams, stats.events, stats.bytes), (0, 0, 0, 0, 0));
}

// Bytes

#[test]
fn the_bytes_of_a_call_are_those_of_the_design() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    respond(&session, 1).unwrap();
    let answered = bench.read(&connection);
    let ids = answered.ids();
    let Some(EventId::Position(first)) = EventId::parse(&ids[0]) else { panic!("{}", ids[0]) };
    let Some(EventId::Position(Cursor { nonce, seq: 1, visit: 0, tag, origin })) = EventId::parse(&ids[1]) else {
        panic!("{}", ids[1])
    };
    assert_eq!((first.nonce, first.seq, first.visit, &first.origin), (nonce, 0, 0, &origin));
    let mut written = Vec::new();
    IdEncoder::new(nonce, &origin).encode(1, 0, tag, &mut written);
    assert_eq!(ids[1].as_bytes(), written);
    let text = format!(
        "id: {}\nretry: 3000\ndata: \n\n\
         id: {}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/a\"}}\n\n\
         id: {}\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{}}}}\n\n",
        ids[0], ids[1], ids[2]
    );
    let want =
        Answered { status: Some(200), content_type: Some("text/event-stream"), text, end: Some(CloseReason::Complete) };
    assert_eq!(answered, want);
    // Message ids are the same bytes for every reader.
    let again = bench.read(&resume(&session, &ids[0]));
    assert_eq!(again.ids()[1..], ids[1..]);
    assert_ne!(again.ids()[0], ids[0], "an echo has another id than its cursor");
}

#[test]
fn f_61_line_separators_in_a_payload_are_escaped() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let payload = "{\"jsonrpc\":\"2.0\",\r\n\"method\":\"\u{2028}\u{2029}\u{85}\"}";
    session.send(OutgoingMessage::notification(Some(&id(1)), payload.as_bytes())).unwrap();
    let text = bench.read(&connection).text;
    assert!(text.ends_with("data: {\"jsonrpc\":\"2.0\",\"method\":\"\\u2028\\u2029\\u0085\"}\n\n"), "{text}");
}

#[test]
fn i10_a_reader_is_handed_a_bounded_number_of_bytes_at_once() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    for _ in 0..1_000 {
        notify(&session, 1, &"x".repeat(1_000)).unwrap();
    }
    respond(&session, 1).unwrap();
    let mut events = 0;
    loop {
        let poll = connection.poll(10_000);
        assert!(poll.len() <= 10_200, "{}", poll.len());
        events += poll.text().matches("\ndata: {").count();
        if poll.end.is_some() {
            break;
        }
    }
    assert_eq!(events, 1_001);
}

#[test]
fn i7_the_same_ids_in_two_sessions_are_two_calls() {
    let bench = Bench::new(Options::default());
    let sessions = ["s", "t"].map(|name| bench.session(name, NEW));
    let connections = sessions.each_ref().map(|session| call(session, 1));
    notify(&sessions[0], 1, "a").unwrap();
    respond(&sessions[1], 1).unwrap();
    assert_eq!(bench.read(&connections[0]).frames()[1..], [json!({"event": 1, "is": "a"})]);
    assert_eq!(bench.read(&connections[1]).frames()[1..], [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn i7_another_principal_finds_no_session() {
    let bench = Bench::new(Options::default());
    let wake = Arc::new(NoWake);
    let opened = bench.engine.open_session("s", Some("alice"), &Dialect::MCP_PYTHON_2, wake.clone(), 0);
    assert!(opened.is_ok());
    assert!(bench.engine.session("s", Some("alice")).is_some());
    for principal in [None, Some("bob"), Some("")] {
        assert!(bench.engine.session("s", principal).is_none());
        assert!(bench.engine.session("never there", principal).is_none());
    }
    let again = bench.engine.open_session("s", Some("bob"), &Dialect::MCP_PYTHON_2, wake, 0);
    assert!(matches!(again, Err(EngineError::SessionExists)));
}

// Routing

#[test]
fn i13_a_late_message_of_an_answered_request_is_dropped() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert_eq!(respond(&session, 1), Ok(Sent::Stored));
    assert_eq!(respond(&session, 1), Ok(Sent::Dropped));
    assert_eq!(notify(&session, 1, "late"), Ok(Sent::Dropped));
    assert_eq!(ask(&session, 1, "q"), Err(EngineError::Finished), "nobody could answer");
    assert!(!session.cancelled(&id(1)) && !session.close_connection(&id(1), None, None));
    assert_eq!(bench.read(&connection).frames().len(), 2);
    assert_eq!(bench.engine.stats().messages_late, 3);
}

#[test]
fn i13_a_response_after_the_cancellation_is_dropped() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert!(session.cancelled(&id(1)) && !session.cancelled(&id(1)));
    assert_eq!(respond(&session, 1), Ok(Sent::Dropped));
    let answered = bench.read(&connection);
    assert_eq!(answered.frames()[1..], [json!({"tombstone": {"error": -32800, "id": 1}})]);
    assert_eq!(session.in_flight(), 0);
    call(&session, 1);
}

#[test]
fn a_related_id_that_could_mean_two_requests_means_none() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let text = RequestId::text_id("1");
    let [number, other] = [id(1), text.clone()].map(|id| session.call(&[id], None, Arc::new(NoWake), 0).unwrap());
    assert_eq!(session.find_request(&id(1)), Some(id(1)));
    assert_eq!(session.find_request(&text), Some(text));
    respond(&session, 1).unwrap();
    assert_eq!(session.find_request(&id(1)), Some(RequestId::text_id("1")), "the only one with this text");
    assert_eq!(session.find_request(&id(2)), None);
    drop((number, other));
}

#[test]
fn an_initialize_stream_has_the_asked_revision_and_later_ones_the_negotiated() {
    let negotiated = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
    for json_answer in [false, true] {
        let bench = Bench::new(Options::default());
        let wake = Arc::new(NoWake);
        let session = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, wake.clone(), 0).unwrap();
        let asked = Some(Revision::V2025_11_25);
        let connection = match json_answer {
            true => session.call_json(&id(0), asked, wake, 0).unwrap(),
            false => session.call(&[id(0)], asked, wake, 0).unwrap(),
        };
        assert_eq!(session.revision(), asked);
        session.send(OutgoingMessage::response(&id(0), negotiated)).unwrap();
        let answered = bench.read(&connection);
        assert_eq!(answered.text.contains("retry: "), !json_answer, "{}", answered.text);
        assert_eq!(session.revision(), Some(Revision::V2025_06_18));
        let connection = call(&session, 1);
        assert_eq!(bench.read(&connection).frames(), [json!({"comment": "keep-alive"})]);
    }
}

#[test]
fn a_lost_standalone_stream_starts_again_with_what_the_server_announces() {
    let bench = Bench::new(Options::default());
    let result = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25",
        "capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"listChanged":true}}}}"#;
    let sessions = ["s", "t"].map(|name| {
        let session = bench.session(name, NEW);
        let _connection = session.call(&[id(0)], Some(NEW), Arc::new(NoWake), 0).unwrap();
        session.send(OutgoingMessage::response(&id(0), result)).unwrap();
        session
    });
    let standalone = listen(&sessions[0]);
    let lost = resume(&sessions[1], &bench.read(&standalone).last_id());
    let want = [
        json!({"priming": 0, "retry_ms": 3000}),
        json!({"anonymous": "tools/list_changed"}),
        json!({"anonymous": "resources/list_changed"}),
    ];
    assert_eq!(bench.read(&lost).frames(), want);
    let stats = bench.engine.stats();
    assert_eq!((stats.resumes_lost, stats.resumes_accepted), (1, 0));
}

// Answers in JSON

#[test]
fn a_json_answer_is_the_response_and_nothing_is_stored() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call_json(&session, 1);
    assert!(session.call(&[id(1)], None, Arc::new(NoWake), 0).is_err(), "F-08");
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Dropped));
    assert_eq!(read_now(&connection), Answered::default());
    assert_eq!(respond(&session, 1), Ok(Sent::Stored));
    let answered = read_now(&connection);
    assert_eq!((answered.status, answered.content_type), (Some(200), Some("application/json")));
    assert_eq!(answered.text, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!((session.in_flight(), bench.engine.stats().events), (0, 0));
    let lost = call_json(&session, 2);
    drop(lost);
    assert_eq!(session.in_flight(), 1, "I12: a lost connection cancels nothing");
    assert_eq!(respond(&session, 2), Ok(Sent::Stored));
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn a_json_call_gets_an_end_when_it_is_cancelled_and_when_its_session_ends() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let [cancelled, ended] = [1, 2].map(|number| call_json(&session, number));
    assert!(session.cancelled(&id(1)));
    session.end();
    let answered = [cancelled, ended].map(|connection| read_now(&connection));
    assert_eq!(answered[0].status, Some(200));
    assert!(answered[0].text.contains("-32800"), "{}", answered[0].text);
    assert_eq!(answered[1].status, Some(500));
    assert!(answered[1].text.contains("Session terminated"), "{}", answered[1].text);
}

// Questions

fn answer_question(session: &SessionHandle, question: &str) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{question:?},"result":{{"roots":[]}}}}"#);
    session.received(read(body.as_bytes()).unwrap().envelopes());
}

#[test]
fn a_question_is_kept_until_it_is_answered() {
    let limits = Limits { max_events_per_stream: 3, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    let cursor = bench.read(&first).last_id();
    ask(&session, 1, "answered").unwrap();
    ask(&session, 1, "open").unwrap();
    answer_question(&session, "answered");
    answer_question(&session, "never asked");
    for name in ["a", "b", "c"] {
        notify(&session, 1, name).unwrap();
    }
    let frames = bench.read(&resume(&session, &cursor)).frames();
    let want = [
        json!({"priming": 0, "retry_ms": 3000}),
        json!({"gap": {"first": 1, "count": 1}}),
        json!({"event": 2, "is": "roots/list"}),
        json!({"gap": {"first": 3, "count": 1}}),
        json!({"event": 4, "is": "b"}),
        json!({"event": 5, "is": "c"}),
    ];
    assert_eq!(frames, want);
}

#[test]
fn a_question_is_found_where_it_is_stored_not_where_it_was_expected() {
    let store = SlowStore::new(Limits { max_events_per_stream: 2, ..Limits::default() });
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    let cursor = bench.read(&first).last_id();
    store.set(true, false);
    notify(&session, 1, "lost").unwrap();
    ask(&session, 1, "answered").unwrap();
    ask(&session, 1, "open").unwrap();
    store.answer(false);
    store.answer_all();
    store.set(false, false);
    answer_question(&session, "answered");
    for name in ["a", "b"] {
        notify(&session, 1, name).unwrap();
    }
    let frames = bench.read(&resume(&session, &cursor)).frames();
    assert_eq!(frames[1..3], [json!({"gap": {"first": 1, "count": 1}}), json!({"event": 2, "is": "roots/list"})]);
}

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
fn i11_sessions_are_bounded() {
    let bench = Bench::new(Options { max_sessions: 2, ..Options::default() });
    let sessions = ["a", "b"].map(|name| bench.session(name, NEW));
    let open = |name| bench.engine.open_session(name, None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0);
    assert!(matches!(open("c"), Err(EngineError::TooManySessions { max: 2 })));
    sessions[0].end();
    assert!(open("c").is_ok());
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

#[test]
fn i11_a_session_without_anything_is_idle_after_its_time() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(IDLE_MS));
    assert_eq!(session.idle_in_ms(None), None, "no idle time is set");
    bench.advance(4_000);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(IDLE_MS - 4_000));
    session.received(&[]);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(IDLE_MS), "a message is a sign of life");
    bench.advance(IDLE_MS + 1);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(0));
}

#[test]
fn f_51_a_session_with_an_open_connection_is_never_idle() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let standalone = listen(&session);
    bench.advance(24 * 3_600_000);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), None);
    drop(standalone);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(60_000), "its client may come back");
}

#[test]
fn f_51_a_running_request_keeps_its_session_until_max_detached_ms() {
    let bench = Bench::new(Options { max_detached_ms: 500_000, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), None);
    drop(connection);
    for idle_ms in [Some(IDLE_MS), None] {
        assert_eq!(session.idle_in_ms(idle_ms), Some(500_000), "also where no idle time is set");
    }
    bench.advance(1_000);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(499_000));
    respond(&session, 1).unwrap();
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(59_000), "its result waits for its client");
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
    let detached = session.idle_in_ms(Some(IDLE_MS)).unwrap();
    assert_eq!(detached, 3_600_000, "its request runs");
    session.cancelled(&id(1));
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(199_995), "its end waits for its client");
    let answered = call(&session, 3);
    session.close_connection(&id(3), Some(20_000), None);
    bench.read(&answered);
    assert_eq!(session.idle_in_ms(Some(5_000_000)), Some(3_600_000));
}

#[test]
fn f_51_a_pending_poll_keeps_its_session_also_when_its_stream_is_complete() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    session.close_connection(&id(1), Some(100_000), None);
    bench.read(&connection);
    respond(&session, 1).unwrap();
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(1_000_000), "its client was told to come back in 100 s");
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
    let mut session = Session::new(Ms(0), None, Pacing::default());
    let (nonce, _) = session.standalone_or(Ms(0), StreamNonce([1; 12]), &mut Vec::new());
    for number in 0..5_000 {
        let question = RequestId::integer(number);
        let mut steps = Vec::new();
        let payload = bytes::Bytes::from_static(b"{}");
        session.publish(Ms(0), nonce, OutgoingKind::Request, Some(&question), payload, 1, &mut steps).unwrap();
        session.handle(Ms(0), nonce, Input::Appended, &mut steps).unwrap();
    }
    let mut is_known = |number| session.settle_question(&RequestId::integer(number)).is_some();
    let known = (0..5_000).filter(|number| is_known(*number)).collect::<Vec<i64>>();
    assert_eq!((known.len(), known[0]), (1_024, 3_976), "the oldest are forgotten first");
}

#[test]
fn a_completed_call_leaves_nothing_pending() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&connection).end, Some(CloseReason::Complete));
    drop(connection);
    assert_eq!(session.idle_in_ms(Some(IDLE_MS)), Some(IDLE_MS));
}

// Drain

#[test]
fn f_44_a_drain_closes_new_sessions_with_a_retry_and_ends_the_calls_of_old_ones() {
    let bench = Bench::new(Options::default());
    let new = bench.session("new", NEW);
    let old = bench.session("old", OLD);
    let new_call = call(&new, 1);
    let old_call = call(&old, 1);
    let json_call = call_json(&new, 2);
    let streams = [&new, &old].map(listen);
    let cursor = bench.read(&new_call).last_id();
    notify(&new, 1, "a").unwrap();
    notify(&old, 1, "a").unwrap();
    bench.engine.drain(5_000);
    assert!(bench.engine.is_draining());
    let answered = bench.read(&new_call);
    assert_eq!(answered.end, Some(CloseReason::Drain));
    assert_eq!(answered.frames()[0], json!({"event": 1, "is": "a"}));
    let retry_ms = answered.frames()[1]["retry_ms"].as_u64().unwrap();
    assert!((5_000..=7_500).contains(&retry_ms), "a floor, spread: {retry_ms}");
    let answered = bench.read(&old_call);
    let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32603, "id": 1}})];
    assert_eq!((answered.frames(), answered.end), (want.to_vec(), Some(CloseReason::Complete)));
    assert!(read_now(&json_call).text.contains("-32603"));
    for connection in &streams {
        assert_eq!(bench.read(connection).end, Some(CloseReason::Drain));
    }
    // What comes during the drain is answered and ended, too.
    let late = [resume(&new, &cursor), listen(&new), listen(&old), call(&new, 7)].map(|late| bench.read(&late));
    assert!(late.iter().all(|late| late.end == Some(CloseReason::Drain)), "{late:#?}");
    assert_eq!(late[0].frames()[1..2], [json!({"event": 1, "is": "a"})]);
    let old_late = bench.read(&call(&old, 7));
    assert_eq!(old_late.frames(), [json!({"tombstone": {"error": -32603, "id": 7}})]);
    assert!(read_now(&call_json(&new, 8)).text.contains("-32603"));
    let later = bench.session("later", NEW);
    assert_eq!(bench.read(&call(&later, 1)).end, Some(CloseReason::Drain));
    assert_eq!(bench.engine.stats().connections, 0);
    assert_eq!(respond(&new, 1), Ok(Sent::Stored), "the work of a call that can be resumed goes on");
}

// Stores that wait, and stores that fail

#[test]
fn i1_nothing_is_sent_before_the_store_has_it() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    assert!(matches!(notify(&session, 1, "a"), Ok(Sent::Pending(_))));
    assert_eq!(bench.read(&connection).frames(), [] as [serde_json::Value; 0]);
    assert!(session.take_outcomes().is_empty());
    store.answer(true);
    assert!(read_now(&connection).text.is_empty(), "the store is asked for it");
    store.answer(true);
    assert_eq!(bench.read(&connection).frames(), [json!({"event": 1, "is": "a"})]);
    let outcomes = session.take_outcomes();
    assert!(matches!(outcomes[..], [(_, Ok(()))]), "{outcomes:?}");
}

#[test]
fn i2_f_12_events_are_sent_in_the_order_of_publishing() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connections = [1, 2].map(|number| call(&session, number));
    store.set(true, false);
    for round in 0..5 {
        notify(&session, 1, &format!("a{round}")).unwrap();
        notify(&session, 2, &format!("b{round}")).unwrap();
    }
    respond(&session, 1).unwrap();
    while store.pending() > 0 {
        // The youngest operation first: streams do not wait for each other.
        store.answer_nth(store.pending() - 1, true);
    }
    store.set(false, false);
    let first = bench.read(&connections[0]);
    let events = (0..5).map(|round| json!({"event": round + 1, "is": format!("a{round}")}));
    assert_eq!(first.frames()[1..6], events.collect::<Vec<_>>());
    assert_eq!(first.frames()[6], json!({"event": 6, "is": {"result": 1}}));
    assert_eq!(bench.read(&connections[1]).frames().len(), 6);
}

#[test]
fn f_58_a_store_fault_harms_one_event_and_is_raised_to_its_handler() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    store.set(false, true);
    let Err(EngineError::Store(error)) = notify(&session, 1, "lost") else { panic!("the handler is told") };
    assert!(error.to_string().contains(SECRET), "the server's own log may know");
    assert!(matches!(ask(&session, 1, "lost"), Err(EngineError::Store(_))));
    store.set(false, false);
    notify(&session, 1, "b").unwrap();
    respond(&session, 1).unwrap();
    let answered = bench.read(&connection);
    let want =
        [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})];
    assert_eq!(answered.frames()[1..], want);
    assert_eq!(bench.engine.stats().events_unstored, 2);
}

#[test]
fn f_59_a_response_that_the_store_does_not_take_is_an_error_for_the_client_and_none_for_the_sdk() {
    for waits in [false, true] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        let connection = call(&session, 1);
        store.set(waits, !waits);
        let sent = respond(&session, 1);
        if waits {
            assert!(matches!(sent, Ok(Sent::Pending(_))));
            store.answer(false);
            assert!(matches!(session.take_outcomes()[..], [(_, Ok(()))]), "the caller has nothing left to do");
        } else {
            assert_eq!(sent, Ok(Sent::Dropped));
        }
        store.set(false, false);
        let answered = bench.read(&connection);
        assert_eq!(answered.frames()[1..], [json!({"tombstone": {"error": -32603, "id": 1}})]);
        assert!(!answered.text.contains("db.internal"), "I9: no detail of the store");
        let again = bench.read(&resume(&session, &answered.ids()[0]));
        assert_eq!(again.frames()[1..], [json!({"tombstone": {"error": -32603, "id": 1}})]);
        let next = call(&session, 2);
        assert_eq!(respond(&session, 2), Ok(Sent::Stored));
        assert_eq!(bench.read(&next).frames().len(), 2, "F-58: later calls work");
    }
}

#[test]
fn f_59_an_answer_of_a_batch_that_is_lost_is_told_at_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    store.set(false, true);
    assert_eq!(respond(&session, 2), Ok(Sent::Dropped));
    store.set(false, false);
    respond(&session, 1).unwrap();
    session.cancelled(&id(3));
    let answered = bench.read(&connection);
    let errors = json!([{"error": -32603, "id": 2}, {"error": -32800, "id": 3}]);
    assert_eq!(answered.frames()[1..], [json!({"event": 1, "is": {"result": 1}}), json!({"tombstone": errors})]);
    assert_eq!(answered.end, Some(CloseReason::Complete));
}

#[test]
fn f_59_answers_of_a_batch_that_are_lost_together_are_told_at_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    store.set(true, false);
    for number in [1, 2, 3] {
        respond(&session, number).unwrap();
    }
    // The first alone; then both others in one batch, which fails, and one by one.
    for succeed in [true, false, false, true] {
        store.answer(succeed);
    }
    store.set(false, false);
    let frames = bench.read(&connection).frames();
    let want = [
        json!({"event": 1, "is": {"result": 1}}),
        json!({"event": 2, "is": {"result": 3}}),
        json!({"tombstone": {"error": -32603, "id": 2}}),
    ];
    assert_eq!(frames[1..], want);
}

#[test]
fn a_log_that_cannot_be_created_is_an_error_for_its_call() {
    for waits in [false, true] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        store.set(waits, !waits);
        let connection = call(&session, 1);
        assert_eq!(bench.read(&connection).text.is_empty(), waits, "nothing is sent before the log exists");
        store.answer(false);
        store.set(false, false);
        assert_eq!(respond(&session, 1), Ok(Sent::Dropped));
        let frames = bench.read(&connection).frames();
        assert_eq!(frames.last(), Some(&json!({"tombstone": {"error": -32603, "id": 1}})));
    }
}

#[test]
fn f_10_a_resume_while_an_append_is_under_way_gets_each_event_once() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = bench.read(&first).last_id();
    drop(first);
    store.set(true, false);
    notify(&session, 1, "b").unwrap();
    let second = resume(&session, &cursor);
    assert_eq!(read_now(&second).status, None, "the store has not said how the answer starts");
    // The append, then the read that began before it.
    store.answer(true);
    store.answer(true);
    assert_eq!(read_now(&second).frames(), [json!({"priming": 1, "retry_ms": 3000})]);
    store.answer(true);
    assert_eq!(read_now(&second).frames(), [json!({"event": 2, "is": "b"})]);
}

#[test]
fn i4_what_a_fenced_connection_was_about_to_get_stays_in_the_log() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    let cursor = bench.read(&first).last_id();
    notify(&session, 1, "a").unwrap();
    store.set(true, false);
    read_now(&first);
    store.answer(true);
    store.set(false, false);
    let second = resume(&session, &cursor);
    let fenced = read_now(&first);
    assert_eq!((fenced.text.as_str(), fenced.end), ("", Some(CloseReason::Superseded)));
    assert_eq!(bench.read(&second).frames()[1..], [json!({"event": 1, "is": "a"})]);
}

#[test]
fn f_21_a_store_that_cannot_be_read_is_asked_again_and_given_up_in_time() {
    let pacing = Pacing { store_wait_ms: 1_000, ..Pacing::default() };
    let (bench, store) = slow(Options { pacing, ..Options::default() });
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = bench.read(&first).ids()[0].clone();
    drop(first);
    store.set(false, true);
    let back = resume(&session, &cursor);
    assert_eq!(bench.read(&back).frames(), [json!({"priming": 0, "retry_ms": 3000})]);
    bench.advance(250);
    assert_eq!(read_now(&back).text, "");
    store.set(false, false);
    bench.advance(250);
    assert_eq!(read_now(&back).frames(), [json!({"event": 1, "is": "a"})]);
    drop(back);
    store.set(false, true);
    let away = resume(&session, &cursor);
    let mut answered = bench.read(&away);
    assert_eq!((answered.status, answered.frames().len()), (Some(200), 1));
    for _ in 0..6 {
        assert_eq!(answered.end, None);
        bench.advance(250);
        answered = read_now(&away);
        if answered.end.is_some() {
            break;
        }
    }
    assert_eq!((answered.text.as_str(), answered.end), ("", Some(CloseReason::Fault)));
}

#[test]
fn a_cursor_that_turns_out_to_be_unknown_after_the_answer_began_ends_it() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let forge = |connection: &Connection| {
        let mut cursor = bench.read(connection).last_id().into_bytes();
        cursor[30] = if cursor[30] == b'A' { b'B' } else { b'A' };
        String::from_utf8(cursor).unwrap()
    };
    let one = call(&session, 1);
    let batch = session.call(&[id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    for (of, number) in [(&one, 1), (&batch, 2)] {
        let cursor = forge(of);
        notify(&session, number, "a").unwrap();
        store.set(false, true);
        let back = resume(&session, &cursor);
        assert_eq!(bench.read(&back).frames(), [json!({"priming": 0, "retry_ms": 3000})]);
        store.set(false, false);
        bench.advance(250);
        let answered = read_now(&back);
        let error = json!({"tombstone": {"error": -32603, "id": 1}});
        assert_eq!(answered.frames(), if number == 1 { vec![error] } else { Vec::new() }, "no JSON in an event stream");
        assert_eq!((answered.status, answered.end.is_some()), (Some(200), true));
    }
}

#[test]
fn a_session_that_ends_while_its_store_is_slow_still_answers_everybody() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let stored = call(&session, 1);
    let cursor = bench.read(&stored).last_id();
    store.set(true, false);
    notify(&session, 1, "on its way").unwrap();
    let opening = call(&session, 2);
    let other = bench.session("other", NEW);
    store.set(false, false);
    let gone = call(&other, 1);
    let gone_cursor = bench.read(&gone).last_id();
    notify(&other, 1, "a").unwrap();
    drop(gone);
    store.set(true, false);
    let arriving = resume(&other, &gone_cursor);
    session.end();
    other.end();
    assert_eq!(bench.read(&stored).frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    assert_eq!(bench.read(&opening).frames().last(), Some(&json!({"tombstone": {"error": -32603, "id": 2}})));
    let arriving = bench.read(&arriving);
    assert_eq!((arriving.status, arriving.content_type), (Some(404), Some("application/json")));
    assert!(arriving.text.contains("terminated"));
    let outcomes = session.take_outcomes();
    assert!(matches!(outcomes[..], [(_, Err(EngineError::SessionEnded))]), "who waits is told: {outcomes:?}");
    store.answer_all();
    assert!(session.take_outcomes().is_empty());
    assert!(session.resume(&cursor, None, Arc::new(NoWake), 0).is_err());
    drop((stored, opening));
    unused(&bench);
}

#[test]
fn i10_a_handler_is_held_back_while_too_much_waits_for_the_store() {
    let pacing = Pacing { max_unconfirmed: 3, ..Pacing::default() };
    let (bench, store) = slow(Options { pacing, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    store.set(true, false);
    for _ in 0..3 {
        assert!(matches!(notify(&session, 1, "a"), Ok(Sent::Pending(_))));
    }
    assert_eq!(notify(&session, 1, "a"), Err(EngineError::Full));
    assert!(matches!(respond(&session, 1), Ok(Sent::Pending(_))));
    while store.answer(true) {}
    assert_eq!(session.take_outcomes().len(), 4);
    store.set(false, false);
    assert_eq!(bench.read(&connection).frames().len(), 5);
}

// Time

#[test]
fn f_43_a_session_has_one_deadline_however_many_calls_it_served() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let bell = Arc::new(Bell::default());
    let standalone = session.listen(Arc::clone(&bell) as Arc<dyn Wake>, 0).unwrap();
    bench.read(&standalone);
    for number in 0..200 {
        let connection = call(&session, number);
        read_now(&connection);
        bench.advance(1);
        respond(&session, number).unwrap();
        assert!(read_now(&connection).end.is_some());
    }
    let mut ticks = 0;
    while bench.clock_now() < Ms(61_000) {
        bench.advance(bench.engine.due_in_ms().max(1));
        read_now(&standalone);
        ticks += 1;
    }
    assert!(ticks < 80, "{ticks} ticks in a minute");
    let rings = bell.0.load(std::sync::atomic::Ordering::SeqCst);
    assert!((3..=6).contains(&rings), "one wake-up for each keep-alive: {rings}");
}

#[test]
fn the_engine_says_when_it_has_to_be_ticked() {
    let bench = Bench::new(Options::default());
    bench.engine.tick();
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert_eq!(connection.poll(1_000).wait_until, Ms(5));
    assert_eq!(bench.engine.next_deadline(), Ms(5));
    bench.advance(5);
    assert!(!connection.poll(1_000).is_empty());
    assert_eq!(connection.poll(1_000).wait_until, Ms(15_005));
    session.close_connection(&id(1), None, Some(50));
    let back = resume(&session, &read_now(&connection).ids().first().cloned().unwrap_or_else(|| cursor_of(&session)));
    drop(back);
    drop(connection);
    session.end();
    assert!(bench.engine.next_deadline() >= Ms(1_000), "nothing but retention is left");
}

fn cursor_of(session: &SessionHandle) -> String {
    let connection = call(session, 99);
    notify(session, 99, "a").unwrap();
    read_now(&connection).last_id()
}

impl Bench {
    fn clock_now(&self) -> Ms {
        tailrope_core::engine::Clock::now(&*self.clock)
    }
}

// Wake-ups

/// A writer's own bell: waits for it, or for a time.
#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Alarm {
    fn wake(&self, _key: u64) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Alarm {
    /// Whether it was rung in time.
    fn wait(&self, limit: Duration) -> bool {
        let rung = self.rung.lock().unwrap();
        let (mut rung, _) = self.changed.wait_timeout_while(rung, limit, |rung| !*rung).unwrap();
        std::mem::take(&mut *rung)
    }
}

/// A writer that asks for more only after it got something, was woken, or its deadline has come.
fn write_to_the_end(session: &SessionHandle, connection: &Connection, alarm: &Alarm) -> String {
    let mut text = String::new();
    loop {
        let poll = connection.poll(4_096);
        text.push_str(&poll.text());
        if poll.end.is_some() {
            return text;
        }
        if poll.is_empty() {
            let until = Duration::from_millis(poll.wait_until.since(session.now()));
            let woken = alarm.wait(until.min(Duration::from_secs(30)));
            assert!(woken || until < Duration::from_secs(10), "a wake-up was lost");
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    const STREAMS: i64 = 6;
    const EVENTS: usize = 400;
    for waits in [false, true] {
        let store = SlowStore::new(Limits::default());
        let engine = Engine::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
        let session = engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
        session.assume_revision(NEW);
        let calls: Vec<_> = (0..STREAMS)
            .map(|number| {
                let alarm = Arc::new(Alarm::default());
                let wake = Arc::clone(&alarm) as Arc<dyn Wake>;
                (number, session.call(&[id(number)], None, wake, 0).unwrap(), alarm)
            })
            .collect();
        store.set(waits, false);
        let running = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            let answerer = scope.spawn(|| {
                while running.load(std::sync::atomic::Ordering::SeqCst) {
                    if !store.answer(true) {
                        std::thread::yield_now();
                    }
                }
            });
            let readers: Vec<_> = calls
                .iter()
                .map(|(_, connection, alarm)| scope.spawn(|| write_to_the_end(&session, connection, alarm)))
                .collect();
            for (number, ..) in &calls {
                let session = &session;
                scope.spawn(move || {
                    for event in 0..EVENTS {
                        while notify(session, *number, &format!("e{event}")) == Err(EngineError::Full) {
                            std::thread::yield_now();
                        }
                        if event % 64 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                    respond(session, *number).unwrap();
                });
            }
            for reader in readers {
                let frames = common::frames(&reader.join().unwrap());
                let events: Vec<_> = frames.iter().filter(|frame| frame.get("event").is_some()).collect();
                assert_eq!(events.len(), EVENTS + 1);
                assert!(events.iter().zip(1..).all(|(frame, seq)| frame["event"] == json!(seq)), "I2");
            }
            running.store(false, std::sync::atomic::Ordering::SeqCst);
            answerer.join().unwrap();
        });
        session.end();
        assert_eq!(engine.stats().connections, 0);
    }
}
