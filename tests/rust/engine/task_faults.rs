//! Tasks where something is too much, too slow, unreadable or set wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{CallStep, Clock, Engine, Options};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, MemoryStore, Outcome, ReadLimit,
    RunningLog, StoreError, StreamKey, Ticket, Usage, Watcher,
};
use tailrope_core::stream::{Drain, Seq};

use crate::engine::lines::{lines_of, tried};
use crate::kit::common::Bench;
use crate::kit::fleet::Fleet;
use crate::kit::tasks::{ask, cancel, get, open, status, update};

fn input_required() -> Value {
    let asked = json!({"method": "elicitation/create", "params": {"message": "name?"}});
    json!({"resultType": "input_required", "inputRequests": {"q": asked}})
}

#[test]
fn an_update_that_is_too_large_is_refused_at_once_everywhere() {
    let limits = Limits { max_event_bytes: 4_000, ..Limits::default() };
    let fleet = Fleet::with(2, Options { limits, ..Options::default() });
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    let answers = json!({"inputResponses": {"1.0.q": {"action": "accept", "content": "x".repeat(4_000)}}});
    for bench in &fleet.benches {
        let asking = ask(bench, &task, "tasks/update", &answers);
        fleet.settle();
        fleet.settle();
        let (code, answer) = asking.take().expect("it does not wait");
        assert_eq!((code, &answer["error"]["code"], &answer["id"]), (400, &json!(-32602), &json!("q")));
        assert_eq!(status(bench, &task), "input_required");
    }
    // One that fits is taken.
    let asking = update(&fleet.benches[1], &task, "1.0.q");
    fleet.settle();
    assert_eq!(caller.started().0, 1);
    fleet.settle();
    assert!(asking.is_acknowledged());
}

#[test]
fn an_update_at_the_bound_of_an_event_harms_no_task() {
    // What the store is given is a little larger than the answer in it.
    let limits = Limits { max_event_bytes: 4_000, ..Limits::default() };
    for bytes in 3_900..4_000 {
        let bench = Bench::new(Options { limits, ..Options::default() });
        let caller = open(&bench);
        let task = caller.become_task(&bench);
        caller.answer(0, &input_required());
        let answers = json!({"inputResponses": {"1.0.q": {"content": "x".repeat(bytes)}}});
        let asking = ask(&bench, &task, "tasks/update", &answers);
        let started = !caller.steps().is_empty();
        assert_eq!(asking.take().expect("it does not wait").0, if started { 200 } else { 400 });
        assert_eq!(status(&bench, &task), if started { "working" } else { "input_required" }, "{bytes}");
    }
}

fn lines_of_a_task() -> usize {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let (call, engines) = (caller.call.clone(), fleet.benches.iter().map(|bench| bench.engine.clone()));
    let engines: Vec<Engine> = engines.collect();
    let look = move |_: &tracing::Event<'_>| {
        assert!(!call.is_over());
        assert!(engines.iter().all(|engine| engine.is_idle() || engine.stats().tasks <= 1));
    };
    lines_of(look, || {
        fleet.nodes[0].fails.store(true, Ordering::SeqCst);
        caller.answer(0, &input_required());
        (0..10).for_each(|_| fleet.benches[0].advance(1_000));
        fleet.nodes[0].fails.store(false, Ordering::SeqCst);
        fleet.advance(1_000);
        let foreign = crate::kit::relaying::BOB;
        for bench in &fleet.benches {
            drop(crate::kit::tasks::ask_as(bench, foreign, &task, "tasks/get", &json!({})));
        }
    })
}

#[test]
fn a_subscriber_may_ask_the_engine_about_the_task_that_its_lines_are_of() {
    assert!(tried(lines_of_a_task, 2).is_some(), "the lines are sent");
}

