//! What other processes do to the streams of a session: the store gives hints, and a look at the log tells.
//!
//! A stream whose writer is here is watched, too: a client that comes back may land on another process. Its reader
//! counts there when it [attaches](crate::store::EventStore::attach), and the connection here is fenced (I4). Every
//! reader but the first of a POST counts, so that the order of the counts is that of the readers, wherever they are.

use crate::engine::sessions::cell::{Cell, State};
use crate::engine::sessions::change::Change;
use crate::engine::stats::Counters;
use crate::protocol::StreamNonce;
use crate::store::{Watch, Watcher};
use crate::stream::Input;
use crate::sync::Weak;

impl Watch for Cell {
    fn changed(&self, nonce: StreamNonce) {
        self.change(|change| {
            change.look_because_of_a_hint(nonce);
        });
    }

    fn posted(&self) {
        self.change(|change| change.state.inbox.is_hinted = true);
    }

    fn all_changed(&self) {
        self.change(|change| {
            change.state.disturbed = Some(change.now);
            change.state.doubt_store();
            change.state.inbox.is_hinted = true;
            let watched: Vec<StreamNonce> = change.state.watched.keys().copied().collect();
            for nonce in watched {
                if change.state.has_reader_here(nonce) {
                    change.look_because_of_a_hint(nonce);
                } else if let Some(watched) = change.state.watched.get_mut(&nonce) {
                    // Every reader that the store counts is elsewhere.
                    watched.readers = 0;
                    watched.again |= watched.asking;
                }
            }
        });
    }
}

impl State {
    fn has_reader_here(&self, nonce: StreamNonce) -> bool {
        self.conns.values().any(|conn| conn.nonce == nonce)
    }

    /// Whether the store has yet to count a reader that is here.
    fn is_counting(&self, nonce: StreamNonce) -> bool {
        self.conns.values().any(|conn| conn.attaching.as_ref().is_some_and(|ticket| ticket.nonce == nonce))
    }
}

impl Cell {
    fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    pub(crate) fn unwatch_all(&self, state: &mut State) {
        state.watched.clear();
        if std::mem::take(&mut state.is_watching) {
            self.shared.store.unwatch(&self.name, &self.watcher());
        }
    }
}

impl Change<'_> {
    /// From now on the store gives hints of what other processes do to the stream.
    pub(crate) fn watch(&mut self, nonce: StreamNonce) {
        if !self.cell.shared.store.outlives_process() {
            return;
        }
        if !std::mem::replace(&mut self.state.is_watching, true) {
            self.cell.shared.store.watch(&self.cell.name, &self.cell.watcher());
            self.look_rarely();
        }
        self.state.watched.entry(nonce).or_default();
    }

    pub(crate) fn look_because_of_a_hint(&mut self, nonce: StreamNonce) {
        let is_counting = self.state.is_counting(nonce);
        let Some(watched) = self.state.watched.get_mut(&nonce) else { return };
        if watched.asking || is_counting {
            watched.again = true;
        } else {
            watched.asking = true;
            self.look_at_log(nonce);
        }
    }

    /// The store has counted a reader that is here, or gave no number.
    pub(crate) fn counted(&mut self, nonce: StreamNonce, readers: Option<u64>) {
        let is_counting = self.state.is_counting(nonce);
        let Some(watched) = self.state.watched.get_mut(&nonce) else { return };
        watched.counted = self.cell.shared.number();
        match readers {
            Some(readers) => watched.readers = readers,
            None => (watched.is_unsure, watched.again) = (true, true),
        }
        if !is_counting && !watched.asking && std::mem::take(&mut watched.again) {
            watched.asking = true;
            self.look_at_log(nonce);
        }
    }

    /// The look with the number `asked` has told how many readers were counted; none if it could not. If a reader
    /// elsewhere has taken the stream, the connection here ends. If another hint came meanwhile, the log is looked at
    /// again.
    pub(crate) fn note_readers(&mut self, nonce: StreamNonce, asked: u64, readers: Option<u64>) {
        let is_counting = self.state.is_counting(nonce);
        let Some(watched) = self.state.watched.get_mut(&nonce) else { return };
        watched.asking = false;
        // If a reader here was counted since the look began, what the look told of the time before does not count any
        // more.
        let readers = readers.filter(|readers| asked > watched.counted || *readers >= watched.readers);
        let is_taken = readers.is_some_and(|readers| readers > watched.readers);
        if is_taken && is_counting {
            // Which reader is the newer one is known only when ours has its number.
            watched.again = true;
            return;
        }
        // The number is smaller than before if the store was set back.
        watched.readers = readers.unwrap_or(watched.readers);
        let again = !is_counting && std::mem::take(&mut watched.again);
        watched.asking = again;
        let is_taken = is_taken && !watched.is_unsure;
        watched.is_unsure &= again || readers.is_none();
        if is_taken {
            // The client is connected there, which is a sign of it (O8).
            self.state.session.contact(self.now);
            Counters::add(&self.cell.shared.counters.takeovers_elsewhere, 1);
            self.input(nonce, Input::Taken);
        }
        if again {
            self.look_at_log(nonce);
        }
    }
}
