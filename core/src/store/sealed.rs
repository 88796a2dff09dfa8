//! Payloads and the records of sessions encrypted at rest: around any store, so that it, its backups and its replicas hold
//! nothing that can be read, and a writer without a key cannot change whose a session is.
//!
//! XChaCha20-Poly1305 with a random nonce for each payload. A payload is bound to its namespace, session, stream, position and
//! kind: one that was moved is not taken for another. What stays readable: stream names, positions, sizes, kinds, times.
//!
//! The store within finds a session by hashes of its principal. That is the first check. The record that was sealed decides:
//! it is sealed as one value in the place of the note, and the other columns of a session say nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use super::sealed_record;
use super::{
    Answer, Append, Attach, Attached, Complete, Epoch, EventStore, Hold, LogPage, Mail, Message, Name, Outcome,
    ReadLimit, RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage, Watcher,
};
use crate::Ms;
use crate::protocol::{StreamNonce, hex};
use crate::stream::{ChainKey, EventKind, Seq, StoredEvent};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of the random nonce before each payload. The authentication tag of 16 bytes follows it.
const NONCE: usize = 24;
/// How many sessions are remembered whose records are not theirs, so that each is reported once.
const MAX_REPORTED: usize = 1_000;

/// A key for payloads at rest.
#[derive(Clone)]
pub struct EncryptionKey([u8; 32]);

impl EncryptionKey {
    /// Reads 64 hexadecimal digits, as `openssl rand -hex 32` writes them.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = [0; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(key))
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(...)")
    }
}

/// A store whose payloads are encrypted. See [`open`](super::open).
pub struct SealedStore {
    inner: Arc<dyn EventStore>,
    keys: Vec<EncryptionKey>,
    opening: Arc<Opening>,
}

impl fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStore").finish_non_exhaustive()
    }
}

/// Opens what comes back. Late outcomes pass through it on their way to the caller.
///
/// What cannot be read of one log or message, where others are told with it, is told as empty (I9). The caller says so in the
/// log: what is answered at once is answered under its lock, and a subscriber may call it.
struct Opening {
    ciphers: Vec<XChaCha20Poly1305>,
    /// Of the store within.
    namespace: Box<str>,
    asked: Mutex<Asked>,
    next: AtomicU64,
    /// Sessions whose records are not theirs, and that the log has an ERROR for.
    reported: Mutex<HashSet<Arc<str>>>,
}

/// A question whose answer comes here first.
struct Question {
    ticket: Ticket,
    key: StreamKey,
    /// Of an attach: whose session is found.
    finder: Attach,
}

/// These questions.
#[derive(Default)]
struct Asked {
    /// By the number that the store within knows.
    by_number: HashMap<u64, Question>,
    /// Those numbers, by what the requester knows.
    numbers: HashMap<Name, u64>,
}

impl Asked {
    fn remove(&mut self, number: u64) -> Option<Question> {
        let question = self.by_number.remove(&number)?;
        self.numbers.remove(&question.ticket.name());
        Some(question)
    }
}

/// What a payload is bound to.
#[derive(Clone, Copy)]
enum Place {
    Event(Seq, EventKind),
    Tail,
    About,
    Message,
    /// The record of the session.
    Record,
}

impl Opening {
    /// What is authenticated with a payload.
    fn bound(&self, key: &StreamKey, place: Place) -> Vec<u8> {
        let (mark, seq, kind) = match place {
            Place::Event(seq, kind) => (b'e', seq, kind as u8),
            Place::Tail => (b't', 0, 0),
            Place::About => (b'a', 0, 0),
            Place::Message => (b'm', 0, 0),
            Place::Record => (b'r', 0, 0),
        };
        let mut to = vec![mark, kind];
        to.extend_from_slice(&key.nonce.0);
        to.extend_from_slice(&seq.to_be_bytes());
        to.extend_from_slice(&(self.namespace.len() as u64).to_be_bytes());
        to.extend_from_slice(self.namespace.as_bytes());
        to.extend_from_slice(key.session.as_bytes());
        to
    }

