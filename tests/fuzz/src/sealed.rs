//! Payloads encrypted at rest, in a store that changes what it was given: what comes back is what was put there, or an
//! error.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Complete, EncryptionKey, Epoch, EventStore, Hold, Limits, LogPage, Mail,
    MemoryStore, Message, Operation, Outcome, ReadLimit, RunningLog, SealedStore, SessionRecord, StoreError, StreamKey,
    Ticket, Usage,
};
use tailrope_core::stream::{Chain, EventKind, Seq, StoredEvent};

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

impl Damaged {
    fn damage_page(&self, log: &mut LogPage) {
        for event in &mut log.page.events {
            event.frame = self.damage(&event.frame).into();
        }
        log.tail = log.tail.take().map(|tail| self.damage(&tail).into());
    }
}

impl EventStore for Damaged {
    passes_on!(append withdraw release settle drop_stream drop_session sweep usage);

    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut running = now(self.inner.hold(session, hold, ticket));
        for log in running.iter_mut().flatten() {
            log.about = self.damage(&log.about).into();
        }
        Answer::Now(running)
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let mut attached = now(self.inner.attach(session, attach, ticket));
        if let Some(record) = attached.as_mut().ok().and_then(|attached| attached.session.as_mut()) {
            record.note = self.damage(&record.note).into();
        }
        if let Some(log) = attached.as_mut().ok().and_then(|attached| attached.log.as_mut()) {
            log.about = self.damage(&log.about).into();
            self.damage_page(&mut log.page);
        }
        Answer::Now(attached)
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        let mut taken = now(self.inner.take(session, epoch, after, ticket));
        for mail in taken.iter_mut().flatten() {
            mail.message.about = self.damage(&mail.message.about).into();
            mail.message.body = self.damage(&mail.message.body).into();
        }
        Answer::Now(taken)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let mut log = now(self.inner.read(key, after, limit, ticket));
        if let Ok(log) = &mut log {
            self.damage_page(log);
        }
        Answer::Now(log)
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
    let (first, second) = (start.then(payloads[0], None), start.then(payloads[0], None).then(payloads[1], None));
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
        end: None,
        paced: None,
    };
    let epochs = [1, 2].map(|number| Epoch { number, salt: 1 });
    let record =
        SessionRecord { principal: Some(principal.as_str().into()), note: about.clone(), ..SessionRecord::default() };
    let hold = Hold { epoch: epochs[0], seen: None, record: Some(record) };
    now(store.hold(&session, &hold, &ticket(Operation::Hold))).expect("it is taken");
    now(store.append(Ms(0), &key, epochs[0], &append, &ticket(Operation::Append))).expect("it is taken");

    let hold = Hold { epoch: epochs[1], seen: Some(epochs[0]), record: None };
    let running = now(store.hold(&session, &hold, &ticket(Operation::Hold))).expect("it is taken over all the same");
    assert_eq!(
        running[0].about,
        if was_changed() { Bytes::new() } else { about.clone() },
        "what was changed is not taken"
    );
    let end = Append { first: 3, events: Vec::new(), end: Some(Bytes::copy_from_slice(tail)), ..append };
    now(store.append(Ms(0), &key, epochs[1], &end, &ticket(Operation::Append))).expect("it is taken");

    let limit = ReadLimit { up_to: 2, events: 9, bytes: 1 << 20 };
    let is_whole = |log: &LogPage| log.page.events == events && log.tail.as_deref() == Some(tail);
    match now(store.read(&key, 0, limit, &ticket(Operation::Read(1)))) {
        Ok(log) => assert!(!was_changed() && is_whole(&log)),
        Err(error) => assert!(was_changed() && matches!(error, StoreError::Failed(_)), "{error}"),
    }
    let attach = Attach { stream: Some(nonce), principal: Some(principal.as_str().into()), limit, ..Attach::default() };
    match now(store.attach(&session, &attach, &ticket(Operation::Attach(1)))) {
        // Nobody's session is found by a record that was changed.
        Ok(Attached { session: None, log, .. }) => assert!(was_changed() && log.is_none()),
        Ok(attached) => {
            let (log, session) = (attached.log.expect("it is there"), attached.session.expect("it is hers"));
            assert!(!was_changed() && log.about == about && is_whole(&log.page) && session.note == about);
        }
        Err(error) => assert!(was_changed() && matches!(error, StoreError::Failed(_)), "{error}"),
    }
    let message = Message { about, body: Bytes::copy_from_slice(payloads[0]) };
    let posted = StreamNonce(nonce.0.map(|byte| !byte));
    let post = Attach { stream: Some(posted), message: Some(message.clone()), ..attach.clone() };
    let told = now(store.attach(&session, &post, &ticket(Operation::Attach(3))));
    let is_told = told.is_ok_and(|attached| attached.session.is_some());
    assert_ne!(is_told, was_changed(), "it is left, whether its log can be read or not");
    let mail = now(store.take(&session, epochs[1], 0, &ticket(Operation::Take))).expect("the owner takes");
    assert_eq!((mail.len(), mail[0].nonce), (1, posted));
    assert_eq!(
        mail[0].message,
        if was_changed() { Message::default() } else { message },
        "what was changed is not taken"
    );
    let foreign = Attach { principal: Some(format!("{principal}x").into()), ..attach };
    let found = now(store.attach(&session, &foreign, &ticket(Operation::Attach(2)))).expect("nothing is read");
    assert!(found.is_foreign && found.session.is_none() && found.log.is_none(), "I7");
}
