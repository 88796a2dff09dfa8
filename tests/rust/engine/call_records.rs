//! The record of each call: every outcome has its line, its level and its counter, and nothing of a payload.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tailrope_core::engine::{
    COUNTERS, CallOutcome, CounterKind, NoWake, Options, OutgoingMessage, SessionHandle, Stats,
};
use tailrope_core::exchange::{Admission, Fault, Request, Requester, Terms};
use tailrope_core::protocol::{Dialect, Head, Reason, Refusal};
use tailrope_core::session::Weight;
use tailrope_core::store::Limits;
use tailrope_core::stream::Drain;
use tracing::Level;
use tracing::field::{Field, Visit};

use crate::engine::lines::lines_of;
use crate::kit::common::{Bench, NEW, OLD, SlowStore, check_sum, id, resume, slow};

pub(crate) type Fields = BTreeMap<&'static str, String>;

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// The lines of what is done that have this text.
pub(crate) fn lines(text: &'static str, done: impl FnOnce()) -> Vec<(Level, Fields)> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&found);
    lines_of(
        move |event| {
            let mut fields = Fields::new();
            event.record(&mut Reader(&mut fields));
            if fields.remove("message").is_some_and(|message| message == text) {
                lines.lock().unwrap().push((*event.metadata().level(), fields));
            }
        },
        done,
    );
    let found = found.lock().unwrap();
    found.clone()
}

pub(crate) const SECRET: &str = "a secret of the payload";

pub(crate) fn tool_call(number: i64) -> String {
    let params = json!({"name": "echo", "arguments": {"text": SECRET}, "_meta": {"progressToken": "t"}});
    json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).to_string()
}

pub(crate) const ALICE: Requester<'static> = Requester {
    named: Some("alice"),
    user_json: None,
    log_user: None,
    credentials: &[("authorization", "Bearer a-token-of-alice")],
};

pub(crate) fn admit(session: &SessionHandle, body: &str, requester: Requester<'_>) -> Admission {
    try_admit(session, body, requester).expect("it is a request")
}

pub(crate) fn try_admit(session: &SessionHandle, body: &str, requester: Requester<'_>) -> Result<Admission, Refusal> {
    let head = Head {
        method: "POST",
        accept: Some("application/json, text/event-stream"),
        content_type: Some("application/json"),
        protocol_version: Some("2025-11-25"),
        session_id: Some(session.id()),
        last_event_id: None,
    };
    let request = Request { head, requester, body: body.as_bytes(), ..Request::default() };
    session.admit(&request, &Terms::default())
}

/// A session of alice's, and a call of a tool in it.
struct Called {
    bench: Bench,
    session: SessionHandle,
    connection: Option<tailrope_core::engine::Connection>,
}

fn called_in(bench: Bench, revision: tailrope_core::protocol::Revision) -> Called {
    let session = bench.session("s", revision);
    session.claim(&ALICE).unwrap();
    let admission = admit(&session, &tool_call(1), ALICE);
    let connection = session.open(&admission, false, Arc::new(NoWake), 0).expect("it may begin");
    Called { bench, session, connection: Some(connection) }
}

fn called() -> Called {
    called_in(Bench::new(Options::default()), NEW)
}

