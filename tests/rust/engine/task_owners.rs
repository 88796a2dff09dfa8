//! Tasks whose owner is gone, stands still, drains or ends, and stores that were set back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tailrope_core::engine::{CallStep, Context, Options};
use tailrope_core::store::{EventStore, Limits, SessionId, StoreError, session_name};
use tailrope_core::stream::Drain;
use tailrope_core::task::{Input, TaskId};

use crate::kit::common::{Bench, SlowStore};
use crate::kit::fleet::Fleet;
use crate::kit::tasks::{SERVER, ask, cancel, get, keys, open, status, update};

fn input_required() -> Value {
    let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
    json!({"resultType": "input_required", "inputRequests": {"q": asked}})
}

#[test]
fn t_14_a_task_whose_process_is_gone_fails_and_never_runs_again() {
    let fleet = Fleet::new(3);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    assert_eq!(status(&fleet.benches[1], &task), "working");
    fleet.lose(0);
    let shown = get(&fleet.benches[1], &task);
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!(-32603)));
    assert_eq!(shown, get(&fleet.benches[2], &task));
    assert_eq!(fleet.benches[1].engine.stats().tasks_lost, 1);
    // It only stood still.
    fleet.settle();
    caller.answer(0, &json!({"content": []}));
    fleet.settle();
    assert_eq!(status(&fleet.benches[2], &task), "failed");
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
    assert_eq!(status(&fleet.benches[0], &task), "failed");
}

#[test]
fn a_task_that_was_polled_here_has_its_end_soon_after_its_process_is_gone() {
    let fleet = Fleet::new(3);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    assert_eq!(status(&fleet.benches[1], &task), "working");
    fleet.lose(0);
    // Without another poll, and not for ever.
    fleet.benches[1].advance(1_000);
    assert_eq!(fleet.benches[1].engine.stats().tasks_lost, 1);
    fleet.benches[1].advance(1_000);
    assert!(fleet.benches[1].engine.is_idle());
}

#[test]
fn looks_at_a_task_that_nobody_asks_for_end() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    assert_eq!(status(&fleet.benches[1], &task), "working");
    for _ in 0..40 {
        assert!(!fleet.benches[1].engine.is_idle() || fleet.benches[1].clock_ms() > 29_000);
        fleet.benches[1].advance(1_000);
    }
    assert!(fleet.benches[1].engine.is_idle());
}

#[test]
fn t_22_a_task_whose_process_is_gone_is_cancelled() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.lose(0);
    assert!(cancel(&fleet.benches[1], &task).is_acknowledged());
    assert_eq!(status(&fleet.benches[1], &task), "cancelled");
    fleet.settle();
    assert_eq!(caller.steps(), [CallStep::Disconnect { run: 0 }]);
}

#[test]
fn a_request_waits_while_its_owner_stands_still_and_is_done_once() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    // The owner does not hear of the message, and is gone before it does.
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    fleet.benches[1].advance(5_000);
    assert!(!asking.is_acknowledged());
    fleet.lose(0);
    fleet.benches[1].advance(1_000);
    fleet.benches[1].advance(1_000);
    // It waits for answers, with which another process can go on.
    let served = asking.serves();
    let (run, context, call) = served.started();
    assert_eq!((run, context), (1, Context::Request(77)));
    assert_eq!(call["params"]["inputResponses"], json!({"q": {"action": "accept"}}));
    assert!(asking.is_acknowledged());
    served.answer(1, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "completed");
    fleet.nodes[0].is_deaf.store(false, Ordering::SeqCst);
    fleet.disturb();
    assert_eq!(caller.steps(), []);
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
}

