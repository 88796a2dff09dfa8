//! A store that the host wrote against its SDK's own interface.
//!
//! Such a store makes the event ids, and its operations run in the host's language. This one turns
//! the engine's operations into a queue of [`HostOperation`]s that the host performs and reports, one
//! at a time for each stream, and keeps a window of what was stored in a memory store: cursors inside
//! the window are answered from it. Outside of it the host's replay is asked, bounded and checked for
//! ownership.
//!
//! Stream names that the host's store sees are unguessable, carry the session, and are made of
//! `[0-9a-f]` only: stores are known to split names at `_` or `-`.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, Mail, MemoryStore, Name, Outcome,
    OwnIds, ReadLimit, RunningLog, StoreError, StreamKey, Ticket, Usage, session_name,
};
use crate::Ms;
use crate::protocol::{StreamNonce, sse};
use crate::stream::{ConnectionId, Seq};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that the host's store has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOperation {
    /// To be reported with the outcome.
    pub number: u64,
    /// What to do.
    pub request: HostRequest,
}

/// What the host's store has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// Store an event, or the priming position when there is no payload; report its id.
    Store {
        /// The stream's name.
        stream: String,
        /// The message as JSON text.
        payload: Option<Bytes>,
    },
    /// Replay what came after an id.
    Replay {
        /// The id.
        last_event_id: String,
    },
}

/// What the host's store replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostReplay {
    /// The stream that the id belongs to, if the store said.
    pub stream: Option<String>,
    /// Messages as JSON text with their ids, in order; without a payload for a priming position.
    pub events: Vec<(Option<Box<str>>, Option<Bytes>)>,
}

/// A host's store behind the engine's contract.
pub struct HostStore {
    window: MemoryStore,
    max_event_bytes: usize,
    state: Mutex<State>,
    next_number: AtomicU64,
}

#[derive(Default)]
struct State {
    sessions: HashMap<Arc<str>, Session>,
    pending: HashMap<u64, Pending>,
    /// The numbers of what can be called off.
    numbers: HashMap<Name, u64>,
}

#[derive(Default)]
struct Session {
    /// By number, so in the order of asking.
    queue: BTreeMap<u64, HostRequest>,
    positions: HashMap<Box<str>, (StreamNonce, Seq)>,
    /// The same ids by position.
    ids: HashMap<StreamNonce, VecDeque<(Seq, Box<str>)>>,
}

enum Pending {
    Prime { key: StreamKey, ticket: Ticket },
    Append { key: StreamKey, epoch: Epoch, append: Box<Append>, payload: Bytes, now: Ms, ticket: Ticket },
    Replay { session: Arc<str>, conn: ConnectionId },
}

impl Pending {
    fn ticket(&self) -> Option<&Ticket> {
        match self {
            Self::Prime { ticket, .. } | Self::Append { ticket, .. } => Some(ticket),
            Self::Replay { .. } => None,
        }
    }
}

impl State {
    fn take(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        if let Some(ticket) = pending.ticket() {
            self.numbers.remove(&ticket.name());
        }
        Some(pending)
    }

    fn call_off(&mut self, session: &str, number: u64) {
        self.take(number);
        if let Some(session) = self.sessions.get_mut(session) {
            session.queue.remove(&number);
        }
    }
}

impl Session {
    fn remember(&mut self, nonce: StreamNonce, seq: Seq, id: &str) {
        self.positions.insert(id.into(), (nonce, seq));
        self.ids.entry(nonce).or_default().push_back((seq, id.into()));
    }

    /// Forgets ids that are no cursors into the window any more.
    fn forget_before(&mut self, nonce: StreamNonce, low: Seq) {
        let Some(ids) = self.ids.get_mut(&nonce) else { return };
        while ids.front().is_some_and(|(seq, _)| *seq + 1 < low) {
            if let Some((_, id)) = ids.pop_front() {
                self.positions.remove(&id);
            }
        }
    }