fn answer(session: &SessionHandle, text: &str) {
    let payload = format!(r#"{{"jsonrpc":"2.0","id":1,{text}}}"#);
    session.send(OutgoingMessage::response(&id(1), payload.as_bytes())).unwrap();
}

fn only(outcome: CallOutcome, done: impl FnOnce() -> Called) -> Fields {
    let mut stats = Stats::default();
    let mut found = lines("call ended", || stats = done().bench.engine.stats());
    assert_eq!(found.len(), 1, "{outcome:?}: {found:?}");
    let (level, fields) = found.pop().unwrap();
    let wanted = match outcome.weight() {
        Weight::Well | Weight::Told => Level::INFO,
        Weight::Lost => Level::WARN,
        Weight::Broken => Level::ERROR,
    };
    assert_eq!((level, fields["outcome"].as_str()), (wanted, outcome.as_str()), "{fields:?}");
    let name = format!("calls_{}", outcome.as_str());
    let count = stats.entries().find(|(counter, _)| counter.name == name).map(|(_, value)| value);
    assert_eq!((count, stats.calls_running), (Some(1), 0), "{name}");
    check_sum(&stats);
    for value in fields.values() {
        assert!(!value.contains(SECRET) && !value.contains("a-token"), "{fields:?}");
    }
    fields
}

#[test]
fn every_call_that_ends_badly_has_a_record_that_names_its_user_its_tool_and_why() {
    let fields = only(CallOutcome::Error, || {
        let called = called();
        called.bench.advance(1_500);
        answer(&called.session, r#""error":{"code":-32602,"message":"a secret of the payload"}"#);
        called
    });
    let named = |name: &str| fields.get(name).map(String::as_str);
    assert_eq!(
        ["request", "method", "tool", "user", "sdk", "duration_ms", "connections", "resumes", "gaps"].map(named),
        [
            Some("1"),
            Some("tools/call"),
            Some("echo"),
            Some("alice"),
            Some("mcp 2.x"),
            Some("1500"),
            Some("1"),
            Some("0"),
            Some("0")
        ]
    );
    assert_eq!(named("cause"), Some("the handler gave an error"));
    assert!(fields["stream"].len() == 24 && !fields["session"].is_empty() && fields["session"] != "s");

    only(CallOutcome::ToolError, || {
        let called = called();
        answer(
            &called.session,
            r#""result":{"content":[{"type":"text","text":"a secret of the payload"}],"isError":true}"#,
        );
        called
    });
    only(CallOutcome::Cancelled, || {
        let called = called();
        assert!(called.session.cancelled(&id(1)));
        called
    });
    only(CallOutcome::SessionEnded, || {
        let called = called();
        called.session.end();
        called
    });
    only(CallOutcome::Drained, || {
        let called = called_in(Bench::new(Options::default()), OLD);
        called.bench.engine.drain(Drain::after(1));
        called.bench.advance(5_000);
        called
    });
    only(CallOutcome::Drained, || {
        let called = called();
        called.bench.engine.drain(Drain::after(1));
        called.session.end();
        called
    });
    only(CallOutcome::ClientGone, || {
        let mut called = called_in(Bench::new(Options { max_detached_ms: 60_000, ..Options::default() }), NEW);
        drop(called.connection.take());
        called.bench.clock.advance(60_000);
        called.bench.engine.tick().into_iter().for_each(|session| session.end());
        called
    });
    let limits = Limits { max_event_bytes: 10, ..Limits::default() };
    let fields = only(CallOutcome::Limit, || {
        let called = called_in(Bench::new(Options { limits, ..Options::default() }), NEW);
        answer(&called.session, r#""result":{}"#);
        called
    });
    assert!(fields["cause"].contains("larger than the 10 bytes"), "{fields:?}");
    let fields = only(CallOutcome::StoreRefused, || {
        let (bench, store) = slow(Options::default());
        let called = called_in(bench, NEW);
        called.bench.advance(20);
        store.set(true, false);
        answer(&called.session, r#""result":{}"#);
        assert!(store.answer(false), "the response waits for it");
        called
    });
    assert_eq!(fields["cause"], "The response could not be stored: it went once to the client that was connected");
    let fields = only(CallOutcome::StoreRefused, || {
        let (bench, store) = slow(Options::default());
        let mut called = called_in(bench, NEW);
        called.bench.advance(20);
        drop(called.connection.take());
        store.set(true, false);
        answer(&called.session, r#""result":{}"#);
        assert!(store.answer(false), "the response waits for it");
        called
    });
    assert_eq!(fields["cause"], "The response could not be stored");
}

#[test]
fn a_call_that_ends_well_is_counted_and_has_a_record_if_every_call_has_one() {
    let well = |log_calls| {
        let called = called_in(Bench::new(Options { log_calls, ..Options::default() }), NEW);
        let told = called.bench.read(called.connection.as_ref().unwrap());
        let again = resume(&called.session, &told.last_id());
        called.bench.read(&again);
        answer(&called.session, r#""result":{"content":[],"isError":false}"#);
        called
    };
    let mut stats = Stats::default();
    assert_eq!(lines("call ended", || stats = well(false).bench.engine.stats()), []);
    assert_eq!((stats.calls_begun, stats.calls_result, stats.calls_running), (1, 1, 0));
    let fields = only(CallOutcome::Result, || well(true));
    assert_eq!([&fields["connections"], &fields["resumes"]], ["2", "1"]);
}

/// A call whose response the store has not answered for.
fn answered_late() -> (Called, Arc<SlowStore>) {
    let (bench, store) = slow(Options::default());
    let called = called_in(bench, NEW);
    called.bench.advance(20);
    store.set(true, false);
    answer(&called.session, r#""result":{}"#);
    check_sum(&called.bench.engine.stats());
    assert_eq!(called.bench.engine.stats().calls_running, 1, "it has no end before the store has its response");
    assert_eq!(called.bench.engine.stats().oldest_call_ms, 20);
    (called, store)
}

#[test]
fn a_call_whose_response_waits_for_the_store_when_its_session_ends_has_a_record() {
    let answered = |succeeds: Option<bool>| {
        let (called, store) = answered_late();
        called.session.end();
        if let Some(succeeds) = succeeds {
            store.answer(succeeds);
        }
        called.bench.advance(60_000);
        called
    };
    for succeeds in [None, Some(true), Some(false)] {
        let fields = only(CallOutcome::SessionEnded, || answered(succeeds));
        assert_eq!(fields["cause"], "the session ended before the event store had the response");
    }
    let fields = only(CallOutcome::Drained, || {
        let (called, _store) = answered_late();
        called.bench.engine.close();
        called
    });
    assert_eq!(fields["cause"], "the server stopped before the event store had the response");
    let mut stats = Stats::default();
    let found = lines("call ended", || {
        let (called, store) = answered_late();
        store.answer(true);
        called.session.end();
        stats = called.bench.engine.stats();
    });
    assert_eq!((found, stats.calls_result), (Vec::new(), 1), "one that the store had before has ended well");
    check_sum(&stats);
}

#[test]
fn a_call_that_is_answered_in_json_has_a_record_too() {
    for (log_calls, text, outcome) in
        [(true, r#""result":{}"#, CallOutcome::Result), (false, r#""error":{}"#, CallOutcome::Error)]
    {
        let fields = only(outcome, || {
            let bench = Bench::new(Options { log_calls, ..Options::default() });
            let session = bench.session("s", NEW);
            let admission = admit(&session, &tool_call(1), Requester::default());
            let connection = session.open(&admission, true, Arc::new(NoWake), 0).expect("it may begin");
            answer(&session, text);
            Called { bench, session, connection: Some(connection) }
        });
        assert_eq!((fields.get("stream"), fields["tool"].as_str(), fields.get("user")), (None, "echo", None));
    }
}

#[test]
fn refused_calls_are_counted_by_their_reason_and_their_lines_are_bounded() {
    let options = Options { max_requests_per_session: 1, ..Options::default() };
    let mut stats = Stats::default();
    let found = lines("call ended", || {
        let called = called_in(Bench::new(options), NEW);
        for number in 2..102 {
            let admission = admit(&called.session, &tool_call(number), ALICE);
            let refused = called.session.open(&admission, false, Arc::new(NoWake), 0).expect_err("one runs");
            assert_eq!((refused.status, refused.reason), (429, Reason::TooManyRequests));
            // A host counts what it answers: that is this one already.
            called.bench.engine.refused(&refused);
        }
        called.bench.advance(60_000);
        stats = called.bench.engine.stats();
    });
    assert_eq!((stats.refused_too_many_requests, stats.calls_begun, stats.oldest_call_ms), (100, 1, 60_000));
    let repeated: Vec<_> = found.iter().map(|(_, fields)| fields.get("repeated").map(String::as_str)).collect();
    assert_eq!(repeated, [None, None, None, Some("97")], "a few, and then how many there were");
    let (level, fields) = &found[0];
    assert_eq!((*level, fields["outcome"].as_str(), fields["tool"].as_str()), (Level::WARN, "refused", "echo"));
    assert_eq!(fields["cause"], Reason::TooManyRequests.cause());
}

#[test]
fn the_refusals_of_one_user_hide_neither_those_of_another_nor_those_of_another_reason() {
    const BOB: Requester<'static> = Requester { named: Some("bob"), ..ALICE };
    let end_all: [fn(&Bench); 4] = [
        |bench| bench.engine.drain(Drain::after(1)),
        |bench| bench.engine.tell_drained(),
        |bench| bench.engine.close(),
        |bench| bench.engine.release(),
    ];
    for end in end_all {
        let found = lines("call ended", || {
            let bench = Bench::new(Options { max_requests_per_session: 1, ..Options::default() });
            let sessions = [("s", ALICE), ("t", BOB)].map(|(id, user)| {
                let session = bench.session(id, NEW);
                session.claim(&user).unwrap();
                let connection = session.open(&admit(&session, &tool_call(1), user), false, Arc::new(NoWake), 0);
                (session, user, connection)
            });
            let refuse = |(session, user, _): &(SessionHandle, Requester<'_>, _), number: i64| {
                let admission = admit(session, &tool_call(number), *user);
                session.open(&admission, false, Arc::new(NoWake), 0).expect_err("one runs")
            };
            (0..5).for_each(|_| assert_eq!(refuse(&sessions[0], 2).reason, Reason::TooManyRequests));
            assert_eq!(refuse(&sessions[1], 3).reason, Reason::TooManyRequests);
            bench.engine.tick();
            end(&bench);
        });
        let refused = found.iter().filter(|(_, fields)| fields["outcome"] == "refused");
        let said: Vec<_> =
            refused.map(|(_, fields)| (fields["user"].as_str(), fields.get("repeated").map(String::as_str))).collect();
        let alice = ("alice", None);
        assert_eq!(said, [alice, alice, alice, ("bob", None), ("alice", Some("2"))], "and all before the process ends");
    }
    let found = lines("call ended", || {
        let bench = Bench::new(Options { max_requests_per_session: 2, ..Options::default() });
        let session = bench.session("s", NEW);
        let open = |number| {
            let admission = admit(&session, &tool_call(number), Requester::default());
            session.open(&admission, false, Arc::new(NoWake), 0)
        };
        let _first = open(1).expect("it may begin");
        (0..5).for_each(|_| assert_eq!(open(1).expect_err("it runs").reason, Reason::DuplicateId));
        let _second = open(2).expect("it may begin");
        assert_eq!(open(3).expect_err("two run").reason, Reason::TooManyRequests);
        bench.engine.close();
    });
    let causes = found.iter().filter(|(_, fields)| fields["outcome"] == "refused").map(|(_, fields)| &*fields["cause"]);
    let (running, many) = (Reason::DuplicateId.cause(), Reason::TooManyRequests.cause());
    assert_eq!(causes.collect::<Vec<_>>(), [running, running, running, many, running]);
}

/// A request of this head and body to a session.
fn asked(session: &SessionHandle, head: Head<'_>, requester: Requester<'_>, body: &str) -> Result<Admission, Refusal> {
    let request = Request { head, requester, body: body.as_bytes(), ..Request::default() };
    session.admit(&request, &Terms::default())
}

#[test]
fn a_request_that_is_refused_before_it_is_a_call_has_a_line_that_says_whose_it_was_and_why() {
    const BOB: Requester<'static> = Requester { named: Some("bob"), ..ALICE };
    let mut refused = 0;
    let found = lines("request refused", || {
        let bench = Bench::new(Options { max_sessions: 1, max_sessions_per_principal: 1, ..Options::default() });
        let session = bench.session("s", NEW);
        session.claim(&ALICE).unwrap();
        let post = Head {
            method: "POST",
            accept: Some("application/json, text/event-stream"),
            content_type: Some("application/json"),
            protocol_version: Some("2025-11-25"),
            session_id: Some("s"),
            last_event_id: None,
        };
        let call = tool_call(1);
        for (head, who, body) in [
            (post, BOB, &*call),
            (Head { accept: Some("text/html"), ..post }, ALICE, &*call),
            (post, ALICE, "{a secret of the payload"),
            (Head { session_id: Some("other"), ..post }, ALICE, &*call),
            (Head { method: "A-SECRET", ..post }, ALICE, ""),
        ] {
            asked(&session, head, who, body).expect_err("it is refused");
        }
        let admitted = |head| asked(&session, head, ALICE, "").expect("it is a request");
        let lost = admitted(Head { method: "GET", last_event_id: Some("nonsense"), ..post });
        session.open(&lost, false, Arc::new(NoWake), 0).expect_err("no id of ours");
        let _running = session.open(&admit(&session, &tool_call(2), ALICE), false, Arc::new(NoWake), 0);
        let second = bench.session("t", NEW);
        second.claim(&ALICE).unwrap();
        try_admit(&second, &tool_call(3), ALICE).expect_err("one is open, and runs");
        // A host answers these by itself, and what the engine has counted only once.
        let outside = Fault::NotInitialize.refusal(&Dialect::NEUTRAL);
        bench.engine.refused(&outside);
        let nobodys = Request { head: post, requester: BOB, body: call.as_bytes(), ..Request::default() };
        let unknown = bench.engine.unknown_session("nobody's".into(), &nobodys, &Dialect::NEUTRAL);
        assert_eq!((unknown.status, unknown.is_counted), (404, true));
        bench.engine.refused(&asked(&session, post, BOB, "[]").expect_err("it is alice's"));
        let stats = bench.engine.stats();
        refused =
            stats.entries().filter(|(counter, _)| counter.name.starts_with("refused_")).map(|(_, value)| value).sum();
    });
    let said = |name: &'static str| found.iter().map(move |(_, fields)| fields.get(name).map(String::as_str));
    let reasons = [
        "unknown_session",
        "bad_request",
        "bad_request",
        "unknown_session",
        "bad_request",
        "unknown_cursor",
        "too_many_sessions",
        "bad_request",
        "unknown_session",
        "unknown_session",
    ];
    assert_eq!(said("reason").flatten().collect::<Vec<_>>(), reasons);
    assert_eq!(refused, 10, "what is counted has a line");
    let users = [Some("bob"), Some("alice"), Some("alice"), Some("alice")];
    assert_eq!(said("user").take(4).collect::<Vec<_>>(), users);
    assert_eq!(said("tool").take(3).collect::<Vec<_>>(), [Some("echo"), Some("echo"), None]);
    assert_eq!(said("method").take(2).flatten().collect::<Vec<_>>(), ["tools/call", "tools/call"]);
    let of_nobodys = &found[8].1;
    assert!(of_nobodys["session"].len() == 32 && of_nobodys["user"] == "bob" && of_nobodys["tool"] == "echo");
    assert_eq!(said("http").collect::<Vec<_>>()[4..6], [Some("other"), Some("GET")]);
    assert!(said("outcome").all(|outcome| outcome == Some("refused")) && said("status").all(|status| status.is_some()));
    for (level, fields) in &found {
        let is_ours = fields["reason"] == "too_many_sessions";
        assert_eq!(*level, if is_ours { Level::WARN } else { Level::INFO }, "{fields:?}");
        let is_told =
            |value: &String| value.contains(SECRET) || value.contains("a-token") || value.contains("A-SECRET");
        assert!(!fields.values().any(is_told), "{fields:?}");
    }
}

#[test]
fn the_log_names_a_user_as_the_operator_says_and_never_by_a_credential() {
    let credentials: &[(&str, &str)] = &[
        ("authorization", "Bearer a-long-token"),
        ("cookie", "session=0123456789abcdef"),
        ("x-forwarded-user", "bob"),
    ];
    let name = |named, log_user| {
        Requester { named, log_user, user_json: Some(r#"{"sub":"x","access_token":"abc"}"#), credentials }.log_name()
    };
    assert_eq!(name(None, None), None, "only the operator names users in the log");
    assert_eq!(name(Some("alice"), None).as_deref(), Some("alice"));
    assert_eq!(name(Some("alice"), Some("alice of acme")).as_deref(), Some("alice of acme"));
    assert_eq!(name(Some("alice"), Some("")).as_deref(), Some("alice"));
    assert_eq!(name(None, Some("bob")).as_deref(), Some("bob"), "a name, which a proxy has told");
    for secret in ["a-long-token", "Bearer a-long-token", "key a-long-token", "abc"] {
        assert_eq!(name(Some(secret), None), None, "{secret}");
        assert_eq!(name(Some("alice"), Some(secret)), None, "{secret}");
    }
    assert_eq!(name(None, Some(&"n".repeat(1_000))).map(|name| name.len()), Some(128));
}

#[test]
fn lines_of_a_stream_say_its_request_and_its_tool() {
    let found = lines("connection lost", || {
        let mut called = called();
        called.bench.read(called.connection.as_ref().unwrap());
        drop(called.connection.take());
    });
    let [(_, fields)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((fields["request"].as_str(), fields["tool"].as_str()), ("1", "echo"));
}

#[test]
fn outcomes_reasons_and_counters_have_one_list() {
    let names: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
    let stats = Bench::new(Options::default()).engine.stats();
    assert!(stats.entries().map(|(counter, _)| counter.name).eq(names.iter().copied()));
    let of_outcomes = CallOutcome::ALL.iter().filter(|outcome| **outcome != CallOutcome::Refused);
    let of_reasons = Reason::ALL.iter().filter(|reason| **reason != Reason::Steered);
    let wanted = of_outcomes.map(|outcome| format!("calls_{}", outcome.as_str()));
    for name in wanted.chain(of_reasons.map(|reason| format!("refused_{}", reason.as_str()))) {
        assert!(names.contains(&&*name), "{name}");
    }
    for (at, counter) in COUNTERS.iter().enumerate() {
        assert!(!names[..at].contains(&counter.name) && counter.about.ends_with('.'), "{counter:?}");
        assert!(at == 0 || COUNTERS[at - 1].kind == counter.kind || counter.kind == CounterKind::Counter);
    }
    let words = CallOutcome::ALL.iter().map(|outcome| outcome.cause());
    assert!(words.chain(Reason::ALL.iter().map(|reason| reason.cause())).all(|cause| cause.len() > 10));
    assert_eq!(Dialect::NEUTRAL.sdk, "rust");
}
