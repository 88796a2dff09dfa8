//! Subscriptions to tasks: in the process that runs them, and in others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tailrope_core::engine::{Options, TaskSubscription};
use tailrope_core::exchange::Requester;
use tailrope_core::store::Limits;
use tailrope_core::stream::Drain;
use tailrope_core::task::Input;

use crate::kit::common::{Bell, Bench, SlowStore};
use crate::kit::eventually::eventually;
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{ALICE, BOB};
use crate::kit::tasks::{SERVER, get, keys, open, update};

const ACKNOWLEDGEMENT: &str = "data: {\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{\"toolsListChanged\":true}}}\n\n";

struct Subscriber {
    subscription: TaskSubscription,
    bell: Arc<Bell>,
}

impl Subscriber {
    /// What came since, as messages.
    fn given(&self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(bytes) = self.subscription.next() {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
            messages.extend(lines.map(|line| serde_json::from_str::<Value>(line).unwrap()));
        }
        messages
    }

    /// The tasks that were told since, of which the host was woken.
    fn told(&self) -> Vec<(String, Value)> {
        let given = self.given();
        if !given.is_empty() {
            eventually("the host is woken", || self.bell.0.swap(0, Ordering::SeqCst) > 0);
        }
        let tasks = given.into_iter().map(|message| {
            assert_eq!(message["method"], "notifications/tasks", "{message}");
            message["params"].clone()
        });
        tasks.map(|params| (params["status"].as_str().unwrap().to_owned(), params)).collect()
    }

    fn statuses(&self) -> Vec<String> {
        self.told().into_iter().map(|(status, _)| status).collect()
    }
}

fn listen(bench: &Bench, requester: Requester<'_>, tasks: &[&str]) -> Subscriber {
    let params = json!({"notifications": {"toolsListChanged": true, "taskIds": tasks}});
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": params}).to_string();
    let (principal, bell) = (requester.principal().unwrap(), Arc::new(Bell::default()));
    let wake = Arc::clone(&bell) as _;
    let subscription = bench.engine.subscribe_to_tasks(SERVER, body.as_bytes(), principal.as_ref(), wake, 0);
    let subscription = subscription.unwrap().unwrap();
    subscription.push(ACKNOWLEDGEMENT.as_bytes());
    Subscriber { subscription, bell }
}

/// A subscriber whose subscription is acknowledged, and the tasks that were agreed to.
fn subscribe(bench: &Bench, requester: Requester<'_>, tasks: &[&str]) -> (Subscriber, Value) {
    let subscriber = listen(bench, requester, tasks);
    let first = subscriber.given();
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0]["method"], "notifications/subscriptions/acknowledged");
    subscriber.bell.0.store(0, Ordering::SeqCst);
    (subscriber, first[0]["params"]["notifications"]["taskIds"].clone())
}

#[test]
fn t_24_every_process_tells_what_becomes_of_a_task() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let subscribers = [0, 1].map(|at| subscribe(&fleet.benches[at], ALICE, &[&task]));
    for (subscriber, agreed) in &subscribers {
        assert_eq!((agreed, subscriber.told()), (&json!([task]), vec![]));
    }
    let request = br#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#;
    caller.call.input(Input::Question { ask: 5, request: request.as_slice().into() });
    assert_eq!(subscribers[0].0.statuses(), ["input_required"], "the owner tells at once");
    assert!(subscribers[1].0.statuses().is_empty());
    fleet.benches[1].advance(1_000);
    assert_eq!(subscribers[1].0.statuses(), ["input_required"], "the others look once a second");
    let key = keys(&fleet.benches[0], &task).remove(0);
    update(&fleet.benches[0], &task, &key);
    caller.steps();
    assert_eq!(subscribers[0].0.statuses(), ["working"]);
    caller.answer(0, &json!({"content": []}));
    fleet.benches[1].advance(1_000);
    for (at, (subscriber, _)) in subscribers.iter().enumerate() {
        let told = subscriber.told();
        assert_eq!(told.len(), 1, "states between may be skipped");
        let mut shown = get(&fleet.benches[at], &task);
        shown.as_object_mut().unwrap().remove("resultType");
        shown["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": 9});
        shown["pollIntervalMs"] = told[0].1["pollIntervalMs"].clone();
        assert_eq!(told[0].1, shown, "as tasks/get shows it");
    }
    drop((caller, subscribers));
    // The poll above is followed for a while.
    fleet.benches[1].advance(1_000);
    for bench in &fleet.benches {
        bench.advance(Limits::default().retention_ms);
        assert!(bench.engine.is_idle());
    }
}

#[test]
fn i11_a_task_that_somebody_follows_is_asked_for() {
    const MAX_MS: u64 = 60_000;
    for at in [0, 1] {
        let fleet = Fleet::with(2, Options { max_detached_ms: MAX_MS, ..Options::default() });
        let caller = open(&fleet.benches[0]);
        let task = caller.become_task(&fleet.benches[0]);
        let (subscriber, _) = subscribe(&fleet.benches[at], ALICE, &[&task]);
        for _ in 0..40 {
            fleet.advance(MAX_MS / 10);
        }
        assert_eq!(subscriber.statuses(), Vec::<String>::new());
        drop(subscriber);
        for _ in 0..25 {
            fleet.advance(MAX_MS / 10);
        }
        assert_eq!(fleet.benches[0].engine.stats().tasks_unasked, 1, "nobody follows it any more");
    }
}

