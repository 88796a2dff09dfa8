//! What hosts and handlers do: a host does the steps that the engine gives it, and a handler what the schedule says.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tailrope_core::engine::{CallOptions, CallStep, TaskCall, Wake};
use tailrope_core::exchange::Requester;
use tailrope_core::task::{CallHeaders, Input, Reply, TaskId};

use crate::tasks::{CALLS, SERVER, Served, Task};
use crate::world::World;

const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow","_meta":{}}}"#;

impl World {
    pub(super) fn create_task(&mut self, node: usize) {
        if self.nodes[node].is_paused || self.nodes[node].is_draining {
            return;
        }
        self.tasks.keys += 1;
        let (key, wake) = (CALLS + self.tasks.keys, Arc::clone(&self.bells) as Arc<dyn Wake>);
        let options = CallOptions {
            server: SERVER,
            tool: Some("slow"),
            takes_streams: false,
            headers: CallHeaders::default(),
            requester: Requester::default(),
            sdk: "rust",
        };
        let call = self.nodes[node].engine.open_call(CALL, &options, wake, key);
        let Ok(Some(call)) = call else { return };
        self.count("calls that may become tasks");
        self.tasks.known.push(Task::default());
        self.serve_task(self.tasks.known.len() - 1, node, key, call, Some(0));
    }

    pub(super) fn serve_task(&mut self, task: usize, node: usize, key: u64, call: TaskCall, run: Option<u32>) {
        self.tasks.served.push(Served { task, node, key, call, run, asks: BTreeSet::new() });
        self.bells.wake(key);
    }

    /// A call whose process runs.
    fn a_call(&self, number: u64, fits: impl Fn(&Served) -> bool) -> Option<usize> {
        let runs = |at: &usize| {
            let served = &self.tasks.served[*at];
            !self.nodes[served.node].is_paused && fits(served)
        };
        let running: Vec<usize> = (0..self.tasks.served.len()).filter(runs).collect();
        Self::pick(&running, number).map(|at| running[at])
    }

    pub(super) fn input(&mut self, at: usize, input: Input) {
        let served = &self.tasks.served[at];
        served.call.input(input);
        let key = served.key;
        self.bells.wake(key);
    }

    fn message(&mut self, at: usize, run: u32, message: &Value) {
        let message = message.to_string().into();
        self.input(at, Input::Message { run, message, is_body: true });
    }

    pub(super) fn report(&mut self, number: u64) {
        let Some(at) = self.a_call(number, |served| served.run.is_some()) else { return };
        let (run, n) = (self.tasks.served[at].run.unwrap_or_default(), self.tasks.next());
        let params = json!({"progressToken": "tailrope-progress", "progress": n});
        self.message(at, run, &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
    }

    pub(super) fn ask_client(&mut self, number: u64) {
        let Some(at) = self.a_call(number, |served| served.run.is_some()) else { return };
        let ask = self.tasks.next();
        self.tasks.served[at].asks.insert(ask);
        let request = json!({"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"n": ask}});
        self.input(at, Input::Question { ask, request: request.to_string().into() });
    }

    pub(super) fn withdraw_question(&mut self, number: u64) {
        let Some(at) = self.a_call(number, |served| !served.asks.is_empty()) else { return };
        if let Some(ask) = self.tasks.served[at].asks.pop_first() {
            self.input(at, Input::Withdrawn { ask });
        }
    }

    fn answer_run(&mut self, at: usize, result: &Value) {
        let Some(run) = self.tasks.served[at].run.take() else { return };
        self.tasks.served[at].asks.clear();
        self.message(at, run, &json!({"jsonrpc": "2.0", "id": 2, "result": result}));
        self.input(at, Input::RunEnded { run });
    }

    pub(super) fn ask_again(&mut self, number: u64) {
        let Some(at) = self.a_call(number, |served| served.run.is_some()) else { return };
        let n = self.tasks.next();
        let asked = json!({"method": "elicitation/create", "params": {"n": n}});
        let asked = json!({"q": asked, "r": {"method": "roots/list", "params": {"n": n}}});
        self.answer_run(at, &json!({"resultType": "input_required", "inputRequests": asked}));
    }

    pub(super) fn finish_call(&mut self, number: u64) {
        if let Some(at) = self.a_call(number, |served| served.run.is_some()) {
            self.finish_served(at);
        }
    }

    pub(super) fn finish_served(&mut self, at: usize) {
        let now = self.sea().now;
        let n = self.tasks.next();
        let task = self.tasks.served[at].task;
        self.tasks.known[task].may_end_at.get_or_insert(now);
        self.answer_run(at, &json!({"content": [n]}));
    }

    pub(super) fn leave_call(&mut self, number: u64) {
        let Some(at) = self.a_call(number, |_| true) else { return };
        self.input(at, Input::ClientGone);
    }

    /// Does what there is to do for the calls with this key, until there is nothing.
    pub(super) fn take_steps(&mut self, key: u64) {
        while let Some(at) = self.tasks.served.iter().position(|served| served.key == key) {
            let steps = self.tasks.served[at].call.take_steps();
            if steps.is_empty() {
                if self.tasks.served[at].call.is_over() {
                    self.tasks.served.remove(at);
                }
                return;
            }
            steps.into_iter().for_each(|step| self.do_step(at, step));
        }
    }

    fn do_step(&mut self, at: usize, step: CallStep) {
        let task = self.tasks.served[at].task;
        match step {
            CallStep::Reply(Reply::Body { body, .. }) => {
                let answer: Value = serde_json::from_slice(&body).expect("JSON");
                let id = answer["result"]["taskId"].as_str().and_then(TaskId::parse);
                if id.is_some() {
                    self.count("calls that became tasks");
                    self.tasks.known[task].id = id;
                }
            }
            CallStep::Disconnect { run } if self.setup.seed.is_multiple_of(2) => self.end_run(at, run),
            CallStep::Kill { run } => self.end_run(at, run),
            CallStep::Start { run, .. } => {
                self.count("rounds");
                self.tasks.served[at].run = Some(run);
                self.note_start(task, run);
            }
            CallStep::Answer { ask, .. } | CallStep::Refuse { ask } => {
                self.tasks.served[at].asks.remove(&ask);
            }
            CallStep::PassOn => self.count("calls that were answered"),
            CallStep::Reply(_) | CallStep::Unlink | CallStep::Disconnect { .. } => {}
        }
    }

    fn end_run(&mut self, at: usize, run: u32) {
        self.tasks.served[at].run.take_if(|current| *current == run);
        self.input(at, Input::RunEnded { run });
    }
}
