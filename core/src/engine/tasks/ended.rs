//! The record of a call of 2026-07-28, once it has its end, and what is observed of it: as for the calls of sessions.

use crate::Ms;
use crate::engine::records::{Of, later};
use crate::engine::sessions::cell::User;
use crate::engine::shared::{Shared, lock};
use crate::engine::tasks::TaskCall;
use crate::engine::tasks::cell::{CallState, Place};
use crate::engine::tasks::change::CallChange;
use crate::engine::telemetry::{CallSpan, Observation, Spanned, call_span, measured};
use crate::protocol::{RequestId, Revision};
use crate::session::{Asked, Counts, Outcome, Record};
use crate::sync::Arc;
use crate::task::{Call, Ending, Posted, Task};

/// What a record says of a call that runs here.
pub(super) struct Calling {
    pub(super) request: RequestId,
    pub(super) asked: Asked,
    /// When it began; also in another process.
    pub(super) begun: Ms,
    pub(super) user: Option<User>,
    /// The line of the SDK; none where the host is not known that began it.
    pub(super) sdk: Option<&'static str>,
}

impl Calling {
    /// The call of a task that another process began.
    pub(super) fn of_task(shared: &Shared, task: &Task) -> Self {
        let tool = Posted::read(None, task.call()).and_then(|posted| posted.tool);
        let age_ms = shared.clock.unix_ms().saturating_sub(task.created_at());
        Self {
            request: Call::read(task.call()).map_or_else(|| RequestId::integer(0), |call| call.request().clone()),
            asked: Asked::tool_call(tool.as_deref()),
            begun: Ms(shared.clock.now().0.saturating_sub(age_ms)),
            user: None,
            sdk: None,
        }
    }
}

fn outcome(ending: &Ending) -> Outcome {
    match ending {
        Ending::Answered(response) => Outcome::of_response(response),
        Ending::Unanswered | Ending::Unending => Outcome::Error,
        Ending::Cancelled => Outcome::Cancelled,
        Ending::ClientGone | Ending::Unasked => Outcome::ClientGone,
        Ending::TooLong | Ending::TooLarge => Outcome::Limit,
        Ending::Unstored => Outcome::StoreRefused,
    }
}

impl CallState {
    /// Whether the call has no end, and this process is to give it one; since when.
    pub(crate) fn runs_since(&self) -> Option<Ms> {
        let is_here = matches!(self.place, Place::Nowhere | Place::Here);
        self.calling.as_ref().filter(|_| is_here).map(|calling| calling.begun)
    }
}

impl TaskCall {
    /// What the span of the call is to say; none if nobody wants observations, or the call has its end. A process that goes on
    /// with a task begins a span of its own.
    pub fn span(&self) -> Option<CallSpan> {
        let cell = &self.0;
        if !cell.shared.is_observed() {
            return None;
        }
        let state = lock(&cell.state);
        let Calling { request, asked, .. } = state.calling.as_ref()?;
        Some(call_span(&cell.name, request, asked, Some(Revision::V2026_07_28)))
    }
}

impl CallChange<'_> {
    /// Nothing of the call runs here any more. If it has no end, it is measured where that comes.
    pub(super) fn observe_release(&mut self) {
        let Some(calling) = self.state.calling.as_ref().filter(|_| self.cell.shared.is_observed()) else { return };
        self.effects.observed.push(Observation {
            span: Some(Spanned::of(&self.cell.name, &calling.request)),
            instrument: None,
            duration_ms: None,
            error: None,
            attributes: Vec::new(),
            dimensions: Vec::new(),
        });
    }

    /// Takes note of the end of the call, if it has come.
    pub(super) fn note_ending(&mut self) {
        if let Some(ending) = self.state.machine.take_ending() {
            self.note_end(outcome(&ending), ending.cause());
        }
    }

    pub(super) fn note_end(&mut self, outcome: Outcome, cause: Option<&'static str>) {
        let Some(calling) = self.state.calling.take() else { return };
        let Calling { request, asked, begun, user, sdk } = calling;
        let (shared, session) = (&self.cell.shared, &self.cell.name);
        let duration_ms = Some(self.now.at.since(begun));
        shared.counters.ended(outcome, duration_ms);
        let counts = Counts { connections: 1, ..Counts::default() };
        let cause = cause.map(Into::into);
        let record = Record { stream: None, request, asked, begun: Some(begun), outcome, cause, counts };
        shared.live.note_ended(self.now.at, session, user.as_ref().and_then(User::shown), &record);
        if shared.is_observed() {
            let (revision, span) = (Some(Revision::V2026_07_28), Spanned::of(session, &record.request));
            self.effects.observed.push(measured(shared, &record, duration_ms, revision, Some(span)));
        }
        let of = Of { session: Arc::clone(session), sdk, user: user.map(|user| user.name), duration_ms };
        self.effects.lines.extend(later(shared, of, Box::new(record)));
    }
}