#[test]
fn t_27_tasks_of_others_and_unknown_ones_are_not_agreed_to() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let unknown = format!("tailrope-{}", "A".repeat(32));
    for bench in &fleet.benches {
        assert_eq!(subscribe(bench, BOB, &[&task, &unknown, "x"]).1, json!([]));
        assert_eq!(subscribe(bench, ALICE, &[&unknown, &task, "x"]).1, json!([task]));
    }
    let (foreign, _) = subscribe(&fleet.benches[0], BOB, &[&task]);
    caller.answer(0, &json!({}));
    assert_eq!(foreign.told(), vec![]);
}

#[test]
fn t_24_a_task_that_has_its_end_is_told_when_a_client_subscribes() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &json!({"content": []}));
    for bench in &fleet.benches {
        let subscriber = listen(bench, ALICE, &[&task]);
        let given = subscriber.given();
        assert_eq!(given[0]["params"]["notifications"]["taskIds"], json!([task]));
        assert_eq!((given.len(), &given[1]["params"]["status"]), (2, &json!("completed")));
    }
}

#[test]
fn t_14_subscribers_see_that_the_process_of_a_task_is_gone() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let (subscriber, _) = subscribe(&fleet.benches[1], ALICE, &[&task]);
    // A minute is longer than polls are followed.
    for _ in 0..60 {
        fleet.benches[1].advance(1_000);
    }
    fleet.lose(0);
    fleet.benches[1].advance(1_000);
    assert_eq!(subscriber.statuses(), ["failed"]);
}

#[test]
fn one_look_serves_all_subscribers() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    caller.answer(0, &json!({}));
    store.set(true, false);
    let subscribers = [(); 3].map(|()| listen(&bench, ALICE, &[&task]));
    assert_eq!(store.pending(), 1);
    assert!(subscribers.iter().all(|subscriber| subscriber.given().is_empty()), "T-25");
    // Subscribers that came during that look may have missed a change: there is another look for them.
    assert!(store.answer(true));
    assert_eq!(store.pending(), 1);
    for subscriber in &subscribers {
        assert_eq!(subscriber.given().len(), 2);
    }
    assert!(store.answer(true));
    assert_eq!(store.pending(), 0);
}

#[test]
fn i9_a_task_that_the_store_cannot_tell_of_is_not_agreed_to() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), store_timeout_ms: 5_000, ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    caller.answer(0, &json!({}));
    store.set(false, true);
    let subscriber = listen(&bench, ALICE, &[&task]);
    bench.advance(4_999);
    assert!(subscriber.given().is_empty());
    bench.advance(1);
    let given = subscriber.given();
    assert_eq!((given.len(), &given[0]["params"]["notifications"]["taskIds"]), (1, &json!([])));
}

#[test]
fn o17_a_drain_ends_subscriptions_and_does_not_wait_for_them() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    let (subscriber, _) = subscribe(&bench, ALICE, &[&task]);
    bench.engine.drain(Drain::after(1_000));
    assert_eq!(subscriber.bell.0.load(Ordering::SeqCst), 1);
    assert_eq!(subscriber.given()[0]["result"]["resultType"], "complete");
    assert!(subscriber.subscription.is_over());
    assert!(listen(&bench, ALICE, &[&task]).given().len() == 2, "it is acknowledged, and ends");
}

#[test]
fn an_engine_that_is_closed_ends_subscriptions_that_wait_for_its_store() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(store.clone()), ..Options::default() });
    store.set(true, false);
    let subscriber = listen(&bench, ALICE, &[&format!("tailrope-{}", "A".repeat(32))]);
    assert!(subscriber.given().is_empty());
    bench.engine.close();
    assert_eq!(subscriber.bell.0.load(Ordering::SeqCst), 1);
    assert_eq!(subscriber.given().len(), 2, "the acknowledgement, and the end");
    assert!(subscriber.subscription.is_over());
}

#[test]
fn i11_a_subscription_that_is_dropped_leaves_nothing() {
    let bench = Bench::new(Options::default());
    let unknown = format!("tailrope-{}", "A".repeat(32));
    let subscriber = listen(&bench, ALICE, &[&unknown]);
    assert!(!bench.engine.is_idle());
    drop(subscriber);
    assert!(bench.engine.is_idle());
    // What holds it may be dropped late.
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    let subscriber = listen(&bench, ALICE, &[&task]);
    subscriber.given();
    subscriber.subscription.leave();
    assert!(subscriber.subscription.is_over());
    subscriber.bell.0.store(0, Ordering::SeqCst);
    caller.answer(0, &json!({}));
    drop(caller);
    bench.advance(Limits::default().retention_ms);
    assert!(bench.engine.is_idle());
    assert_eq!((subscriber.bell.0.load(Ordering::SeqCst), subscriber.given()), (0, vec![]));
}
