//! Our stores behind the event store hooks of the SDKs, for servers that keep the SDK's own transport.
//!
//! Such a transport names a stream, stores a message, and asks for what came after an id. It does not say which session
//! it serves, and two sessions may give their streams the same name. So the host gives a scope if it knows one, and
//! every stream gets a log under an unguessable name, which its ids carry. Only such an id finds the log again, in this
//! process or in the next one.

use crate::engine::{Engine, EngineError, Shared, lock};
use crate::protocol::{EventId, IdEncoder, Origin, StreamNonce};
use crate::store::{
    Answer, Append, Attach, Attached, Complete, Epoch, Hold, Operation, Outcome, ReadLimit, SessionRecord, StoreError,
    StreamKey, Ticket, session_name,
};
use crate::stream::{Chain, ChainKey, EventKind, Page, Seq, StoredEvent};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};

/// Several processes may write logs of one scope, each its own logs: together they count as one owner.
const EPOCH: Epoch = Epoch { number: 1, salt: 0 };
/// Streams that are remembered at once. A stream that was forgotten goes on in another log.
const MAX_STREAMS: usize = 10_000;
/// Events of one page.
const PAGE_EVENTS: usize = 1_024;
/// Bytes of one page.
const PAGE_BYTES: usize = 1 << 20;

/// Takes the id of a stored message.
pub type OnStored = Box<dyn FnOnce(Result<String, StoreError>) + Send>;
/// Takes what came after an id. None if the id means nothing here, or if not everything after it is there.
pub type OnReplayed = Box<dyn FnOnce(Result<Option<HookReplay>, StoreError>) + Send>;

/// The messages of a stream after an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookReplay {
    /// The name that the SDK gave the stream.
    pub stream: String,
    /// Ids and messages, in order.
    pub events: Vec<(String, Bytes)>,
}

/// Keeps the messages of an SDK's own transport in the engine's store.
///
/// Callbacks come on any thread, at once or later, and exactly once unless the store never answers. So the host has to
/// bound its wait for them, with the engine's `store_timeout_ms`.
#[derive(Clone)]
pub struct HookLog(Arc<Hooked>);

impl std::fmt::Debug for HookLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookLog").finish_non_exhaustive()
    }
}

struct Hooked {
    me: Weak<Self>,
    shared: Arc<Shared>,
    state: Mutex<State>,
    next_use: AtomicU64,
}

/// A scope, and what the SDK calls a stream in it.
type Place = (Arc<str>, Arc<str>);

#[derive(Default)]
struct State {
    streams: HashMap<Place, Stream>,
    waits: HashMap<u64, Waiting>,
}

/// A message for a log.
struct Message {
    kind: EventKind,
    payload: Bytes,
    /// None once its sender was told.
    done: Option<OnStored>,
    /// The log of the first try was gone: this is the second try, in another log.
    again: bool,
    /// A try has no answer, so the message may be stored. It is asked for again, unchanged, before what follows it.
    is_unsure: bool,
}

struct Stream {
    key: StreamKey,
    ids: IdEncoder,
    head: Seq,
    chain: Chain,
    queue: VecDeque<Message>,
    /// The store is working on the next message.
    busy: bool,
    /// The only message has failed, but may be stored all the same. It is tried again when the next one comes.
    pauses: bool,
    used: u64,
}

impl Stream {
    fn new(scope: &str, nonce: StreamNonce) -> Self {
        Self {
            key: StreamKey { session: session_of(scope), nonce },
            ids: IdEncoder::new(nonce, &Origin::Unnamed),
            head: 0,
            chain: Chain::start(&nonce.0),
            queue: VecDeque::new(),
            busy: false,
            pauses: false,
            used: 0,
        }
    }

    /// Tells the first sender that waits that its message failed. A message that may be stored stays in the queue.
    fn fail_one(&mut self, error: StoreError) -> Option<(OnStored, Result<String, StoreError>)> {
        let is_kept = |message: &Message| message.is_unsure;
        let done = match self.queue.front_mut().filter(|message| is_kept(message)) {
            Some(first) if first.done.is_some() => first.done.take(),
            Some(_) => self.queue.remove(1).and_then(|next| next.done),
            None => self.queue.pop_front().and_then(|first| first.done),
        };
        self.pauses = self.queue.len() == 1 && self.queue.iter().all(is_kept);
        done.map(|done| (done, Err(error)))
    }
}

