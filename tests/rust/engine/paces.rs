//! How calls are paced by the name of their tool, and how often clients come back where many poll. Time is virtual.

use std::sync::Arc;

use crate::kit::common::{Answered, Bench, NEW, OLD, SlowStore, id, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{admitted, find, open, pass, read, relay, relay_json, serve};
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, NoWake, Options, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::protocol::Revision;
use tailrope_core::session::{Pace, Paces};
use tailrope_core::store::Limits;
use tailrope_core::stream::{CloseReason, Drain};

fn options(pattern: &str, pace: Pace) -> Options {
    let mut paces = Paces::default();
    paces.set(pattern, pace).unwrap();
    Options { paces, ..Options::default() }
}

fn tool_call(number: i64, tool: &str) -> Value {
    let params = json!({"name": tool, "_meta": {"progressToken": format!("token {number}")}});
    json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
}

fn begin(session: &SessionHandle, body: &Value) -> Connection {
    session.open(&admitted(&body.to_string()), false, Arc::new(NoWake), 0).expect("it is taken")
}

/// The payloads of the events of an answer.
fn payloads(answered: &Answered) -> Vec<Value> {
    let data = answered.text.lines().filter_map(|line| line.strip_prefix("data: {"));
    data.map(|data| serde_json::from_str(&format!("{{{data}")).expect("it is JSON")).collect()
}

/// The numbers of the progress in an answer, each with its token.
fn numbers(answered: &Answered, token: &str) -> Vec<f64> {
    let number = |payload: Value| {
        assert_eq!((&payload["jsonrpc"], &payload["method"]), (&json!("2.0"), &json!("notifications/progress")));
        assert_eq!(payload["params"]["progressToken"], json!(token));
        payload["params"]["progress"].as_f64().expect("it is a number")
    };
    payloads(answered).into_iter().map(number).collect()
}

fn report(session: &SessionHandle, number: i64, params: &str) {
    let payload = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"token {number}",{params}}}}}"#
    );
    session.send(OutgoingMessage::notification(Some(&id(number)), payload.as_bytes())).expect("it is stored");
}

/// Lets time pass in small steps, as a host that ticks when it is due.
fn wait(bench: &Bench, ms: u64) {
    for _ in 0..ms / 10 {
        bench.advance(10);
    }
}

/// What a connection has that is read all the time.
fn follow(bench: &Bench, connection: &Connection, ms: u64) -> Answered {
    let mut all = Answered::default();
    for _ in 0..ms / 10 {
        bench.advance(10);
        all.text.push_str(&read_now(connection).text);
    }
    all
}

const SILENT: Pace = Pace {
    retry_ms: None,
    hold_ms: None,
    max_connection_ms: None,
    max_connection_bytes: None,
    heartbeat_ms: Some(1_000),
    retention_ms: None,
    task_after_ms: None,
    requires_task: false,
};

#[test]
fn the_most_specific_pattern_counts() {
    let retry = |retry_ms| Pace { retry_ms: Some(retry_ms), ..Pace::default() };
    let mut paces = Paces::default();
    for (pattern, retry_ms) in [("*", 1), ("render_*", 2), ("render_frame*", 3), ("render_frame", 4), ("re*", 5)] {
        paces.set(pattern, retry(retry_ms)).unwrap();
    }
    paces.set("re*", retry(6)).unwrap();
    for (tool, retry_ms) in
        [("render_frame", 4), ("render_frames", 3), ("render_", 2), ("render", 6), ("Render_frame", 1), ("", 1)]
    {
        assert_eq!(paces.of(tool), Some(&retry(retry_ms)), "{tool}");
    }
    assert_eq!(options("a*", retry(1)).paces.of("b"), None);
    for pattern in ["", "*a", "a*b", "a**"] {
        assert!(paces.set(pattern, retry(7)).is_err(), "{pattern}");
    }
}