    fn seal(&self, key: &StreamKey, place: Place, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| failed("the operating system has no randomness"))?;
        let payload = Payload { msg: plain, aad: &self.bound(key, place) };
        let cipher = self.ciphers.first().ok_or_else(|| failed("there is no key"))?;
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| failed("it cannot be encrypted"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    fn open(&self, key: &StreamKey, place: Place, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        let unreadable = || failed("what is stored was not encrypted with any of the keys, or was changed");
        let (nonce, msg) = sealed.split_first_chunk::<NONCE>().ok_or_else(unreadable)?;
        let aad = &self.bound(key, place);
        let opened = |cipher: &XChaCha20Poly1305| cipher.decrypt(&XNonce::from(*nonce), Payload { msg, aad }).ok();
        self.ciphers.iter().find_map(opened).ok_or_else(unreadable)
    }

    fn page(&self, key: &StreamKey, page: Result<LogPage, StoreError>) -> Result<LogPage, StoreError> {
        let mut page = page?;
        for event in &mut page.page.events {
            event.frame = self.open(key, Place::Event(event.seq, event.kind), &event.frame)?.into();
        }
        if let Some(tail) = page.tail {
            page.tail = Some(self.open(key, Place::Tail, &tail)?.into());
        }
        Ok(page)
    }

    /// The record that was sealed for this session. None if there is no such record, or it is another principal's: somebody
    /// who writes to the store has no session.
    fn record(&self, session: &str, sealed: &[u8], finder: &Attach) -> Result<Option<SessionRecord>, StoreError> {
        let Ok(plain) = self.open(&session_key(session, None), Place::Record, sealed) else { return Ok(None) };
        let record = sealed_record::decode(&plain.into())
            .ok_or_else(|| failed("a later release wrote the record of the session"))?;
        Ok(Some(record).filter(|record| finder.finds(record.principal.as_deref())))
    }

    fn attached(
        &self,
        key: &StreamKey,
        finder: &Attach,
        attached: Result<Attached, StoreError>,
    ) -> Result<Attached, StoreError> {
        let mut attached = attached?;
        let Some(SessionRecord { note, .. }) = &attached.session else { return Ok(attached) };
        attached.session = self.record(&key.session, note, finder)?;
        if attached.session.is_none() {
            return Ok(Attached::default());
        }
        if let Some(log) = &mut attached.log {
            log.about = self.open(key, Place::About, &log.about)?.into();
            log.page = self.page(key, Ok(std::mem::take(&mut log.page)))?;
        }
        Ok(attached)
    }

    fn open_running(
        &self,
        session: &Arc<str>,
        held: Result<Vec<RunningLog>, StoreError>,
    ) -> Result<Vec<RunningLog>, StoreError> {
        let mut held = held?;
        for RunningLog { nonce, about, .. } in &mut held {
            let key = StreamKey { session: Arc::clone(session), nonce: *nonce };
            *about = self.open(&key, Place::About, about).unwrap_or_default().into();
        }
        Ok(held)
    }

    fn taken(&self, session: &Arc<str>, taken: Result<Vec<Mail>, StoreError>) -> Result<Vec<Mail>, StoreError> {
        let mut taken = taken?;
        for Mail { nonce, message, .. } in &mut taken {
            let key = StreamKey { session: Arc::clone(session), nonce: *nonce };
            let Message { about, body } = &message;
            let opened = self.open(&key, Place::About, about).and_then(|about| {
                Ok(Message { about: about.into(), body: self.open(&key, Place::Message, body)?.into() })
            });
            *message = opened.unwrap_or_default();
        }
        Ok(taken)
    }

    /// Says once that the record of a session is not one that a process with a key has written of it.
    fn report(&self, session: &Arc<str>) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        let is_new = reported.insert(Arc::clone(session));
        drop(reported);
        if is_new {
            tracing::error!(
                target: "tailrope",
                %session,
                "no encryption key opens the store's record of the session for this user: there is no such session. The keys \
                 were changed, or somebody else has written to the store"
            );
        }
    }

