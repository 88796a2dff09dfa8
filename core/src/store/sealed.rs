//! Payloads encrypted at rest: around any store, so that it, its backups and its replicas hold nothing
//! that can be read.
//!
//! XChaCha20-Poly1305 with a random nonce for each payload. A payload is bound to its session, stream and
//! position: one that was moved is not taken for another. What stays readable: stream names, positions,
//! sizes, kinds, times.

use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use super::{
    Answer, Append, Attach, Attached, Complete, Epoch, EventStore, Hold, LogPage, Mail, Message, Name, Outcome,
    ReadLimit, RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage, Watcher,
};
use crate::Ms;
use crate::protocol::{StreamNonce, hex};
use crate::stream::{ChainKey, Seq, StoredEvent};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of the random nonce before each payload. The authentication tag of 16 bytes follows it.
const NONCE: usize = 24;

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
    asked: Mutex<Asked>,
    next: AtomicU64,
}

/// Questions whose answers come here first.
#[derive(Default)]
struct Asked {
    /// By the number that the store within knows.
    by_number: HashMap<u64, (Ticket, StreamKey)>,
    /// Those numbers, by what the asker knows.
    numbers: HashMap<Name, u64>,
}

impl Asked {
    fn remove(&mut self, number: u64) -> Option<(Ticket, StreamKey)> {
        let asked = self.by_number.remove(&number)?;
        self.numbers.remove(&asked.0.name());
        Some(asked)
    }
}

/// What a payload is bound to.
#[derive(Clone, Copy)]
enum Place {
    Event(Seq),
    Tail,
    About,
    Message,
    /// Of the session.
    Note,
}

fn bound(key: &StreamKey, place: Place) -> Vec<u8> {
    let (mark, seq) = match place {
        Place::Event(seq) => (b'e', seq),
        Place::Tail => (b't', 0),
        Place::About => (b'a', 0),
        Place::Message => (b'm', 0),
        Place::Note => (b'n', 0),
    };
    let mut to = vec![mark];
    to.extend_from_slice(&key.nonce.0);
    to.extend_from_slice(&seq.to_be_bytes());
    to.extend_from_slice(key.session.as_bytes());
    to
}

impl Opening {
    fn seal(&self, key: &StreamKey, place: Place, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| failed("the operating system has no randomness"))?;
        let payload = Payload { msg: plain, aad: &bound(key, place) };
        let cipher = self.ciphers.first().ok_or_else(|| failed("there is no key"))?;
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| failed("it cannot be encrypted"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    fn open(&self, key: &StreamKey, place: Place, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        let unreadable = || failed("what is stored was not encrypted with any of the keys, or was changed");
        let (nonce, msg) = sealed.split_first_chunk::<NONCE>().ok_or_else(unreadable)?;
        let aad = &bound(key, place);
        let opened = |cipher: &XChaCha20Poly1305| cipher.decrypt(&XNonce::from(*nonce), Payload { msg, aad }).ok();
        self.ciphers.iter().find_map(opened).ok_or_else(unreadable)
    }

    fn page(&self, key: &StreamKey, page: Result<LogPage, StoreError>) -> Result<LogPage, StoreError> {
        let mut page = page?;
        for event in &mut page.page.events {
            event.frame = self.open(key, Place::Event(event.seq), &event.frame)?.into();
        }
        if let Some(tail) = page.tail {
            page.tail = Some(self.open(key, Place::Tail, &tail)?.into());
        }
        Ok(page)
    }

    fn attached(&self, key: &StreamKey, attached: Result<Attached, StoreError>) -> Result<Attached, StoreError> {
        let mut attached = attached?;
        if let Some(SessionRecord { note, .. }) = attached.session.as_mut().filter(|record| !record.note.is_empty()) {
            *note = self.open(&session_key(&key.session, None), Place::Note, note).unwrap_or_default().into();
        }
        if let Some(log) = &mut attached.log {
            log.about = self.open(key, Place::About, &log.about)?.into();
            log.page = self.page(key, Ok(std::mem::take(&mut log.page)))?;
        }
        Ok(attached)
    }

    fn held(
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

    /// A ticket whose outcome comes here first.
    fn ticket(self: &Arc<Self>, ticket: &Ticket, key: &StreamKey) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut asked = self.lock();
        asked.numbers.insert(ticket.name(), number);
        asked.by_number.insert(number, (ticket.clone(), key.clone()));
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
        let Some((asked, key)) = self.lock().remove(ticket.number) else { return };
        asked.complete(match outcome {
            Outcome::Page(page) => Outcome::Page(self.page(&key, page)),
            Outcome::Attached(attached) => Outcome::Attached(self.attached(&key, attached)),
            Outcome::Held(held) => Outcome::Held(self.held(&key.session, held)),
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
        let opening = Arc::new(Opening { ciphers, asked: Mutex::default(), next: AtomicU64::new(0) });
        (!keys.is_empty()).then(|| Self { inner, keys: keys.to_vec(), opening })
    }
}

impl EventStore for SealedStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut hold = hold.clone();
        let key = session_key(session, None);
        if let (Some(SessionRecord { principal, note, .. }), Some(first)) = (&mut hold.record, self.keys.first()) {
            *principal = principal.take().map(|principal| hidden(first, session, &principal));
            // None at all says nothing.
            if !note.is_empty() {
                match self.opening.seal(&key, Place::Note, note) {
                    Ok(sealed) => *note = sealed.into(),
                    Err(error) => return Answer::Now(Err(error)),
                }
            }
        }
        let ticket = self.opening.ticket(ticket, &key);
        let answer = self.inner.hold(session, &hold, &ticket);
        self.opening.answered(ticket.number, answer, |held| self.opening.held(&key.session, held))
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let seal = |event: &StoredEvent| {
            let frame = self.opening.seal(key, Place::Event(event.seq), &event.frame)?.into();
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
        let ticket = self.opening.ticket(ticket, key);
        let answer = self.inner.read(key, after, limit, &ticket);
        self.opening.answered(ticket.number, answer, |page| self.opening.page(key, page))
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let names = attach.principal.iter().chain(&attach.aliases);
        let mut names = names.flat_map(|name| self.keys.iter().map(|key| hidden(key, session, name)));
        let mut attach = Attach { principal: names.next(), aliases: names.collect(), ..attach.clone() };
        let key = session_key(session, attach.stream);
        if let Some(Message { about, body }) = &mut attach.message {
            for (place, payload) in [(Place::About, about), (Place::Message, body)] {
                match self.opening.seal(&key, place, payload) {
                    Ok(sealed) => *payload = sealed.into(),
                    Err(error) => return Answer::Now(Err(error)),
                }
            }
        }
        let ticket = self.opening.ticket(ticket, &key);
        let answer = self.inner.attach(session, &attach, &ticket);
        self.opening.answered(ticket.number, answer, |attached| self.opening.attached(&key, attached))
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        let key = session_key(session, None);
        let ticket = self.opening.ticket(ticket, &key);
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

    fn chain_key(&self) -> Option<ChainKey> {
        self.keys.first().map(|key| ChainKey(derived(key, &[b"chain"])))
    }
}
