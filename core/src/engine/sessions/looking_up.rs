//! Sessions that live in another process, or lived in one: their readers are served from the store.

use crate::Ms;
use crate::engine::connections::Wake;
use crate::engine::connections::conn::PAGE_BYTES;
use crate::engine::logs::reading::PAGE_EVENTS;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::{Cell, Names, SESSION};
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::{Engine, EngineError};
use crate::exchange::Principal;
use crate::protocol::{Dialect, EventId, StreamNonce};
use crate::store::{
    Answer, Attach, Attached, Complete, Operation, Outcome, ReadLimit, SessionId, SessionRecord, StoreError, StreamKey,
    Ticket,
};
use crate::stream::{ConnectionId, Seq};
use crate::sync::{Arc, Mutex, Weak};

/// A session that is looked up in the store.
#[derive(Clone)]
pub struct LookUp(Arc<LookUpCell>);

impl std::fmt::Debug for LookUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LookUp").field("name", &self.0.names.name).finish_non_exhaustive()
    }
}

pub(crate) struct LookUpCell {
    shared: Arc<Shared>,
    /// Its number among the connections, taken before the store was asked. The question has the same number.
    arrival: ConnectionId,
    names: Names,
    principal: Option<Principal>,
    /// The stream that is looked up with it.
    stream: Option<StreamNonce>,
    dialect: &'static Dialect,
    wake: (Arc<dyn Wake>, u64),
    /// When the question has taken too long.
    due: Ms,
    reply: Mutex<Reply>,
}

/// What the store said of the session.
enum Reply {
    NotYet,
    Outcome(Box<Result<Attached, StoreError>>),
    /// The caller has it.
    Taken,
}

impl Drop for LookUpCell {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.stop_waiting(false);
        }
    }
}

impl LookUpCell {
    /// Waits for the store no longer. A question without an answer is called off, so that a reader that is gone is not
    /// counted.
    fn stop_waiting(&self, has_answer: bool) {
        let timed = lock(&self.shared.timed).remove(&self.arrival);
        let Some(Timed::Question(ticket)) = timed else { return };
        self.shared.schedule(self.due, Ms::NEVER, self.arrival);
        if !has_answer {
            let key = StreamKey { session: Arc::clone(&self.names.name), nonce: ticket.nonce };
            self.shared.store.abandon(&key, &ticket);
        }
    }

    fn decide(&self, outcome: Result<Attached, StoreError>) {
        // First, so that nothing waits any more when the outcome is taken.
        self.stop_waiting(!matches!(outcome, Err(StoreError::TimedOut { .. })));
        {
            let mut reply = lock(&self.reply);
            if !matches!(*reply, Reply::NotYet) {
                return;
            }
            *reply = Reply::Outcome(Box::new(outcome));
        }
        let (wake, key) = &self.wake;
        wake.wake(*key);
    }
}

impl Complete for LookUpCell {
    fn complete(&self, _ticket: &Ticket, outcome: Outcome) {
        if let Outcome::Attached(result) = outcome {
            self.decide(result);
        }
    }
}

impl LookUp {
    /// Takes the session, once the store has answered. The outer none means that the store has not answered yet, or
    /// that the session was taken already: it is held until its taker lets go of it, so there is only one taker. The
    /// inner none means that the session is not known, or is somebody else's: no caller can tell these apart (I7).
    ///
    /// # Errors
    /// [`EngineError::Store`] when the store could not tell, [`EngineError::Closed`],
    /// [`EngineError::Forked`], [`EngineError::TooManySessions`].
    pub fn take(&self) -> Option<Result<Option<SessionHandle>, EngineError>> {
        let look_up = &*self.0;
        if look_up.shared.is_forked() {
            return Some(Err(EngineError::Forked));
        }
        let outcome = {
            let mut reply = lock(&look_up.reply);
            match std::mem::replace(&mut *reply, Reply::Taken) {
                Reply::Outcome(outcome) => outcome,
                other => {
                    *reply = other;
                    return None;
                }
            }
        };
        let attached = match *outcome {
            Ok(attached) => attached,
            Err(error) => return Some(Err(EngineError::Store(error))),
        };
        if attached.is_foreign {
            look_up.shared.warn_foreign(&look_up.names.name, look_up.principal.as_ref());
        }
        let Some(record) = attached.session.clone() else { return Some(Ok(None)) };
        Some(look_up.show(&record, attached).map(Some))
    }
}

