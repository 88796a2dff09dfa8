//! An engine with a store that answers late, out of order and not at all, and what every connection was sent, as
//! bytes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::kit::common::{Bench, NEW, SlowStore, check_sum, frames, notification, read_now, response};
use crate::kit::dice::Dice;
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, EngineError, NoWake, Options, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::protocol::{EventId, RequestId};
use tailrope_core::session::OutgoingKind;
use tailrope_core::store::{Limits, StoreError, StreamKey, session_name};

/// The streams of a schedule: three calls, and the standalone stream.
const STREAMS: usize = 4;

struct Reader {
    stream: usize,
    /// None once it is lost.
    connection: Option<Connection>,
    text: String,
    ended: bool,
}

pub(crate) struct World {
    dice: Dice,
    bench: Bench,
    store: Arc<SlowStore>,
    session: SessionHandle,
    readers: Vec<Reader>,
    /// What was sent on each stream, with the number of its outcome.
    sent: [Vec<(u64, Value)>; STREAMS],
    answered: [bool; STREAMS],
    outcomes: HashMap<u64, Word>,
}

/// What a sender was told of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Stored,
    /// The store takes too long: it may be stored, or come some time.
    Late,
    Refused,
}

fn request(stream: usize) -> Option<RequestId> {
    (stream > 0).then(|| RequestId::integer(i64::try_from(stream).unwrap()))
}

impl World {
    /// `calls_off`: the store is given up where it takes too long.
    pub(crate) fn new(dice: Dice, calls_off: bool) -> Self {
        let store = SlowStore::new(Limits::default());
        store.calls_off.store(true, Ordering::SeqCst);
        let store_timeout_ms = if calls_off { 60 } else { 0 };
        let bench =
            Bench::new(Options { store: Some(Arc::clone(&store) as _), store_timeout_ms, ..Options::default() });
        let session = bench.session("s", NEW);
        store.set(true, false);
        let mut world = Self {
            dice,
            bench,
            store,
            session,
            readers: Vec::new(),
            sent: Default::default(),
            answered: [false; STREAMS],
            outcomes: HashMap::new(),
        };
        for stream in 1..STREAMS {
            let connection = world.session.call(&[request(stream).unwrap()], None, Arc::new(NoWake), 0).unwrap();
            world.attach(stream, connection);
        }
        world
    }

    /// Whether the schedule has come to the end of its choices.
    #[allow(dead_code, reason = "a schedule of a seed has a length instead")]
    pub(crate) fn is_used_up(&self) -> bool {
        self.dice.is_used_up()
    }

    /// Ends everything: an engine that is not closed holds its sessions.
    #[allow(dead_code, reason = "where leaks are looked for")]
    pub(crate) fn close(self) {
        self.bench.engine.close();
    }

    fn attach(&mut self, stream: usize, connection: Connection) {
        self.readers.push(Reader { stream, connection: Some(connection), text: String::new(), ended: false });
    }

    pub(crate) fn step(&mut self) {
        check_sum(&self.bench.engine.stats());
        let stream = self.dice.place(STREAMS);
        match self.dice.place(16) {
            0..=4 => {
                let name = format!("s{stream}e{}", self.sent[stream].len());
                let related = request(stream);
                self.send(stream, json!(name), OutgoingMessage::notification(related.as_ref(), &notification(&name)));
            }
            5 if stream > 0 && self.dice.place(4) == 0 => {
                let id = request(stream).unwrap();
                let number = json!({"result": stream});
                self.send(stream, number, OutgoingMessage::response(&id, &response(&id)));
                self.answered[stream] = true;
            }
            5..=9 => {
                let pending = self.store.pending();
                if pending > 0 {
                    let (at, succeed) = (self.dice.place(pending), self.dice.place(6) > 0);
                    self.store.answer_nth(at, succeed);
                }
            }
            10 => self.resume(),
            11 if stream == 0 => {
                let connection = self.session.listen(Arc::new(NoWake), 0).unwrap();
                self.attach(0, connection);
            }
            11 if self.dice.place(2) == 0 => {
                let hold_ms = [None, Some(0), Some(30)][self.dice.place(3)];
                self.session.close_connection(&request(stream).unwrap(), None, hold_ms);
            }
            12 => {
                let at = self.dice.place(self.readers.len());
                self.readers[at].connection = None;
            }
            13 => self.bench.advance(self.dice.below(40)),
            _ => {
                let at = self.dice.place(self.readers.len());
                self.read(at);
            }
        }
    }

    fn send(&mut self, stream: usize, what: Value, message: OutgoingMessage<'_>) {
        let is_response = matches!(message.kind, OutgoingKind::Response);
        match self.session.send(message) {
            Ok(Sent::Pending(number)) => self.sent[stream].push((number, what)),
            Ok(Sent::Ahead) => self.sent[stream].push((0, what)),
            Ok(Sent::Dropped) => assert!(self.answered[stream], "I13: only what comes after the end is dropped"),
            Ok(Sent::Stored) => panic!("I1: the store was not asked"),
            Err(EngineError::Store(StoreError::TimedOut { .. })) => assert!(!is_response, "I13: a response is taken"),
            Err(error) => panic!("nothing else of this is refused: {error}"),
        }
        self.take_outcomes();
    }

    fn take_outcomes(&mut self) {
        for (number, outcome) in self.session.take_outcomes() {
            let word = match outcome {
                Ok(()) | Err(EngineError::Earlier(_)) => Word::Stored,
                Err(EngineError::Store(StoreError::TimedOut { .. })) => Word::Late,
                Err(_) => Word::Refused,
            };
            assert!(self.outcomes.insert(number, word).is_none(), "one outcome for each message");
        }
    }

