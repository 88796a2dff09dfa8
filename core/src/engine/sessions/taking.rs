//! What other processes relay to a session that is owned here.
//!
//! A hint says that a message waits. Then messages are taken until none is left, with one question to the store at a
//! time. A host that does not begin what was taken gets no more: the rest waits in the store, where it has a bound. Each
//! message that was taken becomes something that the host begins, or gets an end. Nothing begins twice: a copy that
//! comes late finds its log, or its name among the messages that were taken last.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::engine::lines::log_later;
use crate::engine::logs::log::Write;
use crate::engine::records::calls;
use crate::engine::sessions::cell::{Cell, SESSION};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::engine::sessions::{Posted, SessionHandle};
use crate::engine::stats::Counters;
use crate::exchange::{Admission, Relayed, RelayedMethod};
use crate::protocol::{Envelope, NotRelayed, Refusal, RequestId, StreamNonce, jsonrpc};
use crate::session::{About, Asked, Call, SynthesizedEnd, refusal_payload, same_end};
use crate::store::{Answer, Append, Mail, Operation, StoreError};
use crate::stream::{Chain, Input};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Pause between two looks into an inbox, for hints that were lost.
const LOOK_MS: u64 = 300_000;
/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 500;

impl SessionHandle {
    /// From now on the host takes what other processes relay to the session. If a host does not call this, what is
    /// relayed to the session is refused.
    pub fn accept_posted(&self) {
        let view = self.cell.change_or(None, |change| {
            let inbox = &mut change.state.inbox;
            inbox.is_served = true;
            // There is no hint for what has waited.
            inbox.is_hinted |= inbox.is_closed;
            change.state.beside.clone().filter(|_| change.end_building())
        });
        if let Some(view) = view.and_then(|view| view.upgrade()) {
            view.change(|change| change.relays_have_owner());
        }
    }

    /// Whether [`take_posted`](Self::take_posted) has anything. The `wake` of the session is told when there is.
    pub fn has_posted(&self) -> bool {
        self.cell.look_or(false, |state| !state.inbox.waiting.is_empty())
    }

    /// What other processes relayed to the session, in the order in which it came.
    pub fn take_posted(&self) -> Vec<Posted> {
        let take = |change: &mut Change<'_>| std::mem::take(&mut change.state.inbox.waiting);
        let waiting = self.cell.change_or(VecDeque::new(), take);
        waiting.into_iter().map(|(nonce, relayed)| Posted::new(Arc::clone(&self.cell), nonce, relayed)).collect()
    }
}

impl Cell {
    /// The host begins a call. Returns whether the call is taken.
    pub(crate) fn begin_posted(&self, nonce: StreamNonce, admission: &Admission) -> bool {
        self.change_or(false, |change| {
            let Some(requests) = change.state.inbox.unsettled.remove(&nonce) else { return false };
            if change.state.inbox.is_cancelled(change.now, &requests) {
                change.end_posted(nonce, &requests, same_end(&requests, SynthesizedEnd::Cancelled));
                calls(admission.envelopes(), &requests).into_iter().for_each(|call| change.note_cancelled_posted(call));
                return false;
            }
            let opened = change.open_posted(nonce, &requests, admission);
            if let Err(refusal) = &opened {
                change.refuse_posted(nonce, calls(admission.envelopes(), &requests), refusal);
            }
            opened.is_ok()
        })
    }

    /// The host has begun a message that gets no answer: its log is dropped.
    pub(crate) fn done_posted(&self, nonce: StreamNonce, relayed: &Relayed) {
        self.change_or((), |change| match (change.state.inbox.unsettled.remove(&nonce), relayed.method()) {
            (None, _) => {}
            (Some(requests), RelayedMethod::Post) if requests.is_empty() => {
                self.shared.store.drop_stream(&self.key(nonce), change.state.epoch);
            }
            // A call or a DELETE: its sender waits for more than that.
            (Some(requests), _) => {
                let refusal = self.dialect.wording.not_relayed(NotRelayed::NotServed);
                change.refuse_posted(nonce, calls_of(relayed, requests), &refusal);
            }
        });
    }

    /// The host does not take a message.
    pub(crate) fn refuse_posted(&self, nonce: StreamNonce, relayed: &Relayed, refusal: &Refusal) {
        self.change_or((), |change| {
            if let Some(requests) = change.state.inbox.unsettled.remove(&nonce) {
                change.refuse_posted(nonce, calls_of(relayed, requests), refusal);
            }
        });
    }
}

