//! An engine whose store says anything: of sessions and logs of other processes, and of its own. Nothing panics, nobody
//! waits for ever in one call, and every connection gets a suffix of one log in order, up to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, LookUp, NoWake, Options, OutgoingMessage, Poll, SessionHandle};
use tailrope_core::protocol::{
    Dialect, EventId, IdEncoder, ListChanged, MAX_SEQ, Origin, RequestId, Revision, StreamNonce, sse,
};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, AttachedLog, Epoch, EventStore, Hold, LogPage, Mail, Message, Owner, ReadLimit,
    RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage, Watcher,
};
use tailrope_core::stream::{Drain, EventKind, Paced, Pacing, Page, Seq, StoredEvent};

use crate::kit::common::{Bench, notification, response};
use crate::kit::dice::Dice;
use crate::suffix::{self, Asked};

/// Steps of one schedule.
const MAX_STEPS: u32 = 200;
/// What a log says of how its connections are paced.
const PACED: [Paced; 3] = [
    Paced {
        retry_ms: None,
        hold_ms: None,
        max_connection_ms: None,
        max_connection_bytes: None,
        retention_ms: None,
        closes: 0,
        closed_at: 0,
    },
    Paced {
        retry_ms: Some(30),
        hold_ms: Some(0),
        max_connection_ms: Some(1),
        max_connection_bytes: Some(1),
        retention_ms: Some(1),
        closes: 1,
        closed_at: 1,
    },
    Paced {
        retry_ms: Some(u32::MAX),
        hold_ms: Some(u64::MAX),
        max_connection_ms: Some(u64::MAX),
        max_connection_bytes: Some(u64::MAX),
        retention_ms: Some(u64::MAX),
        closes: u64::MAX,
        closed_at: Seq::MAX,
    },
];
const REVISIONS: [Revision; 4] =
    [Revision::V2025_11_25, Revision::V2025_06_18, Revision::V2025_03_26, Revision::V2024_11_05];

