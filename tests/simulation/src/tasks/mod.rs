//! Calls that become tasks: their hosts, and their clients at any node.
//!
//! | module | what it has |
//! |---|---|
//! | `hosts` | what hosts and handlers do |
//! | `clients` | polls, updates and cancellations |
//! | `judge` | what clients must not be told |
//! | `finale` | what they are told in the end |

mod clients;
mod finale;
mod hosts;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tailrope_core::Ms;
use tailrope_core::engine::TaskCall;
use tailrope_core::store::{SessionId, session_name};
use tailrope_core::task::TaskId;

use crate::dice::Dice;
use crate::schedule::Decision;
use crate::tasks::clients::Asked;
use crate::world::World;

const SERVER: &str = "/mcp";
/// The keys of wake-ups for calls, and for requests about tasks.
const CALLS: u64 = 1 << 44;
const ASKS: u64 = 1 << 45;

/// So long a process remembers at least what it has let go: less a hint that is late.
const REMEMBERED_MS: u64 = 40_000;

/// What happens to a call or its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskDecision {
    /// A client calls a tool.
    Create {
        node: u64,
    },
    /// The handler says how far it is.
    Report {
        call: u64,
    },
    /// The handler asks its client.
    Question {
        call: u64,
    },
    /// The handler waits for no answer any more.
    Withdraw {
        call: u64,
    },
    /// The SDK wants the call again, with an answer.
    Round {
        call: u64,
    },
    /// The handler has a result.
    Finish {
        call: u64,
    },
    /// The client of the call closes its connection.
    Leave {
        call: u64,
    },
    Poll {
        task: u64,
        node: u64,
    },
    Update {
        task: u64,
        node: u64,
        pick: u64,
    },
    Cancel {
        task: u64,
        node: u64,
    },
    /// The store loses the last of a task.
    SetBack {
        task: u64,
        by: u64,
    },
}

/// A call, from the side of its clients.
#[derive(Default)]
pub(crate) struct Task {
    /// Once its client has the handle.
    id: Option<TaskId>,
    /// The end that a client was told first.
    end: Option<Value>,
    /// When it may have had its end at the earliest.
    may_end_at: Option<Ms>,
    /// Every question that a client was shown, by its key.
    shown: BTreeMap<String, Value>,
    /// Questions whose answers were acknowledged.
    answered: BTreeSet<String>,
    is_cancelled: bool,
    /// How often each run was started.
    starts: BTreeMap<u32, u64>,
    /// The store has lost something of it.
    is_set_back: bool,
    /// Nobody remembers that any more, or nobody may be there who does.
    is_forgotten: bool,
}

/// A call in the process that serves it.
pub(crate) struct Served {
    task: usize,
    node: usize,
    key: u64,
    call: TaskCall,
    run: Option<u32>,
    /// Questions of its handler.
    asks: BTreeSet<u64>,
}

#[derive(Default)]
pub(crate) struct Tasks {
    known: Vec<Task>,
    served: Vec<Served>,
    asked: Vec<Asked>,
    /// Numbers of what handlers ask and answer.
    count: u64,
    keys: u64,
    /// A process died, left, stood still or was cut off.
    is_harmed: bool,
}

impl Tasks {
    /// The process is gone.
    pub(crate) fn cut(&mut self, node: usize) {
        self.served.retain(|served| served.node != node);
        self.asked.retain(|asked| asked.node != node);
    }

