//! How fast event stores are, through the Rust API: `store_bench [--seconds N] [--power] [--fill N] ADDRESS...`
//!
//! Prints one JSON object for each address. Each stream has one append of 300 bytes under way, as a stream of
//! the engine has: the next one follows its answer. Times are from the call to the answer, on the thread that
//! makes the next call. With `--fill` N events are stored in 100 streams, and nothing is measured but the memory of
//! this process.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Attach, Chain, Complete, Durability, Epoch, EventKind, EventStore, Hold, Limits, Operation,
    Outcome, ReadLimit, SessionRecord, StoreOptions, StoredEvent, StreamKey, Ticket, Watch, Watcher,
};
use tailrope_stores::open;

const SESSIONS: u64 = 8;
const EPOCH: Epoch = Epoch { number: 1, salt: 1 };
const FRAME: usize = 300;
const READS: usize = 2_000;
const WAKES: usize = 1_000;
const FILLED_STREAMS: u64 = 100;
/// An answer that takes longer is a fault of the store.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells which stream has its answer.
struct Inbox(Mutex<Sender<(u64, Outcome)>>);

impl Complete for Inbox {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send((ticket.number, outcome));
    }
}

/// Tells when the hint of a change came.
struct Hints(Mutex<Sender<Instant>>);

impl Watch for Hints {
    fn changed(&self, _nonce: StreamNonce) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Instant::now());
    }

    fn posted(&self) {}

    fn all_changed(&self) {}
}

struct Stream {
    key: StreamKey,
    head: u64,
    chain: Chain,
    asked: Instant,
}

/// A store with its streams and whoever waits for its answers.
struct Load<'a> {
    store: &'a dyn EventStore,
    inbox: Arc<dyn Complete>,
    came: Receiver<(u64, Outcome)>,
    streams: Vec<Stream>,
    frame: Arc<[u8]>,
}

impl<'a> Load<'a> {
    fn new(store: &'a dyn EventStore, count: u64) -> Self {
        let (answers, came) = channel();
        let inbox: Arc<dyn Complete> = Arc::new(Inbox(Mutex::new(answers)));
        let run = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64;
        let streams = (0..count).map(|number| {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&run.to_be_bytes());
            nonce[8..].copy_from_slice(&(number as u32).to_be_bytes());
            let session = format!("bench {run} {}", number % SESSIONS).into();
            let key = StreamKey { session, nonce: StreamNonce(nonce) };
            Stream { key, head: 0, chain: Chain::start(&nonce), asked: Instant::now() }
        });
        let load = Self { store, inbox, came, streams: streams.collect(), frame: vec![b'x'; FRAME].into() };
        let hold = Hold { epoch: EPOCH, seen: None, record: Some(SessionRecord::default()) };
        for stream in load.streams.iter().take(SESSIONS as usize) {
            if matches!(
                store.hold(&stream.key.session, &hold, &load.ticket(&stream.key, 0, Operation::Hold)),
                Answer::Later
            ) {
                load.wait();
            }
        }
        load
    }

    fn ticket(&self, key: &StreamKey, number: u64, operation: Operation) -> Ticket {
        Ticket { to: Arc::downgrade(&self.inbox), nonce: key.nonce, operation, number }
    }

    fn wait(&self) -> u64 {
        let (number, outcome) = self.came.recv_timeout(PATIENCE).expect("the store answers");
        let is_ok = matches!(
            outcome,
            Outcome::Done(Ok(())) | Outcome::Held(Ok(_)) | Outcome::Attached(Ok(_)) | Outcome::Page(Ok(_))
        );
        assert!(is_ok, "{outcome:?}");
        number
    }

    /// Appends to one stream. Whether it is done already.
    fn append(&mut self, number: u64) -> bool {
        let at = number as usize;
        let ticket = self.ticket(&self.streams[at].key, number, Operation::Append);
        let stream = &mut self.streams[at];
        let chain_before = stream.chain.0;
        stream.head += 1;
        stream.chain = stream.chain.then(&self.frame, None);
        stream.asked = Instant::now();
        let (kind, tag, frame) = (EventKind::Progress, stream.chain.tag(), Arc::clone(&self.frame));
        let event = StoredEvent { seq: stream.head, kind, tag, frame };
        let append = Append {
            first: stream.head,
            events: vec![event],
            chain_before,
            chain: stream.chain.0,
            about: Bytes::new(),
            primes: false,
            end: None,
            paced: None,
        };
        match self.store.append(Ms(0), &stream.key, EPOCH, &append, &ticket) {
            Answer::Now(result) => {
                result.expect("it is stored");
                true
            }
            Answer::Later => false,
        }
    }

    fn appends(&mut self, run: Duration) -> Value {
        let mut took: Vec<u32> = Vec::with_capacity(1 << 22);
        let begun = Instant::now();
        let mut ready: Vec<u64> = (0..self.streams.len() as u64).collect();
        let mut under_way = 0;
        while begun.elapsed() < run || under_way > 0 {
            while let Some(number) = ready.pop() {
                if begun.elapsed() >= run {
                    break;
                }
                if self.append(number) {
                    took.push(self.streams[number as usize].asked.elapsed().as_nanos() as u32);
                    ready.push(number);
                } else {
                    under_way += 1;
                }
            }
            if under_way > 0 {
                let number = self.wait();
                took.push(self.streams[number as usize].asked.elapsed().as_nanos() as u32);
                under_way -= 1;
                ready.push(number);
            }
        }
        let per_second = took.len() as f64 / begun.elapsed().as_secs_f64();
        json!({"per_second": per_second.round(), "us": percentiles(took)})
    }

    /// Stores so many events. Bytes by which this process grew.
    fn fill(&mut self, events: u64) -> u64 {
        let before = resident_bytes();
        for number in 0..events {
            // As a server's events are: each has memory of its own.
            self.frame = self.frame.to_vec().into();
            if !self.append(number % FILLED_STREAMS) {
                self.wait();
            }
        }
        resident_bytes().saturating_sub(before)
    }

    fn reads(&self) -> Value {
        let mut took = Vec::new();
        for round in 0..READS {
            let stream = &self.streams[round % self.streams.len()];
            let limit = ReadLimit { up_to: stream.head, events: 20, bytes: 1 << 20 };
            let ticket = self.ticket(&stream.key, 0, Operation::Read(1));
            let asked = Instant::now();
            if matches!(self.store.read(&stream.key, stream.head.saturating_sub(20), limit, &ticket), Answer::Later) {
                self.wait();
            }
            took.push(asked.elapsed().as_nanos() as u32);
        }
        percentiles(took)
    }
}