/// A store whose every answer is a choice.
struct Anything {
    dice: Mutex<Dice>,
    /// Streams that were written or read, and who wants to know of them.
    watched: Mutex<(Vec<StreamNonce>, Option<Watcher>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of a number from 0 on. A store is given no stream by [`StreamNonce::NONE`], and names none by it.
fn nonce(number: u64) -> StreamNonce {
    StreamNonce([u8::try_from(number + 1).unwrap_or(1); 12])
}

fn request(number: u64) -> RequestId {
    if number == 0 { RequestId::text_id("1") } else { RequestId::Integer(number.to_string().into()) }
}

fn position(dice: &mut Dice) -> Seq {
    match dice.below(12) {
        // Room for the events of a schedule: no log comes to the end of the numbers.
        10 => MAX_SEQ - 1_000,
        11 => MAX_SEQ - 1_001,
        small => small,
    }
}

/// An age in milliseconds.
fn age(dice: &mut Dice) -> u64 {
    [0, 1, 9_999, 10_000, u64::MAX][dice.place(5)]
}

impl Anything {
    fn fails<T>(dice: &mut Dice) -> Option<Answer<T>> {
        let error = match dice.below(16) {
            10 => StoreError::Gone,
            11 => StoreError::OutOfOrder,
            12 => StoreError::RolledBack,
            13 => StoreError::Fenced,
            14 => StoreError::Failed("it is away".to_owned()),
            15 => StoreError::TimedOut { after_ms: 1 },
            _ => return None,
        };
        Some(Answer::Now(Err(error)))
    }

    fn frame(dice: &mut Dice, stream: StreamNonce, seq: Seq) -> Arc<[u8]> {
        let origin = match dice.below(3) {
            0 => Origin::Standalone,
            1 => Origin::Unnamed,
            _ => Origin::Request(request(dice.below(3))),
        };
        let mut frame = Vec::new();
        let ids = IdEncoder::new(stream, &origin);
        sse::write_message(&mut frame, |out| ids.encode(seq, 0, 0, out), &notification("n"));
        frame.into()
    }

    fn about(dice: &mut Dice) -> Bytes {
        let about = match dice.below(8) {
            0 => Vec::new(),
            1 => b"[]".to_vec(),
            2 => RequestId::encode_all(&[request(1)]),
            3 => RequestId::encode_all(&[request(0), request(1)]),
            4 => RequestId::encode_all(&[request(1), request(1)]),
            5 => b"[1.5]".to_vec(),
            6 => b"\xFF{".to_vec(),
            _ => (0..dice.below(12)).map(|_| u8::try_from(dice.below(256)).unwrap_or(0)).collect(),
        };
        about.into()
    }

    fn message(dice: &mut Dice) -> Message {
        let body = match dice.below(5) {
            0 => Vec::new(),
            1 => notification("n"),
            2 => response(&request(1)),
            3 => br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}"#.to_vec(),
            _ => b"\xFF{".to_vec(),
        };
        Message { about: Self::about(dice), body: body.into() }
    }

    fn epoch(dice: &mut Dice) -> Epoch {
        Epoch { number: [0, 1, 2, u64::MAX][dice.place(4)], salt: dice.below(2) }
    }

    fn log(dice: &mut Dice, stream: StreamNonce, after: Seq, up_to: Seq) -> LogPage {
        let mut seq = if dice.below(8) == 7 { position(dice) } else { after };
        let mut events = Vec::new();
        for _ in 0..dice.below(5) {
            seq = match dice.below(8) {
                6 => position(dice),
                7 => seq + 2,
                _ => seq + 1,
            }
            .min(MAX_SEQ - 1_000);
            let kind = [EventKind::Progress, EventKind::Answer, EventKind::Question, EventKind::Terminal];
            let kind = kind[dice.place(4)];
            let frame = Self::frame(dice, stream, seq);
            events.push(StoredEvent { seq, kind, tag: u32::from(dice.one_in(2)), frame });
        }
        let head = if dice.below(4) == 3 || up_to == Seq::MAX { position(dice) } else { up_to };
        let low = if dice.below(4) == 3 { position(dice) } else { 1 };
        let tag_at = [Some(0), Some(0), Some(1), None][dice.place(4)];
        let chain = dice.below(3);
        LogPage {
            page: Page { events, head, low, tag_at },
            chain,
            paced: PACED[usize::try_from(chain).unwrap_or(0)],
            is_finished: dice.below(3) == 2,
            tail: (dice.below(4) == 3).then(|| Bytes::from(response(&request(1)))),
            readers: [0, 1, 2, u64::MAX][dice.place(4)],
            owner: dice.one_in(2).then(|| Owner { epoch: Self::epoch(dice), unseen_ms: age(dice) }),
        }
    }
}

impl Anything {
    fn note(&self, stream: StreamNonce) {
        let streams = &mut lock(&self.watched).0;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

impl EventStore for Anything {
    fn hold(&self, _: &str, _: &Hold, _: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut dice = lock(&self.dice);
        let dice = &mut *dice;
        if let Some(failed) = Self::fails(dice) {
            return failed;
        }
        let count = dice.below(3);
        let running = |_| {
            let (nonce, head) = (nonce(dice.below(3)), position(dice));
            RunningLog { nonce, head, chain: dice.below(3), about: Self::about(dice) }
        };
        Answer::ok((0..count).map(running).collect())
    }

    fn append(&self, _: Ms, key: &StreamKey, _: Epoch, _: &Append, _: &Ticket) -> Answer<()> {
        self.note(key.nonce);
        Self::fails(&mut lock(&self.dice)).unwrap_or_else(|| Answer::ok(()))
    }

    fn attach(&self, _: &str, attach: &Attach, _: &Ticket) -> Answer<Attached> {
        let mut dice = lock(&self.dice);
        let dice = &mut *dice;
        if let Some(failed) = Self::fails(dice) {
            return failed;
        }
        if attach.message.is_some() && dice.one_in(8) {
            return Answer::Now(Err(StoreError::InboxFull { max: 1 }));
        }
        if dice.below(8) == 7 {
            return Answer::ok(Attached { is_foreign: dice.one_in(2), ..Attached::default() });
        }
        let lists = dice.below(8);
        let session = SessionRecord {
            revision: (dice.below(6) < 5).then(|| REVISIONS[dice.place(4)]),
            principal: (dice.below(8) == 7).then(|| "somebody".into()),
            retry_ms: [3_000, 0, 1, u32::MAX][dice.place(4)],
            list_changed: ListChanged { tools: lists & 1 != 0, prompts: lists & 2 != 0, resources: lists & 4 != 0 },
            standalone: (dice.below(4) < 3).then(|| nonce(dice.below(3))),
            note: "note".into(),
        };
        attach.stream.iter().for_each(|stream| self.note(*stream));
        let log = attach.stream.filter(|_| dice.below(8) < 7).map(|stream| AttachedLog {
            about: Self::about(dice),
            page: {
                let retry_ms = [None, Some(0), Some(50), Some(u32::MAX)][dice.place(4)];
                let page = Self::log(dice, stream, attach.after, attach.limit.up_to);
                LogPage { paced: Paced { retry_ms, ..page.paced }, ..page }
            },
        });
        Answer::ok(Attached { session: Some(session), is_foreign: false, log })
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, _: &Ticket) -> Answer<LogPage> {
        let mut dice = lock(&self.dice);
        let dice = &mut *dice;
        Self::fails(dice).unwrap_or_else(|| Answer::ok(Self::log(dice, key.nonce, after, limit.up_to)))
    }

    fn take(&self, _: &str, _: Epoch, after: u64, _: &Ticket) -> Answer<Vec<Mail>> {
        let mut dice = lock(&self.dice);
        let dice = &mut *dice;
        if let Some(failed) = Self::fails(dice) {
            return failed;
        }
        let count = dice.below(3);
        let mail = |_| {
            let number = [after.saturating_add(1), after, u64::MAX][dice.place(3)];
            Mail { number, nonce: nonce(dice.below(3)), message: Self::message(dice) }
        };
        Answer::ok((0..count).map(mail).collect())
    }

    fn withdraw(&self, _: Ms, _: &StreamKey, _: &Bytes, _: &Ticket) -> Answer<bool> {
        let mut dice = lock(&self.dice);
        Self::fails(&mut dice).unwrap_or_else(|| Answer::ok(dice.one_in(2)))
    }

    fn release(&self, _: &str, _: Epoch) {}

    fn watch(&self, _: &Arc<str>, watcher: &Watcher) {
        lock(&self.watched).1 = Some(Watcher::clone(watcher));
    }

    fn settle(&self, _: &StreamKey, _: Epoch, _: Seq) {}

    fn drop_stream(&self, _: &StreamKey, _: Epoch) {}

    fn drop_session(&self, _: &str, _: Epoch) {}

    fn sweep(&self, now: Ms) -> Ms {
        now + 1_000
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

struct Reader {
    connection: Connection,
    asked: Asked,
    text: String,
    ended: bool,
}

pub(crate) fn run(bytes: &[u8]) {
    let store = Arc::new(Anything { dice: Mutex::new(Dice::of(bytes)), watched: Mutex::default() });
    let pacing = Pacing { store_wait_ms: 600, ..Pacing::default() };
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), pacing, ..Options::default() });
    let mut world = World { store, bench, session: None, look_up: None, readers: Vec::new() };
    for _ in 0..MAX_STEPS {
        if lock(&world.store.dice).is_used_up() {
            break;
        }
        world.step();
    }
    for _ in 0..20 {
        world.bench.advance(500);
        (0..world.readers.len()).for_each(|at| world.read(at));
    }
    for reader in &world.readers {
        suffix::check(&reader.asked, &reader.text);
    }
    if let Some(session) = &world.session {
        session.end();
    }
    (0..world.readers.len()).for_each(|at| world.read(at));
    assert!(world.readers.iter().all(|reader| reader.ended), "the end of the session ends every connection");
    // An engine that is not closed holds its sessions.
    world.bench.engine.close();
}

struct World {
    store: Arc<Anything>,
    bench: Bench,
    session: Option<SessionHandle>,
    look_up: Option<LookUp>,
    readers: Vec<Reader>,
}

impl World {
    fn below(&self, bound: u64) -> u64 {
        lock(&self.store.dice).below(bound)
    }