#[test]
fn o9_a_relayed_call_is_paced_before_its_owner_begins() {
    let pace = Pace { retry_ms: Some(700), max_connection_ms: Some(2_000), ..Pace::default() };
    for (revision, closes) in [(NEW, true), (OLD, false)] {
        let fleet = Fleet::with(2, options("render_*", pace));
        open(&fleet, revision);
        let paced = relay(&find(&fleet, 1), &tool_call(1, "render_frame"));
        let other = relay(&find(&fleet, 1), &tool_call(2, "list"));
        let told = |connection| read(&fleet, connection).frames().first().map(|frame| frame["retry_ms"].clone());
        let expected = |retry_ms: u32| closes.then(|| json!(retry_ms));
        assert_eq!([told(&paced), told(&other)], [expected(700), expected(3_000)]);
        pass(&fleet, 2_000);
        let end = closes.then_some(CloseReason::Limit);
        assert_eq!((read(&fleet, &paced).end, read(&fleet, &other).end), (end, None));
    }
}

#[test]
fn an_answer_in_json_is_not_cut_short_at_another_process() {
    let pace = Pace { max_connection_ms: Some(1_000), hold_ms: Some(0), ..Pace::default() };
    let fleet = Fleet::with(2, options("render_*", pace));
    let session = open(&fleet, NEW);
    let connection = relay_json(&find(&fleet, 1), &tool_call(1, "render_frame"));
    fleet.settle();
    serve(&session);
    notify(&session, 1, "a").unwrap();
    assert_eq!(read(&fleet, &connection).end, None);
    assert!(session.close_connection(&id(1), Some(7), Some(0)), "its handler does not know how it is answered");
    pass(&fleet, 2_000);
    assert_eq!(read(&fleet, &connection).end, None);
    respond(&session, 1).unwrap();
    let answered = read(&fleet, &connection);
    assert_eq!((answered.status, answered.end), (Some(200), Some(CloseReason::Complete)));
    assert_eq!(serde_json::from_str::<Value>(&answered.text).unwrap()["id"], 1);
}

#[test]
fn a_call_whose_code_does_nothing_is_closed_and_polled() {
    let pace = Pace {
        retry_ms: Some(700),
        hold_ms: Some(0),
        max_connection_ms: Some(2_000),
        max_connection_bytes: Some(1 << 20),
        ..Pace::default()
    };
    let bench = Bench::new(options("render_*", pace));
    let session = bench.session("s", NEW);
    let (paced, other) = (begin(&session, &tool_call(1, "render_frame")), begin(&session, &tool_call(2, "list")));
    let cursor = bench.read(&paced);
    assert_eq!(cursor.frames(), [json!({"priming": 0, "retry_ms": 700})]);
    assert_eq!(bench.read(&other).frames(), [json!({"priming": 0, "retry_ms": 3_000})]);
    let others = [3, 4, 5].map(|number| begin(&session, &tool_call(number, "render_frame")));
    others.iter().for_each(|other| drop(bench.read(other)));
    wait(&bench, 2_000);
    let closed = bench.read(&paced);
    assert_eq!(closed.end, Some(CloseReason::Limit));
    // Chance may draw the `retry` that one of them was told already, which is not told again.
    let others = others.iter().flat_map(|other| bench.read(other).frames());
    let retries: Vec<_> = closed.frames().into_iter().chain(others).map(|frame| frame["retry_ms"].as_u64()).collect();
    let is_right = |retry_ms: &Option<u64>| retry_ms.is_some_and(|ms| (701..=1_050).contains(&ms));
    assert!(!retries.is_empty() && retries.iter().all(is_right), "W-042: told when to come back: {retries:?}");
    let polled = bench.read(&resume(&session, &cursor.last_id()));
    assert_eq!(polled.end, Some(CloseReason::Polled));
    assert_eq!(polled.frames(), [json!({"priming": 0, "retry_ms": 700})]);
    assert_eq!(bench.read(&other).end, None, "other tools are paced as ever");
    respond(&session, 1).unwrap();
    let last = bench.read(&resume(&session, &polled.last_id()));
    assert_eq!((last.frames().len(), last.end), (2, Some(CloseReason::Complete)));
}