/// From the call of an append here to the hint at another store object, as at another process.
fn wakes(here: &dyn EventStore, there: &dyn EventStore) -> Value {
    let (hints, came) = channel();
    let hints: Arc<dyn Watch> = Arc::new(Hints(Mutex::new(hints)));
    let watcher: Watcher = Arc::downgrade(&hints);
    let mut load = Load::new(here, 1);
    if !load.append(0) {
        load.wait();
    }
    let StreamKey { session, nonce } = load.streams[0].key.clone();
    there.watch(&session, &watcher);
    let attach = Attach { stream: Some(nonce), counts: true, ..Attach::default() };
    let ticket = load.ticket(&load.streams[0].key, 0, Operation::Attach(0));
    if matches!(there.attach(&session, &attach, &ticket), Answer::Later) {
        load.wait();
    }
    let mut took = Vec::new();
    for round in 0..WAKES {
        // Events come when they come, not at the pace of whoever looks for them.
        std::thread::sleep(Duration::from_micros(500 + (round as u64 * 7_919) % 7_000));
        while came.try_recv().is_ok() {}
        if !load.append(0) {
            load.wait();
        }
        match came.recv_timeout(PATIENCE) {
            Ok(at) => took.push(at.saturating_duration_since(load.streams[0].asked).as_nanos() as u32),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("an append is told elsewhere"),
        }
    }
    there.unwatch(&session, &watcher);
    percentiles(took)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("it is Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("it has a second number");
    pages * 4096
}

fn percentiles(mut took: Vec<u32>) -> Value {
    took.sort_unstable();
    let at = |part: f64| (f64::from(took[((took.len() - 1) as f64 * part) as usize]) / 100.0).round() / 10.0;
    json!({"p50": at(0.5), "p99": at(0.99)})
}

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut run, mut durability, mut fill) = (Duration::from_secs(5), Durability::Process, None);
    while let Some(option) = arguments.next_if(|argument| argument.starts_with("--")) {
        match option.as_str() {
            "--power" => durability = Durability::Power,
            "--seconds" => {
                let seconds = arguments.next().and_then(|text| text.parse().ok());
                run = Duration::from_secs_f64(seconds.expect("--seconds takes a number"));
            }
            "--fill" => fill = arguments.next().map(|text| text.parse().expect("--fill takes a number")),
            other => panic!("{other} is no option: --seconds N, --power and --fill N are"),
        }
    }
    let mut out = std::io::stdout();
    for address in arguments {
        let limits = Limits { max_bytes: 1 << 40, max_bytes_per_session: 1 << 40, ..Limits::default() };
        let options = StoreOptions { limits, durability, ..StoreOptions::default() };
        let store = open(&address, &options).unwrap_or_else(|error| panic!("{error}"));
        let mut result = json!({"kind": address.split(':').next(), "power": durability == Durability::Power});
        if let Some(events) = fill {
            result["grown_bytes"] = json!(Load::new(&*store, FILLED_STREAMS).fill(events));
            writeln!(out, "{result}").expect("there is an output");
            continue;
        }
        for streams in [1, 64] {
            let mut load = Load::new(&*store, streams);
            result[format!("append_{streams}")] = load.appends(run);
            if streams == 64 {
                result["read_20"] = json!({"us": load.reads()});
            }
        }
        if store.outlives_process() {
            let there = open(&address, &options).unwrap_or_else(|error| panic!("{error}"));
            result["wake"] = json!({"us": wakes(&*store, &*there)});
        }
        writeln!(out, "{result}").expect("there is an output");
    }
}
