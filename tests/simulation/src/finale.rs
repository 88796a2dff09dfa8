//! How a schedule ends: everything works again, and every reader gets what is its own.

use std::sync::Arc;

use tailrope_checker::{Fact, Probe};
use tailrope_core::engine::Clock;

use crate::node_store::Mode;
use crate::reader::Asked;
use crate::world::World;

/// How long a reader may take for all that is stored, in milliseconds.
const PATIENCE_MS: u64 = 120_000;
const ROUND_MS: u64 = 500;

impl World {
    /// Nothing is broken any more, and whoever has a request answers it.
    fn heal(&mut self) {
        self.sea().hint_ms = 0;
        let now = self.sea().now;
        self.sea().hints.iter_mut().for_each(|hint| hint.due = now);
        for node in &mut self.nodes {
            node.is_paused = false;
            let mut state = node.store.state();
            (state.is_cut_off, state.mode) = (false, Mode::Now);
        }
        self.do_in_turns();
        self.run();
        self.advance(10);
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_draining {
                self.leave(at, 0);
                self.nodes[at].store.state().mode = Mode::Now;
            }
        }
        for reader in 0..self.readers.len() {
            if std::mem::take(&mut self.readers[reader].is_stalled) {
                self.lose(reader, u64::MAX);
            }
        }
        self.run();
        self.check_closes_heard();
        self.close_elsewhere();
        for reader in 0..self.readers.len() {
            if !self.readers[reader].is_posting() {
                self.lose(reader, u64::MAX);
            }
        }
        self.is_healed = true;
        self.run();
        for stream in 0..self.streams.len() {
            self.respond(stream);
        }
        self.run();
    }

    pub(crate) fn finish(&mut self) {
        self.heal();
        let streams: Vec<usize> = (0..self.streams.len())
            .filter(|at| {
                let stream = &self.streams[*at];
                !stream.ids.is_empty() && !self.sessions[stream.session].has_ended
            })
            .collect();
        let mut readers: Vec<(usize, Option<usize>, bool)> = streams.iter().map(|at| (*at, None, false)).collect();
        let rounds = PATIENCE_MS / ROUND_MS;
        for round in 0..rounds {
            for (stream, reader, is_done) in &mut readers {
                if *is_done {
                    continue;
                }
                let is_over = reader.is_none_or(|reader| self.readers[reader].is_over());
                if let Some(reader) = *reader {
                    let Some(status) = self.readers[reader].status else { continue };
                    *is_done = self.readers[reader].has_terminal || matches!(status, 204 | 400 | 404);
                    // The standalone stream has no end: it was quiet for long enough.
                    let quiet_ms = self.clock.now().since(self.streams[*stream].last_news);
                    *is_done |= self.streams[*stream].request.is_none() && round >= 8 && quiet_ms >= 4_000;
                }
                if is_over && !*is_done {
                    let ids = &self.streams[*stream].ids;
                    let id = if reader.is_none() { ids.first() } else { ids.last() };
                    let Some(id) = id.map(Arc::clone) else { continue };
                    *reader = Some(self.readers.len());
                    let node = (*stream + round as usize) % self.nodes.len();
                    self.open(*stream, node, Asked::Resume(id), Probe::Own);
                    self.run();
                }
            }
            let is_posting = self.readers.iter().any(|reader| reader.is_posting());
            if !is_posting && readers.iter().all(|(.., is_done)| *is_done) {
                break;
            }
            self.advance(ROUND_MS);
        }
        for (stream, _, is_done) in readers {
            let known = &self.streams[stream];
            let (session, stream) = (self.sessions[known.session].name.clone(), known.name.clone());
            if is_done {
                self.tell(Fact::Done { session, stream });
            } else {
                let says = format!("nothing ends it in {PATIENCE_MS} ms");
                self.tell(Fact::Hung { session, stream: Some(stream), says, invariant: None });
            }
        }
        self.check_relayed();
        self.finish_tasks();
        for reader in 0..self.readers.len() {
            self.deliver(reader);
            self.lose(reader, u64::MAX);
        }
        for node in &self.nodes {
            self.note_stats(node);
        }
    }
}
