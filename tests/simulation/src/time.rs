//! Time, and processes that go with it.

use std::sync::Arc;

use tailrope_checker::{Probe, Why};
use tailrope_core::Ms;
use tailrope_core::engine::{Clock, CounterKind};

use crate::adopting::ADOPTS;
use crate::node_store::Mode;
use crate::reader::Asked;
use crate::sea::Hint;
use crate::world::{Node, World, node};

/// By then everybody has given a sign after an outage.
const BACK_MS: u64 = 1_000;

impl World {
    pub(crate) fn advance(&mut self, ms: u64) {
        let end = self.clock.now() + ms;
        // A busy moment may have many steps; each of them gets somewhere.
        for _ in 0..400 {
            let now = self.clock.now();
            let left = end.since(now);
            if left == 0 {
                return;
            }
            let running = self.nodes.iter().filter(|node| !node.is_paused);
            let engine = running.map(|node| node.engine.next_deadline()).min().unwrap_or(Ms::NEVER);
            let hints = self.sea().hints.iter().filter(|hint| self.is_told(hint)).map(|hint| hint.due).min();
            let hint = hints.unwrap_or(Ms::NEVER);
            let next = engine.min(hint).min(self.beat_due());
            self.clock.advance(next.since(now).clamp(1, left));
            self.happen();
        }
        let left = end.since(self.clock.now());
        self.clock.advance(left);
        self.happen();
    }

    /// Whether the node that a hint is for can hear of it.
    pub(crate) fn is_told(&self, hint: &Hint) -> bool {
        let node = &self.nodes[hint.node];
        !node.is_paused && !node.store.state().is_cut_off
    }

    /// What time brings by itself.
    pub(crate) fn happen(&mut self) {
        let now = self.clock.now();
        let hints = {
            let mut sea = self.sea();
            sea.now = now;
            for node in self.nodes.iter().filter(|node| !self.is_out && !node.is_answered()) {
                sea.owners.has_failed(node.store.owner);
            }
            let (due, later) =
                std::mem::take(&mut sea.hints).into_iter().partition(|hint| hint.due <= now && self.is_told(hint));
            sea.hints = later;
            let due: Vec<Hint> = due;
            due
        };
        for hint in hints {
            self.nodes[hint.node].store.tell(&hint);
        }
        for node in self.nodes.iter().filter(|node| !node.is_paused) {
            node.engine.tick();
        }
        // Others look before: that is the worse order.
        for node in self.nodes.iter().filter(|node| !node.is_paused) {
            let is_answered = node.is_answered();
            self.sea().owners.beat(node.store.owner, now, is_answered);
        }
        self.run();
    }

    /// When the first process that runs tries its next beat.
    fn beat_due(&self) -> Ms {
        let sea = self.sea();
        let running = self.nodes.iter().filter(|node| !node.is_paused);
        running.map(|node| sea.owners.due(node.store.owner)).min().unwrap_or(Ms::NEVER)
    }

    /// For so long the store answers nobody, or the computer that everything is on is suspended. It is no fault of
    /// any owner.
    pub(crate) fn outage(&mut self, stream: usize, ms: u64, is_suspended: bool) {
        let before: Vec<(bool, bool)> =
            self.nodes.iter().map(|node| (node.is_paused, node.store.state().is_cut_off)).collect();
        for node in &mut self.nodes {
            node.is_paused |= is_suspended;
            node.store.state().is_cut_off = true;
        }
        self.is_out = true;
        self.advance(ms / 2);
        self.notify(stream);
        self.advance(ms / 2);
        self.is_out = false;
        for (node, (is_paused, is_cut_off)) in self.nodes.iter_mut().zip(before) {
            node.is_paused = is_paused;
            node.store.state().is_cut_off = is_cut_off;
            if !is_paused && node.store.state().mode == Mode::Now {
                node.store.do_all();
            }
        }
        self.run();
        self.advance(BACK_MS);
    }

