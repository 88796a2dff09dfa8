//! Requests about tasks, at any node.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{TaskAnswer, TaskQuery, Wake};
use tailrope_core::exchange::{Relayed, RelayedMethod};
use tailrope_core::task::reread_request;

use crate::tasks::{ASKS, SERVER};
use crate::world::World;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Poll,
    Update(String),
    Cancel,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    pub(super) task: usize,
    pub(super) node: usize,
    pub(super) key: u64,
    pub(super) what: What,
    pub(super) since: Ms,
    /// What clients knew when it was sent.
    pub(super) end: Option<Value>,
    pub(super) answered: BTreeSet<String>,
    pub(super) is_cancelled: bool,
    query: TaskQuery,
}

impl World {
    pub(super) fn poll_task(&mut self, number: u64, node: usize) {
        if let Some(task) = self.a_task(number) {
            self.ask_about(task, node, What::Poll);
        }
    }

    pub(super) fn update_task(&mut self, number: u64, node: usize, pick: u64) {
        let Some(task) = self.a_task(number) else { return };
        // Also what was answered before, and what nobody asked.
        let mut keys: Vec<String> = self.tasks.known[task].shown.keys().cloned().collect();
        let open = keys.iter().filter(|key| !self.tasks.known[task].answered.contains(*key));
        let open: Vec<String> = open.cloned().collect();
        keys.push("0.0.unknown".to_owned());
        let from = if pick.is_multiple_of(4) || open.is_empty() { &keys } else { &open };
        let Some(at) = Self::pick(from, pick / 4) else { return };
        self.ask_about(task, node, What::Update(from[at].clone()));
    }

    pub(super) fn cancel_task(&mut self, number: u64, node: usize) {
        let Some(task) = self.a_task(number) else { return };
        let now = self.sea().now;
        self.tasks.known[task].may_end_at.get_or_insert(now);
        self.ask_about(task, node, What::Cancel);
    }

    pub(super) fn ask_about(&mut self, task: usize, node: usize, what: What) {
        let known = &self.tasks.known[task];
        let Some(id) = known.id.clone().filter(|_| !self.nodes[node].is_paused) else { return };
        let mut params = json!({"taskId": id.as_str()});
        let method = match &what {
            What::Poll => "tasks/get",
            What::Cancel => "tasks/cancel",
            What::Update(key) => {
                params["inputResponses"] = json!({key: {"action": "accept"}});
                "tasks/update"
            }
        };
        let body: Bytes = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into();
        let request = reread_request(&body).expect("a request about a task");
        let relayed = Relayed::new(RelayedMethod::Post, body, std::iter::empty::<(&str, &str)>(), &[], None);
        let relayed = (what != What::Poll).then_some(relayed);
        let (end, answered, is_cancelled) = (known.end.clone(), known.answered.clone(), known.is_cancelled);
        self.tasks.keys += 1;
        let (key, wake) = (ASKS + self.tasks.keys, Arc::clone(&self.bells) as Arc<dyn Wake>);
        let since = self.sea().now;
        let query = self.nodes[node].engine.ask_task(SERVER, request, None, relayed, wake, key);
        self.tasks.asked.push(Asked { task, node, key, what, since, end, answered, is_cancelled, query });
        self.bells.wake(key);
    }

    /// Takes the answers to the request with this key.
    pub(super) fn take_answers(&mut self, key: u64) {
        while let Some(at) = self.tasks.asked.iter().position(|asked| asked.key == key) {
            let Some(answer) = self.tasks.asked[at].query.take() else { return };
            match answer {
                TaskAnswer::Serve(call) => {
                    self.count("tasks that go on elsewhere");
                    let (task, node) = (self.tasks.asked[at].task, self.tasks.asked[at].node);
                    self.serve_task(task, node, key, call, None);
                    return;
                }
                TaskAnswer::Body(body) => {
                    let asked = self.tasks.asked.remove(at);
                    let answer: Value = serde_json::from_slice(&body).expect("JSON");
                    self.judge_answer(&asked, &answer["result"]);
                }
                TaskAnswer::Refused(refusal) => {
                    let asked = self.tasks.asked.remove(at);
                    self.judge_refusal(&asked, refusal.status);
                }
            }
        }
    }
}
