//! The record of a call of 2026-07-28: a line, a counter and a measurement, as for the calls of sessions.

use serde_json::json;
use tailrope_core::engine::{Options, Stats};
use tailrope_core::exchange::Requester;
use tailrope_core::store::Limits;
use tailrope_core::stream::Drain;
use tailrope_core::task::Input;
use tracing::Level;

use crate::engine::call_records::{ALICE, Fields, SECRET, lines};
use crate::kit::common::Bench;
use crate::kit::fleet::Fleet;
use crate::kit::tasks::{Caller, cancel, open_as, status};

/// The only record of what is done with a call of alice's, and the counters behind it.
fn only(options: Options, done: impl FnOnce(&Bench, &Caller)) -> (Level, Fields, Stats) {
    let mut stats = Stats::default();
    let mut found = lines("call ended", || {
        let bench = Bench::new(options);
        let caller = open_as(&bench, Requester { log_user: Some("Alice"), ..ALICE });
        bench.advance(500);
        let running = bench.engine.stats();
        assert_eq!((running.calls_begun, running.calls_running, running.oldest_call_ms), (1, 1, 500));
        done(&bench, &caller);
        stats = bench.engine.stats();
    });
    assert_eq!(found.len(), 1, "{found:?}");
    let (level, fields) = found.pop().unwrap();
    assert_eq!((stats.calls_running, fields["tool"].as_str(), fields["method"].as_str()), (0, "slow", "tools/call"));
    assert!(fields.values().all(|value| !value.contains(SECRET)), "{fields:?}");
    (level, fields, stats)
}

fn said(fields: &Fields) -> [&str; 2] {
    ["outcome", "cause"].map(|name| fields[name].as_str())
}

#[test]
fn a_call_that_ends_badly_before_it_is_a_task_has_a_record() {
    let (level, fields, stats) = only(Options::default(), |_, caller| {
        let message = json!({"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": SECRET}}).to_string();
        caller.call.input(Input::Message { run: 0, message: message.into(), is_body: true });
    });
    assert_eq!((level, said(&fields)), (Level::INFO, ["error", "the handler gave an error"]));
    let named = ["request", "user", "sdk", "duration_ms", "connections"].map(|name| fields[name].as_str());
    assert_eq!((named, stats.calls_error), (["2", "Alice", "rust", "500", "1"], 1));

    let (level, fields, stats) = only(Options::default(), |_, caller| caller.call.input(Input::ClientGone));
    let why = "the client closed its connection before the call was a task";
    assert_eq!((level, said(&fields), stats.calls_client_gone), (Level::WARN, ["client_gone", why], 1));

    let (level, fields, stats) = only(Options::default(), |_, caller| caller.call.input(Input::RunEnded { run: 0 }));
    assert_eq!((level, fields["outcome"].as_str(), stats.calls_error), (Level::INFO, "error", 1));

    let (level, fields, stats) = only(Options::default(), |_, caller| caller.call.leave());
    assert_eq!((level, fields["outcome"].as_str(), stats.calls_drained), (Level::WARN, "drained", 1));
}

#[test]
fn a_task_that_ends_badly_has_a_record() {
    let (level, fields, stats) = only(Options::default(), |bench, caller| {
        let task = caller.become_task(bench);
        let cancelling = cancel(bench, &task);
        assert!(!caller.steps().is_empty() && cancelling.is_acknowledged());
    });
    assert_eq!((level, fields["outcome"].as_str(), stats.calls_cancelled), (Level::INFO, "cancelled", 1));
    assert_eq!((fields["duration_ms"].as_str(), fields.get("stream")), ("1500", None));

    let (level, fields, stats) = only(Options::default(), |bench, caller| {
        caller.become_task(bench);
        caller.answer(0, &json!({"content": [], "isError": true}));
    });
    assert_eq!((level, fields["outcome"].as_str(), stats.calls_tool_error), (Level::INFO, "tool_error", 1));

    let limits = Limits { max_event_bytes: 2_000, ..Limits::default() };
    let (level, fields, stats) = only(Options { limits, ..Options::default() }, |bench, caller| {
        caller.become_task(bench);
        caller.answer(0, &json!({"content": "x".repeat(2_000)}));
    });
    let why = "the answer is larger than what is kept of a task";
    assert_eq!((level, said(&fields), stats.calls_limit), (Level::ERROR, ["limit", why], 1));

    let (level, fields, stats) = only(Options { max_detached_ms: 10_000, ..Options::default() }, |bench, caller| {
        caller.become_task(bench);
        (0..20).for_each(|_| bench.advance(1_000));
    });
    let why = "no client asked for the task for max_detached_ms";
    assert_eq!((level, said(&fields), stats.calls_client_gone), (Level::WARN, ["client_gone", why], 1));

    let (level, fields, stats) = only(Options::default(), |bench, caller| {
        caller.become_task(bench);
        bench.engine.close();
    });
    assert_eq!((level, fields["outcome"].as_str(), stats.calls_drained), (Level::WARN, "drained", 1));
}

