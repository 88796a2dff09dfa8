//! How sessions end here: by a drain, with the process, or for good.

use std::collections::HashSet;

use crate::Ms;
use crate::engine::connections::conn::{PAGE_BYTES, Phase};
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::maps::OwnMap;
use crate::protocol::{RequestId, StreamNonce};
use crate::session::{Outcome, SynthesizedEnd, end_payload};
use crate::stream::{CloseReason, ConnectionId, Drain, Frame, Input};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// How long before the end of a drain the calls that cannot be handed over get an error, so that it still goes out.
const LAST_ERRORS_MS: u64 = 250;
/// What a request gets that waits for an answer in JSON.
const END: Option<SynthesizedEnd> = Some(SynthesizedEnd::SessionEnded);
/// How many bytes a connection is still given when its session ends.
const LAST_BYTES: usize = 1 << 20;

impl Cell {
    pub(crate) fn drain(&self, drain: Drain) {
        self.change(|change| {
            if !change.state.session.is_draining() {
                self.shared.drained.begin(change.now, change.state.session.in_flight());
                let within_ms = self.shared.options.drain_within_ms.saturating_sub(LAST_ERRORS_MS);
                change.state.timers.set(Reason::Drain, change.now + within_ms);
            }
            change.state.session.drain(change.now, drain, &mut change.steps);
            change.drain_seeks();
        });
    }

    /// Whether a drain has yet to leave the session to other processes. That is so until the store was told that the
    /// session is left, because the process may end right after.
    pub(crate) fn is_handing_over(&self) -> bool {
        let is_to_be_left = {
            let state = lock(&self.state);
            state.session.is_draining() && self.is_for_others(&state)
        };
        is_to_be_left && self.is_registered(&lock(&self.shared.sessions))
    }

    fn is_registered(&self, sessions: &OwnMap<Arc<str>, Arc<Self>>) -> bool {
        sessions.get(&self.name).is_some_and(|cell| cell.number == self.number)
    }

    /// Whether other processes can go on with the session when this one leaves it.
    fn is_for_others(&self, state: &State) -> bool {
        !self.is_elsewhere() && state.facts_put.is_some_and(|facts| facts != 0) && self.shared.store.outlives_process()
    }

    /// Makes the session no longer findable here, if `is_over` says so: the next reader looks it up anew. A reader that
    /// found it just before is served all the same.
    pub(crate) fn unregister(&self, is_over: impl FnOnce(&Self) -> bool) {
        let mut sessions = lock(&self.shared.sessions);
        if !is_over(self) {
            return;
        }
        let released = if self.is_registered(&sessions) { sessions.remove(&self.name) } else { None };
        lock(&self.shared.places).leave(self.number);
        drop(sessions);
        drop(released);
    }

    /// Lets what a durable store has of the session stay readable when the session ends.
    pub(crate) fn keep_logs(&self) {
        if self.shared.store.outlives_process() {
            self.keeps_logs.store(true, Ordering::SeqCst);
        }
    }

    /// Gives up owning the session. It goes together with its logs, or other processes may take it over.
    pub(crate) fn leave_store(&self) {
        if self.is_elsewhere() {
            return;
        }
        let epoch = lock(&self.state).epoch;
        if self.keeps_logs.load(Ordering::SeqCst) {
            self.shared.release(&self.name, epoch);
        } else {
            self.shared.drop_session(&self.name, epoch);
        }
    }

    /// Requests that came to a view in this process and wait for the session are told that the session is over. That
    /// has to happen while the store can still tell that nobody has begun them.
    fn refuse_waiting(&self) {
        let view = lock(&self.state).beside.clone().filter(|_| !self.is_elsewhere()).and_then(|view| view.upgrade());
        if let Some(view) = view.filter(|_| !self.keeps_logs.load(Ordering::SeqCst)) {
            view.change(|change| change.withdraw_ended(&self.dialect.wording.session_ended()));
        }
    }

    /// A drain leaves the session to other processes.
    pub(crate) fn end_handed_over(&self) {
        tracing::debug!(target: "tailrope", session = %self.name, "session left to other processes");
        Counters::add(&self.shared.counters.sessions_handed_over, 1);
        self.shared.drained.add(|tally| tally.handed_over += 1);
        lock(&self.shared.ended).extend(self.me.upgrade());
        self.end();
    }

    /// Another process has taken the session over, because this one seemed to be gone. Its clients go on there.
    pub(crate) fn end_fenced(&self) {
        tracing::warn!(target: "tailrope", session = %self.name,
            "another process took this one for gone and has the session: it ends here");
        Counters::add(&self.shared.counters.sessions_taken_over, 1);
        lock(&self.shared.ended).extend(self.me.upgrade());
        self.end();
    }

