//! What clients of tasks must not be told.

use serde_json::Value;
use tailrope_checker::Fact;

use crate::tasks::clients::{Asked, What};
use crate::world::World;

pub(super) fn is_terminal(status: &Value) -> bool {
    matches!(status.as_str(), Some("completed" | "failed" | "cancelled"))
}

/// What stays of an end: all but the time until the next poll.
fn end_of(shown: &Value) -> Value {
    let mut end = shown.clone();
    if let Some(members) = end.as_object_mut() {
        members.remove("pollIntervalMs");
    }
    end
}

impl World {
    pub(super) fn blame(&self, task: usize, invariant: &str, says: String) {
        let (session, stream) = ("tasks".to_owned(), Some(format!("t{task}")));
        self.tell(Fact::Hung { session, stream, says, invariant: Some(invariant.to_owned()) });
    }

    /// A run is started.
    pub(super) fn note_start(&mut self, task: usize, run: u32) {
        let known = &mut self.tasks.known[task];
        let starts = known.starts.entry(run).or_default();
        *starts += 1;
        // A store that was set back may have lost that its answers had come.
        if *starts > 1 && !known.is_set_back {
            self.blame(task, "T-16", format!("run {run} is started again"));
        }
    }

    pub(super) fn judge_answer(&mut self, asked: &Asked, shown: &Value) {
        let Asked { task, ref what, .. } = *asked;
        match what {
            What::Poll => self.judge_shown(asked, shown),
            What::Cancel => self.tasks.known[task].is_cancelled = true,
            What::Update(key) => {
                self.tasks.known[task].answered.insert(key.clone());
            }
        }
        self.count(match what {
            What::Poll => "polls",
            What::Cancel => "cancellations acknowledged",
            What::Update(_) => "updates acknowledged",
        });
    }

    fn judge_shown(&mut self, asked: &Asked, shown: &Value) {
        let Asked { task, node, .. } = *asked;
        let status = &shown["status"];
        let is_set_back = self.tasks.known[task].is_set_back;
        // An owner that has not heard of its own end from the store shows what it has heard of, also where others have seen that.
        let is_owner = self.tasks.served.iter().any(|served| served.task == task && served.node == node);
        let is_late = is_owner && self.tasks.known[task].may_end_at.is_some();
        let questions = shown["inputRequests"].as_object().cloned().unwrap_or_default();
        for (key, request) in questions {
            let before = self.tasks.known[task].shown.entry(key.clone()).or_insert_with(|| request.clone()).clone();
            if before != request && !is_set_back {
                self.blame(task, "T-20", format!("{key} is asked for {before} and for {request}"));
            }
            if asked.answered.contains(&key) && !is_set_back {
                self.blame(task, "T-21", format!("{key} was answered, and is asked again at node {node}"));
            }
        }
        if is_terminal(status) {
            let end = end_of(shown);
            if let Some(before) = &self.tasks.known[task].end
                && *before != end
                && !is_set_back
            {
                self.blame(task, "T-15", format!("{before} became {end}"));
            }
            self.tasks.known[task].end.get_or_insert(end);
            return;
        }
        if asked.end.is_some() && !is_late && !is_set_back {
            self.blame(task, "T-15", format!("a task that had its end is {status} at node {node}"));
        }
        if asked.is_cancelled && !is_set_back {
            self.blame(task, "T-22", format!("a task that was cancelled is {status} at node {node}"));
        }
    }

    pub(super) fn judge_refusal(&mut self, asked: &Asked, status: u16) {
        let Asked { task, node, ref what, since, .. } = *asked;
        let now = self.sea().now;
        let known = &self.tasks.known[task];
        let may_be_over = known.may_end_at.is_some_and(|at| now >= at + self.setup.retention_ms);
        match status {
            400 if known.is_set_back || may_be_over => {}
            400 => self.blame(task, "T-18", format!("{what:?} at node {node}: the task is unknown")),
            _ => {
                self.count("requests about tasks that waited in vain");
                let timeout_ms = self.setup.store_timeout_ms;
                if timeout_ms == 0 || now.since(since) < timeout_ms {
                    self.blame(task, "T-16", format!("{what:?} at node {node} is refused with {status} at once"));
                }
            }
        }
    }
}