    /// The process goes away in order: requests that it has not answered break.
    pub(crate) fn hang_up(&mut self, node: usize) {
        self.asked.retain(|asked| asked.node != node);
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}

fn session_of(id: &TaskId) -> Arc<str> {
    session_name(SessionId::new(SERVER, &id.session_id()))
}

pub(crate) fn decide(dice: &mut Dice) -> Decision {
    let (a, b, c) = (dice.next() >> 40, dice.next() >> 40, dice.next() >> 40);
    Decision::Task(match dice.below(32) {
        0..=2 => TaskDecision::Create { node: a },
        3..=4 => TaskDecision::Report { call: a },
        5..=7 => TaskDecision::Question { call: a },
        8 => TaskDecision::Withdraw { call: a },
        9..=12 => TaskDecision::Round { call: a },
        13..=14 => TaskDecision::Finish { call: a },
        15 if b.is_multiple_of(4) => TaskDecision::Leave { call: a },
        15..=21 => TaskDecision::Poll { task: a, node: b },
        22..=29 => TaskDecision::Update { task: a, node: b, pick: c },
        30 => TaskDecision::Cancel { task: a, node: b },
        _ if c.is_multiple_of(2) => TaskDecision::SetBack { task: a, by: b },
        _ => TaskDecision::Poll { task: a, node: b },
    })
}

impl World {
    pub(crate) fn decide_task(&mut self, decision: TaskDecision) {
        match decision {
            TaskDecision::Create { node } => self.create_task(self.node(node)),
            TaskDecision::Report { call } => self.report(call),
            TaskDecision::Question { call } => self.ask_client(call),
            TaskDecision::Withdraw { call } => self.withdraw_question(call),
            TaskDecision::Round { call } => self.ask_again(call),
            TaskDecision::Finish { call } => self.finish_call(call),
            TaskDecision::Leave { call } => self.leave_call(call),
            TaskDecision::Poll { task, node } => self.poll_task(task, self.node(node)),
            TaskDecision::Update { task, node, pick } => self.update_task(task, self.node(node), pick),
            TaskDecision::Cancel { task, node } => self.cancel_task(task, self.node(node)),
            TaskDecision::SetBack { task, by } => self.set_task_back(task, by),
        }
    }

    /// A process may have been taken for gone, or be gone: others may give its tasks their end.
    pub(crate) fn harm_tasks(&mut self) {
        let now = self.sea().now;
        self.tasks.is_harmed = true;
        self.tasks.known.iter_mut().for_each(|task| {
            task.may_end_at.get_or_insert(now);
        });
    }

    /// A task whose handle somebody has.
    fn a_task(&self, number: u64) -> Option<usize> {
        let known: Vec<usize> = (0..self.tasks.known.len()).filter(|at| self.tasks.known[*at].id.is_some()).collect();
        Self::pick(&known, number).map(|at| known[at])
    }

    fn set_task_back(&mut self, number: u64, by: u64) {
        let Some(task) = self.a_task(number) else { return };
        let Some(id) = self.tasks.known[task].id.clone() else { return };
        let now = self.sea().now;
        let known = &mut self.tasks.known[task];
        known.is_set_back = true;
        // A store that waits for a decision may wait for longer than anybody remembers.
        known.is_forgotten |= self.setup.is_slow || known.may_end_at.is_some_and(|at| at + REMEMBERED_MS < now);
        self.count("tasks set back");
        let (name, mut sea) = (session_of(&id), self.sea());
        // No store loses the end of a log, and not that its owner let go of it after that.
        let is_left = sea.sessions.get(&name).is_some_and(|known| known.held.is_released);
        let by = if is_left { by / 4 * 4 + 1 } else { by };
        // The log of a task is named as one of nobody's request.
        sea.roll_back(&name, "standalone", by);
    }

    /// Continues each call and request that was woken. Returns whether there was one. Those of paused processes go into `left`.
    pub(crate) fn run_tasks(&mut self, woken: &BTreeSet<u64>, left: &mut Vec<u64>) -> bool {
        let mut did = false;
        for key in woken.iter().filter(|key| (CALLS..ASKS * 2).contains(key)) {
            let node = self.tasks.served.iter().map(|served| (served.key, served.node));
            let node = node.chain(self.tasks.asked.iter().map(|asked| (asked.key, asked.node)));
            let Some((_, node)) = node.into_iter().find(|(known, _)| known == key) else { continue };
            if self.nodes[node].is_paused {
                left.push(*key);
                continue;
            }
            did = true;
            self.take_answers(*key);
            self.take_steps(*key);
            // What was served because of a request has the same key.
            self.take_answers(*key);
        }
        did
    }
}
