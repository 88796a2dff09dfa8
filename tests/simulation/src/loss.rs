//! What the simulated store forgets: in time, and where it is set back.

use std::sync::Arc;

use tailrope_checker::{Fact, Why};
use tailrope_core::Ms;
use tailrope_core::store::StreamKey;

use crate::sea::Sea;

/// How much of a session the store loses at most that was confirmed, in milliseconds.
const LOST_MS: u64 = 20_000;

impl Sea {
    /// Retention. Returns when it is due next.
    pub(crate) fn sweep(&mut self, owner: usize) -> Ms {
        let (now, wall, retention_ms) = (self.now, self.wall(owner), self.retention_ms);
        self.taken.retain(|_, until| *until > wall);
        let mut next = Ms::NEVER;
        let mut over = Vec::new();
        for (key, log) in self.keys() {
            let kept_ms = log.now().paced.retention_ms.unwrap_or(retention_ms);
            let Some(due) = log.now().finished.map(|finished| finished + kept_ms) else { continue };
            if due <= wall {
                over.push(key);
            } else {
                next = next.min(now + due.since(wall));
            }
        }
        for key in over {
            self.count("logs expired");
            self.forget(owner, &key, Why::Expired);
        }
        next
    }

    /// The store loses a log, or its last appends, or what a whole session was given last.
    pub(crate) fn roll_back(&mut self, name: &Arc<str>, stream: &str, by: u64) {
        let time = Ms(self.now.0.saturating_sub(1 + by / 4 % LOST_MS));
        let Some(known) = self.sessions.get_mut(name) else { return };
        let nonce = known.logs.iter().find(|(_, log)| log.name == *stream).map(|(nonce, _)| *nonce);
        if nonce.is_none() && by % 4 != 1 {
            return;
        }
        let (mut lost, mut lost_ends) = (Vec::new(), 0);
        known.logs.retain(|at, log| {
            let before = log.now().clone();
            let is_kept = match by % 4 {
                0 => Some(*at) != nonce,
                1 => log.set_back_to(time),
                // A withdrawal is not lost without what came to the inbox behind it.
                _ => Some(*at) != nonce || known.inbox.is_withdrawn(at) || log.set_back_by(1 + (by / 4 % 3) as usize),
            };
            if !is_kept || !log.now().holds(&before) {
                lost.push(log.name.clone());
                lost_ends += u64::from(is_kept && before.finished.is_some());
                known.lost.entry(*at).or_insert_with(|| (log.name.clone(), before));
            }
            is_kept
        });
        let owner = known.held.owner;
        let mut lost_holds = 0;
        if by % 4 == 1 {
            lost_holds = u64::from(known.set_back_to(time));
            let again = known.inbox.set_back_to(time);
            lost.extend(again.iter().filter_map(|nonce| Some(known.logs.get(nonce)?.name.clone())));
        }
        known.inbox.retain(&known.logs);
        self.set_back.insert(Arc::clone(name));
        self.owners.set_back(owner, by % 5, self.now);
        self.count(
            ["logs lost by the store", "sessions set back", "logs set back", "logs set back"][(by % 4) as usize],
        );
        *self.coverage.entry("ends lost by the store").or_default() += lost_ends;
        *self.coverage.entry("holds lost by the store").or_default() += lost_holds;
        for stream in lost {
            self.gone(name, Some(stream), Why::StoreLost);
        }
        // The nodes have to connect again, and cannot know what they missed.
        self.hint_all();
    }

    /// Tells of a log that holds again what the store had lost of it.
    pub(crate) fn note_restored(&mut self, key: &StreamKey) {
        let Some(known) = self.sessions.get(&key.session) else { return };
        let (Some(log), Some(lost)) = (known.logs.get(&key.nonce.0), known.lost.get(&key.nonce.0)) else { return };
        if !log.now().holds(&lost.1) {
            return;
        }
        self.count("logs restored");
        let Some((stream, _)) = self.sessions.get_mut(&key.session).and_then(|known| known.lost.remove(&key.nonce.0))
        else {
            return;
        };
        // A standalone stream may have had another log before, which does not come back.
        if !self.sessions[&key.session].lost.values().any(|(other, _)| *other == stream) {
            let session = self.name_of(&key.session);
            if session != *key.session {
                self.tell(Fact::Restored { session, stream });
            }
        }
    }
}
