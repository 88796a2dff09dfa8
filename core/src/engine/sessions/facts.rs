//! What the store has to know of a session, for readers that come to other processes.

use crate::engine::lines::log_later;
use crate::engine::logs::log::Write;
use crate::engine::sessions::cell::SESSION;
use crate::engine::sessions::change::Change;
use crate::engine::shared::lock;
use crate::exchange::Admission;
use crate::protocol::Lasting;
use crate::session::MAX_HANDSHAKE_BYTES;
use crate::store::{Hold, MAX_NOTE_BYTES, SessionRecord};
use crate::stream::Input;

// A store has to take what is noted, whatever the client has told.
const _: () = assert!(MAX_HANDSHAKE_BYTES <= MAX_NOTE_BYTES);

impl Change<'_> {
    /// Notes what the client tells for the rest of its session, for another server object that goes on with it.
    pub(crate) fn note(&mut self, admission: &Admission) {
        if admission.lasting().any(|(envelope, _)| envelope.lasting() == Some(Lasting::Initialized)) {
            self.drop_greeting();
        }
        if !self.cell.shared.store.outlives_process() {
            return;
        }
        let session = &mut self.state.session;
        let was_too_large = session.handshake().is_too_large();
        admission.lasting().for_each(|(envelope, text)| session.note(envelope, text));
        if session.handshake().is_too_large() && !was_too_large {
            log_later!(
                self,
                WARN,
                [],
                max_bytes = MAX_HANDSHAKE_BYTES,
                "the client's initialize and its subscriptions are more than is kept: no other process can go on with the \
                 session where this one is lost"
            );
        }
    }

    /// Drops the log of `initialize`, because its client has read the answer. Otherwise each session would cost that log
    /// until retention ends.
    fn drop_greeting(&mut self) {
        let Some(nonce) = self.state.session.greeted() else { return };
        // It must not be written again.
        lock(&self.cell.shared.confirmed).remove((self.cell.number, nonce));
        self.cell.shared.store.drop_stream(&self.cell.key(nonce), self.state.epoch);
    }

    /// Lets the store know of the session before anything of it is written.
    pub(crate) fn begin_session(&mut self) {
        if self.state.facts_put.is_none() && !self.state.writing.contains_key(&SESSION) {
            self.put_session();
        }
    }

    /// Gives the store what has changed in the session's facts.
    pub(crate) fn put_facts(&mut self) {
        let is_kept = self.state.session.facts() == self.state.facts_put.unwrap_or_default();
        if is_kept
            || self.state.writing.contains_key(&SESSION)
            || self.state.session.has_ended()
            || self.cell.is_elsewhere()
        {
            return;
        }
        self.put_session();
        self.perform();
    }

    /// The facts that the store has to keep of the session. They count as given to it.
    pub(crate) fn facts(&mut self) -> SessionRecord {
        let principal = self.state.identity();
        let session = &self.state.session;
        self.state.facts_put = Some(session.facts());
        SessionRecord {
            revision: session.revision(),
            principal,
            retry_ms: session.retry_ms(),
            list_changed: *session.list_changed(),
            standalone: session.standalone(),
            note: session.handshake().encode(),
        }
    }

    /// Gives the store what it has to know of the session, for readers that come to other processes. In it, a listener
    /// there finds the name of the standalone stream, and so its log.
    fn put_session(&mut self) {
        let is_shown = self.state.session.facts() != 0 && self.cell.shared.store.outlives_process();
        let is_new = is_shown && self.state.session.standalone().is_none();
        let standalone = is_new.then(|| self.standalone());
        let hold = Hold { epoch: self.state.epoch, seen: None, record: Some(self.facts()) };
        self.put(SESSION, self.state.epoch, Write::Hold(hold));
        if let Some(nonce) = standalone {
            self.input(nonce, Input::Create);
        }
    }
}
