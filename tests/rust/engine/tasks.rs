//! Calls that become tasks: in one process, and asked about in others.

use std::sync::Arc;

use serde_json::{Value, json};
use tailrope_core::engine::{CallStep, Context, Options};
use tailrope_core::store::{HostStore, Limits};
use tailrope_core::task::{Input, Posted, Reply, Route};

use crate::kit::common::{Bench, SlowStore};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::BOB;
use crate::kit::tasks::{AFTER_MS, ask, ask_as, cancel, get, keys, open, open_as, status, update};

fn input_required() -> Value {
    let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
    json!({"resultType": "input_required", "inputRequests": {"q": asked}, "requestState": "s"})
}

#[test]
fn t_03_a_quick_call_is_passed_on_and_leaves_nothing() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    caller.answer(0, &json!({"content": []}));
    assert_eq!(caller.steps(), [CallStep::PassOn]);
    bench.advance(AFTER_MS);
    assert_eq!((caller.steps(), bench.engine.stats().tasks, bench.engine.stats().tasks_created), (vec![], 0, 0));
    drop(caller);
    assert!(bench.engine.is_idle());
}

#[test]
fn t_16_the_handle_of_a_task_goes_out_when_the_store_has_the_task() {
    let store = SlowStore::new(Limits::default());
    store.set(true, false);
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    let caller = open(&bench);
    bench.advance(AFTER_MS);
    assert_eq!(caller.steps(), []);
    assert!(store.answer(true), "the session");
    assert_eq!(caller.steps(), []);
    assert!(store.answer(true), "the task");
    let task = caller.created();
    assert_eq!(status(&bench, &task), "working");
    assert_eq!(bench.engine.stats().tasks, 1);
}

#[test]
fn t_13_a_task_ends_with_the_result_of_its_call_and_expires() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    for bench in &fleet.benches {
        assert_eq!(status(bench, &task), "working");
    }
    caller.answer(0, &json!({"content": [], "isError": true}));
    for bench in &fleet.benches {
        let shown = get(bench, &task);
        assert_eq!(
            (&shown["status"], &shown["result"]),
            (&json!("completed"), &json!({"content": [], "isError": true}))
        );
        assert!(cancel(bench, &task).is_acknowledged(), "T-22: a task that has its end keeps it");
    }
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
    fleet.advance(Limits::default().retention_ms - 1);
    assert_eq!(status(&fleet.benches[1], &task), "completed");
    fleet.advance(1);
    for bench in &fleet.benches {
        assert_eq!(ask(bench, &task, "tasks/get", &json!({})).take().unwrap().0, 400, "T-19");
    }
    assert_eq!(fleet.usage().streams, 0);
}

#[test]
fn t_27_the_task_of_another_user_is_unknown_everywhere() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let other = open(&fleet.benches[0]).call;
    drop(other);
    let unknown = format!("tailrope-{}", "A".repeat(32));
    for bench in &fleet.benches {
        for (method, params) in [
            ("tasks/get", json!({})),
            ("tasks/cancel", json!({})),
            ("tasks/update", json!({"inputResponses": {"1.0.q": {}}})),
        ] {
            let foreign = ask_as(bench, BOB, &task, method, &params).take();
            assert_eq!(foreign, ask_as(bench, BOB, &unknown, method, &params).take());
            assert_eq!(foreign.unwrap().0, 400);
        }
    }
    assert_eq!(status(&fleet.benches[0], &task), "working");
    assert_eq!(caller.steps(), []);
}

#[test]
fn t_22_a_task_is_cancelled_from_any_process() {
    for process in [0, 1] {
        let fleet = Fleet::new(2);
        let caller = open(&fleet.benches[0]);
        let task = caller.become_task(&fleet.benches[0]);
        let asking = cancel(&fleet.benches[process], &task);
        fleet.settle();
        assert_eq!(caller.steps(), [CallStep::Disconnect { run: 0 }]);
        fleet.settle();
        assert!(asking.is_acknowledged());
        for bench in &fleet.benches {
            assert_eq!(status(bench, &task), "cancelled");
        }
        fleet.benches[0].advance(500);
        assert_eq!(caller.steps(), [CallStep::Kill { run: 0 }]);
        caller.answer(0, &json!({}));
        assert_eq!(status(&fleet.benches[1], &task), "cancelled");
    }
}

#[test]
fn t_20_an_answer_starts_the_next_round_once_in_the_context_of_its_request() {
    for process in [0, 1] {
        let fleet = Fleet::new(2);
        let caller = open(&fleet.benches[0]);
        let task = caller.become_task(&fleet.benches[0]);
        caller.answer(0, &input_required());
        assert_eq!(keys(&fleet.benches[1], &task), ["1.0.q"]);
        let bench = &fleet.benches[process];
        let askings = [update(bench, &task, "1.0.q"), update(bench, &task, "1.0.q")];
        fleet.settle();
        let (run, context, call) = caller.started();
        assert_eq!((run, &call["params"]["requestState"]), (1, &json!("s")));
        assert_eq!(call["params"]["inputResponses"], json!({"q": {"action": "accept"}}));
        match context {
            Context::Request(77) if process == 0 => {}
            Context::Relayed(relayed) if process == 1 => assert!(relayed.headers().eq([("x-request-id", "r7")])),
            other => panic!("{other:?}"),
        }
        fleet.settle();
        for asking in askings {
            assert!(asking.is_acknowledged());
        }
        assert_eq!(caller.steps(), []);
        // An answered key is gone everywhere before the answer is acknowledged.
        assert!(keys(&fleet.benches[1], &task).is_empty());
        caller.answer(1, &json!({"content": []}));
        assert_eq!(status(&fleet.benches[1], &task), "completed");
    }
}