impl LookUpCell {
    fn show(&self, record: &SessionRecord, attached: Attached) -> Result<SessionHandle, EngineError> {
        let shared = &self.shared;
        shared.check()?;
        let now = shared.clock.now();
        let principal = self.principal.as_ref();
        let cell = Cell::new(Arc::clone(shared), self.names.clone(), now, principal, self.dialect, self.wake.clone());
        cell.show(record);
        let open = shared.register(&cell)?;
        let found = open.as_ref().unwrap_or(&cell);
        if self.stream.is_some() {
            lock(&found.state).arrived = Some((self.arrival, attached));
        }
        // Another reader of the same session was faster.
        if let Some(open) = open {
            return Ok(SessionHandle::arrived(open, self.arrival));
        }
        if let Err(error) = cell.take_place() {
            cell.let_go();
            return Err(error);
        }
        tracing::debug!(target: "tailrope", session = %self.names.name, "session of another process served");
        Ok(SessionHandle::arrived(cell, self.arrival))
    }
}

impl Engine {
    /// Looks up a session that this engine has not opened, and the stream of the event id that its reader comes with,
    /// if there is one. `wake` is woken, with `key`, when [`LookUp::take`] has the outcome. That may be at once.
    ///
    /// Such a session serves connections that resume or listen, and takes no requests: these are
    /// [relayed](SessionHandle::relay). Its first connection counts as having come when the look-up began: a connection
    /// that came meanwhile is newer (I4). When its last connection ends, the engine forgets the session, so that the
    /// next reader looks it up anew. A host that opens no connection [lets go](SessionHandle::let_go) of it.
    ///
    /// # Errors
    /// [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn look_up_session<'a>(
        &self,
        id: impl Into<SessionId<'a>>,
        principal: Option<&Principal>,
        last_event_id: Option<&str>,
        dialect: &'static Dialect,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<LookUp, EngineError> {
        let shared = &self.0;
        shared.check()?;
        let cursor = last_event_id.and_then(EventId::parse).and_then(|id| match id {
            EventId::Position(cursor) => Some(cursor),
            EventId::Tombstone(..) => None,
        });
        let due = shared.due_after(shared.clock.now());
        let look_up = Arc::new(LookUpCell {
            shared: Arc::clone(shared),
            arrival: shared.number(),
            names: Names::from(id.into()),
            principal: principal.cloned(),
            stream: cursor.as_ref().map(|cursor| cursor.nonce),
            dialect,
            wake: (wake, key),
            due,
            reply: Mutex::new(Reply::NotYet),
        });
        let to: Weak<dyn Complete> = Arc::downgrade(&(Arc::clone(&look_up) as Arc<dyn Complete>));
        let operation = Operation::Attach(look_up.arrival);
        let nonce = look_up.stream.unwrap_or(SESSION);
        let ticket = Ticket { to, nonce, operation, number: look_up.arrival };
        let attach = Attach {
            stream: look_up.stream,
            principal: look_up.principal.as_ref().map(|principal| principal.identity().into()),
            after: cursor.as_ref().map_or(0, |cursor| cursor.seq),
            tag: cursor.as_ref().map(|cursor| cursor.tag),
            counts: !self.is_draining(),
            limit: ReadLimit { up_to: Seq::MAX, events: PAGE_EVENTS, bytes: PAGE_BYTES },
            ..Attach::default()
        };
        // Before the store is asked: the answer may come at once, on another thread.
        lock(&shared.timed).insert(ticket.number, Timed::Question(ticket.clone()));
        shared.schedule(Ms::NEVER, due, ticket.number);
        if let Answer::Now(result) = shared.store.attach(&look_up.names.name, &attach, &ticket) {
            look_up.stop_waiting(true);
            *lock(&look_up.reply) = Reply::Outcome(Box::new(result));
        }
        Ok(LookUp(look_up))
    }
}
