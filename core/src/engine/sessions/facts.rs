//! What the store has to know of a session, for readers that come elsewhere.

use crate::Ms;
use crate::engine::logs::writing::Write;
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::session::Step;
use crate::store::{Hold, SessionRecord};
use crate::stream::Input;

impl Cell {
    /// Lets the store know of the session before anything of it is written.
    pub(crate) fn begin_session(&self, state: &mut State, now: Ms, more: &mut Vec<Step>) {
        if state.facts_put.is_none() && !state.writing.contains_key(&SESSION) {
            self.keep_session(state, now, more);
        }
    }

    /// Gives the store what has changed of the session.
    pub(crate) fn keep_facts(&self, state: &mut State, now: Ms) {
        let is_kept = state.session.facts() == state.facts_put.unwrap_or_default();
        if is_kept || state.writing.contains_key(&SESSION) || state.session.has_ended() || self.is_adopted() {
            return;
        }
        let mut steps = Vec::new();
        self.keep_session(state, now, &mut steps);
        self.perform(state, now, steps);
    }

    /// Gives the store what it has to know of the session, for readers that come elsewhere. A listener there finds the name
    /// of the standalone stream in it, and its log.
    fn keep_session(&self, state: &mut State, now: Ms, more: &mut Vec<Step>) {
        let is_shown = state.session.facts() != 0 && self.shared.store.outlives_process();
        let is_new = is_shown && state.session.standalone().is_none();
        let standalone = is_new.then(|| self.standalone(state, now, more));
        state.facts_put = Some(state.session.facts());
        let record = SessionRecord {
            revision: state.session.revision(),
            principal: state.session.principal().map(Into::into),
            retry_ms: state.session.retry_ms(),
            list_changed: *state.session.list_changed(),
            standalone: state.session.standalone(),
        };
        let hold = Hold { epoch: state.epoch, seen: None, record: Some(record) };
        self.put(state, now, SESSION, state.epoch, Write::Hold(hold), more);
        if let Some(nonce) = standalone {
            let _ = state.session.handle(now, nonce, Input::Create, more);
        }
    }
}