fn may_be_stored(error: &StoreError, is_unsure: bool) -> bool {
    match error {
        StoreError::TimedOut { .. } => true,
        StoreError::Failed(_) => is_unsure,
        _ => false,
    }
}

/// Which session of the store holds a scope. No real session has this name, because no session id has a blank in it.
fn session_of(scope: &str) -> Arc<str> {
    session_name(&format!("hook {scope}"))
}

enum Waiting {
    Appending(Place, u64, Message),
    Replaying(Replaying),
}

struct Replaying {
    key: StreamKey,
    ids: IdEncoder,
    after: Seq,
    tag: u32,
    /// What the log's record told: the stream's name and the last position then.
    known: Option<(String, Seq)>,
    events: Vec<(String, Bytes)>,
    bytes: usize,
    done: OnReplayed,
}

impl Engine {
    /// A log for an SDK's own transport, in this engine's store.
    pub fn hook_log(&self) -> HookLog {
        HookLog(Arc::new_cyclic(|me| Hooked {
            me: me.clone(),
            shared: Arc::clone(&self.0),
            state: Mutex::default(),
            next_use: AtomicU64::new(0),
        }))
    }
}

impl HookLog {
    /// Stores a message of the stream that the SDK calls `stream`. An empty payload is a position without a message,
    /// like a priming. Nothing is stored after an [`EventKind::Terminal`]: a message that comes all the same begins
    /// another log.
    ///
    /// `done` gets the id: visible ASCII, at most 60 characters.
    pub fn store(&self, scope: &str, stream: &str, kind: EventKind, payload: Bytes, done: OnStored) {
        let hooked = &*self.0;
        if hooked.shared.is_forked() {
            return done(Err(forked()));
        }
        hooked.shared.sweep(hooked.shared.clock.now());
        let place: Place = (scope.into(), stream.into());
        {
            let mut state = lock(&hooked.state);
            if !state.streams.contains_key(&place) {
                state.make_room();
                state.streams.insert(place.clone(), Stream::new(scope, hooked.shared.nonce()));
            }
            let Some(log) = state.streams.get_mut(&place) else { return };
            log.used = hooked.next_use.fetch_add(1, Ordering::Relaxed);
            log.pauses = false;
            log.queue.push_back(Message { kind, payload, done: Some(done), again: false, is_unsure: false });
        }
        hooked.pump(&place);
    }

    /// Gives what a scope holds after an id: the whole rest of the stream, or nothing. If something in between was
    /// trimmed away, the id means nothing any more (I8).
    pub fn replay(&self, scope: &str, after: &str, done: OnReplayed) {
        if self.0.shared.is_forked() {
            return done(Err(forked()));
        }
        let cursor = match EventId::parse(after) {
            Some(EventId::Position(cursor)) if cursor.origin == Origin::Unnamed => cursor,
            _ => return done(Ok(None)),
        };
        let key = StreamKey { session: session_of(scope), nonce: cursor.nonce };
        let ids = IdEncoder::new(cursor.nonce, &Origin::Unnamed);
        let (after, tag) = (cursor.seq, cursor.tag);
        let replay = Replaying { key, ids, after, tag, known: None, events: Vec::new(), bytes: 0, done };
        self.0.look_up(replay);
    }

    /// Forgets everything of a scope, as its session ended.
    pub fn drop_scope(&self, scope: &str) {
        if self.0.shared.is_forked() {
            return;
        }
        let mut left = Vec::new();
        lock(&self.0.state).streams.retain(|(of, _), log| {
            let is_other = **of != *scope;
            if !is_other {
                left.extend(std::mem::take(&mut log.queue));
            }
            is_other
        });
        self.0.shared.store.drop_session(&session_of(scope), EPOCH);
        left.into_iter().filter_map(|message| message.done).for_each(|done| done(Err(StoreError::Gone)));
    }
}

/// The child of a fork may touch neither this log's lock nor the store.
fn forked() -> StoreError {
    StoreError::Failed(EngineError::Forked.to_string())
}

impl State {
    /// Forgets the stream that was used longest ago, of those that nothing waits for.
    fn make_room(&mut self) {
        if self.streams.len() < MAX_STREAMS {
            return;
        }
        let idle = self.streams.iter().filter(|(_, log)| !log.busy && (log.queue.is_empty() || log.pauses));
        if let Some(place) = idle.min_by_key(|(_, log)| log.used).map(|(place, _)| place.clone()) {
            self.streams.remove(&place);
        }
    }

