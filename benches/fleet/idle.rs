//! Idle sessions of one engine over the memory store: what each takes, and what time asks for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tailrope_core::engine::{Connection, Engine, ManualClock, Options, SessionHandle, Wake};
use tailrope_core::store::Limits;

use crate::process::begin;

/// Sessions that begin in a millisecond.
const PER_MS: usize = 20;
/// How long the engine is watched, in milliseconds of its own clock.
const WATCHED_MS: u64 = 30_000;
/// What `initialize` left in the store goes soon.
const RETENTION_MS: u64 = 1_000;

/// Connections that have something to write.
#[derive(Default)]
struct Rung(Mutex<Vec<u64>>);

impl Wake for Rung {
    fn wake(&self, key: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }
}

/// What was measured.
pub(crate) struct Idle {
    pub(crate) what: &'static str,
    pub(crate) bytes_each: u64,
    pub(crate) ticks_per_s: f64,
    pub(crate) tick: Duration,
    pub(crate) longest_tick: Duration,
    pub(crate) woken_per_s: f64,
}

struct World {
    engine: Engine,
    clock: Arc<ManualClock>,
    rung: Arc<Rung>,
    connections: Vec<Connection>,
}

/// Begins so many sessions; afterwards each gets a GET that listens.
pub(crate) fn measure(sessions: usize) -> Vec<Idle> {
    let clock = Arc::new(ManualClock::default());
    let limits = Limits { retention_ms: RETENTION_MS, max_bytes: 1 << 40, ..Limits::default() };
    let engine = Engine::new(Options {
        limits,
        max_sessions: sessions,
        clock: Some(Arc::clone(&clock) as _),
        ..Options::default()
    });
    let mut world = World { engine, clock, rung: Arc::default(), connections: Vec::new() };
    let before = resident_bytes();
    let mut handles: Vec<SessionHandle> = Vec::with_capacity(sessions);
    for number in 0..sessions {
        let (session, answer) = begin(&world.engine, &format!("a session with an id of 36 bytes {number:08}"));
        while answer.poll(64 << 10).end.is_none() {}
        handles.push(session);
        if number % PER_MS == 0 {
            world.pass(1);
        }
    }
    // Nothing is left of the connections that ended.
    world.pass(WATCHED_MS);
    let stats = world.engine.stats();
    assert_eq!((stats.sessions, stats.streams), (sessions as u64, 0), "they are idle");
    let alone = world.watch("idle session", (resident_bytes() - before) / sessions as u64);
    let before = resident_bytes();
    for (number, session) in handles.iter().enumerate() {
        let connection = session.listen(Arc::clone(&world.rung) as _, number as u64).expect("it listens");
        world.connections.push(connection);
        world.read(number as u64);
        if number % PER_MS == 0 {
            world.pass(1);
        }
    }
    world.pass(WATCHED_MS);
    let listening = world.watch("its listening GET", (resident_bytes() - before) / sessions as u64);
    vec![alone, listening]
}

impl World {
    /// Lets time pass as hosts do: ticks when that is asked for. How long each tick took, and how many connections woke.
    fn pass(&self, ms: u64) -> (Vec<Duration>, usize) {
        let (mut took, mut woken) = (Vec::new(), 0);
        let mut left = ms;
        loop {
            let due = self.engine.due_in_ms();
            let step = due.min(left);
            self.clock.advance(step);
            left -= step;
            if due > step {
                return (took, woken);
            }
            let begun = Instant::now();
            let ended = self.engine.tick();
            took.push(begun.elapsed());
            assert!(ended.is_empty(), "no session is idle for too long");
            let rung = std::mem::take(&mut *self.rung.0.lock().unwrap_or_else(PoisonError::into_inner));
            woken += rung.len();
            rung.into_iter().for_each(|number| self.read(number));
        }
    }

    fn read(&self, number: u64) {
        if let Some(connection) = self.connections.get(number as usize) {
            while !connection.poll(64 << 10).is_empty() {}
        }
    }

    fn watch(&self, what: &'static str, bytes_each: u64) -> Idle {
        let (took, woken) = self.pass(WATCHED_MS);
        let watched_s = WATCHED_MS as f64 / 1_000.0;
        Idle {
            what,
            bytes_each,
            ticks_per_s: took.len() as f64 / watched_s,
            tick: took.iter().sum::<Duration>() / took.len().max(1) as u32,
            longest_tick: took.into_iter().max().unwrap_or_default(),
            woken_per_s: woken as f64 / watched_s,
        }
    }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("it is Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("it has a second number");
    pages * 4096
}