#[test]
fn o5_an_update_that_a_process_took_before_it_was_gone_is_asked_again() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.call.input(Input::Question { ask: 1, request: br#"{"method":"a"}"#.as_slice().into() });
    let key = keys(&fleet.benches[1], &task).remove(0);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    let asking = update(&fleet.benches[1], &task, &key);
    fleet.settle();
    fleet.lose(0);
    fleet.benches[1].advance(20_000);
    fleet.benches[1].advance(1_000);
    fleet.benches[1].advance(1_000);
    assert!(asking.is_acknowledged(), "the handler that asked is gone, and so is its task");
    assert_eq!(status(&fleet.benches[1], &task), "failed");
}

#[test]
fn o5_an_update_that_a_process_took_before_it_was_gone_is_asked_of_its_heir() {
    let fleet = Fleet::new(3);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
    caller.answer(0, &json!({"resultType": "input_required", "inputRequests": {"q": asked, "r": asked}}));
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    fleet.settle();
    fleet.lose(0);
    let served = update(&fleet.benches[2], &task, "1.1.r").serves();
    assert_eq!(keys(&fleet.benches[2], &task), ["1.0.q"]);
    fleet.advance(1_000);
    fleet.advance(1_000);
    let (run, _, call) = served.started();
    let accepted = json!({"action": "accept"});
    assert_eq!((run, &call["params"]["inputResponses"]), (1, &json!({"q": accepted, "r": accepted})));
    fleet.advance(1_000);
    assert!(asking.is_acknowledged());
}

#[test]
fn no_poll_is_refused_while_the_store_is_away() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.nodes.iter().for_each(|node| node.fails.store(true, Ordering::SeqCst));
    let asking = ask(&fleet.benches[1], &task, "tasks/get", &json!({}));
    let cancelling = cancel(&fleet.benches[1], &task);
    for _ in 0..50 {
        fleet.advance(100);
    }
    assert!(asking.take().is_none() && cancelling.take().is_none());
    fleet.nodes.iter().for_each(|node| node.fails.store(false, Ordering::SeqCst));
    fleet.advance(250);
    assert_eq!(asking.take().unwrap().1["result"]["status"], "working");
    fleet.advance(250);
    assert_eq!(caller.steps(), [CallStep::Disconnect { run: 0 }]);
    fleet.advance(250);
    assert!(cancelling.is_acknowledged());
    // For ever it does not wait.
    fleet.nodes.iter().for_each(|node| node.fails.store(true, Ordering::SeqCst));
    let asking = ask(&fleet.benches[1], &task, "tasks/get", &json!({}));
    fleet.advance(30_000);
    assert_eq!(asking.take().unwrap().0, 503);
}

#[test]
fn o10_a_task_that_the_store_lost_is_written_again() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let name = fleet.only_session();
    fleet.lose_session(&name);
    assert_eq!(ask(&fleet.benches[1], &task, "tasks/get", &json!({})).take().unwrap().0, 400);
    fleet.disturb();
    assert_eq!(status(&fleet.benches[1], &task), "working");
    // Without a hint, the next change finds out.
    fleet.lose_session(&name);
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "completed");
}

#[test]
fn o10_the_end_of_a_task_that_the_store_lost_is_written_again() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "completed");
    assert!(caller.call.is_over());
    drop(caller);
    let name = fleet.only_session();
    for _ in 0..2 {
        fleet.lose_session(&name);
        fleet.disturb();
        assert_eq!(status(&fleet.benches[1], &task), "completed");
    }
    // Nobody owns it any more, and nothing comes back after its time.
    fleet.advance(Limits::default().retention_ms);
    fleet.disturb();
    assert_eq!(ask(&fleet.benches[1], &task, "tasks/get", &json!({})).take().unwrap().0, 400);
    assert!(fleet.benches[0].engine.is_idle());
}

#[test]
fn o10_a_sender_asks_again_where_the_store_lost_what_became_of_its_update() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    fleet.nodes[0].loses_ends.store(true, Ordering::SeqCst);
    let updating = update(&fleet.benches[1], &task, "1.0.q");
    fleet.settle();
    assert_eq!(caller.started().0, 1);
    fleet.advance(1_000);
    assert!(updating.take().is_none(), "the store has lost it");
    fleet.nodes[0].loses_ends.store(false, Ordering::SeqCst);
    fleet.disturb();
    fleet.advance(250);
    fleet.advance(250);
    assert!(updating.is_acknowledged());
    assert_eq!(caller.steps(), [], "it counts once");
    // The same of a task that has its end by then.
    fleet.nodes[0].loses_ends.store(true, Ordering::SeqCst);
    let cancelling = cancel(&fleet.benches[1], &task);
    fleet.settle();
    assert!(caller.steps().contains(&CallStep::Disconnect { run: 1 }));
    fleet.advance(1_000);
    assert!(cancelling.take().is_none());
    fleet.nodes[0].loses_ends.store(false, Ordering::SeqCst);
    fleet.disturb();
    fleet.advance(250);
    fleet.advance(250);
    assert!(cancelling.is_acknowledged());
}

#[test]
fn o10_a_task_that_was_left_to_others_is_written_again() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    fleet.benches[0].engine.drain(Drain::after(100));
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
    fleet.lose_session(&fleet.only_session());
    fleet.disturb();
    assert_eq!(keys(&fleet.benches[1], &task), ["1.0.q"]);
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    assert_eq!(asking.serves().started().0, 1);
    assert!(asking.is_acknowledged());
    // The first owner hears that the store may be behind once more, and has nothing to say.
    fleet.disturb();
    assert_eq!(fleet.benches[1].engine.stats().tasks, 1);
}