#[test]
fn what_an_owner_asks_of_its_inbox_is_called_off_before_it_is_asked_again() {
    let fleet = Fleet::with(2, Options { store_timeout_ms: 2_000, ..Options::default() });
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    let cancelling = cancel(&fleet.benches[1], &task);
    fleet.settle();
    let (takes, abandoned) = (&fleet.nodes[0].takes, &fleet.nodes[0].abandoned);
    let before = takes.load(Ordering::SeqCst);
    fleet.benches[0].advance(1_999);
    assert_eq!((takes.load(Ordering::SeqCst) - before, abandoned.load(Ordering::SeqCst)), (0, 0));
    fleet.benches[0].advance(1);
    assert_eq!((takes.load(Ordering::SeqCst) - before, abandoned.load(Ordering::SeqCst)), (1, 1));
    fleet.nodes[0].answer_takes();
    // The same of the outcome of the message, which the store leaves without an answer.
    fleet.nodes[0].holds_ends.store(true, Ordering::SeqCst);
    assert_eq!(caller.steps(), [CallStep::Disconnect { run: 0 }]);
    assert_eq!(fleet.nodes[0].ends.load(Ordering::SeqCst), 1);
    fleet.benches[0].advance(1_999);
    assert_eq!((fleet.nodes[0].ends.load(Ordering::SeqCst), abandoned.load(Ordering::SeqCst)), (1, 1));
    fleet.nodes[0].holds_ends.store(false, Ordering::SeqCst);
    fleet.benches[0].advance(1);
    assert_eq!(abandoned.load(Ordering::SeqCst), 2);
    fleet.settle();
    assert!(cancelling.is_acknowledged());
}

#[test]
fn no_look_into_the_inbox_is_called_off_before_it_has_its_answer() {
    let fleet = Fleet::with(2, Options { store_timeout_ms: 0, ..Options::default() });
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    let cancelling = cancel(&fleet.benches[1], &task);
    fleet.settle();
    let takes = fleet.nodes[0].takes.load(Ordering::SeqCst);
    for _ in 0..10 {
        fleet.advance(10);
    }
    assert_eq!(fleet.nodes[0].takes.load(Ordering::SeqCst), takes);
    fleet.nodes[0].answer_takes();
    assert_eq!(caller.steps(), [CallStep::Disconnect { run: 0 }]);
    fleet.settle();
    assert!(cancelling.is_acknowledged());
}

#[test]
fn a_full_store_delays_the_end_of_a_task() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    *fleet.nodes[0].of_appends.lock().unwrap() = Some((StoreError::Full { max: 1 }, false));
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&fleet.benches[1], &task), "working");
    *fleet.nodes[0].of_appends.lock().unwrap() = None;
    fleet.advance(1_000);
    assert_eq!(status(&fleet.benches[1], &task), "completed");
}

#[test]
fn a_task_that_was_left_is_not_written_any_more() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.nodes[0].fails.store(true, Ordering::SeqCst);
    let cancelling = cancel(&fleet.benches[0], &task);
    fleet.benches[0].engine.close();
    fleet.nodes[0].fails.store(false, Ordering::SeqCst);
    // The handler that was to end is cancelled now, which is all that happens.
    fleet.benches[0].advance(500);
    assert!(caller.steps().contains(&CallStep::Kill { run: 0 }));
    assert_eq!(status(&fleet.benches[1], &task), "failed");
    drop(cancelling);
}

#[test]
fn a_task_that_a_later_release_wrote_is_refused_at_once() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    fleet.write_to_task(b"\xffwhat is this");
    for method in ["tasks/get", "tasks/cancel"] {
        let (code, answer) = ask(&fleet.benches[1], &task, method, &json!({})).take().expect("it does not wait");
        assert_eq!((code, &answer["error"]["code"]), (503, &json!(-32603)), "{method}");
    }
}

