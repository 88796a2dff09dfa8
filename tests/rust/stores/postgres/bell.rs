//! Hears the hints of a store.
#![allow(dead_code, reason = "each test target uses a part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{Attach, EventStore, Watch, Watcher};
use tailrope_stores::PostgresStore;

use crate::kit::events::sized;
use crate::kit::eventually::PATIENCE;

/// Rings for one log.
pub(crate) struct Bell {
    nonce: StreamNonce,
    rings: Mutex<u64>,
    rang: Condvar,
    /// How often it was said that a message waits.
    posts: AtomicU64,
    /// How often it was said that anything may have changed.
    alls: AtomicU64,
}

impl Watch for Bell {
    fn changed(&self, nonce: StreamNonce) {
        if nonce == self.nonce {
            *self.rings.lock().unwrap() += 1;
            self.rang.notify_all();
        }
    }

    fn posted(&self) {
        self.posts.fetch_add(1, Ordering::SeqCst);
    }

    fn all_changed(&self) {
        self.alls.fetch_add(1, Ordering::SeqCst);
        self.changed(self.nonce);
    }
}

impl Bell {
    /// Rings for what this store object hears of the log.
    pub(crate) fn watching(store: &PostgresStore, log: &Log) -> Arc<Self> {
        let (nonce, posts, alls) = (log.key.nonce, AtomicU64::new(0), AtomicU64::new(0));
        let bell = Arc::new(Self { nonce, rings: Mutex::default(), rang: Condvar::new(), posts, alls });
        let watch: Arc<dyn Watch> = Arc::clone(&bell) as Arc<dyn Watch>;
        let watcher: Watcher = Arc::downgrade(&watch);
        store.watch(&log.key.session, &watcher);
        bell
    }

    /// The same, when a reader came there.
    pub(crate) fn reading(store: &PostgresStore, log: &Log) -> Arc<Self> {
        let bell = Self::watching(store, log);
        read_by(store, log);
        bell
    }

    pub(crate) fn rings(&self) -> u64 {
        *self.rings.lock().unwrap()
    }

    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Ordering::SeqCst)
    }

    pub(crate) fn alls(&self) -> u64 {
        self.alls.load(Ordering::SeqCst)
    }

    pub(crate) fn wait(&self, seen: u64) {
        let rings = self.rings.lock().unwrap();
        let (rings, _) = self.rang.wait_timeout_while(rings, PATIENCE, |rings| *rings <= seen).unwrap();
        assert!(*rings > seen, "rule 13: a hint comes");
    }

    /// Waits until it has been silent for a while.
    pub(crate) fn settle(&self) {
        let mut seen = self.rings();
        loop {
            std::thread::sleep(Duration::from_millis(30));
            if self.rings() == seen {
                return;
            }
            seen = self.rings();
        }
    }
}

/// A reader comes to the log.
pub(crate) fn read_by(store: &PostgresStore, log: &Log) {
    let counts = Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() };
    assert!(Caller::new(store, Ms(0)).attach(&log.key.session, &counts).log.is_some(), "it is there");
}

/// From the answer to an append until the hint at another store object, in order of size.
pub(crate) fn hint_times(writing: &PostgresStore, reading: &PostgresStore, count: usize) -> Vec<Duration> {
    let caller = Caller::new(writing, Ms(0));
    let mut log = caller.open("hints", count as u64);
    let bell = Bell::reading(reading, &log);
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            bell.settle();
            let seen = bell.rings();
            caller.push(&mut log, &[sized(100)]);
            let stored = Instant::now();
            bell.wait(seen);
            stored.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}
