//! Payloads encrypted at rest, in a store that changes what it was given: what comes back is what was put there, or an
//! error.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Complete, EncryptionKey, EventStore, Limits, MemoryStore, Operation, Outcome, ReadLimit, Record,
    SealedStore, SessionRecord, StoreError, StreamKey, Ticket, Usage,
};
use tailrope_core::stream::{Chain, EventKind, Page, Seq, StoredEvent};

use crate::reader::Reader;

/// What the store does to bytes before it gives them back.
#[derive(Clone, Debug, Default)]
enum Damage {
    #[default]
    None,
    Flip(usize, u8),
    Cut(usize),
    Longer(u8),
    Other(Vec<u8>),
}

impl Damage {
    fn read(reader: &mut Reader<'_>) -> Self {
        match reader.u8() % 5 {
            0 => Self::None,
            1 => Self::Flip(usize::from(reader.u16()), reader.u8().max(1)),
            2 => Self::Cut(usize::from(reader.u8())),
            3 => Self::Longer(reader.u8()),
            _ => Self::Other(reader.bytes().to_vec()),
        }
    }

    fn of(&self, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        match self {
            Self::None => {}
            Self::Flip(at, with) => {
                let at = at % damaged.len().max(1);
                if let Some(byte) = damaged.get_mut(at) {
                    *byte ^= with;
                }
            }
            Self::Cut(at) => damaged.truncate(at % (damaged.len() + 1)),
            Self::Longer(byte) => damaged.push(*byte),
            Self::Other(other) => damaged.clone_from(other),
        }
        damaged
    }
}

/// A memory store with damage.
struct Damaged {
    inner: MemoryStore,
    damage: Damage,
    /// Whether anything that came back was another thing than what was put there.
    changed: Mutex<bool>,
}

impl Damaged {
    fn damage(&self, bytes: &[u8]) -> Vec<u8> {
        let damaged = self.damage.of(bytes);
        *self.changed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) |= damaged != bytes;
        damaged
    }
}

impl EventStore for Damaged {
    passes_on!(append put_session settle drop_stream drop_session sweep usage);

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<Page> {
        let mut page = now(self.inner.read(key, after, limit, ticket));
        for event in page.iter_mut().flat_map(|page| &mut page.events) {
            event.frame = self.damage(&event.frame).into();
        }
        Answer::Now(page)
    }

    fn record(&self, key: &StreamKey, ticket: &Ticket) -> Answer<Option<Record>> {
        let mut record = now(self.inner.record(key, ticket));
        if let Ok(Some(record)) = &mut record {
            record.about = self.damage(&record.about).into();
            record.tail = record.tail.take().map(|tail| self.damage(&tail).into());
        }
        Answer::Now(record)
    }

    fn session(&self, at: Ms, session: &str, ticket: &Ticket) -> Answer<Option<SessionRecord>> {
        let mut record = now(self.inner.session(at, session, ticket));
        if let Ok(Some(record)) = &mut record {
            let damaged = |text: Box<str>| String::from_utf8_lossy(&self.damage(text.as_bytes())).into();
            record.principal = record.principal.take().map(damaged);
        }
        Answer::Now(record)
    }
}

fn now<T>(answer: Answer<T>) -> Result<T, StoreError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later => unreachable!("the memory store answers at once"),
    }
}

/// Who waits for nothing, as the memory store answers at once.
struct Nobody;

impl Complete for Nobody {
    fn complete(&self, _: &Ticket, _: Outcome) {}
}

pub(crate) fn run(mut reader: Reader<'_>) {
    let damage = Damage::read(&mut reader);
    let nonce = StreamNonce(reader.array_12());
    let (about, tail, principal) = (reader.bytes(), reader.bytes(), reader.text());
    let session = reader.text();
    let payloads = [reader.bytes(), reader.bytes()];

    let damaged = Arc::new(Damaged { inner: MemoryStore::new(Limits::default()), damage, changed: Mutex::default() });
    let key = EncryptionKey::from_hex(&"5a".repeat(32)).expect("it is a key");
    let store = SealedStore::new(Arc::clone(&damaged) as _, &[key]).expect("there is a key");
    let to: Weak<Nobody> = Weak::new();
    let ticket = |operation| Ticket { to: to.clone(), nonce, operation, number: 1 };
    let key = StreamKey { session: session.as_str().into(), nonce };
    let was_changed =
        || std::mem::take(&mut *damaged.changed.lock().unwrap_or_else(std::sync::PoisonError::into_inner));

    let about = Bytes::copy_from_slice(about);
    let start = Chain::start(&nonce.0);
    let (first, second) = (start.then(payloads[0]), start.then(payloads[0]).then(payloads[1]));
    let event = |seq, chain: Chain, payload: &[u8]| StoredEvent {
        seq,
        kind: EventKind::Progress,
        tag: chain.tag(),
        frame: payload.into(),
    };
    let events = [event(1, first, payloads[0]), event(2, second, payloads[1])];
    let append = Append {
        first: 1,
        events: events.to_vec(),
        chain_before: start.0,
        chain: second.0,
        about: about.clone(),
        primes: false,
        end: Some(Bytes::copy_from_slice(tail)),
        retry_ms: None,
    };
    now(store.append(Ms(0), &key, &append, &ticket(Operation::Append))).expect("it is taken");
    let limit = ReadLimit { up_to: 2, events: 9, bytes: 1 << 20 };
    match now(store.read(&key, 0, limit, &ticket(Operation::Read(1)))) {
        Ok(page) => assert!(!was_changed() && page.events == events, "what was changed is not taken"),
        Err(error) => assert!(was_changed() && matches!(error, StoreError::Failed(_)), "{error}"),
    }

    match now(store.record(&key, &ticket(Operation::Record))) {
        Ok(Some(record)) => {
            assert!(!was_changed() && record.about == about && record.tail.as_deref() == Some(tail));
        }
        Ok(None) => panic!("it has a record"),
        Err(error) => assert!(was_changed() && matches!(error, StoreError::Failed(_)), "{error}"),
    }

    let record = SessionRecord { principal: Some(principal.as_str().into()), ..SessionRecord::default() };
    store.put_session(Ms(0), &session, &record);
    match now(store.session(Ms(0), &session, &ticket(Operation::Session))) {
        // The digits of its hexadecimal text may be written in more than one way.
        Ok(Some(read)) => assert_eq!(read.principal.as_deref(), Some(&*principal)),
        Ok(None) => panic!("it has a record"),
        Err(error) => assert!(was_changed() && matches!(error, StoreError::Failed(_)), "{error}"),
    }
}