#[test]
fn a_pace_that_switches_off_has_calls_open_that_the_engine_would_close() {
    let pace = Pace { max_connection_ms: Some(0), max_connection_bytes: Some(0), ..Pace::default() };
    let mut options = options("tail", pace);
    (options.pacing.max_connection_ms, options.pacing.max_connection_bytes) = (500, 400);
    let bench = Bench::new(options);
    let session = bench.session("s", NEW);
    let connections = [begin(&session, &tool_call(1, "tail")), begin(&session, &tool_call(2, "head"))];
    for number in [1, 2] {
        notify(&session, number, &"x".repeat(500)).unwrap();
    }
    let ends = connections.each_ref().map(|connection| bench.read(connection).end);
    assert_eq!(ends, [None, Some(CloseReason::Limit)]);
    let [open, _] = connections;
    let connections = [open, begin(&session, &tool_call(3, "head"))];
    wait(&bench, 600);
    assert_eq!(connections.each_ref().map(|connection| bench.read(connection).end), [None, Some(CloseReason::Limit)]);
}

#[test]
fn i6_a_stream_stays_readable_for_as_long_as_its_pace_says() {
    let pace = Pace { retention_ms: Some(5_000), ..Pace::default() };
    let mut options = options("brief", pace);
    options.limits = Limits { retention_ms: 60_000, ..Limits::default() };
    let bench = Bench::new(options);
    let session = bench.session("s", NEW);
    let cursors = [(1, "brief"), (2, "other")].map(|(number, tool)| {
        let cursor = bench.read(&begin(&session, &tool_call(number, tool))).last_id();
        respond(&session, number).unwrap();
        cursor
    });
    let count = |bench: &Bench| {
        let frames = cursors.each_ref().map(|cursor| bench.read(&resume(&session, cursor)).frames());
        frames.map(|frames| frames.last().unwrap().get("event").is_some())
    };
    wait(&bench, 4_500);
    assert_eq!(count(&bench), [true, true]);
    wait(&bench, 1_000);
    assert_eq!(count(&bench), [false, true], "its retention is over");
    assert_eq!(bench.engine.stats().streams, 1, "F-54: and nobody had to ask for it");
}

#[test]
fn a_batch_takes_the_first_pace_that_applies() {
    let mut paces = Paces::default();
    for (tool, retry_ms) in [("b", 200), ("c", 300)] {
        paces.set(tool, Pace { retry_ms: Some(retry_ms), heartbeat_ms: Some(1_000), ..Pace::default() }).unwrap();
    }
    let bench = Bench::new(Options { paces, ..Options::default() });
    let session = bench.session("s", Revision::V2025_03_26);
    let batch = json!([tool_call(1, "a"), tool_call(2, "b"), tool_call(3, "c")]);
    let connection = begin(&session, &batch);
    let numbers = numbers(&follow(&bench, &connection, 3_500), "token 2");
    assert!(numbers.len() == 4 && numbers.is_sorted(), "one soon, and one in a second: {numbers:?}");
    respond(&session, 2).unwrap();
    let rest = follow(&bench, &connection, 3_000);
    assert_eq!(payloads(&rest).len(), 1, "its request is answered: it has no further progress");
}