    /// Whoever was woken goes on.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000 {
            self.note_fenced();
            self.note_returned();
            let woken = std::mem::take(&mut *self.bells.set());
            let (mut left, mut did) = (Vec::new(), self.serve());
            did |= self.run_tasks(&woken, &mut left);
            for key in woken {
                let adopts = key.checked_sub(ADOPTS).and_then(|at| usize::try_from(at).ok());
                if let Some(at) = adopts.filter(|at| self.readers.get(*at).is_some_and(|reader| reader.view.is_some()))
                {
                    if self.nodes[self.readers[at].node].is_paused {
                        left.push(key);
                    } else {
                        did = true;
                        self.adopt(at);
                    }
                }
                let Some(reader) = usize::try_from(key).ok().and_then(|at| self.readers.get(at)) else { continue };
                if reader.is_stalled || self.nodes[reader.node].is_paused {
                    left.push(key);
                } else {
                    did = true;
                    self.poll(key as usize);
                }
            }
            self.bells.set().extend(left);
            if !did {
                break;
            }
        }
        for session in 0..self.sessions.len() {
            self.take_outcomes(session);
        }
    }

    pub(crate) fn restart(&mut self, at: usize) {
        let mode = if self.setup.is_slow { Mode::Later } else { Mode::Now };
        let new = node(&self.setup, &self.clock, &self.sea, at, mode);
        let old = std::mem::replace(&mut self.nodes[at], new);
        self.note_stats(&old);
    }

    /// Counts what an engine did.
    pub(crate) fn note_stats(&self, node: &Node) {
        let entries = node.engine.stats().entries();
        let mut sea = self.sea();
        for (counter, count) in entries.filter(|(counter, _)| counter.kind == CounterKind::Counter) {
            *sea.coverage.entry(counter.name).or_default() += count;
        }
    }

    /// The connections of a node break, and its sessions have no home any more.
    pub(crate) fn cut(&mut self, at: usize) {
        for reader in 0..self.readers.len() {
            if self.readers[reader].node == at {
                self.lose(reader, 0);
            }
        }
        for session in &mut self.sessions {
            session.loses(at);
        }
        self.tasks.cut(at);
    }

    pub(crate) fn crash(&mut self, at: usize, done: u64) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].node() == Some(at) {
                self.permit_ends(session, Why::OwnerLost);
            }
        }
        self.nodes[at].store.die(done);
        self.cut(at);
        self.restart(at);
    }

    /// The process of a session lets it go, and others that ask the store late each serve a reader of it.
    pub(crate) fn orphan(&mut self, session: usize) {
        let Some(home) = self.sessions[session].node() else { return };
        self.leave(home, 1);
        let is_read = |at: &usize| self.streams[*at].session == session && self.streams[*at].request.is_some();
        let read: Vec<usize> = (0..self.streams.len()).filter(is_read).collect();
        for (node, stream) in (home + 1..).zip(read) {
            let node = node % self.nodes.len();
            self.nodes[node].store.state().mode = Mode::Later;
            if let Some(id) = self.streams[stream].ids.last().map(Arc::clone) {
                self.open(stream, node, Asked::Resume(id), Probe::Own);
            }
        }
        self.run();
        self.do_in_turns();
        self.run();
        self.advance(2_000);
        self.do_in_turns();
    }

    pub(crate) fn leave(&mut self, at: usize, how: u64) {
        if self.nodes[at].is_paused {
            return;
        }
        // Who closes in order ends what runs, with what the store tells of it at once.
        let why = if how.is_multiple_of(2) { Why::Ended } else { Why::OwnerLost };
        for session in 0..self.sessions.len() {
            if self.sessions[session].node() == Some(at) {
                self.permit_ends(session, why);
            }
        }
        self.tasks.hang_up(at);
        if how.is_multiple_of(2) {
            self.nodes[at].engine.close();
        } else {
            self.nodes[at].engine.release();
        }
        self.run();
        self.nodes[at].store.do_all();
        self.run();
        self.nodes[at].store.die(0);
        self.cut(at);
        self.restart(at);
    }
}