    /// A ticket whose outcome comes here first.
    fn ticket(self: &Arc<Self>, ticket: &Ticket, key: &StreamKey, finder: Attach) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut asked = self.lock();
        asked.numbers.insert(ticket.name(), number);
        asked.by_number.insert(number, Question { ticket: ticket.clone(), key: key.clone(), finder });
        drop(asked);
        self.inner_ticket(ticket, number)
    }

    fn inner_ticket(self: &Arc<Self>, ticket: &Ticket, number: u64) -> Ticket {
        let me: Arc<dyn Complete> = Arc::clone(self) as Arc<dyn Complete>;
        let to: Weak<dyn Complete> = Arc::downgrade(&me);
        Ticket { to, number, ..ticket.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The asked operation was answered at once.
    fn answered<T>(
        &self,
        number: u64,
        answer: Answer<T>,
        open: impl FnOnce(Result<T, StoreError>) -> Result<T, StoreError>,
    ) -> Answer<T> {
        match answer {
            Answer::Later => Answer::Later,
            Answer::Now(result) => {
                self.lock().remove(number);
                Answer::Now(open(result))
            }
        }
    }
}

impl Complete for Opening {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        let Some(Question { ticket, key, finder }) = self.lock().remove(ticket.number) else { return };
        ticket.complete(match outcome {
            Outcome::Page(page) => Outcome::Page(self.page(&key, page)),
            Outcome::Attached(attached) => {
                let has_record = attached.as_ref().is_ok_and(|attached| attached.session.is_some());
                let attached = self.attached(&key, &finder, attached);
                // Only here: what a store answers at once is in this process, and nobody else writes to it.
                if has_record && attached.as_ref().is_ok_and(|attached| attached.session.is_none()) {
                    self.report(&key.session);
                }
                Outcome::Attached(attached)
            }
            Outcome::Held(held) => Outcome::Held(self.open_running(&key.session, held)),
            Outcome::Taken(taken) => Outcome::Taken(self.taken(&key.session, taken)),
            other @ (Outcome::Done(_) | Outcome::Withdrawn(_)) => other,
        });
    }
}