    /// The next message of a stream, for its log.
    fn next(&mut self, place: &Place, number: u64, key: Option<&ChainKey>) -> Option<(StreamKey, Append)> {
        let log = self.streams.get_mut(place).filter(|log| !log.busy && !log.pauses && !log.queue.is_empty())?;
        log.busy = true;
        let message = log.queue.pop_front()?;
        let (first, chain) = (log.head + 1, log.chain.then(&message.payload, key));
        let frame = message.payload.as_ref().into();
        let event = StoredEvent { seq: first, kind: message.kind, tag: chain.tag(), frame };
        let append = Append {
            first,
            events: vec![event],
            chain_before: log.chain.0,
            chain: chain.0,
            about: Bytes::copy_from_slice(place.1.as_bytes()),
            ..Append::default()
        };
        let key = log.key.clone();
        self.waits.insert(number, Waiting::Appending(place.clone(), chain.0, message));
        Some((key, append))
    }
}

impl Hooked {
    fn ticket(&self, nonce: StreamNonce, operation: Operation, number: u64) -> Ticket {
        let to: Weak<dyn Complete> = self.me.clone();
        Ticket { to, nonce, operation, number }
    }

    /// Asks the store for what the stream needs, until it has to wait.
    fn pump(&self, place: &Place) {
        loop {
            let (now, number) = (self.shared.clock.now(), self.shared.number());
            let Some((key, append)) = lock(&self.state).next(place, number, self.shared.chain_key.as_ref()) else {
                return;
            };
            let store = &self.shared.store;
            if append.first == 1 {
                let hold = Hold { epoch: EPOCH, seen: None, record: Some(SessionRecord::default()) };
                // If this fails, the append fails, too.
                let _ = store.hold(&key.session, &hold, &self.ticket(key.nonce, Operation::Hold, self.shared.number()));
            }
            let ticket = self.ticket(key.nonce, Operation::Append, number);
            let answer = store.append(now, &key, EPOCH, &append, &ticket);
            let Answer::Now(result) = answer else { return };
            self.wrote(number, result);
        }
    }

    /// An append has its outcome.
    fn wrote(&self, number: u64, result: Result<(), StoreError>) -> Option<Place> {
        let mut state = lock(&self.state);
        let (place, told) = match state.waits.remove(&number)? {
            Waiting::Appending(place, chain, message) => {
                let nonce = self.shared.nonce();
                let Some(log) = state.streams.get_mut(&place) else {
                    // The scope was dropped meanwhile.
                    drop(state);
                    if let Some(done) = message.done {
                        done(Err(StoreError::Gone));
                    }
                    return None;
                };
                log.busy = false;
                let told = match result {
                    // The log had its end, or the store lost it: the message begins another log.
                    Err(StoreError::Gone | StoreError::RolledBack) if !message.again => {
                        let (queue, used) = (std::mem::take(&mut log.queue), log.used);
                        *log = Stream { queue, used, ..Stream::new(&place.0, nonce) };
                        if message.done.is_some() {
                            log.queue.push_front(Message { again: true, is_unsure: false, ..message });
                        }
                        None
                    }
                    // Only the log itself can tell what became of a try without an answer.
                    Err(error) if may_be_stored(&error, message.is_unsure) => {
                        log.queue.push_front(Message { is_unsure: true, ..message });
                        log.fail_one(error)
                    }
                    Err(error) => message.done.map(|done| (done, Err(error))),
                    Ok(()) => {
                        log.head += 1;
                        log.chain = Chain(chain);
                        let id = id_of(&log.ids, log.head, log.chain.tag());
                        if message.kind == EventKind::Terminal && log.queue.is_empty() {
                            state.streams.remove(&place);
                        }
                        message.done.map(|done| (done, Ok(id)))
                    }
                };
                (place, told)
            }
            waiting @ Waiting::Replaying(_) => {
                state.waits.insert(number, waiting);
                return None;
            }
        };
        drop(state);
        if let Some((done, result)) = told {
            done(result);
        }
        Some(place)
    }

