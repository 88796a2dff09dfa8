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

use super::{
    Answer, Append, Complete, EventStore, Name, Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey,
    Ticket, Usage, Watcher,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Page, Seq, StoredEvent};
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
    opening: Arc<Opening>,
}

impl fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStore").finish_non_exhaustive()
    }
}

/// Opens what comes back. Late outcomes pass through it on their way to who asked.
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
    Principal,
}

fn bound(key: &StreamKey, place: Place) -> Vec<u8> {
    let (mark, seq) = match place {
        Place::Event(seq) => (b'e', seq),
        Place::Tail => (b't', 0),
        Place::About => (b'a', 0),
        Place::Principal => (b'p', 0),
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

    fn page(&self, key: &StreamKey, page: Result<Page, StoreError>) -> Result<Page, StoreError> {
        let mut page = page?;
        for event in &mut page.events {
            event.frame = self.open(key, Place::Event(event.seq), &event.frame)?.into();
        }
        Ok(page)
    }

    fn record(
        &self,
        key: &StreamKey,
        record: Result<Option<Record>, StoreError>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(mut record) = record? else { return Ok(None) };
        record.about = self.open(key, Place::About, &record.about)?.into();
        if let Some(tail) = record.tail {
            record.tail = Some(self.open(key, Place::Tail, &tail)?.into());
        }
        Ok(Some(record))
    }

    fn session(
        &self,
        key: &StreamKey,
        record: Result<Option<SessionRecord>, StoreError>,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let Some(mut record) = record? else { return Ok(None) };
        if let Some(principal) = record.principal {
            let sealed = from_hex(&principal).ok_or_else(|| failed("the principal was not encrypted"))?;
            let opened = self.open(key, Place::Principal, &sealed)?;
            record.principal = Some(String::from_utf8_lossy(&opened).into());
        }
        Ok(Some(record))
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
            Outcome::Record(record) => Outcome::Record(self.record(&key, record)),
            Outcome::Session(record) => Outcome::Session(self.session(&key, record)),
            other => other,
        });
    }
}

fn failed(what: &str) -> StoreError {
    StoreError::Failed(what.to_owned())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    digits.collect()
}

/// What stands for a session where a stream's key is asked for.
fn session_key(session: &str) -> StreamKey {
    StreamKey { session: session.into(), nonce: StreamNonce([0; 12]) }
}

impl SealedStore {
    /// A store in front of another one; none without a key.
    pub fn new(inner: Arc<dyn EventStore>, keys: &[EncryptionKey]) -> Option<Self> {
        let ciphers: Vec<XChaCha20Poly1305> = keys.iter().map(|key| XChaCha20Poly1305::new(&key.0.into())).collect();
        let opening = Arc::new(Opening { ciphers, asked: Mutex::default(), next: AtomicU64::new(0) });
        (!keys.is_empty()).then_some(Self { inner, opening })
    }
}

impl EventStore for SealedStore {
    fn append(&self, now: Ms, key: &StreamKey, append: &Append, ticket: &Ticket) -> Answer<()> {
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
                self.inner.append(now, key, &append, ticket)
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

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<Page> {
        let ticket = self.opening.ticket(ticket, key);
        let answer = self.inner.read(key, after, limit, &ticket);
        self.opening.answered(ticket.number, answer, |page| self.opening.page(key, page))
    }

    fn record(&self, key: &StreamKey, ticket: &Ticket) -> Answer<Option<Record>> {
        let ticket = self.opening.ticket(ticket, key);
        let answer = self.inner.record(key, &ticket);
        self.opening.answered(ticket.number, answer, |record| self.opening.record(key, record))
    }

    fn put_session(&self, now: Ms, session: &str, record: &SessionRecord) {
        let seal = |principal: &str| self.opening.seal(&session_key(session), Place::Principal, principal.as_bytes());
        match record.principal.as_deref().map(seal).transpose() {
            Ok(principal) => {
                let principal = principal.map(|sealed| to_hex(&sealed).into());
                self.inner.put_session(now, session, &SessionRecord { principal, ..record.clone() });
            }
            Err(error) => tracing::error!(target: "tailrope", %error, "a session was not stored"),
        }
    }

    fn session(&self, now: Ms, session: &str, ticket: &Ticket) -> Answer<Option<SessionRecord>> {
        let key = session_key(session);
        let ticket = self.opening.ticket(ticket, &key);
        let answer = self.inner.session(now, session, &ticket);
        self.opening.answered(ticket.number, answer, |record| self.opening.session(&key, record))
    }

    fn claim(&self, key: &StreamKey, ticket: &Ticket) -> Answer<u64> {
        self.inner.claim(key, ticket)
    }

    fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        self.inner.watch(key, watcher);
    }

    fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        self.inner.unwatch(key, watcher);
    }

    fn settle(&self, key: &StreamKey, seq: Seq) {
        self.inner.settle(key, seq);
    }

    fn drop_stream(&self, key: &StreamKey) {
        self.inner.drop_stream(key);
    }

    fn drop_session(&self, session: &str) {
        self.inner.drop_session(session);
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
}