    fn step(&mut self) {
        let Some(session) = self.session.clone() else { return self.begin() };
        match self.below(16) {
            0..=2 => {
                let at = self.below(self.readers.len().max(1) as u64);
                self.read(usize::try_from(at).unwrap_or(0));
            }
            3 | 4 => {
                // A client may also name no stream.
                let (nonce, tag) = (self.below(4).checked_sub(1).map_or(StreamNonce::NONE, nonce), self.below(2));
                let seq = position(&mut lock(&self.store.dice));
                let origin = match self.below(3) {
                    0 => Origin::Standalone,
                    1 => Origin::Unnamed,
                    _ => Origin::Request(request(self.below(3))),
                };
                let mut id = Vec::new();
                let visit = u32::try_from(self.below(4)).unwrap_or(0);
                let tag = u32::try_from(tag).unwrap_or(0);
                IdEncoder::new(nonce, &origin).encode(seq, visit, tag, &mut id);
                self.resume(&session, &String::from_utf8_lossy(&id));
            }
            5 => {
                // An id that was sent.
                let ids = self.readers.iter().flat_map(|reader| reader.text.lines());
                let ids: Vec<String> = ids.filter_map(|line| line.strip_prefix("id: ").map(str::to_owned)).collect();
                let at = self.below(ids.len().max(1) as u64);
                if let Some(id) = ids.get(usize::try_from(at).unwrap_or(0)) {
                    self.resume(&session, id);
                }
            }
            6 => self.attach(Asked::Listen, session.listen(Arc::new(NoWake), 0)),
            7 => {
                let ids = [request(self.below(3)), request(3)];
                let count = usize::try_from(self.below(2)).unwrap_or(0) + 1;
                self.attach(Asked::Call, session.call(&ids[..count], None, Arc::new(NoWake), 0));
            }
            8 | 9 => {
                let number = self.below(4);
                let related = (number < 3).then(|| request(number));
                let _ = session.send(OutgoingMessage::notification(related.as_ref(), &notification("n")));
            }
            10 => {
                let id = request(self.below(4));
                let _ = session.send(OutgoingMessage::response(&id, &response(&id)));
            }
            11 => {
                let lost = self.below(self.readers.len().max(1) as u64);
                if let Some(reader) = self.readers.get_mut(usize::try_from(lost).unwrap_or(0)) {
                    reader.connection.lost();
                }
            }
            12 => {
                let hold_ms = [None, Some(0), Some(30)][usize::try_from(self.below(3)).unwrap_or(0)];
                if self.below(2) == 0 {
                    session.close_standalone(Some(7), hold_ms);
                } else {
                    session.close_connection(&request(self.below(3)), None, hold_ms);
                }
            }
            13 => {
                let (streams, watcher) = lock(&self.store.watched).clone();
                let at = self.below(streams.len() as u64 + 1);
                if let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) {
                    let stream = streams.get(usize::try_from(at).unwrap_or(0));
                    stream.map_or_else(|| watcher.all_changed(), |stream| watcher.changed(*stream));
                    watcher.posted();
                }
            }
            14 => self.bench.advance([1, 40, 300, 1_000, 20_000][usize::try_from(self.below(5)).unwrap_or(0)]),
            _ => match self.below(8) {
                6 => self.bench.engine.drain(Drain::after(1_000)),
                7 => session.let_go(),
                _ => drop(session.cancelled(&request(self.below(3)))),
            },
        }
        session.take_outcomes();
    }