    fn look_up(&self, replay: Replaying) {
        let number = self.shared.number();
        let key = replay.key.clone();
        let attach = Attach {
            stream: Some(key.nonce),
            after: replay.after,
            tag: Some(replay.tag),
            limit: ReadLimit { up_to: Seq::MAX, events: PAGE_EVENTS, bytes: PAGE_BYTES },
            ..Attach::default()
        };
        lock(&self.state).waits.insert(number, Waiting::Replaying(replay));
        let ticket = self.ticket(key.nonce, Operation::Attach(0), number);
        if let Answer::Now(result) = self.shared.store.attach(&key.session, &attach, &ticket) {
            self.attached(number, result);
        }
    }

    fn take_replay(&self, number: u64) -> Option<Replaying> {
        match lock(&self.state).waits.remove(&number)? {
            Waiting::Replaying(replay) => Some(replay),
            Waiting::Appending(..) => None,
        }
    }

    fn attached(&self, number: u64, result: Result<Attached, StoreError>) {
        let Some(mut replay) = self.take_replay(number) else { return };
        match result.map(|attached| attached.log) {
            Err(error) => (replay.done)(Err(error)),
            Ok(None) => (replay.done)(Ok(None)),
            Ok(Some(log)) => {
                replay.known = Some((String::from_utf8_lossy(&log.about).into_owned(), log.page.page.head));
                if let Some(replay) = self.take_page(replay, log.page.page) {
                    self.read_on(replay);
                }
            }
        }
    }

    /// Reads page after page, until the store has to wait.
    fn read_on(&self, replay: Replaying) {
        let mut replay = replay;
        loop {
            let number = self.shared.number();
            let head = replay.known.as_ref().map_or(0, |(_, head)| *head);
            let limit = ReadLimit { up_to: head, events: PAGE_EVENTS, bytes: PAGE_BYTES };
            let (key, after) = (replay.key.clone(), replay.after);
            lock(&self.state).waits.insert(number, Waiting::Replaying(replay));
            let ticket = self.ticket(key.nonce, Operation::Read(0), number);
            let Answer::Now(page) = self.shared.store.read(&key, after, limit, &ticket) else { return };
            match self.paged(number, page.map(|read| read.page)) {
                Some(more) => replay = more,
                None => return,
            }
        }
    }

    /// Takes a page. Gives the replay back when there is more to read.
    fn paged(&self, number: u64, page: Result<Page, StoreError>) -> Option<Replaying> {
        let replay = self.take_replay(number)?;
        match page {
            Ok(page) => self.take_page(replay, page),
            Err(error) => {
                // If retention has removed the log meanwhile, the id counts as not known.
                (replay.done)(if error == StoreError::Gone { Ok(None) } else { Err(error) });
                None
            }
        }
    }

    fn take_page(&self, mut replay: Replaying, page: Page) -> Option<Replaying> {
        let (stream, head) = replay.known.clone()?;
        let is_whole = page.low <= replay.after + 1 && page.tag_at == Some(replay.tag);
        for event in &page.events {
            replay.bytes += event.frame.len();
            (replay.after, replay.tag) = (event.seq, event.tag);
            if !event.frame.is_empty() {
                let id = id_of(&replay.ids, event.seq, event.tag);
                replay.events.push((id, Bytes::copy_from_slice(&event.frame)));
            }
        }
        if !is_whole || replay.bytes > self.shared.options.limits.max_bytes_per_stream {
            (replay.done)(Ok(None));
        } else if page.events.is_empty() || replay.after >= head {
            (replay.done)(Ok(Some(HookReplay { stream, events: replay.events })));
        } else {
            return Some(replay);
        }
        None
    }
}

fn id_of(ids: &IdEncoder, seq: Seq, tag: u32) -> String {
    let mut id = Vec::with_capacity(40);
    ids.encode(seq, 0, tag, &mut id);
    String::from_utf8_lossy(&id).into_owned()
}

impl Complete for Hooked {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        match outcome {
            Outcome::Done(result) => {
                if let Some(place) = self.wrote(ticket.number, result) {
                    self.pump(&place);
                }
            }
            Outcome::Attached(result) => self.attached(ticket.number, result),
            Outcome::Page(page) => {
                if let Some(replay) = self.paged(ticket.number, page.map(|read| read.page)) {
                    self.read_on(replay);
                }
            }
            Outcome::Held(_) | Outcome::Taken(_) | Outcome::Withdrawn(_) => {}
        }
    }
}
