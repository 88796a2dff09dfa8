//! Random schedules of the client's half against a simulated server that keeps a log: whatever ends connections, each
//! event is delivered once, in order, no connection comes before its time, and every stream comes to an end.

use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::client::{Failure, Input, Opening, Options, ResumableStream, Step};
use tailrope_core::protocol::RequestId;

use crate::kit::dice::depth;

const SCHEDULES: u64 = 4_000;

/// Small, and the same everywhere: a seed that fails is replayed by its number.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What the server has of the stream, and how it behaves.
struct Server {
    log: Vec<String>,
    retry_ms: u64,
    primes: bool,
    /// It forgets the stream.
    forgets: bool,
}

impl Server {
    /// The bytes of a connection after this position.
    fn suffix(&self, after: usize, visible: usize) -> String {
        let mut text = String::new();
        if self.primes || after == 0 {
            text.push_str(&format!("id: {after}\nretry: {}\ndata: \n\n", self.retry_ms));
        }
        for (at, payload) in self.log.iter().enumerate().take(visible).skip(after) {
            text.push_str(&format!("id: {}\ndata: {payload}\n\n", at + 1));
        }
        text
    }
}

struct Run {
    seed: u64,
    delivered: Vec<String>,
    failure: Option<Failure>,
    finished: bool,
    connects: u64,
}

fn run(seed: u64) -> (Run, Server) {
    let mut dice = Dice(seed);
    let events = 1 + dice.roll(12);
    let mut log: Vec<String> =
        (0..events).map(|at| json!({"jsonrpc": "2.0", "method": "n", "params": {"at": at % 3}}).to_string()).collect();
    log.push(if dice.one_in(4) {
        json!({"jsonrpc": "2.0", "id": 7, "error": {"code": 1, "message": "no"}}).to_string()
    } else {
        json!({"jsonrpc": "2.0", "id": 7, "result": {}}).to_string()
    });
    let server = Server {
        log,
        retry_ms: [0, 1, 50, 3_000][usize::try_from(dice.roll(4)).unwrap()],
        primes: !dice.one_in(3),
        forgets: dice.one_in(20),
    };
    let options = Options { max_attempts: Some(200), ..Options::default() };
    let mut now = 0;
    let mut steps = Vec::new();
    let opening = Opening::Posted(vec![RequestId::integer(7)]);
    let mut stream = ResumableStream::new(Ms(now), opening, options, &mut steps);
    let mut run = Run { seed, delivered: Vec::new(), failure: None, finished: false, connects: 0 };
    // What the stream's handler has emitted so far.
    let mut visible = 0;
    let mut bytes = server.suffix(0, 0).into_bytes();
    let mut ended_at = 0;
    for _ in 0..5_000 {
        if stream.is_done() {
            break;
        }
        now += dice.roll(40);
        visible = (visible + usize::try_from(dice.roll(2)).unwrap()).min(server.log.len());
        let jitter = u32::try_from(dice.roll(1 << 32)).unwrap();
        // At most this much of what is there arrives.
        let cut = usize::try_from(dice.roll(bytes.len() as u64 + 1)).unwrap();
        let arrives: Vec<u8> = bytes.drain(..if dice.one_in(3) { cut } else { bytes.len() }).collect();
        stream.handle(Ms(now), jitter, Input::Bytes(&arrives), &mut steps);
        let ends = if dice.one_in(3) { Input::End } else { Input::Broken };
        if stream.deadline() == Ms::NEVER || stream.deadline() > Ms(now + 200_000) {
            ended_at = now;
        }
        stream.handle(Ms(now), jitter, ends, &mut steps);
        perform(&mut run, std::mem::take(&mut steps));
        if stream.is_done() {
            break;
        }
        let not_before = ended_at + stream.retry_ms().unwrap_or(0);
        // It connects at its deadline and not before.
        let due = stream.deadline();
        assert!(due.0 >= not_before, "seed {seed}: due at {due}, not before {not_before}");
        stream.handle(Ms(due.0.saturating_sub(1)), jitter, Input::Tick, &mut steps);
        assert!(steps.is_empty() || due.0 == 0, "seed {seed}: {steps:?}");
        now = due.0;
        stream.handle(Ms(now), jitter, Input::Tick, &mut steps);
        let cursor = connected(&mut run, std::mem::take(&mut steps));
        ended_at = now;
        let status = match dice.roll(8) {
            0 => 503,
            1 => 409,
            _ if server.forgets => 400,
            _ => 200,
        };
        if dice.one_in(6) {
            stream.handle(Ms(now), jitter, Input::Broken, &mut steps);
        } else {
            let content_type = Some("text/event-stream");
            stream.handle(Ms(now), jitter, Input::Head { status, content_type, retry_after_ms: None }, &mut steps);
        }
        let is_open = !stream.is_done() && stream.deadline() >= Ms(now + 299_000);
        perform(&mut run, std::mem::take(&mut steps));
        bytes = if is_open { server.suffix(cursor, visible).into_bytes() } else { Vec::new() };
    }
    assert!(stream.is_done(), "seed {seed}: the stream comes to an end");
    stream.handle(Ms(now), 0, Input::Tick, &mut steps);
    stream.handle(Ms(now), 0, Input::Abort, &mut steps);
    assert!(steps.is_empty(), "seed {seed}: nothing comes after the end");
    (run, server)
}

fn perform(run: &mut Run, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Deliver(message) => run.delivered.push(message.data),
            Step::Finished => run.finished = true,
            Step::Failed(failure) => run.failure = Some(failure),
            Step::Disconnect => {}
            other => panic!("seed {}: {other:?}", run.seed),
        }
    }
}

/// The position that the stream asks to continue after.
fn connected(run: &mut Run, steps: Vec<Step>) -> usize {
    let [Step::Connect { last_event_id: Some(cursor) }] = &steps[..] else { panic!("seed {}: {steps:?}", run.seed) };
    run.connects += 1;
    cursor.parse().unwrap()
}

#[test]
fn i3_each_event_is_delivered_once_and_every_stream_ends() {
    let (mut resumed, mut finished, mut lost) = (0, 0, 0);
    let schedules = SCHEDULES * depth();
    for seed in 0..schedules {
        let (run, server) = run(seed);
        resumed += run.connects;
        assert!(server.log.starts_with(&run.delivered), "seed {seed}: {:?} of {:?}", run.delivered, server.log);
        match run.failure {
            None => {
                assert!(run.finished && run.delivered == server.log, "seed {seed}: {:?}", run.delivered);
                finished += 1;
            }
            Some(Failure::StreamLost { status: 400 }) if server.forgets => lost += 1,
            // The first connection may break before its first id is read.
            Some(Failure::NotResumable) if run.delivered.is_empty() && run.connects == 0 => lost += 1,
            Some(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    assert!(resumed > 3 * schedules && finished > schedules / 2 && lost > 0, "{resumed} {finished} {lost}");
}