#[test]
fn a_silent_handler_has_its_client_sent_progress_on_its_own_token() {
    let bench = Bench::new(options("*", SILENT));
    let session = bench.session("s", NEW);
    let connection = begin(&session, &tool_call(1, "slow"));
    let mut all = Vec::new();
    let mut told = |ms: u64| {
        let answered = follow(&bench, &connection, ms);
        all.extend(numbers(&answered, "token 1"));
        payloads(&answered)
    };
    assert_eq!(told(900).len(), 0);
    assert_eq!(told(2_200).len(), 3, "one in a second");
    // The handler begins with 0, as many do, and then goes on in small steps.
    for (params, repeated) in [
        (r#""progress":0,"total":3"#, json!({"total": 3})),
        (r#""progress":1e-6,"total":3,"message":"one""#, json!({"total": 3, "message": "one"})),
        (r#""message":"two","progress":2"#, json!({"message": "two"})),
        (r#""progress":1000000000000"#, json!({})),
        (r#""progress":1000000000001"#, json!({})),
    ] {
        report(&session, 1, params);
        assert_eq!(told(10).len(), 1);
        assert_eq!(told(900).len(), 0, "it was not silent for so long");
        let beats = told(2_200);
        assert_eq!(beats.len(), 3);
        for beat in beats {
            let mut params = beat["params"].as_object().unwrap().clone();
            params.retain(|name, _| !["progressToken", "progress"].contains(&name.as_str()));
            assert_eq!(Value::Object(params), repeated, "what the handler said otherwise is repeated");
        }
    }
    respond(&session, 1).unwrap();
    assert!(bench.read(&connection).end.is_some());
    assert!(all.len() > 20 && all.windows(2).all(|pair| pair[0] < pair[1]), "it increases: {all:?}");
    wait(&bench, 3_000);
    assert!(all.iter().all(|number| *number < 1e12 + 2.0));
}

#[test]
fn i11_a_call_that_nobody_reads_does_not_fill_its_log() {
    let bench = Bench::new(options("*", SILENT));
    let session = bench.session("s", NEW);
    let connection = begin(&session, &tool_call(1, "slow"));
    let cursor = bench.read(&connection).last_id();
    drop(connection);
    wait(&bench, 60_000);
    assert_eq!(bench.engine.stats().events, 1, "one that nobody has read is followed by no other");
    let connection = resume(&session, &cursor);
    let read = bench.read(&connection);
    assert_eq!(numbers(&read, "token 1").len(), 1);
    assert_eq!(numbers(&follow(&bench, &connection, 2_000), "token 1").len(), 2, "its reader is patient again");
    // What the handler says is no heartbeat: the next follows that.
    drop(connection);
    report(&session, 1, r#""progress":1"#);
    wait(&bench, 60_000);
    let again = resume(&session, &read.last_id());
    assert_eq!(numbers(&bench.read(&again), "token 1").len(), 4);
}

#[test]
fn no_heartbeat_comes_without_a_token_after_the_end_or_in_a_drain() {
    let bench = Bench::new(options("*", SILENT));
    let session = bench.session("s", NEW);
    let without = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "slow"}});
    let other = json!({"jsonrpc": "2.0", "id": 2, "method": "prompts/get", "params": tool_call(2, "slow")["params"]});
    let connections = [begin(&session, &without), begin(&session, &other), begin(&session, &tool_call(3, "slow"))];
    session.cancelled(&id(3));
    wait(&bench, 5_000);
    assert!(connections.iter().all(|connection| !bench.read(connection).text.contains("progress")));
    assert_eq!(bench.engine.stats().events, 0);
    let paced = begin(&session, &tool_call(4, "slow"));
    wait(&bench, 1_100);
    assert_eq!(bench.engine.stats().events, 1);
    bench.read(&paced);
    bench.engine.drain(Drain::after(100));
    wait(&bench, 5_000);
    assert_eq!(bench.engine.stats().events, 1, "a drain waits for calls, and not for what is made up");
}

#[test]
fn a_client_without_priming_has_a_cursor_soon() {
    let bench = Bench::new(options("*", SILENT));
    let session = bench.session("s", OLD);
    let connection = begin(&session, &tool_call(1, "slow"));
    bench.advance(90);
    assert_eq!(read_now(&connection).text, "", "a call that is answered at once gets none");
    bench.advance(10);
    let first = read_now(&connection);
    assert_eq!((numbers(&first, "token 1").len(), first.text.contains(": keep")), (1, false), "{}", first.text);
    drop(connection);
    notify(&session, 1, "a").unwrap();
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&resume(&session, &first.last_id())).frames().len(), 2, "it can resume");
    let answered = begin(&session, &tool_call(2, "quick"));
    respond(&session, 2).unwrap();
    bench.advance(200);
    assert_eq!(read_now(&answered).frames().len(), 1);
}

#[test]
fn i9_a_heartbeat_that_is_not_stored_is_no_business_of_its_handler() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..options("*", SILENT) });
    let session = bench.session("s", NEW);
    let connection = begin(&session, &tool_call(1, "slow"));
    let mut all = numbers(&bench.read(&connection), "token 1");
    store.set(false, true);
    wait(&bench, 3_000);
    assert!(bench.engine.stats().events_unstored > 0, "the store refused some");
    store.set(false, false);
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Stored), "its handler is told of none");
    assert_eq!(bench.read(&connection).frames(), [json!({"event": 1, "is": "a"})]);
    all.extend(numbers(&follow(&bench, &connection, 2_100), "token 1"));
    assert_eq!(all.len(), 2, "it goes on");
}

