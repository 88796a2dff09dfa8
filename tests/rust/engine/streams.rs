//! The engine with a clock that stands still: what it sends and where, when it has to be ticked, and that
//! no wake-up is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::kit::common::{
    Answered, Bell, Bench, NEW, SlowStore, ask, call, call_json, frames, id, listen, notify, read_now, respond, resume,
};
use crate::kit::relaying::admitted;
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{
    Connection, Engine, EngineError, NoWake, Options, OutgoingMessage, RandomSource, Sent, SessionHandle,
    SystemRandomness, Wake,
};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::{Cursor, Dialect, EventId, IdEncoder, RequestId, Revision};
use tailrope_core::store::Limits;
use tailrope_core::stream::{CloseReason, Drain, Pacing};

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
        assert_ne!(poll.more, poll.end.is_some(), "its writer is told to ask for the rest");
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
fn f60_a_response_that_is_too_large_to_keep_goes_to_its_reader_once() {
    let limits = Limits { max_event_bytes: 1_000, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let (read, detached) = (call(&session, 1), call(&session, 2));
    let cursors = [&read, &detached].map(|connection| bench.read(connection).ids()[0].clone());
    drop(detached);
    let large = |number| {
        let payload = json!({"jsonrpc": "2.0", "id": number, "result": {"text": "x".repeat(2_000)}}).to_string();
        session.send(OutgoingMessage::response(&id(number), payload.as_bytes())).unwrap();
        payload
    };
    let (payload, _) = (large(1), large(2));
    let text = bench.read(&read);
    assert!(text.text.contains(&payload) && text.end.is_some(), "{}", text.text);
    for cursor in cursors {
        let again = bench.read(&resume(&session, &cursor)).text;
        assert!(again.contains("is larger than the 1000 bytes that the server keeps"), "{again}");
    }
    let ids = text.ids();
    assert!(bench.read(&resume(&session, ids.last().unwrap())).text.is_empty(), "it has its end");
    assert_eq!(bench.engine.stats().events_unstored, 2);
}

#[test]
fn i7_another_principal_finds_no_session() {
    let bench = Bench::new(Options::default());
    let wake = Arc::new(NoWake);
    let opened =
        bench.engine.open_session("s", Some(&Principal::named("alice")), &Dialect::MCP_PYTHON_2, wake.clone(), 0);
    assert!(opened.is_ok());
    assert!(bench.engine.session("s", Some(&Principal::named("alice"))).is_some());
    for principal in [None, Some("bob"), Some("")] {
        assert!(bench.engine.session("s", principal.map(Principal::named).as_ref()).is_none());
        assert!(bench.engine.session("never there", principal.map(Principal::named).as_ref()).is_none());
    }
    let again = bench.engine.open_session("s", Some(&Principal::named("bob")), &Dialect::MCP_PYTHON_2, wake, 0);
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
            true => session.call_json(&[id(0)], asked, wake, 0).unwrap(),
            false => session.call(&[id(0)], asked, wake, 0).unwrap(),
        };
        assert_eq!(session.revision(), asked);
        session.send(OutgoingMessage::response(&id(0), negotiated)).unwrap();
        let answered = bench.read(&connection);
        assert_eq!(answered.text.contains("retry: "), !json_answer, "{}", answered.text);
        assert_eq!(session.revision(), Some(Revision::V2025_06_18));
        let connection = call(&session, 1);
        bench.advance(Pacing::default().first_comment_ms);
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
    assert_eq!(ask(&session, 1, "q"), Err(EngineError::Finished), "nobody can answer it");
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

#[test]
fn w_013_a_batch_for_json_is_one_connection_with_one_body() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let bell = Arc::new(Bell(AtomicU64::new(0)));
    let open = |numbers: [i64; 2]| session.call_json(&numbers.map(id), None, Arc::clone(&bell) as _, 7).unwrap();
    let rings = || bell.0.swap(0, Ordering::SeqCst);
    let batch = open([1, 2]);
    assert_eq!(bench.engine.stats().connections, 1);
    assert_eq!(read_now(&batch), Answered::default());
    respond(&session, 2).unwrap();
    assert_eq!((rings(), read_now(&batch)), (0, Answered::default()), "the other answer is missing");
    respond(&session, 1).unwrap();
    let answered = read_now(&batch);
    assert_eq!((rings(), answered.status, answered.content_type), (1, Some(200), Some("application/json")));
    let bodies = [1, 2].map(|number| format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{{}}}}"#));
    assert_eq!((answered.text, answered.end), (format!("[{}]", bodies.join(",")), Some(CloseReason::Complete)));

    assert!(session.call_json(&[id(3), id(3)], None, Arc::new(NoWake), 0).is_err(), "F-08");
    let cancelled = open([3, 4]);
    assert!(session.cancelled(&id(3)));
    respond(&session, 4).unwrap();
    let text = read_now(&cancelled).text;
    assert!(text.contains("-32800") && text.contains(r#""id":4,"result""#), "{text}");

    open([5, 6]).lost();
    assert_eq!((bench.engine.stats().connections, session.in_flight()), (0, 2), "I12: it cancels nothing");
    assert_eq!([respond(&session, 5), respond(&session, 6)], [Ok(Sent::Stored), Ok(Sent::Stored)]);

    let ended = open([7, 8]);
    respond(&session, 7).unwrap();
    session.end();
    let answered = read_now(&ended);
    assert_eq!(answered.status, Some(200), "what was answered is not lost");
    assert!(answered.text.contains(r#""id":7,"result""#) && answered.text.contains("-32603"), "{}", answered.text);
}

// Questions

fn answer_question(session: &SessionHandle, question: &str) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{question:?},"result":{{"roots":[]}}}}"#);
    session.received(&admitted(&body));
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
fn i11_a_question_that_its_server_cancels_is_kept_no_longer() {
    let limits = Limits { max_events_per_stream: 3, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let session = bench.session("s", NEW);
    let cursor = bench.read(&call(&session, 1)).last_id();
    for question in ["cancelled", "open"] {
        ask(&session, 1, question).unwrap();
    }
    let payload =
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"cancelled","reason":"late"}}"#;
    session.send(OutgoingMessage::notification(Some(&id(1)), payload)).unwrap();
    for name in ["a", "b", "c"] {
        notify(&session, 1, name).unwrap();
    }
    let frames = bench.read(&resume(&session, &cursor)).frames();
    let questions = frames.iter().filter(|frame| frame.get("is") == Some(&json!("roots/list"))).count();
    assert_eq!(questions, 1, "{frames:?}");
}