    /// Ends the session with the process.
    pub(crate) fn leave(&self) {
        self.end_here(|_| true, |_| SynthesizedEnd::Stopped);
    }

    /// Ends the session for its host. In a drain, and if another process has the session, its logs stay: its client
    /// comes back for what is stored.
    pub(crate) fn end(&self) {
        self.end_here(
            |state| state.session.is_draining() || state.is_fenced,
            |state| match state.session.is_draining() && !state.is_fenced {
                true => SynthesizedEnd::Stopped,
                false => SynthesizedEnd::SessionEnded,
            },
        );
    }

    /// Ends the session because its client asks for it. Even in a drain, it goes on nowhere.
    pub(crate) fn delete(&self) {
        self.end_here(|state| state.is_fenced, |_| SynthesizedEnd::SessionEnded);
    }

    /// Ends the session here. `goes_on` says whether the session goes on elsewhere for its client, `end_of` what its calls are
    /// told. If it has ended already, nothing is done.
    fn end_here(&self, goes_on: impl FnOnce(&State) -> bool, end_of: impl FnOnce(&State) -> SynthesizedEnd) {
        if self.is_forked() {
            return;
        }
        let mut unborn = HashSet::new();
        let mut end = SynthesizedEnd::SessionEnded;
        let ended = self.change(|change| {
            let ended = !change.state.session.has_ended();
            if ended {
                let goes_on = goes_on(change.state);
                if goes_on {
                    self.keep_logs();
                }
                let streams = change.state.session.streams();
                unborn.extend(streams.filter(|(_, stream)| stream.machine.stored().is_none()).map(|(nonce, _)| *nonce));
                end = end_of(change.state);
                if end == SynthesizedEnd::Stopped {
                    self.shared.drained.add(|tally| tally.ended += change.state.session.in_flight());
                }
                let State { session, is_fenced, .. } = &mut *change.state;
                let outcome = if *is_fenced {
                    Outcome::OwnerGone
                } else if session.is_draining() {
                    Outcome::Drained
                } else if session.is_detached(change.now, self.shared.options.max_detached_ms) {
                    Outcome::ClientGone
                } else {
                    Outcome::SessionEnded
                };
                session.blame(outcome);
                if !goes_on {
                    self.observe_end(change, outcome);
                }
                change.state.session.end(change.now, end, &mut change.steps);
                change.end_building();
                change.end_inbox();
                change.end_relays();
                change.end_adoption();
            }
            ended
        });
        if !ended {
            return;
        }
        self.change(|change| {
            change.release_senders();
            change.state.arrived = None;
            change.state.followed.clear();
            change.state.gone.clear();
            self.unwatch_all(change.state);
            for (id, conn) in change.state.json.clone() {
                let phase = change.state.conns.get(&conn).map(|conn| &conn.phase);
                let is_array = matches!(phase, Some(Phase::Json(join)) if join.is_array());
                if is_array {
                    // The answers to other requests of the batch are not lost.
                    let body = end_payload(&id, end);
                    change.answer_json(&id, AnswerHead::JSON, body.to_vec(), END);
                } else {
                    let refusal = self.dialect.wording.session_ended_meanwhile();
                    let head = AnswerHead::refused(&refusal, self.dialect);
                    change.answer_json(&id, head, refusal.body(self.dialect), END);
                }
            }
            change.send_json_answers();
            // The logs go with the session, so its open connections get their last bytes now.
            let mut open: Vec<ConnectionId> = change.state.conns.keys().copied().collect();
            open.sort_unstable();
            for id in open {
                change.send_last(id, &unborn, end);
            }
            change.state.session.end_unstored(end);
            // Nobody waits any more for what was asked of the store, even for the last bytes.
            self.renounce(change.state);
            change.state.questions.clear();
            change.state.timers.clear_all();
            change.state.writing.clear();
        });
        self.refuse_waiting();
        self.leave_store();
        self.unregister(|_| true);
        lock(&self.shared.timed).remove(&self.number);
        lock(&self.shared.confirmed).forget(self.number);
        let scheduled = lock(&self.state).scheduled;
        self.shared.schedule(scheduled, Ms::NEVER, self.number);
        tracing::debug!(target: "tailrope", session = %self.name, "session ended");
    }
}