    fn begin(&mut self) {
        let dialect = &Dialect::MCP_PYTHON_2;
        if let Some(look_up) = &self.look_up {
            match look_up.take() {
                Some(Ok(Some(session))) => self.session = Some(session),
                Some(_) => self.look_up = None,
                None => self.bench.advance(1_000),
            }
        } else if self.below(3) == 0 {
            let revision = REVISIONS[usize::try_from(self.below(2)).unwrap_or(0)];
            self.session = Some(self.bench.session_of("own", revision, dialect));
        } else {
            self.look_up = self.bench.engine.look_up_session("other", None, None, dialect, Arc::new(NoWake), 0).ok();
        }
    }

    fn resume(&mut self, session: &SessionHandle, id: &str) {
        let asked = match EventId::parse(id) {
            Some(EventId::Position(cursor)) => Asked::Behind(cursor),
            Some(EventId::Tombstone(..)) | None => Asked::Nothing,
        };
        self.attach(asked, session.resume(id, None, Arc::new(NoWake), 0));
    }

    fn attach<E>(&mut self, asked: Asked, connection: Result<Connection, E>) {
        if let Ok(connection) = connection {
            self.readers.push(Reader { connection, asked, text: String::new(), ended: false });
        }
    }

    fn read(&mut self, at: usize) {
        let Some(reader) = self.readers.get_mut(at) else { return };
        for _ in 0..10_000 {
            let poll: Poll = reader.connection.poll(64 << 10);
            assert!(!reader.ended || poll.is_empty(), "I6: nothing follows the end");
            reader.text.push_str(&poll.text());
            reader.ended |= poll.end.is_some();
            if poll.end.is_some() || poll.is_empty() {
                return;
            }
        }
        panic!("a connection has no end of things to write");
    }
}