/// What the requests of a message ask for, as far as it can be read.
fn calls_of(relayed: &Relayed, requests: Vec<RequestId>) -> Vec<(RequestId, Asked)> {
    let read = jsonrpc::read(relayed.body());
    calls(read.as_ref().map_or(&[], |body| body.envelopes()), &requests)
}

impl Change<'_> {
    /// Looks for messages, if there may be any.
    pub(crate) fn look_into_inbox(&mut self) {
        loop {
            let state = &mut *self.state;
            let is_waiting = state.inbox.is_asking || state.inbox.is_closed || state.inbox.is_full();
            if !state.inbox.is_hinted || is_waiting || state.writing.contains_key(&SESSION) {
                return;
            }
            state.inbox.is_hinted = false;
            let is_stored = state.facts_put.is_some() && self.cell.shared.store.outlives_process();
            if !is_stored || self.cell.is_elsewhere() || state.is_fenced || state.session.has_ended() {
                return;
            }
            state.inbox.is_asking = true;
            let (epoch, after) = (state.epoch, state.inbox.after);
            let ticket = self.cell.ticket(SESSION, Operation::Take);
            match self.cell.shared.store.take(&self.cell.name, epoch, after, &ticket) {
                Answer::Now(result) => {
                    self.taken(result);
                    self.perform();
                }
                Answer::Later => self.wait(ticket),
            }
        }
    }

    pub(crate) fn look_without_a_hint(&mut self) {
        self.state.inbox.is_hinted = true;
        self.look_rarely();
    }

    /// Sets the next look without a hint: others may post to the session, and hints of that may be lost.
    pub(crate) fn look_rarely(&mut self) {
        if !self.cell.is_elsewhere() {
            let again = self.cell.shared.next_look(self.now, LOOK_MS);
            self.state.timers.set(Reason::Inbox, again);
        }
    }

    /// The store has told which messages are this process's, or could not.
    pub(crate) fn taken(&mut self, result: Result<Vec<Mail>, StoreError>) {
        let may_be_forgotten = self.may_be_forgotten();
        let inbox = &mut self.state.inbox;
        (inbox.is_asking, inbox.is_unsure) = (false, false);
        match result {
            Ok(mail) => {
                // There may be more messages than one answer holds.
                inbox.is_hinted |= !mail.is_empty();
                mail.into_iter().for_each(|mail| self.take_in(mail));
            }
            Err(StoreError::Fenced) if may_be_forgotten => {
                self.state.wants_stock = true;
                self.state.timers.set(Reason::Inbox, self.now + ASK_AGAIN_MS);
            }
            Err(StoreError::Fenced) => self.state.is_fenced = true,
            // The store may have lost what it knew of the session.
            Err(StoreError::Gone) => self.state.wants_stock = true,
            Err(error) => {
                inbox.is_unsure = true;
                // A store that was set back gives numbers again: a message that was taken now may have a number that
                // was told before.
                inbox.after = 0;
                self.state.timers.set(Reason::Inbox, self.now + ASK_AGAIN_MS);
                log_later!(self, WARN, [], %error, "what other processes relay cannot be taken");
            }
        }
    }

    /// Takes in a message that is this process's from now on.
    fn take_in(&mut self, mail: Mail) {
        let Mail { number, nonce, message } = mail;
        self.state.inbox.after = self.state.inbox.after.max(number);
        if self.state.session.stream(nonce).is_some() || self.state.inbox.has(nonce) {
            // The store had lost the log of the message, which will be written again.
            return;
        }
        let Some(About { requests, .. }) = About::decode(&message.about) else {
            log_later!(self, ERROR, of nonce, [], "a message of another process cannot be read");
            return self.cell.shared.store.drop_stream(&self.cell.key(nonce), self.state.epoch);
        };
        if requests.is_empty() && message.body.is_empty() {
            // A process that has its client says so (O8).
            self.state.session.contact(self.now);
            return self.cell.shared.store.drop_stream(&self.cell.key(nonce), self.state.epoch);
        }
        if self.state.inbox.has_begun_before(nonce) {
            // The message's log was over, and is there again.
            if requests.is_empty() {
                return self.cell.shared.store.drop_stream(&self.cell.key(nonce), self.state.epoch);
            }
            return self.end_posted(nonce, &requests, same_end(&requests, SynthesizedEnd::Lost));
        }
        self.state.session.contact(self.now);
        match self.read_posted(&message.body) {
            Ok(relayed) => {
                log_later!(self, DEBUG, of nonce, [method = relayed.method().as_str()], method,
                    "request of another process taken");
                self.state.inbox.unsettled.insert(nonce, requests);
                self.state.inbox.waiting.push_back((nonce, relayed));
                self.effects.tells_host = true;
            }
            Err(refusal) => {
                log_later!(self, WARN, of nonce, [why = refusal.message.clone()], why,
                    "request of another process refused");
                let calls = match Relayed::decode(&message.body) {
                    Ok(relayed) => calls_of(&relayed, requests),
                    Err(_) => calls(&[], &requests),
                };
                self.refuse_posted(nonce, calls, &refusal);
            }
        }
    }

    fn read_posted(&self, body: &Bytes) -> Result<Relayed, Refusal> {
        let wording = self.cell.dialect.wording;
        let relayed = Relayed::decode(body).map_err(|_| wording.not_relayed(NotRelayed::NotRead))?;
        if self.state.identity().as_deref() != relayed.principal() {
            Counters::add(&self.cell.shared.counters.requests_foreign, 1);
            return Err(wording.session_unknown());
        }
        if !self.state.inbox.is_served {
            return Err(wording.not_relayed(NotRelayed::NotServed));
        }
        Ok(relayed)
    }

    /// Ends the log of a message that does not begin, because it is refused here.
    fn refuse_posted(&mut self, nonce: StreamNonce, calls: Vec<(RequestId, Asked)>, refusal: &Refusal) {
        let requests: Vec<_> = calls.iter().map(|(id, _)| id.clone()).collect();
        self.end_posted(nonce, &requests, refusal_payload(&requests, refusal));
        self.cell.shared.counters.refused(refusal.reason);
        self.note_refused(calls, refusal);
    }

    /// Ends the log of a message that does not begin.
    fn end_posted(&mut self, nonce: StreamNonce, requests: &[RequestId], end: Bytes) {
        let chain = Chain::start(&nonce.0).0;
        let about = RequestId::encode_all(requests).into();
        let append = Append { first: 1, chain_before: chain, chain, about, end: Some(end), ..Append::default() };
        self.put(nonce, self.state.epoch, Write::End(append));
    }

    /// Puts the requests of a call in flight, on the log that waits for it.
    fn open_posted(
        &mut self,
        nonce: StreamNonce,
        requests: &[RequestId],
        admission: &Admission,
    ) -> Result<(), Refusal> {
        let wording = self.cell.dialect.wording;
        self.check_open()?;
        self.check_requests(requests.len(), admission.initialize().is_some(), false)?;
        if self.cell.is_store_behind() {
            return Err(wording.store_behind());
        }
        if requests.is_empty() || admission.requests() != requests {
            return Err(wording.not_relayed(NotRelayed::NotRead));
        }
        let initialize = admission.initialize();
        if let Some(revision) = admission.revision().filter(|_| initialize.is_none()) {
            self.state.session.assume_revision(revision);
        }
        let pace = self.cell.shared.options.paces.of_call(admission.envelopes());
        let call = Call { requests, initialize, pace, envelopes: admission.envelopes() };
        let opened = self.state.session.open_requests(self.now, nonce, &call, None, &mut self.steps);
        opened.map_err(|duplicate| wording.in_flight_already(&duplicate))?;
        self.note(admission);
        self.count_begun(requests.len());
        self.opened(nonce);
        // The process that posted the call reads it, and counts as its reader.
        self.counted(nonce, Some(1));
        self.input(nonce, Input::Taken);
        Ok(())
    }

    /// The session ends here: messages that have not begun will not begin. If their logs stay, they get an end that
    /// says so.
    pub(crate) fn end_inbox(&mut self) {
        let waiting: BTreeMap<_, _> = std::mem::take(&mut self.state.inbox.waiting).into_iter().collect();
        self.state.timers.clear(Reason::Inbox);
        let is_kept = self.cell.keeps_logs.load(Ordering::SeqCst) && !self.state.is_fenced;
        for (nonce, requests) in std::mem::take(&mut self.state.inbox.unsettled) {
            if is_kept {
                let calls = match waiting.get(&nonce) {
                    Some(relayed) => calls_of(relayed, requests),
                    // The host has it.
                    None => calls(&[], &requests),
                };
                self.refuse_posted(nonce, calls, &self.cell.dialect.wording.closing());
            }
        }
    }

    /// Notes cancellations of requests that are not in flight: a cancellation may have overtaken its request.
    pub(crate) fn note_cancelled(&mut self, envelopes: &[Envelope]) {
        if !self.cell.shared.store.outlives_process() {
            return;
        }
        for request in envelopes.iter().filter_map(|envelope| envelope.fields.cancelled_request.as_ref()) {
            if self.state.session.find_request(request).is_none() {
                self.state.inbox.note_cancelled(self.now, request);
            }
        }
    }
}
