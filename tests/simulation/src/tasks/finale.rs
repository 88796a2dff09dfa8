//! How tasks end: everything works again, handlers answer, and every node tells the same.

use serde_json::Value;

use crate::tasks::clients::What;
use crate::tasks::judge::is_terminal;
use crate::world::World;

/// By then every owner that is gone was missed, and every request was tried again.
const PATIENCE_MS: u64 = 45_000;
const ROUND_MS: u64 = 1_000;

impl World {
    pub(crate) fn finish_tasks(&mut self) {
        if self.tasks.known.is_empty() {
            return;
        }
        for _ in 0..PATIENCE_MS / ROUND_MS {
            for at in 0..self.tasks.served.len() {
                self.finish_served(at);
            }
            self.run();
            self.advance(ROUND_MS);
        }
        if let Some(waiting) = self.tasks.asked.first() {
            let says = format!("{:?} at node {} has no answer", waiting.what, waiting.node);
            self.blame(waiting.task, "T-16", says);
        }
        // What has no answer by now is blamed once.
        self.tasks.asked.clear();
        for task in 0..self.tasks.known.len() {
            if self.tasks.known[task].id.is_some() {
                self.finish_task(task);
            }
        }
        let Self { tasks, .. } = self;
        (tasks.served, tasks.asked) = Default::default();
    }

    fn finish_task(&mut self, task: usize) {
        let before = self.tasks.known[task].end.take();
        let mut told: Vec<Value> = Vec::new();
        for node in 0..self.nodes.len() {
            self.ask_about(task, node, What::Poll);
            for _ in 0..PATIENCE_MS / ROUND_MS {
                self.run();
                if self.tasks.asked.iter().all(|asked| asked.task != task) {
                    break;
                }
                self.advance(ROUND_MS);
            }
            if self.tasks.asked.iter().any(|asked| asked.task == task) {
                self.blame(task, "T-16", format!("a poll at node {node} has no answer"));
            }
            told.extend(self.tasks.known[task].end.take());
        }
        let known = &self.tasks.known[task];
        let is_lost = known.is_forgotten || (known.is_set_back && self.tasks.is_harmed);
        if told.windows(2).any(|pair| pair[0] != pair[1]) {
            self.blame(task, "T-15", format!("nodes tell different ends: {told:?}"));
        }
        let Some(end) = told.first() else { return };
        debug_assert!(is_terminal(&end["status"]));
        self.count("tasks that have their end");
        if let Some(before) = before.filter(|before| before != end && !is_lost) {
            self.blame(task, "T-15", format!("{before} became {end}"));
        }
    }
}