    fn resume(&mut self) {
        let at = self.dice.place(self.readers.len());
        let Reader { stream, text, .. } = &self.readers[at];
        let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: a").map(|_| &line[4..])).collect();
        if ids.is_empty() {
            return;
        }
        let (stream, id) = (*stream, ids[self.dice.place(ids.len())].to_owned());
        let connection = self.session.resume(&id, None, Arc::new(NoWake), 0).unwrap();
        self.attach(stream, connection);
    }

    fn read(&mut self, at: usize) -> bool {
        let reader = &mut self.readers[at];
        let Some(connection) = &reader.connection else { return false };
        let answered = read_now(connection);
        assert!(!reader.ended || answered.text.is_empty(), "I4, I6: nothing follows the end");
        reader.text.push_str(&answered.text);
        let news = !answered.text.is_empty() || answered.end.is_some() && !reader.ended;
        reader.ended |= answered.end.is_some();
        news
    }

    /// The store works again: everything comes to rest.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000 {
            self.store.answer_all();
            self.bench.advance(50);
            let news = (0..self.readers.len()).filter(|at| self.read(*at)).count() > 0;
            if !news && self.store.pending() == 0 {
                break;
            }
        }
        // Reads that failed are tried again after a pause.
        for _ in 0..8 {
            self.bench.advance(50);
            self.store.answer_all();
            for at in 0..self.readers.len() {
                self.read(at);
            }
            self.store.answer_all();
        }
        self.take_outcomes();
    }

    /// What the log of a stream holds, and whether it ends with an error of the engine.
    fn log(&self, stream: usize) -> (Vec<Value>, bool) {
        let cursors = self.readers.iter().filter(|reader| reader.stream == stream).find_map(|reader| {
            let id = reader.text.lines().find_map(|line| line.strip_prefix("id: a").map(|_| &line[4..]))?;
            EventId::parse(id)
        });
        let Some(EventId::Position(cursor)) = cursors else { return (Vec::new(), self.answered[stream]) };
        let text = self.store.text_now(&StreamKey { session: session_name("s"), nonce: cursor.nonce });
        let log: Vec<Value> = frames(&text).into_iter().map(|frame| frame["is"].clone()).collect();
        let mut at = 0;
        for (number, what) in &self.sent[stream] {
            let is_kept = log.get(at) == Some(what);
            at += usize::from(is_kept);
            let word = self.outcomes.get(number).copied().unwrap_or(Word::Late);
            // The outcome of a response is never an error (I9).
            let is_response = what.is_object();
            assert!(is_response || word != Word::Stored || is_kept, "I1: {what} is stored");
            assert!(word != Word::Refused || !is_kept, "I9: {what} is not stored");
            assert!(*number == 0 || self.outcomes.contains_key(number), "every message has an outcome");
        }
        assert_eq!(at, log.len(), "I2: in the order of publishing, once each: {log:?}");
        let failed = self.answered[stream] && !log.last().is_some_and(Value::is_object);
        (log, failed)
    }

    pub(crate) fn check(&mut self) {
        let mut last = Vec::new();
        for stream in 0..STREAMS {
            if !self.readers.iter().any(|reader| reader.stream == stream) {
                continue;
            }
            // One more client reads everything, if anybody has a cursor.
            let first = self.readers.iter().filter(|reader| reader.stream == stream).flat_map(|reader| {
                reader.text.lines().filter_map(|line| line.strip_prefix("id: a").map(|_| line[4..].to_owned()))
            });
            let Some(id) = first.min_by_key(|id| id[17..23].to_owned()) else { continue };
            let connection = self.session.resume(&id, None, Arc::new(NoWake), 0).unwrap();
            self.attach(stream, connection);
            last.push((stream, self.readers.len() - 1));
        }
        self.settle();
        for (stream, at) in last {
            assert_eq!(self.readers[at].head(), self.log(stream).0.len(), "I3: the suffix is complete");
        }
        for stream in 0..STREAMS {
            if self.readers.iter().any(|reader| reader.stream == stream) {
                let (log, failed) = self.log(stream);
                let readers = self.readers.iter().filter(|reader| reader.stream == stream);
                readers.for_each(|reader| reader.check(&log, failed));
            }
        }
    }
}

impl Reader {
    /// The last position that it was sent.
    fn head(&self) -> usize {
        let positions = frames(&self.text).into_iter().filter_map(|frame| {
            let seq = frame.get("event").or_else(|| frame.get("priming"))?.as_u64()?;
            usize::try_from(seq).ok()
        });
        positions.max().unwrap_or(0)
    }

    fn check(&self, log: &[Value], failed: bool) {
        let mut at = None;
        for frame in frames(&self.text) {
            if let Some(seq) = frame.get("priming") {
                assert!(at.is_none(), "I5: one priming event, first");
                at = seq.as_u64();
            } else if let Some(seq) = frame.get("event") {
                let next = at.expect("I5: the first bytes are the priming event") + 1;
                assert_eq!(seq.as_u64(), Some(next), "I3: neither gap nor repeat");
                assert_eq!(frame["is"], log[usize::try_from(next).unwrap() - 1], "I2: in the order of publishing");
                at = Some(next);
            } else if frame.get("tombstone").is_some() {
                // Without a priming event where the log itself could not be created.
                assert!(failed && at.unwrap_or(0) == log.len() as u64, "I13: the end comes last, where it has to");
            } else {
                assert!(frame.get("gap").is_none(), "I8: nothing was trimmed");
            }
        }
    }
}
