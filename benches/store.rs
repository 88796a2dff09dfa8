//! How fast a store takes events: `cargo run --release --example store_bench --features sqlite -- ADDRESS...`
//!
//! Each stream has one append under way, as a stream of the engine has: the next one follows its answer.
//! Times are from the call to the answer, on the thread that makes the next call.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Complete, Durability, EventStore, Limits, Operation, Outcome, ReadLimit, StoreOptions, StreamKey, Ticket,
    open,
};
use tailrope_core::stream::{Chain, EventKind, StoredEvent};

const FRAME: usize = 300;
const RUN: Duration = Duration::from_secs(5);

/// Tells which stream has its answer.
struct Inbox(Mutex<Sender<(u64, Outcome)>>);

impl Complete for Inbox {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        let _ = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).send((ticket.number, outcome));
    }
}

struct Stream {
    key: StreamKey,
    head: u64,
    chain: Chain,
    asked: Instant,
}

fn main() {
    let mut out = std::io::stdout();
    for address in std::env::args().skip(1) {
        for durability in [Durability::Process, Durability::Power] {
            if address == "memory:" && durability == Durability::Power {
                continue;
            }
            let limits = Limits { max_bytes: 1 << 40, max_bytes_per_session: 1 << 40, ..Limits::default() };
            let options = StoreOptions { limits, durability, ..StoreOptions::default() };
            let store = open(&address, &options).unwrap_or_else(|error| panic!("{error}"));
            for streams in [1, 64] {
                let line = measure(&*store, streams);
                writeln!(out, "{address} {durability:?}, {streams} streams: {line}").expect("there is an output");
            }
            let usage = store.usage();
            writeln!(out, "  holds {} events, {} bytes", usage.events, usage.bytes).expect("there is an output");
        }
    }
}

fn measure(store: &dyn EventStore, count: u64) -> String {
    let (answers, came) = channel();
    let inbox: Arc<dyn Complete> = Arc::new(Inbox(Mutex::new(answers)));
    let ticket = |stream: &Stream, number, operation| Ticket {
        to: Arc::downgrade(&inbox),
        nonce: stream.key.nonce,
        operation,
        number,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let run = since.as_nanos() as u64;
    let mut streams: Vec<Stream> = (0..count)
        .map(|number| {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&run.to_be_bytes());
            nonce[8..].copy_from_slice(&(number as u32).to_be_bytes());
            let key = StreamKey { session: format!("bench {count} {}", number % 8).into(), nonce: StreamNonce(nonce) };
            let stream = Stream { key, head: 0, chain: Chain::start(&nonce), asked: Instant::now() };
            let answer = store.open(Ms(0), &stream.key, &ticket(&stream, number, Operation::Open));
            if matches!(answer, Answer::Later) {
                came.recv().expect("the log is created");
            }
            stream
        })
        .collect();
    let frame: Arc<[u8]> = vec![b'x'; FRAME].into();
    let mut took: Vec<u32> = Vec::with_capacity(1 << 22);
    let begun = Instant::now();
    let mut ready: Vec<u64> = (0..count).collect();
    let mut under_way = 0;
    while begun.elapsed() < RUN || under_way > 0 {
        while let Some(number) = ready.pop() {
            if begun.elapsed() >= RUN {
                break;
            }
            let stream = &mut streams[number as usize];
            stream.head += 1;
            stream.chain = stream.chain.then(&frame);
            stream.asked = Instant::now();
            let event = StoredEvent {
                seq: stream.head,
                kind: EventKind::Progress,
                tag: stream.chain.tag(),
                frame: Arc::clone(&frame),
            };
            match store.append(Ms(0), &stream.key, &[event], stream.chain.0, &ticket(stream, number, Operation::Append))
            {
                Answer::Now(result) => {
                    result.expect("it is stored");
                    took.push(stream.asked.elapsed().as_nanos() as u32);
                    ready.push(number);
                }
                Answer::Later => under_way += 1,
            }
        }
        if under_way > 0 {
            let (number, outcome) = came.recv().expect("it is answered");
            assert!(matches!(outcome, Outcome::Done(Ok(()))), "{outcome:?}");
            took.push(streams[number as usize].asked.elapsed().as_nanos() as u32);
            under_way -= 1;
            ready.push(number);
        }
    }
    let per_second = took.len() as f64 / begun.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |part: f64| f64::from(took[((took.len() - 1) as f64 * part) as usize]) / 1_000.0;
    let mut read = Vec::new();
    for round in 0..2_000 {
        let stream = &streams[round % streams.len()];
        let limit = ReadLimit { up_to: stream.head, events: 20, bytes: 1 << 20 };
        let asked = Instant::now();
        let answer =
            store.read(&stream.key, stream.head.saturating_sub(20), limit, &ticket(stream, 0, Operation::Read(1)));
        if matches!(answer, Answer::Later) {
            came.recv().expect("it is read");
        }
        read.push(asked.elapsed().as_nanos() as u32);
    }
    read.sort_unstable();
    let read_at = |part: f64| f64::from(read[((read.len() - 1) as f64 * part) as usize]) / 1_000.0;
    format!(
        "{per_second:.0} appends/s, p50 {:.1} us, p99 {:.1} us; 20 events after a cursor: p50 {:.1} us, p99 {:.1} us",
        at(0.5),
        at(0.99),
        read_at(0.5),
        read_at(0.99)
    )
}