#[test]
fn i11_messages_wait_in_the_store_while_the_host_has_no_time() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &input_required());
    let askings: Vec<_> = (0..900).map(|_| update(&fleet.benches[1], &task, "1.0.q")).collect();
    let takes = fleet.nodes[0].takes.load(Ordering::SeqCst);
    fleet.settle();
    let taken = fleet.nodes[0].takes.load(Ordering::SeqCst) - takes;
    assert!(taken <= 5, "so many messages at a time are enough: {taken}");
    // One that comes here waits as well.
    let waiting = cancel(&fleet.benches[0], &task);
    fleet.benches[0].advance(1_000);
    assert!(waiting.take().is_none());
    assert_eq!(status(&fleet.benches[0], &task), "working");
    assert_eq!(caller.started().0, 1);
    fleet.settle();
    assert!(askings.iter().all(|asking| asking.is_acknowledged()));
    fleet.benches[0].advance(250);
    assert_eq!(caller.steps(), [CallStep::Disconnect { run: 1 }]);
    assert!(waiting.is_acknowledged());
}

/// A clock whose wall shows another time than those of the others.
struct Skewed(Arc<dyn Clock>, u64);

impl Clock for Skewed {
    fn now(&self) -> Ms {
        self.0.now()
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms() + self.1
    }
}

#[test]
fn t_18_a_clock_that_is_fast_expires_no_task() {
    let fleet = Fleet::new(2);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    let clock: Arc<dyn Clock> = Arc::new(Skewed(Arc::clone(&fleet.benches[1].clock) as _, 3_600_000));
    let store = Some(Arc::clone(&fleet.nodes[1]) as _);
    let engine = Engine::new(Options { clock: Some(clock), store, ..Options::default() });
    let skewed = Bench { engine, clock: Arc::clone(&fleet.benches[1].clock) };
    caller.answer(0, &json!({"content": []}));
    assert_eq!(status(&skewed, &task), "completed");
    assert!(cancel(&skewed, &task).is_acknowledged());
}

#[test]
fn only_tasks_whose_process_was_lost_count_as_lost() {
    let fleet = Fleet::new(2);
    let (cancelled, left) = (open(&fleet.benches[0]), open(&fleet.benches[0]));
    fleet.benches[0].advance(1_000);
    let (cancelled_task, left_task) = (cancelled.created(), left.created());
    left.answer(0, &input_required());
    fleet.benches[0].engine.drain(Drain::after(100));
    fleet.lose(0);
    // Its user ended it, and it waits for nobody.
    assert!(cancel(&fleet.benches[1], &cancelled_task).is_acknowledged());
    assert!(cancel(&fleet.benches[1], &left_task).is_acknowledged());
    for task in [&cancelled_task, &left_task] {
        assert_eq!(status(&fleet.benches[1], task), "cancelled");
    }
    assert_eq!(fleet.benches[1].engine.stats().tasks_lost, 0);
}

#[test]
fn an_engine_whose_tasks_have_their_end_is_idle() {
    let fleet = Fleet::new(1);
    let caller = open(&fleet.benches[0]);
    let task = caller.become_task(&fleet.benches[0]);
    caller.answer(0, &json!({"content": []}));
    assert!(fleet.benches[0].engine.is_idle());
    assert_eq!(status(&fleet.benches[0], &task), "completed");
}

#[test]
fn t_11_a_time_to_live_is_an_integer_that_every_reader_reads() {
    let limits = Limits { retention_ms: u64::MAX, max_age_ms: u64::MAX, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    caller.answer(0, &json!({"content": []}));
    assert_eq!(get(&bench, &task)["ttlMs"], json!((1_u64 << 53) - 1));
}

#[test]
fn a_result_that_is_larger_than_a_stream_may_be_is_read() {
    let bench = Bench::new(Options::default());
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    let created = get(&bench, &task);
    caller.answer(0, &json!({"content": "x".repeat(Limits::default().max_bytes_per_stream)}));
    let shown = get(&bench, &task);
    assert_eq!((&shown["status"], &shown["createdAt"]), (&json!("completed"), &created["createdAt"]));
}

#[test]
fn i11_a_task_that_no_client_asks_for_is_ended() {
    const MAX_MS: u64 = 60_000;
    for process in [0, 1] {
        let fleet = Fleet::with(2, Options { max_detached_ms: MAX_MS, ..Options::default() });
        let caller = open(&fleet.benches[0]);
        let task = caller.become_task(&fleet.benches[0]);
        // A client that asks now and then, here or there, keeps it.
        for _ in 0..10 {
            assert_eq!(status(&fleet.benches[process], &task), "working");
            for _ in 0..5 {
                fleet.advance(MAX_MS / 10);
            }
        }
        assert_eq!(caller.steps(), []);
        for _ in 0..25 {
            fleet.advance(MAX_MS / 10);
        }
        assert_eq!(caller.steps()[..1], [CallStep::Disconnect { run: 0 }]);
        let shown = get(&fleet.benches[1], &task);
        assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!(-32603)));
        assert_eq!(fleet.benches[0].engine.stats().tasks_unasked, 1);
    }
}

