//! Files of the SQLite store while their process forks. A process has one such moment at a time, so these tests have a
//! process of their own, and take turns.
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kit::events::{positions, sized};
use crate::kit::eventually::{PATIENCE, eventually};
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{EventStore, StoreOptions, Watch};
use tailrope_stores::{Forking, SqliteStore};

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at(path: &Path) -> SqliteStore {
    tailrope_stores::sqlite::open(path, &StoreOptions::default()).expect("the file can be opened")
}

/// What this process has open that is called so.
fn descriptors(name: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains(name))).count()
}

struct Ear(Sender<()>);

impl Watch for Ear {
    fn changed(&self, _nonce: StreamNonce) {
        let _ = self.0.send(());
    }

    fn posted(&self) {}

    fn all_changed(&self) {}
}

#[test]
fn no_file_is_open_while_the_process_forks_and_all_go_on_after_it() {
    let _alone = alone();
    let folder = Folder::new();
    let path = folder.path("forking.db");
    let (here, there) = (at(&path), at(&path));
    let (caller, elsewhere) = (Caller::new(&here, Ms(0)), Caller::new(&there, Ms(0)));
    let mut log = elsewhere.open("s", 1);
    elsewhere.push(&mut log, &[sized(10)]);
    let (heard, hears) = channel();
    let ear: Arc<dyn Watch> = Arc::new(Ear(heard));
    here.watch(&log.key.session, &Arc::downgrade(&ear));
    hears.recv_timeout(PATIENCE).expect("who begins to watch is told");
    for turn in 2..=20 {
        assert!(descriptors("forking.db") > 0);
        let forking = Forking::begin();
        assert_eq!(descriptors("forking.db"), 0);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| positions(&caller, &log, 0).len());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!reading.is_finished(), "nobody opens it");
            drop(forking);
            assert_eq!(reading.join().unwrap(), turn - 1);
        });
        while hears.try_recv().is_ok() {}
        elsewhere.push(&mut log, &[sized(10)]);
        hears.recv_timeout(PATIENCE).expect("a change by another process is told");
    }
}

#[test]
fn a_store_that_is_let_go_of_while_the_process_forks_is_closed_after_that() {
    let _alone = alone();
    let folder = Folder::new();
    let path = folder.path("a.db");
    let store = at(&path);
    let owner = Caller::new(&store, Ms(0));
    let (log, epoch) = (owner.open("s", 1), owner.epoch);
    store.drop_stream(&log.key, epoch);
    std::thread::scope(|scope| {
        let forking = Forking::begin();
        let dropping = scope.spawn(|| drop(store));
        dropping.join().unwrap();
        drop(forking);
    });
    let again = at(&path);
    let caller = Caller::new(&again, Ms(0));
    eventually("what was told before is done", || caller.log(&log).is_none());
}
