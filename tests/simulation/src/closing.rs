//! Closes that a session's process asks for, of readers in other processes.

use std::sync::Arc;

use tailrope_checker::{Fact, Probe};
use tailrope_core::protocol::RequestId;

use crate::hosts::Host;
use crate::reader::Asked;
use crate::world::World;

/// Until a reader is known everywhere.
const KNOWN_MS: u64 = 2_500;
/// By then a reader elsewhere is closed.
const CLOSED_MS: u64 = 2_500;

impl World {
    /// The readers that are open in another process than their session's, and were there before their log said that they
    /// are closed, are closed when everything works for a while.
    pub(crate) fn check_closes_heard(&mut self) {
        let open: Vec<usize> = (0..self.readers.len()).filter(|at| self.readers[*at].is_reading()).collect();
        self.advance(CLOSED_MS);
        for at in open {
            let reader = &self.readers[at];
            let (session, stream) = (&self.sessions[reader.session].name, &self.streams[reader.stream].name);
            let owner = self.nodes[reader.node].store.owner;
            if reader.is_reading() && self.sea().is_closed_at(session, stream, owner, reader.came) {
                self.not_closed(at, "its log says that it is closed, and it is open");
            }
        }
    }

    fn not_closed(&self, reader: usize, says: &str) {
        let reader = &self.readers[reader];
        let (session, stream) = (self.sessions[reader.session].name.clone(), self.streams[reader.stream].name.clone());
        let (says, invariant) = (says.to_owned(), Some("close".to_owned()));
        self.tell(Fact::Hung { session, stream: Some(stream), says, invariant });
    }

    /// Everything works: what handlers ask of readers elsewhere is done there.
    pub(crate) fn close_elsewhere(&mut self) {
        if self.setup.is_old || self.nodes.len() < 2 {
            return;
        }
        for stream in 0..self.streams.len() {
            for hold_ms in [None, Some(40)] {
                self.close_reader_elsewhere(stream, hold_ms);
            }
        }
    }

    /// The reader that comes to another process; none where it does not stay.
    fn read_elsewhere(&mut self, stream: usize, home: usize) -> Option<usize> {
        let id = Arc::clone(self.streams[stream].ids.last()?);
        let node = (home + 1 + stream % (self.nodes.len() - 1)) % self.nodes.len();
        self.open(stream, node, Asked::Resume(id), Probe::Own);
        self.run();
        Some(self.readers.len() - 1)
    }

    fn close_reader_elsewhere(&mut self, stream: usize, hold_ms: Option<u64>) {
        let known = &self.streams[stream];
        // Where another owner began it once more, its client has a cursor into what the store has lost.
        let is_checked = !known.was_answered && known.begun < 2;
        let Some(request) = known.request.filter(|_| is_checked).map(RequestId::integer) else { return };
        let Some(Host { node: home, handle, .. }) = &self.sessions[known.session].home else { return };
        let (home, handle) = (*home, handle.clone());
        if handle.has_ended() || handle.find_request(&request).is_none() {
            return;
        }
        let Some(reader) = self.read_elsewhere(stream, home) else { return };
        self.advance(KNOWN_MS);
        if !self.readers[reader].is_reading() {
            return;
        }
        let retry_ms = 10_000 + stream as u32;
        if !handle.close_connection(&request, Some(retry_ms), hold_ms) {
            return;
        }
        self.run();
        self.advance(CLOSED_MS);
        self.check_closed(reader, retry_ms, "a reader elsewhere is not closed");
        let Some(next) = self.read_elsewhere(stream, home).filter(|_| hold_ms.is_some()) else { return };
        self.advance(CLOSED_MS);
        self.check_closed(next, retry_ms, "a reader elsewhere is not held shortly");
    }

    fn check_closed(&mut self, at: usize, retry_ms: u32, says: &str) {
        let reader = &self.readers[at];
        if reader.has_terminal || reader.status.is_some_and(|status| status != 200) {
            return;
        }
        let told_ms = reader.retry_ms;
        if !reader.is_over() {
            self.not_closed(at, says);
        } else if told_ms != Some(retry_ms) {
            self.not_closed(at, &format!("it is told to come back after {told_ms:?} ms and not after {retry_ms}"));
        } else {
            self.count("readers elsewhere that were closed");
        }
    }
}