#[test]
fn calls_that_end_well_have_a_record_where_every_call_has_one() {
    for log_calls in [false, true] {
        let mut stats = Stats::default();
        let found = lines("call ended", || {
            let bench = Bench::new(Options { log_calls, ..Options::default() });
            for is_task in [false, true] {
                let caller = open_as(&bench, ALICE);
                if is_task {
                    caller.become_task(&bench);
                }
                caller.answer(0, &json!({"content": []}));
            }
            stats = bench.engine.stats();
        });
        assert_eq!((found.len(), stats.calls_result), (if log_calls { 2 } else { 0 }, 2));
    }
}

#[test]
fn the_process_that_ends_a_task_of_another_one_has_the_record() {
    let mut found = lines("call ended", || {
        let fleet = Fleet::new(2);
        let caller = open_as(&fleet.benches[0], ALICE);
        let task = caller.become_task(&fleet.benches[0]);
        fleet.lose(0);
        fleet.advance(30_000);
        assert_eq!(status(&fleet.benches[1], &task), "failed");
        assert_eq!(fleet.benches[1].engine.stats().calls_owner_gone, 1);
    });
    let (level, fields) = found.pop().expect("there is one");
    assert!(found.is_empty(), "{found:?}");
    assert_eq!((level, fields["outcome"].as_str(), fields["tool"].as_str()), (Level::WARN, "owner_gone", "slow"));
    assert_eq!((fields["request"].as_str(), fields.get("user"), fields.get("sdk")), ("2", None, None));
}

#[test]
fn a_task_that_waits_for_its_client_has_its_record_where_it_goes_on() {
    let found = lines("call ended", || {
        let fleet = Fleet::new(2);
        let caller = open_as(&fleet.benches[0], ALICE);
        let task = caller.become_task(&fleet.benches[0]);
        let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
        caller.answer(0, &json!({"resultType": "input_required", "inputRequests": {"q": asked}}));
        assert_eq!(fleet.benches[0].engine.stats().calls_running, 1);
        fleet.benches[0].engine.drain(Drain::after(100));
        fleet.benches[0].advance(100);
        assert_eq!(fleet.benches[0].engine.stats().calls_running, 0);
        assert!(cancel(&fleet.benches[1], &task).is_acknowledged());
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].1["outcome"], "cancelled");
}

/// The line at the end of a drain. `done` gets the process that has the task, and another one.
fn drained(text: &'static str, done: impl FnOnce(&Bench, &Caller)) -> (Level, [String; 3]) {
    let mut found = lines(text, || {
        let fleet = Fleet::new(2);
        let caller = open_as(&fleet.benches[0], ALICE);
        let _task = caller.become_task(&fleet.benches[0]);
        done(&fleet.benches[0], &caller);
        fleet.benches[0].engine.tell_drained();
    });
    assert_eq!(found.len(), 1, "once: {found:?}");
    let (level, fields) = found.pop().unwrap();
    (level, ["calls_done", "calls_ended", "tasks_handed_over"].map(|name| fields[name].clone()))
}

#[test]
fn a_drain_says_what_became_of_tasks() {
    const CUT: &str = "drained, and calls that were still running get an error";
    let numbers = |numbers: [u64; 3]| numbers.map(|number| number.to_string());
    let told_before = drained(CUT, |bench, _| {
        bench.engine.drain(Drain::after(100));
        assert_eq!(bench.engine.drained(Some(1_000)), None, "a task runs");
        bench.advance(1_000);
        assert_eq!(bench.engine.drained(Some(1_000)), Some(false));
        bench.engine.close();
    });
    assert_eq!(told_before, (Level::WARN, numbers([0, 1, 0])));
    let told_after = drained(CUT, |bench, _| {
        bench.engine.drain(Drain::after(100));
        bench.engine.close();
    });
    assert_eq!(told_after, (Level::WARN, numbers([0, 1, 0])));
    let by_its_host = drained(CUT, |bench, caller| {
        let _other = open_as(bench, ALICE);
        caller.call.drain();
        caller.call.drain();
        caller.call.leave();
    });
    assert_eq!(by_its_host, (Level::WARN, numbers([0, 1, 0])), "what another server of the process runs goes on");
    let done = drained("drained", |bench, caller| {
        bench.engine.drain(Drain::after(100));
        caller.answer(0, &json!({"content": []}));
        bench.advance(100);
    });
    assert_eq!(done, (Level::INFO, numbers([1, 0, 0])));
    let left = drained("drained", |bench, caller| {
        let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
        caller.answer(0, &json!({"resultType": "input_required", "inputRequests": {"q": asked}}));
        bench.engine.drain(Drain::after(100));
        bench.advance(100);
    });
    assert_eq!(left, (Level::INFO, numbers([0, 0, 1])));
}