#[test]
fn o9_the_pace_of_a_call_holds_for_its_reader_in_another_process() {
    let pace = Pace { retry_ms: Some(700), max_connection_ms: Some(20_000), hold_ms: Some(0), ..SILENT };
    let fleet = Fleet::with(2, options("*", pace));
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1, "slow"));
    fleet.settle();
    assert_eq!(serve(&session), ["tools/call 1"]);
    let begun = read(&fleet, &connection);
    pass(&fleet, 10_000);
    let beats = read(&fleet, &connection);
    let told = numbers(&beats, "token 1").len();
    assert!((8..=10).contains(&told) && beats.end.is_none(), "it is sent heartbeats: {}", beats.text);
    pass(&fleet, 11_000);
    let closed = read(&fleet, &connection);
    assert_eq!(closed.end, Some(CloseReason::Limit), "{}", closed.text);
    let cursor = [&begun, &beats, &closed].into_iter().rev().find_map(|answered| answered.ids().pop()).unwrap();
    drop(connection);
    for index in [1, 0, 1] {
        let there = if index == 0 { session.clone() } else { find(&fleet, 1) };
        let connection = resume(&there, &cursor);
        let polled = read(&fleet, &connection);
        assert_eq!(polled.end, Some(CloseReason::Polled), "at {index}: {}", polled.text);
        assert_eq!(polled.frames()[0]["retry_ms"], json!(700), "at {index}");
    }
    respond(&session, 1).unwrap();
    let last = read(&fleet, &resume(&find(&fleet, 1), &cursor));
    assert_eq!(last.end, Some(CloseReason::Complete));
}

#[test]
fn i11_the_heartbeats_of_a_client_that_left_another_process_end() {
    let fleet = Fleet::with(2, options("*", Pace { heartbeat_ms: Some(10_000), ..Pace::default() }));
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1, "slow"));
    fleet.settle();
    serve(&session);
    read(&fleet, &connection);
    drop(connection);
    let events = |fleet: &Fleet| fleet.benches[0].engine.stats().events;
    pass(&fleet, 1_800_000);
    let stored = events(&fleet);
    assert!(stored <= 62, "for ten minutes nobody knows that it left: {stored}");
    pass(&fleet, 600_000);
    assert_eq!(events(&fleet), stored);
}

/// A client that polls one call, as it is told to.
struct Poller {
    cursor: String,
    due_ms: u64,
    retry_ms: u64,
}

impl Poller {
    fn poll(&mut self, now_ms: u64, session: &SessionHandle) {
        let connection = resume(session, &self.cursor);
        let polled = read_now(&connection);
        assert!(polled.end.is_some(), "it is not held: {}", polled.text);
        self.retry_ms = polled.frames().iter().find_map(|frame| frame["retry_ms"].as_u64()).expect("it is told when");
        self.cursor = polled.last_id();
        self.due_ms = now_ms + self.retry_ms;
    }
}

/// Lets clients poll for so many seconds. How many polls came in each, and the delays that they were told.
fn polls(bench: &Bench, session: &SessionHandle, pollers: &mut [Poller], seconds: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut counts, mut told) = (Vec::new(), Vec::new());
    for _ in 0..seconds {
        let mut count = 0;
        for _ in 0..10 {
            bench.advance(100);
            let now_ms = session.now().0;
            for poller in pollers.iter_mut().filter(|poller| poller.due_ms <= now_ms) {
                poller.poll(now_ms, session);
                told.push(poller.retry_ms);
                count += 1;
            }
        }
        counts.push(count);
    }
    (counts, told)
}