    /// The log is gone.
    fn forget(&mut self, nonce: StreamNonce) {
        self.forget_before(nonce, Seq::MAX);
        self.ids.remove(&nonce);
    }
}

impl HostStore {
    /// A store for the host's operations, with a window of these bounds.
    pub fn new(limits: Limits) -> Self {
        let max_event_bytes = limits.max_event_bytes;
        // What was not refused before the host stored it is not to be refused after it, whatever id it got.
        let largest = max_event_bytes.saturating_add(sse::MAX_FOREIGN_EVENT_ID_LEN);
        let window = MemoryStore::new(Limits { max_event_bytes: largest, ..limits }).keeping_what_goes();
        Self { window, max_event_bytes, state: Mutex::default(), next_number: AtomicU64::new(1) }
    }

    /// The name under which the host's store knows a stream.
    pub fn stream_name(session: &str, nonce: StreamNonce) -> String {
        format!("{}{}", session_name(session), nonce.hex())
    }

    /// Operations that the host has not reported yet, of all sessions.
    pub fn unanswered(&self) -> usize {
        self.lock().pending.len()
    }

    /// The operations that wait for the host, for one session.
    pub fn take_operations(&self, session: &str) -> Vec<HostOperation> {
        let mut state = self.lock();
        let queue = state.sessions.get_mut(session).map(|session| std::mem::take(&mut session.queue));
        queue.into_iter().flatten().map(|(number, request)| HostOperation { number, request }).collect()
    }

    /// Asks the host to replay what came after an id that the window does not know. Returns the
    /// operation's number.
    pub(crate) fn replay(&self, session: &Arc<str>, last_event_id: &str, conn: ConnectionId) -> u64 {
        let request = HostRequest::Replay { last_event_id: last_event_id.to_owned() };
        self.enqueue(session, request, Pending::Replay { session: Arc::clone(session), conn })
    }

    /// Nobody waits for this replay any more.
    pub(crate) fn forget_replay(&self, session: &str, number: u64) {
        self.lock().call_off(session, number);
    }

    fn enqueue(&self, session: &Arc<str>, request: HostRequest, pending: Pending) -> u64 {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        if let Some(ticket) = pending.ticket() {
            state.numbers.insert(ticket.name(), number);
        }
        state.pending.insert(number, pending);
        state.sessions.entry(Arc::clone(session)).or_default().queue.insert(number, request);
        number
    }

    /// The host stored the event and gave it this id.
    pub fn stored(&self, number: u64, id: &str) {
        if !sse::is_valid_event_id(id) {
            let what = "it returned an event id that is not 1 to 512 visible ASCII characters".to_owned();
            return self.failed(number, what);
        }
        let Some(pending) = self.lock().take(number) else { return };
        match pending {
            Pending::Prime { key, ticket } => {
                self.remember(&key, 0, id);
                // The log is there, also without that id.
                ticket.complete(Outcome::Done(Ok(())));
            }
            Pending::Append { key, epoch, mut append, payload, now, ticket } => {
                let mut frame = Vec::with_capacity(payload.len() + id.len() + 16);
                sse::write_message(&mut frame, |out| out.extend_from_slice(id.as_bytes()), &payload);
                append.events[0].frame = frame.into();
                let seq = append.first;
                // The host has it, so the window takes it, too, unless the log was dropped meanwhile.
                let result = self.window.put(now, &key, epoch, &append, false);
                if result.is_ok() {
                    self.remember(&key, seq, id);
                }
                ticket.complete(Outcome::Done(result));
            }
            Pending::Replay { .. } => {}
        }
    }

    fn remember(&self, key: &StreamKey, seq: Seq, id: &str) {
        let Some(known) = self.window.known(key) else { return };
        let low = known.page.low;
        let mut state = self.lock();
        // A session that was dropped meanwhile stays dropped.
        if let Some(session) = state.sessions.get_mut(&key.session) {
            session.remember(key.nonce, seq, id);
            session.forget_before(key.nonce, low);
        }
    }