#[test]
fn a_drain_waits_for_tasks_that_run_and_leaves_those_that_wait() {
    let fleet = Fleet::new(2);
    let (running, waiting) = (open(&fleet.benches[0]), open(&fleet.benches[0]));
    fleet.benches[0].advance(1_000);
    let (running_task, waiting_task) = (running.created(), waiting.created());
    waiting.answer(0, &input_required());
    let engine = &fleet.benches[0].engine;
    engine.drain(Drain::after(100));
    assert_eq!(engine.drained(None), None);
    assert_eq!(engine.stats().tasks, 1);
    // What waits for its client goes on elsewhere.
    let asking = update(&fleet.benches[1], &waiting_task, "1.0.q");
    assert_eq!(asking.serves().started().0, 1);
    assert!(asking.is_acknowledged());
    // A call does not become a task that would end with the process.
    let late = open(&fleet.benches[0]);
    fleet.benches[0].advance(1_000);
    assert_eq!(late.steps(), []);
    late.answer(0, &json!({}));
    assert_eq!(late.steps(), [CallStep::PassOn]);
    running.answer(0, &json!({"content": []}));
    assert_eq!(engine.drained(None), Some(true));
    assert_eq!(status(&fleet.benches[1], &running_task), "completed");
}

#[test]
fn a_host_of_several_that_stops_leaves_the_tasks_that_wait() {
    let fleet = Fleet::new(2);
    let (caller, other) = (open(&fleet.benches[0]), open(&fleet.benches[0]));
    fleet.benches[0].advance(1_000);
    let (task, kept) = (caller.created(), other.created());
    // It runs when its host begins to stop.
    caller.call.drain();
    caller.answer(0, &input_required());
    other.answer(0, &input_required());
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    assert_eq!(asking.serves().started().0, 1);
    assert!(asking.is_acknowledged());
    assert_eq!(fleet.benches[0].engine.stats().tasks, 1);
    // That of another host stays.
    let asking = update(&fleet.benches[1], &kept, "1.0.q");
    fleet.settle();
    assert_eq!(other.started().0, 1);
    fleet.settle();
    assert!(asking.is_acknowledged());
}

#[test]
fn a_task_fails_with_its_process_where_that_ends() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.benches[0].engine.close();
    assert_eq!(status(&fleet.benches[1], &task), "failed");
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "failed");
}

#[test]
fn a_drain_waits_until_the_store_has_what_became_of_a_task() {
    for result in [json!({"content": []}), input_required()] {
        let store = SlowStore::new(Limits::default());
        let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
        let caller = open(&bench);
        caller.become_task(&bench);
        bench.engine.drain(Drain::after(100));
        store.set(true, false);
        caller.answer(0, &result);
        assert_eq!((caller.call.is_handing_over(), bench.engine.drained(None)), (true, None), "{result}");
        assert!(store.answer(true));
        assert_eq!((caller.call.is_handing_over(), bench.engine.drained(None)), (false, Some(true)), "{result}");
    }
}

#[test]
fn a_drain_waits_until_requests_about_tasks_are_answered() {
    let fleet = Fleet::new(2);
    let task = open(&fleet.benches[0]).become_task(&fleet.benches[0]);
    let engine = &fleet.benches[1].engine;
    fleet.nodes[1].fails.store(true, Ordering::SeqCst);
    let asking = ask(&fleet.benches[1], &task, "tasks/get", &json!({}));
    engine.drain(Drain::after(100));
    assert_eq!(engine.drained(None), None);
    fleet.nodes[1].fails.store(false, Ordering::SeqCst);
    fleet.advance(250);
    assert!(asking.take().is_some());
    assert_eq!(engine.drained(None), Some(true));
}

#[test]
fn a_process_that_leaves_a_task_writes_what_became_of_it() {
    let became = [(json!({"content": []}), "completed"), (input_required(), "input_required")];
    for (result, expected) in became {
        let fleet = Fleet::new(2);
        let caller = open(&fleet.benches[0]);
        let task = caller.become_task(&fleet.benches[0]);
        // The store did not take it when it was asked first.
        *fleet.nodes[0].of_appends.lock().unwrap() = Some((StoreError::Full { max: 1 }, false));
        caller.answer(0, &result);
        *fleet.nodes[0].of_appends.lock().unwrap() = None;
        caller.call.leave();
        assert_eq!(status(&fleet.benches[1], &task), expected);
    }
}