#[test]
fn f_92_a_question_is_on_the_stream_of_its_call_and_needs_no_listener() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    let [one, other] = [1, 2].map(|number| call(&session, number));
    let listener = listen(&session);
    ask(&session, 1, "q").unwrap();
    let events = |connection| {
        let frames = bench.read(connection).frames();
        frames.into_iter().filter(|frame| frame.get("event").is_some()).collect::<Vec<_>>()
    };
    assert_eq!(events(&one), [json!({"event": 1, "is": "roots/list"})]);
    assert_eq!((events(&other), events(&listener)), (vec![], vec![]), "W-057: on exactly one stream");
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
    assert!(matches!(notify(&session, 1, "a"), Err(EngineError::Earlier(_))), "the first one is not stored");
    notify(&session, 1, "b").unwrap();
    let frames = bench.read(&resume(&session, &cursor)).frames();
    assert_eq!(frames[1..3], [json!({"gap": {"first": 1, "count": 1}}), json!({"event": 2, "is": "roots/list"})]);
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
    let rings = bell.0.load(Ordering::SeqCst);
    assert!((3..=6).contains(&rings), "one wake-up for each keep-alive: {rings}");
}

#[test]
fn the_engine_says_when_it_has_to_be_ticked() {
    let bench = Bench::new(Options::default());
    bench.engine.tick();
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    assert_eq!(connection.poll(1_000).wait_until, Ms(20));
    assert_eq!(bench.engine.next_deadline(), Ms(20));
    bench.advance(20);
    assert!(!connection.poll(1_000).is_empty());
    let keep_alive = connection.poll(1_000).wait_until;
    assert!((Ms(20 + 13_125)..=Ms(20 + 15_000)).contains(&keep_alive), "{keep_alive:?}");
    session.close_connection(&id(1), None, Some(50));
    let back = resume(&session, &read_now(&connection).ids().first().cloned().unwrap_or_else(|| cursor_of(&session)));
    drop(back);
    drop(connection);
    session.end();
    assert!(bench.engine.next_deadline() >= Ms(1_000), "nothing but retention is left");
}

