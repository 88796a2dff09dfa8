//! How requests enter a session, and how it takes its place among the others.

use crate::Ms;
use crate::engine::EngineError;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::places::{Reached, Standing};
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::exchange::{Admission, Fault, Principal, Terms};
use crate::protocol::{Context, Head, Incarnation, Refusal, admission};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Cell {
    /// Examines a request that may use the session.
    pub(crate) fn admit(&self, head: &Head<'_>, body: &[u8], terms: &Terms<'_>) -> Result<Admission, Refusal> {
        let session_id = terms.session_id.unwrap_or(&self.id);
        let context = Context { session_id, json_response: terms.json_response };
        let dialect = self.dialect;
        let operation = match terms.versions {
            Some(versions) => admission::admit_with_versions(head, body, &context, dialect, versions),
            None => admission::admit(head, body, &context, dialect),
        }?;
        self.take_place().map_err(|error| match error {
            EngineError::TooManySessions { .. } => Fault::TooManySessions.refusal(dialect),
            EngineError::SessionEnded => self.over(&lock(&self.state)),
            _ => dialect.wording.closing(),
        })?;
        let mut admission = Admission::new(operation, head, body);
        let incarnation = Incarnation(lock(&self.state).epoch.number);
        let foreign = admission.rewrite(incarnation, body);
        Counters::add(&self.shared.counters.answers_unasked, foreign as u64);
        Ok(admission)
    }

    /// Takes the session's place among the others, unless it has one.
    pub(crate) fn take_place(&self) -> Result<(), EngineError> {
        if self.has_place.load(Ordering::Relaxed) {
            return Ok(());
        }
        let shared = &self.shared;
        shared.check()?;
        let now = self.now();
        let (taken, is_first) = {
            let mut places = lock(&shared.places);
            if places.has(self.number) {
                return Ok(());
            }
            // If the session ends from now on, that waits for the lock of the places, and then frees this place.
            let principal = self.principal_while_open()?;
            let look = |number, known| shared.cell(number).map_or(Standing::HasEnded, |cell| cell.standing(known, now));
            let taken = places.take(self.number, principal, now, &shared.options, look);
            let is_first = matches!(taken, Ok(Some((_, (option, _)))) if places.warns(option));
            (taken, is_first)
        };
        match taken {
            Err(error) => {
                let (session, why) = (Arc::clone(&self.name), error.to_string());
                shared.write_bounded("a new session is refused", move |repeated| {
                    tracing::warn!(
                        target: "tailrope", %session, repeated,
                        "a new session is refused: {why}, and its user has no idle one that could end for it. Clients that \
                         end their sessions with DELETE, a shorter idle time or a larger bound avoid this"
                    );
                });
                Err(error)
            }
            Ok(left) => {
                self.has_place.store(true, Ordering::Relaxed);
                if let Some((number, reached)) = left
                    && let Some(cell) = shared.cell(number)
                {
                    cell.leave_for(&self.name, reached, is_first);
                }
                Ok(())
            }
        }
    }

    /// Frees the session's place for another session.
    pub(crate) fn leave_place(&self) {
        lock(&self.shared.places).leave(self.number);
        self.has_place.store(false, Ordering::Relaxed);
    }

    /// Ends the session for one that needs its place.
    fn leave_for(self: &Arc<Self>, newcomer: &str, (option, max): Reached, is_first: bool) {
        self.end();
        Counters::add(&self.shared.counters.sessions_gave_way, 1);
        lock(&self.shared.ended).push(Arc::clone(self));
        if is_first {
            tracing::warn!(
                target: "tailrope", session = %self.name, newcomer, option, max,
                "a session ended before its idle time: its user opened one more than fits. Clients that end their sessions \
                 with DELETE, a shorter idle time or a larger bound avoid this. The next ones are logged at level debug"
            );
        } else {
            tracing::debug!(
                target: "tailrope", session = %self.name, newcomer, option, max, "a session ended for a newer one of its user"
            );
        }
    }

    /// The principal of a session that has not ended.
    fn principal_while_open(&self) -> Result<Option<Principal>, EngineError> {
        let state = lock(&self.state);
        if state.session.has_ended() { Err(EngineError::SessionEnded) } else { Ok(state.principal.clone()) }
    }

    /// Looks whether the session gives way to a newer one. If it does, nothing opens in it any more, and the caller
    /// ends it. `known` is the last contact that the caller knows of.
    fn standing(&self, known: Ms, now: Ms) -> Standing {
        let max_detached_ms = self.shared.options.max_detached_ms;
        let mut state = lock(&self.state);
        if state.session.has_ended() {
            Standing::HasEnded
        } else if state.session.last_contact() > known {
            Standing::HadContact(state.session.last_contact())
        } else if !self.is_elsewhere() && state.session.may_give_way(now, max_detached_ms, self.shared.sign_ms()) {
            state.is_ending = true;
            Standing::GivesWay
        } else {
            // A session that lives elsewhere is here only while somebody reads it.
            Standing::IsInUse
        }
    }
}