#[test]
fn a_task_whose_end_is_not_taken_is_left_to_others() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let too_large = StoreError::TooLarge { bytes: 2, max: 1 };
    *fleet.nodes[0].of_appends.lock().unwrap() = Some((too_large, false));
    caller.answer(0, &json!({"content": []}));
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
    assert_eq!(status(&fleet.benches[1], &task), "failed");
    assert_eq!(status(&fleet.benches[0], &task), "failed");
}

#[test]
fn o10_a_change_that_the_store_has_after_all_counts() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    // The store went to a stale copy of itself, and came back.
    *fleet.nodes[0].of_appends.lock().unwrap() = Some((StoreError::RolledBack, true));
    caller.answer(0, &json!({"content": []}));
    *fleet.nodes[0].of_appends.lock().unwrap() = None;
    fleet.benches.iter().for_each(|bench| assert_eq!(status(bench, &task), "completed"));
    assert_eq!(fleet.benches[0].engine.stats().tasks, 0);
}

#[test]
fn a_process_that_let_a_task_go_says_so_again() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    fleet.benches[0].engine.drain(Drain::after(100));
    fleet.forget_release(&fleet.only_session());
    assert_eq!(status(&fleet.benches[0], &task), "input_required");
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    assert_eq!(asking.serves().started().0, 1);
}

fn session_of(task: &str) -> Arc<str> {
    session_name(SessionId::new(SERVER, &TaskId::parse(task).unwrap().session_id()))
}

/// Two processes on a store that answers when it is told to, and a task in it that waits for its client and has no owner.
fn left_alone() -> (Arc<SlowStore>, Bench, String) {
    let store = SlowStore::new(Limits::default());
    let bench = || Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    let (owner, other) = (bench(), bench());
    let caller = open(&owner);
    let task = caller.become_task(&owner);
    caller.answer(0, &input_required());
    store.release(&session_of(&task), store.epoch());
    (store, other, task)
}

#[test]
fn what_a_client_leaves_half_done_is_done_for_the_next_one() {
    let (store, other, task) = left_alone();
    store.set(true, false);
    let cancelling = cancel(&other, &task);
    assert!(store.answer(true), "the task");
    assert!(store.answer(true), "its new owner");
    drop(cancelling);
    assert!(store.answer(false), "its end");
    store.set(false, false);
    assert!(cancel(&other, &task).is_acknowledged());
    assert_eq!(status(&other, &task), "cancelled");
}

#[test]
fn a_task_that_its_host_never_heard_of_is_left_to_others() {
    let fleet = Fleet::new(3);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    fleet.lose(0);
    // Its client leaves before the host is told that it serves the task now.
    drop(update(&fleet.benches[1], &task, "1.0.q"));
    assert_eq!(fleet.benches[1].engine.stats().tasks, 0);
    assert_eq!(status(&fleet.benches[2], &task), "failed");
}

#[test]
fn a_closed_engine_follows_no_task_and_keeps_nobody_waiting() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.benches[1].engine.close();
    assert_eq!(status(&fleet.benches[1], &task), "working");
    assert!(fleet.benches[1].engine.is_idle());
    fleet.nodes[1].fails.store(true, Ordering::SeqCst);
    assert_eq!(cancel(&fleet.benches[1], &task).take().unwrap().0, 503);
}

#[test]
fn a_process_whose_tasks_nobody_else_can_serve_serves_them_while_it_drains() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    caller.answer(0, &input_required());
    bench.engine.drain(Drain::after(100));
    let asking = update(&bench, &task, "1.0.q");
    assert_eq!(caller.started().0, 1);
    assert!(asking.is_acknowledged());
}

#[cfg(feature = "sqlite")]
#[test]
fn tasks_live_in_files() {
    use crate::kit::folder::Folder;
    use crate::kit::processes::store_in;
    let folder = Folder::new();
    crate::kit::task_life::live(&|options| store_in(&folder, options.clone()));
}

#[cfg(feature = "sqlite")]
#[test]
fn tasks_live_in_files_that_are_encrypted() {
    use crate::kit::folder::Folder;
    use crate::kit::processes::store_in;
    use tailrope_core::store::{EncryptionKey, StoreOptions};
    let folder = Folder::new();
    let keys = vec![EncryptionKey::from_hex(&"1".repeat(64)).unwrap()];
    crate::kit::task_life::live(&|options| {
        store_in(&folder, StoreOptions { encryption_keys: keys.clone(), ..options.clone() })
    });
}