#[test]
fn i11_a_client_that_waits_for_the_decision_asks_for_its_task() {
    const MAX_MS: u64 = 4_000;
    let options = Options { max_detached_ms: MAX_MS, task_after_ms: 2 * MAX_MS, ..Options::default() };
    let fleet = Fleet::with(1, options);
    let caller = open(&fleet.benches[0]);
    for _ in 0..21 {
        fleet.advance(MAX_MS / 10);
    }
    let task = caller.created();
    assert_eq!(status(&fleet.benches[0], &task), "working");
    assert_eq!(fleet.benches[0].engine.stats().tasks_unasked, 0);
}

/// A store that does at once what it is asked, and confirms what is written when the test wants that.
struct Unconfirming {
    inner: MemoryStore,
    confirms: AtomicBool,
    is_away: AtomicBool,
    unconfirmed: Mutex<Vec<Ticket>>,
}

impl Unconfirming {
    fn confirm(&self) {
        self.confirms.store(true, Ordering::SeqCst);
        for ticket in self.unconfirmed.lock().unwrap().drain(..) {
            ticket.complete(Outcome::Done(Ok(())));
        }
    }
}

impl EventStore for Unconfirming {
    passes_on!(hold attach read take withdraw release unwatch settle drop_stream drop_session sweep usage);

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let answer = self.inner.append(now, key, epoch, append, ticket);
        if self.confirms.load(Ordering::SeqCst) {
            return answer;
        }
        assert!(matches!(answer, Answer::Now(Ok(()))), "{answer:?}");
        self.unconfirmed.lock().unwrap().push(ticket.clone());
        Answer::Later
    }

    fn away_ms(&self) -> Option<u64> {
        self.is_away.load(Ordering::SeqCst).then_some(1)
    }
}

#[test]
fn t_15_an_owner_that_has_not_heard_from_the_store_looks_what_others_may_show() {
    let (confirms, is_away) = (AtomicBool::new(true), AtomicBool::new(false));
    let inner = MemoryStore::new(Limits::default());
    let store = Arc::new(Unconfirming { inner, confirms, is_away, unconfirmed: Mutex::default() });
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let caller = open(&bench);
    let task = caller.become_task(&bench);
    store.confirms.store(false, Ordering::SeqCst);
    caller.answer(0, &input_required());
    assert_eq!(status(&bench, &task), "input_required", "any other process shows the question");
    // Nobody else can look while the store is away, and a client is told what is known here.
    store.is_away.store(true, Ordering::SeqCst);
    assert_eq!(status(&bench, &task), "working");
    store.is_away.store(false, Ordering::SeqCst);
    store.confirm();
    assert_eq!(status(&bench, &task), "input_required");
    let answering = update(&bench, &task, "1.0.q");
    let (run, ..) = caller.started();
    bench.advance(0);
    assert!(answering.is_acknowledged());
    store.confirms.store(false, Ordering::SeqCst);
    caller.answer(run, &json!({"content": []}));
    assert_eq!(status(&bench, &task), "completed", "an end that was told is not taken back");
    store.confirm();
    assert_eq!(status(&bench, &task), "completed");
}