#[test]
fn f_73_polls_stay_bounded_where_many_calls_are_polled() {
    let pace = Pace { retry_ms: Some(500), hold_ms: Some(0), max_connection_ms: Some(1_000), ..Pace::default() };
    let options = Options { max_requests_per_session: 4_000, ..options("*", pace) };
    let bench = Bench::new(options);
    let session = bench.session("s", NEW);
    let begin_polling = |numbers: std::ops::Range<i64>| -> Vec<Poller> {
        let connections: Vec<Connection> = numbers.map(|number| begin(&session, &tool_call(number, "slow"))).collect();
        bench.advance(20);
        let cursors: Vec<String> = connections.iter().map(|connection| read_now(connection).last_id()).collect();
        bench.advance(1_100);
        assert!(connections.iter().all(|connection| read_now(connection).end == Some(CloseReason::Limit)));
        cursors.into_iter().map(|cursor| Poller { cursor, due_ms: 0, retry_ms: 500 }).collect()
    };
    let mut few = begin_polling(0..40);
    let (_, told) = polls(&bench, &session, &mut few, 10);
    assert!(told.iter().all(|told| *told == 500), "few are told what their pace says");
    let mut many = begin_polling(40..2_000);
    many.append(&mut few);
    // Each comes back once after the delay that it was told before. From then on the delay has grown with their number.
    polls(&bench, &session, &mut many, 2);
    let (counts, told) = polls(&bench, &session, &mut many, 120);
    let (least, most) = (told.iter().min().unwrap(), told.iter().max().unwrap());
    assert!(*least >= 11_000 && *most <= 24_000, "it does not oscillate: {least} to {most}");
    assert!(most - least > 10_000, "it is spread");
    let burst = counts.windows(10).map(|seconds| seconds.iter().sum::<u64>()).max().unwrap();
    // Chance spreads them.
    assert!(burst <= 10 * 200, "about a hundred and fifty polls in a second at most: {counts:?}");
    for number in 0..1_960 {
        respond(&session, number).unwrap();
    }
    many.retain(|poller| poller.cursor.is_empty());
    let mut rest = begin_polling(5_000..5_010);
    let (_, told) = polls(&bench, &session, &mut rest, 5);
    assert!(told.iter().all(|told| *told == 500), "what has its end is not polled: {told:?}");
}

#[test]
fn f_73_clients_that_do_not_come_back_are_not_waited_for() {
    let bench =
        Bench::new(Options { max_requests_per_session: 4_000, ..options("*", Pace { hold_ms: Some(0), ..SILENT }) });
    let session = bench.session("s", NEW);
    let gone: Vec<Connection> = (0..1_000).map(|number| begin(&session, &tool_call(number, "slow"))).collect();
    bench.advance(20);
    let cursor = read_now(&gone[0]).last_id();
    drop(gone);
    let told = |bench: &Bench| {
        let polled = bench.read(&resume(&session, &cursor));
        polled.frames()[0]["retry_ms"].as_u64().unwrap()
    };
    assert!((4_660..=9_340).contains(&told(&bench)));
    wait(&bench, 200_000);
    assert_eq!(told(&bench), 3_000);
    session.end();
    let session = bench.session("t", NEW);
    let connection = begin(&session, &tool_call(1, "slow"));
    assert_eq!(bench.read(&connection).frames(), [json!({"priming": 0, "retry_ms": 3_000})]);
}

#[test]
fn f_73_many_sessions_count_together_and_what_ended_does_not() {
    let bench = Bench::new(options("*", Pace { hold_ms: Some(0), ..Pace::default() }));
    let sessions: Vec<SessionHandle> = (0..1_000).map(|number| bench.session(&format!("s{number}"), NEW)).collect();
    for session in &sessions {
        drop(begin(session, &tool_call(1, "slow")));
    }
    let new = bench.session("new", NEW);
    let told = |number| bench.read(&begin(&new, &tool_call(number, "slow"))).frames()[0]["retry_ms"].as_u64().unwrap();
    assert!((4_660..=9_340).contains(&told(1)));
    for (at, session) in sessions.iter().enumerate() {
        match at % 2 {
            0 => session.end(),
            _ => drop(respond(session, 1)),
        }
    }
    assert_eq!(told(2), 3_000);
}
