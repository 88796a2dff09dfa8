//! Logs that the store lost, of streams that are written here.

use super::cell::{Cell, State};
use super::lines::log_later;
use super::stats::Counters;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::session::{Step, SynthesizedEnd};
use crate::store::StoreError;
use crate::stream::{CloseReason, ConnectionId};

impl Cell {
    /// The store has no log, or another one than it had, for a stream that is written here.
    ///
    /// Nothing can follow events that are lost: their stream's requests get an end. The standalone stream begins anew under
    /// another name, so that every cursor into the old one is one that is not known.
    pub(super) fn log_lost(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        error: &StoreError,
        steps: &mut Vec<Step>,
    ) {
        Counters::add(&self.shared.counters.logs_lost, 1);
        log_later!(self, state, ERROR, [stream = nonce.hex()], %stream,
            "the event store lost events that it had stored; the stream ends");
        // It may have lost what it knew of the session, too.
        state.facts_put = None;
        if state.session.standalone() != Some(nonce) {
            return state.session.end_stream(now, nonce, SynthesizedEnd::StoreLost, steps);
        }
        self.unwatch(state, nonce);
        let unstored: Vec<u64> = state
            .session
            .stream(nonce)
            .iter()
            .flat_map(|stream| stream.machine.waiting())
            .map(|event| event.token)
            .collect();
        Counters::add(&self.shared.counters.events_unstored, unstored.len() as u64);
        unstored.into_iter().for_each(|token| state.results.push((nonce, token, Err(error.clone()))));
        state.session.forget_standalone();
        self.shared.store.drop_stream(&self.key(nonce), state.epoch);
        let left: Vec<ConnectionId> =
            state.conns.iter().filter(|(_, conn)| conn.nonce == nonce).map(|(id, _)| *id).collect();
        for id in left {
            if let Some(conn) = state.conns.get_mut(&id) {
                conn.end = Some(CloseReason::Fault);
                self.shared.counters.closed(CloseReason::Fault);
            }
            state.touched.push(id);
        }
    }
}