#[test]
fn i10_a_tick_looks_at_some_sessions_and_the_next_one_at_the_rest() {
    let bench = Bench::new(Options::default());
    let calls: Vec<_> = (0..5_000).map(|number| call(&bench.session(&number.to_string(), NEW), 1)).collect();
    let waiting = calls.iter().filter(|connection| connection.poll(1_000).is_empty()).count();
    assert_eq!(waiting, calls.len());
    bench.advance(20);
    assert!(bench.engine.next_deadline() <= bench.clock_now(), "the rest is due");
    bench.advance(0);
    assert!(bench.engine.next_deadline() > bench.clock_now());
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

/// A writer that asks again only if there is more, it was woken, or its deadline has come.
fn write_to_the_end(session: &SessionHandle, connection: &Connection, alarm: &Alarm) -> String {
    let mut text = String::new();
    loop {
        let poll = connection.poll(4_096);
        text.push_str(&poll.text());
        if poll.end.is_some() {
            return text;
        }
        if !poll.more {
            let until = Duration::from_millis(poll.wait_until.since(session.now()));
            let woken = alarm.wait(until.min(Duration::from_secs(30)));
            assert!(woken || until < Duration::from_secs(10), "a wake-up was lost");
        }
    }
}

/// Stops a thread also when the test fails, which would wait for it otherwise.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
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
        let running = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let stop = Stop(&running);
            let answerer = scope.spawn(|| {
                while running.load(Ordering::SeqCst) {
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
                let (session, running) = (&session, &running);
                scope.spawn(move || {
                    for event in 0..EVENTS {
                        while notify(session, *number, &format!("e{event}")) == Err(EngineError::Full) {
                            assert!(running.load(Ordering::SeqCst), "another thread failed");
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
                let frames = frames(&reader.join().unwrap());
                let events: Vec<_> = frames.iter().filter(|frame| frame.get("event").is_some()).collect();
                assert_eq!(events.len(), EVENTS + 1);
                assert!(events.iter().zip(1..).all(|(frame, seq)| frame["event"] == json!(seq)), "I2");
            }
            drop(stop);
            answerer.join().unwrap();
        });
        session.end();
        assert_eq!(engine.stats().connections, 0);
    }
}

/// Counts instead of being random.
#[derive(Default)]
struct Counting(AtomicU64);

impl RandomSource for Counting {
    fn fill(&self, block: &mut [u8]) {
        block.fill_with(|| self.0.fetch_add(1, Ordering::Relaxed) as u8);
    }
}

#[test]
fn the_same_randomness_gives_the_same_bytes() {
    let run = |randomness: Arc<dyn RandomSource>| {
        let bench = Bench::new(Options { randomness: Some(randomness), ..Options::default() });
        let session = bench.session("s", NEW);
        let connection = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        bench.engine.drain(Drain::after(1_000));
        bench.read(&connection).text
    };
    let counted = || run(Arc::new(Counting::default()));
    let random = || run(Arc::new(SystemRandomness));
    assert_eq!(counted(), counted());
    assert_ne!(random(), random(), "the system's is another each time");
}