#[test]
fn a_handlers_question_is_answered_from_any_process() {
    for process in [0, 1] {
        let fleet = Fleet::new(2);
        let caller = open(&fleet.benches[0]);
        let request = br#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#;
        caller.call.input(Input::Question { ask: 5, request: request.as_slice().into() });
        let task = caller.created();
        let key = keys(&fleet.benches[1], &task).remove(0);
        let asking = update(&fleet.benches[process], &task, &key);
        fleet.settle();
        assert_eq!(caller.steps(), [CallStep::Answer { ask: 5, result: br#"{"action":"accept"}"#.as_slice().into() }]);
        fleet.settle();
        assert!(asking.is_acknowledged());
    }
}

#[test]
fn an_update_is_acknowledged_when_the_host_has_done_what_it_led_to() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    caller.answer(0, &input_required());
    let asking = update(&bench, &task, "1.0.q");
    assert!(!asking.is_acknowledged());
    assert!(matches!(caller.call.take_steps()[..], [CallStep::Start { run: 1, .. }]));
    assert!(!asking.is_acknowledged());
    assert!(caller.call.take_steps().is_empty());
    assert!(asking.is_acknowledged());
}

#[test]
fn i11_a_call_without_a_place_for_its_task_stays_a_call() {
    let bench = Bench::new(Options { max_sessions_per_principal: 1, ..Options::default() });
    let (first, second, other) = (open(&bench), open(&bench), open_as(&bench, BOB));
    bench.advance(AFTER_MS);
    first.created();
    other.created();
    assert_eq!(second.steps(), []);
    second.answer(0, &json!({"content": []}));
    assert_eq!(second.steps(), [CallStep::PassOn]);
    first.answer(0, &json!({}));
    // A task counts until it has expired: what is kept of it costs, too.
    let third = open(&bench);
    bench.advance(AFTER_MS);
    assert_eq!(third.steps(), []);
    bench.advance(Limits::default().retention_ms);
    let fourth = open(&bench);
    fourth.become_task(&bench);
}

#[test]
fn a_call_whose_task_the_store_does_not_take_stays_a_call() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    store.set(false, true);
    let caller = open(&bench);
    bench.advance(AFTER_MS);
    caller.answer(0, &json!({"content": []}));
    for _ in 0..200 {
        bench.advance(100);
    }
    assert_eq!(caller.steps(), [CallStep::PassOn]);
    assert_eq!(bench.engine.stats().tasks, 0);
    // In its window a client that goes cancels its call.
    let caller = open(&bench);
    bench.advance(AFTER_MS);
    caller.call.input(Input::ClientGone);
    for _ in 0..200 {
        bench.advance(100);
    }
    assert_eq!(caller.steps()[0], CallStep::Disconnect { run: 0 });
}

#[test]
fn i9_a_store_that_is_away_delays_a_task_and_loses_nothing() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    store.set(false, true);
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&bench, &task), "working", "what the store had");
    for _ in 0..50 {
        bench.advance(100);
    }
    store.set(false, false);
    bench.advance(1_000);
    assert_eq!(status(&bench, &task), "completed");
}

#[test]
fn a_client_of_a_stream_gets_the_task_at_its_end() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    let log = br#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#.as_slice();
    caller.call.input(Input::Message { run: 0, message: log.into(), is_body: false });
    bench.advance(AFTER_MS);
    let steps = caller.steps();
    assert_eq!(steps.len(), 5, "{steps:?}");
    let before = [Reply::Begin, Reply::Event(log.into())].map(CallStep::Reply);
    assert_eq!(steps[..3], [&before[..], &[CallStep::Unlink]].concat());
    assert!(
        matches!(&steps[3], CallStep::Reply(Reply::Event(created)) if created.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":2"))
    );
    assert_eq!(steps[4], CallStep::Reply(Reply::End));
}

#[test]
fn where_a_host_stores_the_events_a_declaration_changes_nothing() {
    let bench = Bench::new(Options { store: Some(Arc::new(HostStore::new(Limits::default()))), ..Options::default() });
    let meta =
        json!({"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
    for method in ["tools/call", "tasks/get", "server/discover"] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "slow", "_meta": meta}});
        let posted = Posted::read(Some("2026-07-28"), body.to_string().as_bytes()).unwrap();
        assert_eq!(bench.engine.route_post(&posted, true, false), Route::Steer, "{method}");
        assert_eq!(bench.engine.route_post(&posted, false, false), Route::Pass, "{method}");
    }
}

/// The SDK says how far the call is.
fn progress(caller: &crate::kit::tasks::Caller, n: u64) {
    let params = json!({"progressToken": "tailrope-progress", "progress": n});
    let message = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
    caller.call.input(Input::Message { run: 0, message: message.to_string().into(), is_body: false });
}

#[test]
fn i11_a_store_that_is_away_misses_progress_and_gets_the_newest() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    store.set(false, true);
    for n in 1..=100 {
        progress(&caller, n);
        bench.advance(250);
    }
    store.set(false, false);
    bench.advance(1_000);
    assert_eq!(get(&bench, &task)["statusMessage"], "100");
    let events = bench.engine.stats().events;
    assert!(events <= 3, "its creation, the first and the last: {events}");
}

#[test]
fn i11_an_owner_keeps_no_progress_that_is_superseded() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    for n in 1..=50 {
        progress(&caller, n);
        fleet.advance(250);
    }
    assert_eq!(fleet.usage().events, 51);
    fleet.lose_session(&fleet.only_session());
    fleet.disturb();
    assert_eq!(get(&fleet.benches[1], &task)["statusMessage"], "50");
    assert_eq!(fleet.usage().events, 2, "its creation, and the last");
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "completed");
}