    /// The host could not do it.
    pub fn failed(&self, number: u64, what: String) {
        let Some(pending) = self.lock().take(number) else { return };
        match pending {
            Pending::Append { ticket, .. } => ticket.complete(Outcome::Done(Err(StoreError::Failed(what)))),
            Pending::Prime { key, ticket } => {
                let stream = key.nonce.hex();
                tracing::error!(target: "tailrope", session = %key.session, stream, error = what,
                    "the start of a stream has no id: its client cannot resume before the first event");
                // The log is there, also without that id.
                ticket.complete(Outcome::Done(Ok(())));
            }
            Pending::Replay { .. } => {}
        }
    }

    /// What the window holds of a log.
    pub(crate) fn window(&self, key: &StreamKey) -> Option<LogPage> {
        self.window.known(key)
    }

    /// The connection whose replay has this number, if it still waits.
    pub(crate) fn take_replay(&self, number: u64) -> Option<ConnectionId> {
        let mut state = self.lock();
        match state.pending.remove(&number) {
            Some(Pending::Replay { conn, .. }) => Some(conn),
            Some(other) => {
                state.pending.insert(number, other);
                None
            }
            None => None,
        }
    }

    /// The stream that a name means in this session; none for a stream of another session.
    pub(crate) fn stream_of(session: &str, name: &str) -> Option<StreamNonce> {
        let hex = name.strip_prefix(&*session_name(session))?;
        let mut nonce = [0; 12];
        if hex.len() != 2 * nonce.len() || !hex.is_ascii() {
            return None;
        }
        for (at, byte) in nonce.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        (StreamNonce(nonce).hex() == hex).then_some(StreamNonce(nonce))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventStore for HostStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.window.hold(session, hold, ticket)
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let checked = append.check_size(self.max_event_bytes);
        if let Err(error) = checked.and_then(|()| self.window.check_room(now, key, append)) {
            return Answer::Now(Err(error));
        }
        if append.events.len() > 1 {
            // Each failure is to be of one event.
            return Answer::Now(Err(StoreError::Failed("events are stored one by one".to_owned())));
        }
        let is_new = append.first == 1 && self.window.known(key).is_none();
        if is_new {
            self.lock().sessions.entry(Arc::clone(&key.session)).or_default();
            let (events, chain, about) = (Vec::new(), append.chain_before, append.about.clone());
            let created = Append { events, chain, about, end: None, paced: None, ..*append };
            if let Err(error) = self.window.put(now, key, epoch, &created, true) {
                return Answer::Now(Err(error));
            }
        }
        let stream = Self::stream_name(&key.session, key.nonce);
        let (key, ticket) = (key.clone(), ticket.clone());
        let Some(event) = append.events.first() else {
            let result = self.window.put(now, &key, epoch, append, false);
            if !is_new || !append.primes || result.is_err() {
                return Answer::Now(result);
            }
            let request = HostRequest::Store { stream, payload: None };
            self.enqueue(&key.session, request, Pending::Prime { key: key.clone(), ticket });
            return Answer::Later;
        };
        let payload =
            sse::message_of(&event.frame).map_or_else(Bytes::new, |(_, payload)| Bytes::copy_from_slice(payload));
        let request = HostRequest::Store { stream, payload: Some(payload.clone()) };
        let append = Box::new(append.clone());
        let pending = Pending::Append { key: key.clone(), epoch, append, payload, now, ticket };
        self.enqueue(&key.session, request, pending);
        Answer::Later
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        let mut state = self.lock();
        // A report that the host still makes of it finds nothing.
        if let Some(number) = state.numbers.get(&ticket.name()).copied() {
            state.call_off(&key.session, number);
        }
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.window.attach(session, attach, ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.window.read(key, after, limit, ticket)
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        self.window.take(session, epoch, after, ticket)
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        self.window.withdraw(now, key, end, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.window.release(session, epoch);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.window.settle(key, epoch, seq);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.window.drop_stream(key, epoch);
        if let Some(session) = self.lock().sessions.get_mut(&key.session) {
            session.forget(key.nonce);
        }
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.window.drop_session(session, epoch);
        let mut state = self.lock();
        state.sessions.remove(session);
        let State { pending, numbers, .. } = &mut *state;
        pending.retain(|_, pending| {
            let is_other = match pending {
                Pending::Prime { key, .. } | Pending::Append { key, .. } => &*key.session != session,
                Pending::Replay { session: of, .. } => &**of != session,
            };
            if let Some(ticket) = pending.ticket().filter(|_| !is_other) {
                numbers.remove(&ticket.name());
            }
            is_other
        });
    }

    fn sweep(&self, now: Ms) -> Ms {
        let next = self.window.sweep(now);
        let gone = self.window.take_gone();
        let mut state = self.lock();
        for key in gone {
            // One that is there again may have ids.
            if let Some(session) = state.sessions.get_mut(&key.session)
                && self.window.known(&key).is_none()
            {
                session.forget(key.nonce);
            }
        }
        next
    }

    fn usage(&self) -> Usage {
        self.window.usage()
    }

    fn own_ids(&self) -> Option<&dyn OwnIds> {
        Some(self)
    }
}

impl OwnIds for HostStore {
    fn locate(&self, session: &str, id: &str) -> Option<(StreamNonce, Seq)> {
        let (session, (nonce, seq)) = {
            let state = self.lock();
            let (session, known) = state.sessions.get_key_value(session)?;
            (Arc::clone(session), *known.positions.get(id)?)
        };
        // The bounds of the session or the process may have trimmed the window since; the host has it all.
        let record = self.window.known(&StreamKey { session, nonce })?;
        (seq + 1 >= record.page.low).then_some((nonce, seq))
    }

    fn id_at(&self, key: &StreamKey, seq: Seq) -> Option<Box<str>> {
        let state = self.lock();
        let ids = state.sessions.get(&key.session)?.ids.get(&key.nonce)?;
        let at = ids.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(ids[at].1.clone())
    }

    fn host(&self) -> Option<&HostStore> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Complete, Operation, SessionRecord};
    use crate::stream::Chain;

    struct Nobody;

    impl Complete for Nobody {
        fn complete(&self, _: &Ticket, _: Outcome) {}
    }

    #[test]
    fn ids_go_with_their_log_and_nothing_is_kept_of_either() {
        let store = HostStore::new(Limits { retention_ms: 100, ..Limits::default() });
        let to: std::sync::Weak<Nobody> = std::sync::Weak::new();
        let ticket = Ticket { to, nonce: StreamNonce::NONE, operation: Operation::Append, number: 1 };
        let epoch = Epoch { number: 1, salt: 1 };
        store.hold("s", &Hold { epoch, seen: None, record: Some(SessionRecord::default()) }, &ticket);
        let keys = [1, 2].map(|number| StreamKey { session: "s".into(), nonce: StreamNonce([number; 12]) });
        store.lock().sessions.insert("s".into(), Session::default());
        for (key, id) in keys.iter().zip(["a", "b"]) {
            let chain = Chain::start(&key.nonce.0).0;
            let append = Append { first: 1, chain_before: chain, chain, ..Append::default() };
            store.append(Ms(0), key, epoch, &append, &ticket);
            store.remember(key, 0, id);
        }
        let chain = Chain::start(&keys[0].nonce.0).0;
        let end = Append { first: 1, chain_before: chain, chain, end: Some(Bytes::new()), ..Append::default() };
        store.append(Ms(0), &keys[0], epoch, &end, &ticket);
        assert!(store.locate("s", "a").is_some());
        store.sweep(Ms(100));
        assert_eq!((store.locate("s", "a"), store.locate("s", "b")), (None, Some((keys[1].nonce, 0))));
        assert_eq!(store.lock().sessions["s"].ids.len(), 1);
        assert!(store.window.take_gone().is_empty());
        store.remember(&keys[0], 0, "late");
        assert_eq!(store.locate("s", "late"), None, "its log is gone");
    }
}