/// A secret for another use than encryption.
fn derived(EncryptionKey(key): &EncryptionKey, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix(key);
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Stands for a principal, which nobody reads again: it is only compared.
fn hidden(key: &EncryptionKey, session: &str, principal: &str) -> Box<str> {
    let hash = derived(key, &[b"principal", session.as_bytes(), principal.as_bytes()]);
    hex(&hash).into()
}

fn failed(what: &str) -> StoreError {
    StoreError::Failed(what.to_owned())
}

/// The key of a stream that may be none of the session's.
fn session_key(session: &str, nonce: Option<StreamNonce>) -> StreamKey {
    StreamKey { session: session.into(), nonce: nonce.unwrap_or(StreamNonce([0; 12])) }
}

impl SealedStore {
    /// A store in front of another one; none without a key.
    pub fn new(inner: Arc<dyn EventStore>, keys: &[EncryptionKey]) -> Option<Self> {
        let ciphers: Vec<XChaCha20Poly1305> = keys.iter().map(|key| XChaCha20Poly1305::new(&key.0.into())).collect();
        let namespace = inner.namespace().into();
        let (asked, next, reported) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        let opening = Arc::new(Opening { ciphers, namespace, asked, next, reported });
        (!keys.is_empty()).then(|| Self { inner, keys: keys.to_vec(), opening })
    }
}

impl EventStore for SealedStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut hold = hold.clone();
        let key = session_key(session, None);
        if let (Some(record), Some(first)) = (&mut hold.record, self.keys.first()) {
            record.principal = record.principal.take().map(|principal| hidden(first, session, &principal));
            match self.opening.seal(&key, Place::Record, &sealed_record::encode(record)) {
                Ok(sealed) => {
                    let principal = record.principal.take();
                    *record = SessionRecord { principal, note: sealed.into(), ..SessionRecord::default() };
                }
                Err(error) => return Answer::Now(Err(error)),
            }
        }
        let ticket = self.opening.ticket(ticket, &key, Attach::default());
        let answer = self.inner.hold(session, &hold, &ticket);
        self.opening.answered(ticket.number, answer, |held| self.opening.open_running(&key.session, held))
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let seal = |event: &StoredEvent| {
            let frame = self.opening.seal(key, Place::Event(event.seq, event.kind), &event.frame)?.into();
            Ok(StoredEvent { frame, ..event.clone() })
        };
        let about =
            if append.first == 1 { self.opening.seal(key, Place::About, &append.about) } else { Ok(Vec::new()) };
        let end = append.end.as_ref().map(|end| self.opening.seal(key, Place::Tail, end).map(Bytes::from)).transpose();
        match (append.events.iter().map(seal).collect::<Result<Vec<_>, _>>(), about, end) {
            (Ok(events), Ok(about), Ok(end)) => {
                let append = Append { events, about: about.into(), end, ..*append };
                self.inner.append(now, key, epoch, &append, ticket)
            }
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Answer::Now(Err(error)),
        }
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        let number = {
            let mut asked = self.opening.lock();
            let number = asked.numbers.get(&ticket.name()).copied();
            number.inspect(|number| drop(asked.remove(*number)))
        };
        match number {
            Some(number) => self.inner.abandon(key, &self.opening.inner_ticket(ticket, number)),
            None => self.inner.abandon(key, ticket),
        }
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let ticket = self.opening.ticket(ticket, key, Attach::default());
        let answer = self.inner.read(key, after, limit, &ticket);
        self.opening.answered(ticket.number, answer, |page| self.opening.page(key, page))
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let names = attach.principal.iter().chain(&attach.aliases);
        let mut names = names.flat_map(|name| self.keys.iter().map(|key| hidden(key, session, name)));
        let finder = Attach { principal: names.next(), aliases: names.collect(), ..Attach::default() };
        let (principal, aliases) = (finder.principal.clone(), finder.aliases.clone());
        let mut attach = Attach { principal, aliases, ..attach.clone() };
        let key = session_key(session, attach.stream);
        if let Some(Message { about, body }) = &mut attach.message {
            for (place, payload) in [(Place::About, about), (Place::Message, body)] {
                match self.opening.seal(&key, place, payload) {
                    Ok(sealed) => *payload = sealed.into(),
                    Err(error) => return Answer::Now(Err(error)),
                }
            }
        }
        let ticket = self.opening.ticket(ticket, &key, finder.clone());
        let answer = self.inner.attach(session, &attach, &ticket);
        self.opening.answered(ticket.number, answer, |attached| self.opening.attached(&key, &finder, attached))
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        let key = session_key(session, None);
        let ticket = self.opening.ticket(ticket, &key, Attach::default());
        let answer = self.inner.take(session, epoch, after, &ticket);
        self.opening.answered(ticket.number, answer, |taken| self.opening.taken(&key.session, taken))
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        match self.opening.seal(key, Place::Tail, end) {
            Ok(end) => self.inner.withdraw(now, key, &end.into(), ticket),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.inner.release(session, epoch);
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.inner.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.inner.unwatch(session, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.inner.settle(key, epoch, seq);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.inner.drop_stream(key, epoch);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.inner.drop_session(session, epoch);
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.inner.sweep(now)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn answers_elsewhere(&self) -> bool {
        self.inner.answers_elsewhere()
    }

    fn outlives_process(&self) -> bool {
        self.inner.outlives_process()
    }

    fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    fn has_company(&self) -> bool {
        self.inner.has_company()
    }

    fn away_ms(&self) -> Option<u64> {
        self.inner.away_ms()
    }

    fn tell_away(&self) {
        self.inner.tell_away();
    }

    fn refused_ms(&self) -> Option<u64> {
        self.inner.refused_ms()
    }

    fn namespace(&self) -> &str {
        self.inner.namespace()
    }

    fn chain_key(&self) -> Option<ChainKey> {
        self.keys.first().map(|key| ChainKey(derived(key, &[b"chain"])))
    }
}
