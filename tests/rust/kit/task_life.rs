//! The life of tasks in three processes on one real store: made in one, answered and cancelled from another, and ended by the
//! third, for which the first one is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tailrope_core::engine::{CallStep, Context, Options};
use tailrope_core::store::{EventStore, StoreOptions};
use tailrope_core::task::Input;

use crate::kit::common::Bench;
use crate::kit::eventually::PATIENCE;
use crate::kit::relaying::BOB;
use crate::kit::tasks::{Asking, Caller, ask, ask_as, cancel, open, update};

/// Processes, whose time passes while something is waited for.
struct Life {
    benches: [Bench; 3],
}

impl Life {
    fn until<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}");
            self.benches.iter().for_each(|bench| bench.advance(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn steps(&self, caller: &Caller) -> Vec<CallStep> {
        self.until("the host has something to do", || Some(caller.steps()).filter(|steps| !steps.is_empty()))
    }

    fn task(&self, caller: &Caller) -> String {
        self.benches[0].advance(1_000);
        Caller::task_of(&self.steps(caller))
    }

    fn acknowledged(&self, asking: &Asking) {
        self.until("it is acknowledged", || asking.is_acknowledged().then_some(()));
    }

    /// How the task stands as this process tells it.
    fn stands(&self, process: usize, task: &str) -> serde_json::Value {
        let asking = ask(&self.benches[process], task, "tasks/get", &json!({}));
        let (status, answer) = self.until("it is told", || asking.take());
        assert_eq!(status, 200, "{answer}");
        answer["result"].clone()
    }

    fn becomes(&self, process: usize, task: &str, status: &str) {
        self.until(status, || (self.stands(process, task)["status"] == status).then_some(()));
    }
}

/// `open` makes the store object of a process, each time on the same store.
pub(crate) fn live(open_store: &dyn Fn(&StoreOptions) -> Arc<dyn EventStore>) {
    // Its process may stand still for as long as a machine stalls.
    let patient = StoreOptions { owner_lost_ms: 600_000, ..StoreOptions::default() };
    // For such a process every other one that goes on by default is gone: the next sign of it takes seconds.
    let impatient = StoreOptions { owner_lost_ms: 30, ..StoreOptions::default() };
    let bench = |options: &StoreOptions| {
        let (store, owner_lost_ms) = (Some(open_store(options)), options.owner_lost_ms);
        Bench::new(Options { store, owner_lost_ms, ..Options::default() })
    };
    let life = Life { benches: [bench(&patient), bench(&patient), bench(&impatient)] };

    // A round, and a question of the handler, both answered elsewhere.
    let caller = open(&life.benches[0]);
    let task = life.task(&caller);
    assert_eq!(life.stands(1, &task)["status"], "working");
    let foreign = ask_as(&life.benches[1], BOB, &task, "tasks/get", &json!({}));
    assert_eq!(life.until("it is refused", || foreign.take()).0, 400);
    let asked = json!({"method": "elicitation/create", "params": {"message": "é\n\u{2028}"}});
    caller.answer(0, &json!({"resultType": "input_required", "inputRequests": {"q": asked}}));
    life.becomes(1, &task, "input_required");
    assert_eq!(life.stands(1, &task)["inputRequests"]["1.0.q"], asked);
    let asking = update(&life.benches[1], &task, "1.0.q");
    match &life.steps(&caller)[..] {
        [CallStep::Start { run: 1, context: Context::Relayed(_), .. }] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(caller.steps(), []);
    life.acknowledged(&asking);
    let question = br#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#;
    caller.call.input(Input::Question { ask: 5, request: question.as_slice().into() });
    life.becomes(1, &task, "input_required");
    let asking = update(&life.benches[1], &task, "handler.1");
    assert!(matches!(life.steps(&caller)[..], [CallStep::Answer { ask: 5, .. }]));
    assert_eq!(caller.steps(), []);
    life.acknowledged(&asking);
    let result = json!({"content": [{"type": "text", "text": "x".repeat(200_000)}]});
    caller.answer(1, &result);
    life.becomes(1, &task, "completed");
    assert_eq!(life.stands(1, &task)["result"], result, "more than one page of a log");
    assert_eq!(life.stands(0, &task)["result"], result);

    // Cancelled elsewhere.
    let caller = open(&life.benches[0]);
    let task = life.task(&caller);
    let asking = cancel(&life.benches[1], &task);
    assert_eq!(life.steps(&caller), [CallStep::Disconnect { run: 0 }]);
    assert_eq!(caller.steps(), []);
    life.acknowledged(&asking);
    assert_eq!(life.stands(1, &task)["status"], "cancelled");

    // Its process is gone, and then is there again.
    let caller = open(&life.benches[0]);
    let task = life.task(&caller);
    life.becomes(2, &task, "failed");
    caller.answer(0, &json!({"content": []}));
    life.until("its process notices", || (life.benches[0].engine.stats().tasks == 0).then_some(()));
    for process in [0, 1] {
        assert_eq!(life.stands(process, &task)["status"], "failed");
    }

    // One that waits for its client goes on where the client answers.
    let caller = open(&life.benches[0]);
    let task = life.task(&caller);
    caller.answer(0, &json!({"resultType": "input_required", "inputRequests": {"q": asked}}));
    // Before that, the third process would take the task for one whose call is lost.
    life.becomes(1, &task, "input_required");
    assert_eq!(life.stands(2, &task)["status"], "input_required");
    let asking = update(&life.benches[2], &task, "1.0.q");
    // While the first process gives signs of life in between, it is asked itself.
    let served = life.until("the answer comes to one of them", || {
        let steps = caller.steps();
        match asking.next() {
            Some(served) => Some(served),
            None if steps.is_empty() => None,
            None => Some(None),
        }
    });
    let caller = served.unwrap_or(caller);
    life.until("the host has begun the round", || {
        caller.steps();
        asking.is_acknowledged().then_some(())
    });
    caller.answer(1, &json!({"content": []}));
    life.becomes(1, &task, "completed");
}
