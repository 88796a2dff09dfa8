//! A store that gives no sign: what is owned here may be somebody else's by now, and nothing is begun (O18).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "sqlite")]
use std::time::{Duration, Instant};

use crate::kit::common::{Bench, NEW, call, call_json, id, notify, read_now, respond};
#[cfg(feature = "sqlite")]
use crate::kit::folder::Folder;
#[cfg(feature = "sqlite")]
use crate::kit::processes::{PATIENCE, begun, open_session, read_until, store_in};
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{NoWake, Options, SessionHandle};
use tailrope_core::protocol::{Dialect, Refusal};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, MemoryStore, ReadLimit, RunningLog,
    StreamKey, Ticket, Usage, Watcher,
};
#[cfg(feature = "sqlite")]
use tailrope_core::store::{EncryptionKey, SealedStore, StoreOptions};
use tailrope_core::stream::{CloseReason, Seq};

/// A store that does what it is asked, and says that its signs of life have no answer when the test wants that.
struct Silent {
    inner: MemoryStore,
    is_cut_off: AtomicBool,
}

impl EventStore for Silent {
    passes_on!(
        hold append attach read take withdraw release unwatch settle drop_stream drop_session sweep usage
    );

    fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::SeqCst)
    }
}

fn silent() -> (Bench, Arc<Silent>) {
    let store = Arc::new(Silent { inner: MemoryStore::new(Limits::default()), is_cut_off: AtomicBool::new(false) });
    (Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() }), store)
}

fn refusals(session: &SessionHandle) -> [Refusal; 2] {
    let wake = || Arc::new(NoWake);
    [session.call(&[id(2)], None, wake(), 0), session.call_json(&[id(2)], None, wake(), 0)]
        .map(|answer| answer.expect_err("it may run somewhere else by now"))
}

#[test]
fn o18_an_owner_whose_signs_have_no_answer_begins_no_call() {
    let (bench, store) = silent();
    let session = bench.session("s", NEW);
    let running = call(&session, 1);
    store.is_cut_off.store(true, Ordering::SeqCst);
    for refusal in refusals(&session) {
        assert_eq!((refusal.status, refusal.code), (503, -32603));
        assert_eq!(refusal.message, "Service Unavailable: the event store gives no sign");
    }
    assert_eq!(session.in_flight(), 1, "what is refused is not begun");
    // What runs goes on: its writes name the epoch.
    notify(&session, 1, "a").unwrap();
    respond(&session, 1).unwrap();
    let answered = bench.read(&running);
    assert_eq!(answered.end, Some(CloseReason::Complete));
    assert_eq!(answered.frames().pop(), Some(json!({"event": 2, "is": {"result": 1}})));
    store.is_cut_off.store(false, Ordering::SeqCst);
    let calls = [call(&session, 2), call_json(&session, 3)];
    assert_eq!(session.in_flight(), 2, "it is answered again");
    drop(calls);
}

#[test]
fn o18_a_session_that_the_store_was_never_given_is_nobody_elses() {
    let (bench, store) = silent();
    store.is_cut_off.store(true, Ordering::SeqCst);
    let session = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
    let first = session.call(&[id(1)], Some(NEW), Arc::new(NoWake), 0).expect("nobody else knows the session");
    respond(&session, 1).unwrap();
    assert_eq!(read_now(&first).end, Some(CloseReason::Complete));
    session.assume_revision(NEW);
    assert_eq!(refusals(&session).map(|refusal| refusal.status), [503, 503], "the store knows it now");
}

#[cfg(feature = "sqlite")]
#[test]
fn o18_a_file_that_nobody_can_write_to_gives_no_sign() {
    let folder = Folder::new();
    let options = StoreOptions { owner_lost_ms: 400, ..StoreOptions::default() };
    // Sealed, because that passes on what the store within knows.
    let keys = [EncryptionKey::from_hex(&"07".repeat(32)).unwrap()];
    let store = Arc::new(SealedStore::new(store_in(&folder, options), &keys).unwrap());
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = open_session(&bench, "s", NEW);
    read_until(&bench, &call(&session, 1), begun);
    let wait_until = |is_cut_off| {
        let deadline = Instant::now() + PATIENCE;
        while store.is_cut_off() != is_cut_off {
            assert!(Instant::now() < deadline, "it gives a sign, or none");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let locking = rusqlite::Connection::open(folder.path("a.db")).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    wait_until(true);
    assert_eq!(refusals(&session).map(|refusal| refusal.status), [503, 503]);
    locking.execute_batch("COMMIT").unwrap();
    wait_until(false);
}
