//! Logs that the store lost, of sessions that are owned here: a failover took the last of what it had confirmed.
//!
//! The next append to a log finds the loss. If nobody appends to a log any more, taking stock finds it: the store says
//! which logs of the session have no end, and a log that has neither an end nor a machine has lost its end. The last
//! append of each log is kept for a while, and written again. If the store lost more than that, the stream gets another
//! end, so that no reader waits for ever.

use std::collections::BTreeMap;

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::logs::log::Write;
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::engine::sessions::change::Change;
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::protocol::StreamNonce;
use crate::session::SynthesizedEnd;
use crate::store::{Append, Hold, RunningLog, StoreError};
use crate::stream::{CloseReason, ConnectionId, Input, Seq};

/// Whether the stream has no end yet.
fn is_running(state: &State, nonce: StreamNonce) -> bool {
    state.session.stream(nonce).is_some_and(|stream| !stream.machine.is_finished())
}

impl Cell {
    /// Keeps an append that the store has confirmed.
    pub(crate) fn keep(&self, now: Ms, nonce: StreamNonce, append: Append) {
        // An append without a position is not kept: even a log that lacks what comes before would take it.
        let has_position = append.first == 1 || !append.events.is_empty() || append.end.is_some();
        if has_position && self.shared.store.outlives_process() && !self.is_elsewhere() {
            let mut confirmed = lock(&self.shared.confirmed);
            confirmed.remember(now, (self.number, nonce), append);
            confirmed.trim(now, self.shared.options.shortest_retention_ms());
        }
    }
}

impl Change<'_> {
    /// Writes the last confirmed append again, because the store has lost it, and `next` after it. False if nothing is
    /// kept.
    pub(crate) fn append_again(&mut self, nonce: StreamNonce, next: Option<Write>) -> bool {
        let Some(append) = lock(&self.cell.shared.confirmed).remove((self.cell.number, nonce)) else { return false };
        if next.is_some() {
            // The store may have lost what it knew of the session, and other logs, too.
            (self.state.facts_put, self.state.wants_stock) = (None, true);
        }
        self.put(nonce, self.state.epoch, Write::Again(append, next.map(Box::new)));
        true
    }

    /// Asks the store what it has of the session, if it may have been set back.
    pub(crate) fn take_stock(&mut self) {
        // A message that is being taken has no machine yet, but is not lost.
        let is_unclear = self.state.inbox.is_unclear();
        let is_asked = self.state.facts_put.is_none() || self.state.writing.contains_key(&SESSION) || is_unclear;
        if !self.state.wants_stock || is_asked || self.state.session.has_ended() {
            return;
        }
        self.state.wants_stock = false;
        if self.cell.is_elsewhere() || !self.cell.shared.store.outlives_process() {
            return;
        }
        let hold = Hold { epoch: self.state.epoch, seen: Some(self.state.epoch), record: Some(self.facts()) };
        let running = self.state.session.streams().filter(|(_, stream)| !stream.machine.is_finished());
        let running = running.map(|(nonce, stream)| (*nonce, stream.machine.stored())).collect();
        self.put(SESSION, self.state.epoch, Write::Stock(hold, running));
        self.perform();
    }

    /// The store has said which logs of the session have no end. `running` are the streams that had none when it was asked,
    /// with what it had confirmed of them.
    pub(crate) fn stock_taken(
        &mut self,
        running: BTreeMap<StreamNonce, Option<Seq>>,
        result: Result<Vec<RunningLog>, StoreError>,
    ) {
        let logs = match result {
            Ok(logs) => logs,
            Err(StoreError::Gone) => {
                // The store does not even have the session.
                self.state.facts_put = None;
                Vec::new()
            }
            Err(error) => {
                log_later!(self, ERROR, [], %error, "the event store does not say what it has of the session");
                return;
            }
        };
        let mut logs: BTreeMap<_, _> = logs.into_iter().map(|log| (log.nonce, log)).collect();
        for (nonce, stored) in running {
            let head = logs.remove(&nonce).map(|log| log.head);
            // `None` is less than any position. A log that is being written finds the loss by itself.
            let is_lost = is_running(self.state, nonce) && head < stored && !self.state.writing.contains_key(&nonce);
            if is_lost && !self.append_again(nonce, None) {
                self.log_lost(nonce, if head.is_some() { &StoreError::RolledBack } else { &StoreError::Gone });
            }
        }
        let confirmed = lock(&self.cell.shared.confirmed).of(self.cell.number);
        // A log that is being written finds the loss by itself.
        logs.retain(|nonce, _| {
            let is_awaited = self.state.writing.contains_key(nonce) || self.state.inbox.has(*nonce);
            !is_awaited && !is_running(self.state, *nonce)
        });
        for (nonce, log) in &logs {
            let fits = |append: &&Append| (append.first, append.chain_before) == (log.head + 1, log.chain);
            match confirmed.get(nonce).filter(fits) {
                Some(append) => self.put(*nonce, self.state.epoch, Write::End(append.clone())),
                None => self.end_running(self.state.epoch, (log, SynthesizedEnd::StoreLost)),
            }
        }
        let missing = confirmed.into_iter().filter(|(nonce, append)| append.first == 1 && !logs.contains_key(nonce));
        for (nonce, append) in missing {
            // The log may be there, with its end: then this changes nothing.
            if !is_running(self.state, nonce) && !self.state.writing.contains_key(&nonce) {
                self.put(nonce, self.state.epoch, Write::End(append));
            }
        }
    }

    /// The store has no log, or another one than it had, for a stream that is written here.
    ///
    /// Nothing can follow events that are lost, so the requests of their stream get an end. The standalone stream
    /// begins anew under another name, so that no cursor into the old one is known any more.
    pub(crate) fn log_lost(&mut self, nonce: StreamNonce, error: &StoreError) {
        Counters::add(&self.cell.shared.counters.logs_lost, 1);
        log_later!(self, ERROR, of nonce, [], "the event store lost events that it had stored; the stream ends");
        // The store may have lost what it knew of the session, too.
        self.state.facts_put = None;
        lock(&self.cell.shared.confirmed).remove((self.cell.number, nonce));
        if self.state.session.standalone() != Some(nonce) {
            self.state.session.end_stream(self.now, nonce, SynthesizedEnd::StoreLost, &mut self.steps);
            let tail = self.state.session.stream(nonce).and_then(|stream| stream.machine.tail().cloned());
            if tail.is_some() && *error == StoreError::Gone {
                self.input(nonce, Input::Ended { head: 0, tail });
            }
            return;
        }
        self.state.forget(nonce);
        let unstored: Vec<u64> = self
            .state
            .session
            .stream(nonce)
            .iter()
            .flat_map(|stream| stream.machine.waiting())
            .map(|event| event.token)
            .collect();
        Counters::add(&self.cell.shared.counters.events_unstored, unstored.len() as u64);
        unstored.into_iter().for_each(|token| self.effects.results.push((nonce, token, Err(error.clone()))));
        self.state.session.forget_standalone();
        self.cell.shared.store.drop_stream(&self.cell.key(nonce), self.state.epoch);
        let left: Vec<ConnectionId> =
            self.state.conns.iter().filter(|(_, conn)| conn.nonce == nonce).map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| self.close(id, CloseReason::Fault));
    }
}