impl Change<'_> {
    /// Ends the session once nothing runs in it, if that was asked for. In a drain, leaves it to other processes then:
    /// before that, what a handler sends would be refused (O17). By then its connections have ended, with everything
    /// that they had to carry.
    pub(crate) fn end_at_rest(&mut self) {
        let State { session, conns, writing, inbox, ends_at_rest, .. } = &*self.state;
        let hands_over = session.is_draining() && self.cell.is_for_others(self.state);
        let is_at_rest = (*ends_at_rest || hands_over)
            && session.in_flight() == 0
            && conns.is_empty()
            && writing.is_empty()
            && !inbox.is_in_use()
            && self.state.is_open();
        if !is_at_rest {
            return;
        }
        self.state.is_ending = true;
        if self.state.ends_at_rest {
            self.effects.ends = true;
        } else {
            self.cell.keep_logs();
            self.effects.hands_over = true;
        }
    }

    /// Gives a connection its last bytes. `unborn` are the streams that had no log when the session ended: none of
    /// their ids has left.
    fn send_last(&mut self, id: ConnectionId, unborn: &HashSet<StreamNonce>, end: SynthesizedEnd) {
        let is_kept = self.cell.keeps_logs.load(Ordering::SeqCst);
        // A client that can come back gets the end elsewhere, after what is stored before it.
        let comes_back = is_kept && self.state.session.rules().early_close;
        let has_log = self.state.conns.get(&id).is_some_and(|conn| !unborn.contains(&conn.nonce));
        // The client has to get the end that the heir has written, and no other.
        let has_heir = comes_back && has_log && self.state.is_fenced;
        let mut written = if has_heir { LAST_BYTES } else { 0 };
        while let Some(conn) = self.state.conns.get_mut(&id).filter(|conn| conn.end().is_none() && written < LAST_BYTES)
        {
            conn.page_bytes = PAGE_BYTES;
            let (nonce, chunks) = (conn.nonce, conn.outbox.len());
            self.input(nonce, Input::Ready { conn: id });
            self.perform();
            let Some(conn) = self.state.conns.get(&id) else { return };
            // Nothing is written, or even what was ready went, because another reader has the stream.
            let Some(more) = conn.outbox.get(chunks..).filter(|more| !more.is_empty()) else { break };
            written += more.iter().map(|chunk| chunk.as_ref().len()).sum::<usize>();
        }
        let Some(conn) = self.state.conns.get(&id).filter(|conn| conn.end().is_none()) else {
            return self.effects.touched.push(id);
        };
        let nonce = conn.nonce;
        let tail = self.state.session.stream(nonce).and_then(|stream| {
            let lacks_some = is_kept && has_log && !stream.machine.has_everything(id);
            if has_heir || (lacks_some && (comes_back || self.state.is_fenced)) {
                None
            } else if comes_back && has_log {
                stream.machine.tail().cloned()
            } else {
                // A response that the store has not taken would be lost with the connection.
                stream.last_end(end)
            }
        });
        if conn.head.is_none() {
            // The store has not said yet whether the resume is possible. If the session goes on elsewhere, the client
            // has to come back: 404 would end the session for it.
            let (is_fenced, closing) = (self.state.is_fenced, self.cell.dialect.wording.closing());
            self.refuse(id, &if is_kept && !is_fenced { closing } else { self.cell.over(self.state) });
        } else if let Some(tail) = tail {
            self.send_frame(nonce, id, Frame::Tail(tail));
        }
        self.close(id, CloseReason::Ended);
    }

    /// Calls whose clients cannot be told to come back have run on so far.
    pub(crate) fn end_drain(&mut self) {
        let running = self.state.session.in_flight();
        self.state.session.end_drain(self.now, &mut self.steps);
        self.end_json(SynthesizedEnd::Draining);
        let ended = running - self.state.session.in_flight();
        self.cell.shared.drained.add(|tally| tally.ended += ended);
    }

    /// Every call that waits for an answer in JSON gets this end.
    pub(crate) fn end_json(&mut self, end: SynthesizedEnd) {
        for id in self.state.json.keys().cloned().collect::<Vec<RequestId>>() {
            self.answer_json(&id, AnswerHead::JSON, end_payload(&id, end).to_vec(), Some(end));
        }
    }

    /// Answers a call that waits for an answer in JSON, which is its handler's unless `end` is there. Returns whether this request is such a call.
    pub(crate) fn answer_json(
        &mut self,
        request: &RequestId,
        head: AnswerHead,
        answer: Vec<u8>,
        end: Option<SynthesizedEnd>,
    ) -> bool {
        let Some(id) = self.state.json.remove(request) else { return false };
        self.state.session.answered_outside(request, &answer, end);
        if let Some(Phase::Json(join)) = self.state.conns.get_mut(&id).map(|conn| &mut conn.phase)
            && let Some(body) = join.answer(request, answer)
        {
            self.state.json_answers.push((id, head, body));
        }
        true
    }

    /// Sends answers in JSON once the store has what they tell of the session: its client may come to another process
    /// next.
    pub(crate) fn send_json_answers(&mut self) {
        let is_kept = !self.state.writing.contains_key(&SESSION) || self.state.is_overdue(SESSION);
        if is_kept || self.state.session.has_ended() {
            for (id, head, body) in std::mem::take(&mut self.state.json_answers) {
                self.finish(id, head, body);
            }
        }
    }
}
