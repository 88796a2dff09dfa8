//! What other processes do to the streams of a session: the store hints, its records tell.
//!
//! A stream whose writer is here is watched, too: a client that comes back may land on another process.
//! Its reader there [claims](crate::store::EventStore::claim) the log, and the connection here is fenced
//! (I4). Every reader but the first of a POST claims, so that the order of the claims is that of the
//! readers, wherever they are. Whoever claims is held until the claim has its number: a client that was
//! given nothing yet cannot have gone on to another process, where a claim that is late would fence it.

use std::sync::Weak;

use super::cell::{Cell, State};
use super::lines::log_later;
use super::stats::Counters;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::session::Step;
use crate::store::{Answer, Operation, Record, StoreError, Ticket, Watch, Watcher};
use crate::stream::{ConnectionId, Input};

/// A stream that other processes may read or write.
#[derive(Default)]
pub(super) struct Watched {
    /// The claims that are known of.
    claims: u64,
    /// The tickets of claims for readers here that are under way.
    claiming: Vec<u64>,
    /// The record was asked for because of a hint.
    asking: bool,
    /// Another hint came meanwhile.
    again: bool,
}

impl Watch for Cell {
    fn changed(&self, nonce: StreamNonce) {
        self.change(|state, now, steps| {
            let Some(watched) = state.watched.get_mut(&nonce) else { return };
            if watched.asking || !watched.claiming.is_empty() {
                watched.again = true;
            } else {
                watched.asking = true;
                self.ask_record(state, now, nonce, steps);
            }
        });
    }
}

impl Cell {
    pub(super) fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    /// From now on hints tell of what other processes do to the stream. `claims` are known of already.
    pub(super) fn watch(&self, state: &mut State, nonce: StreamNonce, claims: u64) {
        if self.shared.store.outlives_process() && !state.watched.contains_key(&nonce) {
            state.watched.insert(nonce, Watched { claims, ..Watched::default() });
            self.shared.store.watch(&self.key(nonce), &self.watcher());
        }
    }

    pub(super) fn unwatch(&self, state: &mut State, nonce: StreamNonce) {
        if state.watched.remove(&nonce).is_some() {
            self.shared.store.unwatch(&self.key(nonce), &self.watcher());
        }
    }

    pub(super) fn unwatch_all(&self, state: &mut State) {
        for nonce in std::mem::take(&mut state.watched).into_keys() {
            self.shared.store.unwatch(&self.key(nonce), &self.watcher());
        }
    }

    /// What the store knows of a stream: whether a reader elsewhere has taken it. The answer to a hint is
    /// asked for anew when another came meanwhile.
    pub(super) fn note_claims(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        record: Option<&Record>,
        steps: &mut Vec<Step>,
    ) {
        let Some(watched) = state.watched.get_mut(&nonce) else { return };
        watched.asking = false;
        let taken = match record {
            Some(record) if record.claims > watched.claims => {
                if !watched.claiming.is_empty() {
                    // Whose claim is the newer one is known when ours has its number.
                    watched.again = true;
                    return;
                }
                watched.claims = record.claims;
                true
            }
            _ => false,
        };
        let again = std::mem::take(&mut watched.again);
        watched.asking = again;
        if taken {
            Counters::add(&self.shared.counters.takeovers_elsewhere, 1);
            let _ = state.session.handle(now, nonce, Input::Taken, steps);
        }
        if again {
            self.ask_record(state, now, nonce, steps);
        }
    }

    /// A reader of the stream is here now, and those elsewhere are told.
    pub(super) fn claim_log(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        conn: ConnectionId,
        steps: &mut Vec<Step>,
    ) {
        let Some(watched) = state.watched.get_mut(&nonce) else { return };
        let ticket = self.ticket(nonce, Operation::Claim);
        watched.claiming.push(ticket.number);
        match self.shared.store.claim(&self.key(nonce), &ticket) {
            Answer::Now(result) => self.claimed(state, now, &ticket, result, steps),
            Answer::Later => {
                self.wait(state, now, &ticket);
                // Whom a drain sends away does not wait for being the one reader.
                if state.conns.contains_key(&conn) && !state.session.is_draining() {
                    state.held.insert(conn, ticket);
                }
            }
        }
    }

    pub(super) fn claimed(
        &self,
        state: &mut State,
        now: Ms,
        ticket: &Ticket,
        result: Result<u64, StoreError>,
        steps: &mut Vec<Step>,
    ) {
        let Ticket { nonce, number, .. } = *ticket;
        let released = state.held.iter().find(|(_, claim)| claim.number == number).map(|(conn, _)| *conn);
        if let Some(conn) = released {
            state.held.remove(&conn);
            state.touched.push(conn);
        }
        match &result {
            // One that was called off has no answer.
            Err(StoreError::TimedOut { .. }) if released.is_none() => {}
            Err(error) => {
                // A reader elsewhere goes on writing to a connection that its client has left.
                log_later!(self, state, WARN, [stream = nonce.hex(), error = error.clone()], %stream, %error, "not claimed");
            }
            Ok(_) => {}
        }
        let Some(watched) = state.watched.get_mut(&nonce) else { return };
        watched.claims = watched.claims.max(result.unwrap_or_default());
        // A store does what is asked for a log in order: one before it that was called off has no answer.
        watched.claiming.retain(|claim| *claim > number);
        if watched.claiming.is_empty() && !watched.asking && std::mem::take(&mut watched.again) {
            watched.asking = true;
            self.ask_record(state, now, nonce, steps);
        }
    }

    /// A connection that is held needs its claim no more: one that is not stored yet had better not be, as
    /// it would fence who came to another process meanwhile. If it is stored all the same, it counts.
    pub(super) fn call_off_claim(&self, state: &mut State, conn: ConnectionId) {
        if let Some(ticket) = state.held.remove(&conn) {
            self.shared.store.abandon(&self.key(ticket.nonce), &ticket);
        }
    }

    /// The process is going away: nobody is held any more.
    pub(super) fn release_held(&self, state: &mut State) {
        while let Some((conn, _)) = state.held.first_key_value() {
            let conn = *conn;
            self.call_off_claim(state, conn);
            state.touched.push(conn);
        }
    }
}
