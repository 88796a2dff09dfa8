//! The engine over random schedules with a store that answers late, out of order and not at all: what
//! every connection was sent, as bytes.
//!
//! TAILROPE_SEED repeats the schedule of a failure.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Bench, NEW, SlowStore, frames, notification, read_now, response};
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, NoWake, Options, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::protocol::RequestId;
use tailrope_core::store::Limits;

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

/// The streams of a schedule: three calls, and the standalone stream.
const STREAMS: usize = 4;

struct Reader {
    stream: usize,
    /// None once it is lost.
    connection: Option<Connection>,
    text: String,
    ended: bool,
}

struct World {
    dice: Dice,
    bench: Bench,
    store: Arc<SlowStore>,
    session: SessionHandle,
    readers: Vec<Reader>,
    /// What was sent on each stream, with the number of its outcome.
    sent: [Vec<(u64, Value)>; STREAMS],
    answered: [bool; STREAMS],
    outcomes: HashMap<u64, bool>,
}

fn request(stream: usize) -> Option<RequestId> {
    (stream > 0).then(|| RequestId::integer(i64::try_from(stream).unwrap()))
}

impl World {
    fn new(seed: u64) -> Self {
        let store = SlowStore::new(Limits::default());
        // Half of the stores are given up where they take too long.
        store.calls_off.store(true, Ordering::SeqCst);
        let store_timeout_ms = if seed.is_multiple_of(2) { 0 } else { 60 };
        let bench =
            Bench::new(Options { store: Some(Arc::clone(&store) as _), store_timeout_ms, ..Options::default() });
        let session = bench.session("s", NEW);
        store.set(true, false);
        let mut world = Self {
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
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

    fn attach(&mut self, stream: usize, connection: Connection) {
        self.readers.push(Reader { stream, connection: Some(connection), text: String::new(), ended: false });
    }

    fn step(&mut self) {
        let stream = self.dice.below(STREAMS);
        match self.dice.below(16) {
            0..=4 => {
                let name = format!("s{stream}e{}", self.sent[stream].len());
                let related = request(stream);
                self.send(stream, json!(name), OutgoingMessage::notification(related.as_ref(), &notification(&name)));
            }
            5 if stream > 0 && self.dice.below(4) == 0 => {
                let id = request(stream).unwrap();
                let number = json!({"result": stream});
                self.send(stream, number, OutgoingMessage::response(&id, &response(&id)));
                self.answered[stream] = true;
            }
            5..=9 => {
                let pending = self.store.pending();
                if pending > 0 {
                    let (at, succeed) = (self.dice.below(pending), self.dice.below(6) > 0);
                    self.store.answer_nth(at, succeed);
                }
            }
            10 => self.resume(),
            11 if stream == 0 => {
                let connection = self.session.listen(Arc::new(NoWake), 0).unwrap();
                self.attach(0, connection);
            }
            11 if self.dice.below(2) == 0 => {
                let hold_ms = [None, Some(0), Some(30)][self.dice.below(3)];
                self.session.close_connection(&request(stream).unwrap(), None, hold_ms);
            }
            12 => {
                let at = self.dice.below(self.readers.len());
                self.readers[at].connection = None;
            }
            13 => self.bench.advance(u64::try_from(self.dice.below(40)).unwrap()),
            _ => {
                let at = self.dice.below(self.readers.len());
                self.read(at);
            }
        }
    }

    fn send(&mut self, stream: usize, what: Value, message: OutgoingMessage<'_>) {
        match self.session.send(message).expect("nothing of this is refused") {
            Sent::Pending(number) => self.sent[stream].push((number, what)),
            Sent::Dropped => assert!(self.answered[stream], "I13: only what comes after the end is dropped"),
            Sent::Stored => panic!("I1: the store was not asked"),
        }
        self.take_outcomes();
    }

    fn take_outcomes(&mut self) {
        for (number, outcome) in self.session.take_outcomes() {
            assert!(self.outcomes.insert(number, outcome.is_ok()).is_none(), "one outcome for each message");
        }
    }

    fn resume(&mut self) {
        let at = self.dice.below(self.readers.len());
        let Reader { stream, text, .. } = &self.readers[at];
        let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: a").map(|_| &line[4..])).collect();
        if ids.is_empty() {
            return;
        }
        let (stream, id) = (*stream, ids[self.dice.below(ids.len())].to_owned());
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
    fn settle(&mut self) {
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
        let mut failed = false;
        let mut log = Vec::new();
        for (number, what) in &self.sent[stream] {
            let stored = self.outcomes.get(number).copied().expect("every message has an outcome");
            log.extend(stored.then(|| what.clone()));
        }
        // The outcome of a response is never an error (I9), so the store has to be asked for it.
        let head: usize = self.readers.iter().filter(|reader| reader.stream == stream).map(Reader::head).max().unwrap();
        if self.answered[stream] && head < log.len() {
            failed = true;
            log.pop();
        }
        (log, failed)
    }

    fn check(&mut self) {
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

#[test]
fn i1_i2_i3_i13_every_connection_is_sent_its_suffix_whatever_the_store_does() {
    let seeds = match std::env::var("TAILROPE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a seed is a number");
            seed..seed + 1
        }
        Err(_) => 0..4_000,
    };
    for seed in seeds {
        let schedule = || {
            let mut world = World::new(seed);
            for _ in 0..120 {
                world.step();
            }
            world.settle();
            world.check();
        };
        assert!(std::panic::catch_unwind(schedule).is_ok(), "schedule with seed {seed}");
    }
}
