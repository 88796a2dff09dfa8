//! Streams that another process writes: the log is followed while somebody reads it here.
//!
//! The machine is the same, but its head is moved by what the store tells, not by its own appends. The store is asked
//! again and again, so a hint that is lost delays but never harms.
//!
//! Readers are given the end that the log has, and no other. If the session's owner seems to be gone, this process
//! takes the session over, ends what runs and lets the session go: see [`heirs`](crate::engine::sessions::heirs).

use crate::engine::connections::conn::PAGE_BYTES;
use crate::engine::lines::log_later;
use crate::engine::sessions::cell::State;
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::protocol::{RequestId, StreamNonce};
use crate::session::{SynthesizedEnd, stream_end};
use crate::store::{Answer, LogPage, Operation, ReadLimit, StoreError, Ticket};
use crate::stream::{Chain, Input, Seq};

/// Pause between two looks at a log that is followed. Hints come sooner: the looks are for hints that are lost, and for
/// owners that give no sign any more.
pub(crate) const FOLLOW_MS: u64 = 1_000;
/// Events that a look brings along.
const LOOK_EVENTS: usize = 256;

impl Change<'_> {
    /// From now on the stream is followed. Its machine was just made.
    pub(crate) fn follow(&mut self, nonce: StreamNonce, requests: Vec<RequestId>) {
        // The log is looked at again at once: there were no hints yet when it was looked at before.
        self.state.followed.insert(nonce, requests);
        self.state.timers.set(Reason::Look(nonce), self.now);
        self.watch(nonce);
    }

    /// Asks what has become of a log, with the events that its reader wants next.
    pub(crate) fn look_at_log(&mut self, nonce: StreamNonce) {
        let after = self.state.session.stream(nonce).map_or(0, |stream| stream.machine.reads_after());
        let is_followed = self.state.followed.contains_key(&nonce);
        // A process that writes the log knows its events.
        let events = if is_followed { LOOK_EVENTS } else { 0 };
        let limit = ReadLimit { up_to: Seq::MAX, events, bytes: PAGE_BYTES };
        let ticket = self.cell.ticket(nonce, Operation::Look(after));
        match self.cell.shared.store.read(&self.cell.key(nonce), after, limit, &ticket) {
            Answer::Now(result) => self.looked(&ticket, result.map(|page| (after, page))),
            Answer::Later => {
                self.state.timers.clear(Reason::Look(nonce));
                self.wait(ticket);
            }
        }
    }

    /// A look has shown the state of the log, or could not.
    pub(crate) fn looked(&mut self, ticket: &Ticket, result: Result<(Seq, LogPage), StoreError>) {
        let Ticket { nonce, number, .. } = *ticket;
        if self.state.relays.is_looked_at(nonce) {
            return self.looked_at_relay(ticket, result.map(|(_, page)| page));
        }
        let found = match result {
            Ok(found) => Some(found),
            Err(StoreError::Gone) => None,
            Err(error) => {
                log_later!(self, WARN, of nonce, [], %error, "stream not looked up");
                if self.state.watched.contains_key(&nonce) {
                    self.state.timers.set(Reason::Look(nonce), self.now + FOLLOW_MS);
                }
                return self.note_readers(nonce, number, None);
            }
        };
        if found.as_ref().is_some_and(|(_, page)| self.is_taken_over(page)) {
            return;
        }
        // First, because a reader that is fenced must get nothing more of the log (I4).
        self.note_readers(nonce, number, Some(found.as_ref().map_or(0, |(_, page)| page.readers)));
        if found.is_some() {
            self.state.gone.remove(&nonce);
        } else if self.may_come_back(nonce) {
            return self.state.timers.set(Reason::Look(nonce), self.now + FOLLOW_MS);
        }
        if self.state.followed.contains_key(&nonce) {
            self.catch_up(nonce, found);
        }
    }

    /// Whether the owner of a log that is gone may write it again, because the store was set back. The store's word for that may
    /// come a little later than a look.
    fn may_come_back(&mut self, nonce: StreamNonce) -> bool {
        let requests = self.state.followed.get(&nonce).filter(|requests| !requests.is_empty());
        if requests.is_none() || self.cell.is_gone(self.state.owner) {
            return false;
        }
        let since = *self.state.gone.entry(nonce).or_insert(self.now);
        let wait_ms = self.cell.shared.options.pacing.store_wait_ms;
        let is_disturbed = self.state.disturbed.is_some_and(|at| at + wait_ms > since);
        self.now.since(since) < if is_disturbed { wait_ms } else { FOLLOW_MS.min(wait_ms) }
    }

    /// Gives the machine of a stream that is followed what is new in its log.
    pub(crate) fn catch_up(&mut self, nonce: StreamNonce, found: Option<(Seq, LogPage)>) {
        if let Some((_, page)) = &found {
            self.saw_owner(page.owner);
        }
        let State { session, conns, followed, watched, relays, timers, .. } = &mut *self.state;
        let (Some(stream), Some(requests)) = (session.stream_mut(nonce), followed.get(&nonce)) else {
            followed.remove(&nonce);
            watched.remove(&nonce);
            return;
        };
        let mut is_left = false;
        let inputs = match found {
            None => {
                let tail = stream_end(&stream.origin, requests, SynthesizedEnd::Lost);
                vec![Input::Ended { head: 0, tail }]
            }
            Some((after, LogPage { page, chain, is_finished, tail, paced, owner, .. })) => {
                // The standalone stream has no end.
                is_left = !requests.is_empty() && !is_finished && self.cell.is_gone(owner);
                stream.chain = Chain(chain);
                let head = page.head;
                if head > 0 || is_finished {
                    relays.begun(nonce, timers);
                }
                if let Some(reading) = stream.machine.connection().and_then(|conn| conns.get_mut(&conn)?.reading()) {
                    reading.page = Some((after, page));
                }
                let mut inputs = Vec::new();
                if head != stream.machine.durable() {
                    inputs.push(Input::Grown { head });
                }
                // What was sent before a close is stored before it, and goes out before it.
                inputs.push(Input::Paced(paced));
                if is_finished {
                    inputs.push(Input::Ended { head, tail });
                }
                inputs
            }
        };
        for input in inputs {
            self.input(nonce, input);
        }
        if self.state.session.stream(nonce).is_none_or(|stream| stream.machine.is_finished()) {
            self.state.followed.remove(&nonce);
            self.state.gone.remove(&nonce);
            self.state.timers.clear(Reason::Look(nonce));
        } else {
            let again = self.cell.shared.next_look(self.now, FOLLOW_MS);
            self.state.timers.set(Reason::Look(nonce), again);
        }
        if is_left {
            self.inherit();
        }
    }

    /// It is time to look at a log. A log of another process that nobody reads here any more is let go of.
    pub(crate) fn look_or_let_go(&mut self, nonce: StreamNonce) {
        let is_followed = self.state.followed.contains_key(&nonce);
        let is_read = self.state.session.stream(nonce).is_some_and(|stream| stream.machine.has_readers());
        if is_followed && is_read {
            self.sign_for_client();
        }
        if !is_followed || is_read {
            return self.look_at_log(nonce);
        }
        self.state.followed.remove(&nonce);
        self.state.gone.remove(&nonce);
        self.state.session.let_go(nonce);
        self.state.watched.remove(&nonce);
    }
}
