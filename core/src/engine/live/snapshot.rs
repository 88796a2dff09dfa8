//! One snapshot of an engine, as JSON: bounded, however many sessions there are.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::Ms;
use crate::engine::Engine;
use crate::engine::live::WATCH_MS;
use crate::engine::live::rows::{CallRow, Newest, Reads, Rows, SessionRow, spans, task_json};
use crate::engine::live::trails::Trails;
use crate::engine::shared::{Shared, lock};
use crate::protocol::{StreamNonce, hex};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Calls, sessions and tasks that are shown: the newest.
const MAX_CALLS: usize = 200;
const MAX_SESSIONS: usize = 100;
const MAX_TASKS: usize = 100;

impl Engine {
    /// What the [live page](super::live_answer) shows of the engine, as JSON; none where the engine is closed. From now on it
    /// remembers for a while what happens to its streams.
    pub fn live_snapshot(&self) -> Option<String> {
        let shared = &self.0;
        shared.check().ok()?;
        let (now, unix_ms) = (shared.clock.now(), shared.clock.unix_ms());
        shared.begin_to_watch(now);
        let stats: Map<String, Value> =
            self.stats().entries().map(|(counter, value)| (counter.name.to_owned(), value.into())).collect();
        let mut rows =
            Rows { calls: Newest::new(MAX_CALLS), sessions: Newest::new(MAX_SESSIONS), reads: Reads::default() };
        let cells: Vec<_> = lock(&shared.sessions).values().cloned().collect();
        for cell in &cells {
            let mut state = lock(&cell.state);
            state.session.record_results(true);
            if state.is_open() {
                rows.add(cell, &state);
            }
        }
        let mut tasks = Newest::new(MAX_TASKS);
        for task in shared.owned_tasks() {
            if let Some(task) = task.live() {
                tasks.push(task.created_at, || task);
            }
        }
        let draining_ms = lock(&shared.draining).map(|(_, since)| now.since(since));
        let Rows { calls, sessions, reads } = rows;
        let ((calls, all_calls), (sessions, all_sessions), (tasks, all_tasks)) =
            (calls.take(), sessions.take(), tasks.take());
        let mut trails = lock(&shared.live.trails);
        let of_rows = calls.iter().filter_map(CallRow::stream).chain(sessions.iter().filter_map(SessionRow::stream));
        let of_ended = trails.all_ended().into_iter().filter_map(|ended| ended.record.stream);
        let shown: HashSet<StreamNonce> = of_rows.chain(of_ended).collect();
        let others: Map<String, Value> =
            trails.others(&shown).map(|(nonce, trail)| (nonce.hex(), spans(now, trail))).collect();
        let snapshot = serde_json::json!({
            "id": trails.id(shared),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "unix_ms": unix_ms,
            "watched_ms": now.since(trails.since),
            "draining_ms": draining_ms,
            "stats": stats,
            "reads": reads.to_json(),
            "calls": calls.iter().map(|row| row.to_json(now, &mut trails)).collect::<Vec<_>>(),
            "all_calls": all_calls,
            "ended": trails.all_ended().into_iter().map(|ended| ended.to_json(now, &trails)).collect::<Vec<_>>(),
            "sessions": sessions.iter().map(|row| row.to_json(now, &mut trails)).collect::<Vec<_>>(),
            "all_sessions": all_sessions,
            "others": others,
            "tasks": tasks.iter().map(|task| task_json(task, now, unix_ms)).collect::<Vec<_>>(),
            "all_tasks": all_tasks,
        });
        drop(trails);
        // The health is text already.
        let text = snapshot.to_string();
        Some(format!(r#"{{"health":{},{}"#, self.health().to_json(), &text[1..]))
    }
}

impl Shared {
    fn begin_to_watch(&self, now: Ms) {
        self.live.rest(now);
        if self.live.until.swap((now + WATCH_MS).0, Ordering::Relaxed) == 0 {
            lock(&self.live.trails).since = now;
        }
    }
}

impl Trails {
    /// What tells the engine from others, of this process and of other processes.
    fn id(&mut self, shared: &Arc<Shared>) -> String {
        hex(&self.id.get_or_insert_with(|| shared.salt()).to_be_bytes()[..4])
    }
}
