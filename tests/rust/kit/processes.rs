//! Two processes on one store: an engine with a clock of its own for each, and how their readers are read.
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tailrope_core::engine::{Connection, EngineError, NoWake, Options, SessionHandle};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::{Dialect, Revision};
use tailrope_core::store::{EventStore, StoreOptions};
use tailrope_stores::open;

use crate::kit::common::{Answered, Bench, read_now};
use crate::kit::folder::Folder;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An engine of one process. Its own clock says nothing of the other's.
pub(crate) fn process(folder: &Folder, age_ms: u64) -> Bench {
    process_at(folder, age_ms, StoreOptions::default())
}

pub(crate) fn process_at(folder: &Folder, age_ms: u64, options: StoreOptions) -> Bench {
    let owner_lost_ms = options.owner_lost_ms;
    let bench = Bench::new(Options { store: Some(store_in(folder, options)), owner_lost_ms, ..Options::default() });
    bench.advance(age_ms);
    bench
}

/// A store object of its own for one process.
pub(crate) fn store_in(folder: &Folder, options: StoreOptions) -> Arc<dyn EventStore> {
    open(&format!("sqlite:{}", folder.path("a.db").display()), &options).unwrap()
}

pub(crate) fn open_session(bench: &Bench, name: &str, revision: Revision) -> SessionHandle {
    let wake = Arc::new(NoWake);
    let session =
        bench.engine.open_session(name, Some(&Principal::named("alice")), &Dialect::MCP_PYTHON_2, wake, 0).unwrap();
    session.assume_revision(revision);
    session
}

pub(crate) fn find(bench: &Bench, name: &str, principal: Option<&str>) -> Result<Option<SessionHandle>, EngineError> {
    let wake = Arc::new(NoWake);
    let look_up = bench
        .engine
        .look_up_session(name, principal.map(Principal::named).as_ref(), None, &Dialect::MCP_PYTHON_2, wake, 0)
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(outcome) = look_up.take() {
            return outcome;
        }
        assert!(Instant::now() < deadline, "the store tells of the session");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Finds alice's session. Its owner did not wait until the store knew it, so this asks again until it does.
pub(crate) fn find_known(bench: &Bench) -> SessionHandle {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(session) = find(bench, "s", Some("alice")).unwrap() {
            return session;
        }
        assert!(Instant::now() < deadline, "the store knows the session");
    }
}

/// Reads while time passes, until the answer is as it is wanted.
pub(crate) fn read_until(bench: &Bench, connection: &Connection, wanted: impl Fn(&Answered) -> bool) -> Answered {
    read_until_in(&[bench], connection, wanted)
}

/// The same, while time passes in all these processes: one whose store was busy asks it again at a tick. It passes no faster
/// than for the disk, which may stand still for seconds.
pub(crate) fn read_until_in(
    benches: &[&Bench],
    connection: &Connection,
    wanted: impl Fn(&Answered) -> bool,
) -> Answered {
    let mut all = Answered::default();
    let deadline = Instant::now() + PATIENCE;
    loop {
        benches.iter().for_each(|bench| bench.advance(1));
        let more = read_now(connection);
        all.status = all.status.or(more.status);
        all.content_type = all.content_type.or(more.content_type);
        all.text.push_str(&more.text);
        all.end = more.end;
        if wanted(&all) {
            return all;
        }
        assert!(all.end.is_none() && Instant::now() < deadline, "{all:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What an answer carries besides first bytes and comments.
pub(crate) fn events(answered: &Answered) -> Vec<Value> {
    let is_event = |frame: &Value| frame.get("event").or_else(|| frame.get("tombstone")).is_some();
    answered.frames().into_iter().filter(is_event).collect()
}

pub(crate) fn has(count: usize) -> impl Fn(&Answered) -> bool {
    move |answered| events(answered).len() >= count
}

/// This process hears of a reader elsewhere; what comes then goes to the newer reader alone.
pub(crate) fn wait_for_a_takeover(bench: &Bench, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    while bench.engine.stats().takeovers_elsewhere < count {
        assert!(Instant::now() < deadline, "the reader is told of");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// It has an id. Comments may come before, while the store has the log not yet.
pub(crate) fn begun(answered: &Answered) -> bool {
    answered.text.contains("id: ")
}

pub(crate) fn ended(answered: &Answered) -> bool {
    answered.end.is_some()
}
