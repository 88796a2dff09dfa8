//! What one process of a fleet is: a store object, an engine over it, a thread that does a host's part.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tailrope_core::engine::{Connection, Engine, NoWake, Options, OutgoingMessage, SessionHandle, Wake};
use tailrope_core::protocol::{Dialect, RequestId, Revision};
use tailrope_core::store::StoreOptions;
use tailrope_stores::open;

pub(crate) const DIALECT: &Dialect = &Dialect::MCP_PYTHON_2;
const PROGRESS: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
/// What takes longer is a fault.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const POLL_BYTES: usize = 64 << 10;
/// Of so many sessions one has a call that runs; all of them listen.
const CALLING: usize = 10;
/// The ids of the requests.
const INITIALIZE: i64 = 1;
const CALL: i64 = 2;

/// Opens a session as hosts do, with its `initialize` answered.
pub(crate) fn begin(engine: &Engine, id: &str) -> (SessionHandle, Connection) {
    const RESULT: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"fleet","version":"1"}}}"#;
    let session = engine.open_session(id, None, DIALECT, Arc::new(NoWake), 0).expect("it is new");
    session.take_place().expect("there is room");
    let request = RequestId::integer(INITIALIZE);
    let answer = session.call(std::slice::from_ref(&request), Some(Revision::V2025_11_25), Arc::new(NoWake), 0);
    session.send(OutgoingMessage::response(&request, RESULT)).expect("it is answered");
    (session, answer.expect("it is open"))
}

/// Which connections have something, and whether the process ends.
#[derive(Default)]
struct Bell {
    rung: Mutex<(Vec<u64>, bool)>,
    came: Condvar,
}

impl Wake for Bell {
    fn wake(&self, key: u64) {
        lock(&self.rung).0.push(key);
        self.came.notify_one();
    }
}

impl Bell {
    /// What rang meanwhile; none when the process ends.
    fn wait(&self, at_most: Duration) -> Option<Vec<u64>> {
        let rung = lock(&self.rung);
        let quiet = |rung: &mut (Vec<u64>, bool)| rung.0.is_empty() && !rung.1;
        let (mut rung, _) = self.came.wait_timeout_while(rung, at_most, quiet).unwrap_or_else(PoisonError::into_inner);
        (!rung.1).then(|| std::mem::take(&mut rung.0))
    }
}

/// A connection, and what its client got.
struct Reader {
    connection: Connection,
    /// The last event id.
    cursor: Option<String>,
    progress: u64,
}

impl Reader {
    fn read(&mut self) {
        loop {
            let poll = self.connection.poll(POLL_BYTES);
            let text = poll.text();
            self.progress += text.matches("notifications/progress").count() as u64;
            if let Some(id) = text.lines().rev().find_map(|line| line.strip_prefix("id: ")) {
                self.cursor = Some(id.to_owned());
            }
            if poll.is_empty() || poll.end.is_some() {
                return;
            }
        }
    }
}

pub(crate) struct Process {
    engine: Engine,
    bell: Arc<Bell>,
    readers: Arc<Mutex<Vec<Reader>>>,
    /// Sessions with a call that runs, and the number of its reader.
    calls: Vec<(SessionHandle, usize)>,
    sessions: usize,
    host: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn new(address: &str) -> Self {
        let store = open(address, &StoreOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let engine = Engine::new(Options { store: Some(store), max_sessions: 1 << 20, ..Options::default() });
        let (bell, readers) = (Arc::<Bell>::default(), Arc::<Mutex<Vec<Reader>>>::default());
        let (of_host, its_bell, its_readers) = (engine.clone(), Arc::clone(&bell), Arc::clone(&readers));
        let host = std::thread::spawn(move || {
            while let Some(rung) = its_bell.wait(Duration::from_millis(of_host.due_in_ms())) {
                for number in rung {
                    // Rung before it was put there: it is read when it is.
                    if let Some(reader) = lock(&its_readers).get_mut(number as usize) {
                        reader.read();
                    }
                }
                if of_host.due_in_ms() == 0 {
                    of_host.tick();
                }
            }
        });
        Self { engine, bell, readers, calls: Vec::new(), sessions: 0, host: Some(host) }
    }

    /// Begins so many sessions: each with its `initialize` answered and a GET that listens, some with a call that runs.
    pub(crate) fn fill(&mut self, name: &str, sessions: usize) {
        for number in 0..sessions {
            let (session, answer) = begin(&self.engine, &format!("{name} session {number}"));
            // Its client reads it, and goes on.
            drop(answer);
            self.read_by(|key| session.listen(self.wake(), key).expect("it listens"));
            if number % CALLING == 0 {
                let request = RequestId::integer(CALL);
                let reader = self.read_by(|key| session.call(&[request], None, self.wake(), key).expect("it is open"));
                self.calls.push((session, reader));
            }
        }
        self.sessions += sessions;
    }

    /// Waits until every client has what it can resume with.
    pub(crate) fn settle(&self) {
        wait_until("every connection is primed", || lock(&self.readers).iter().all(|reader| reader.cursor.is_some()));
    }

    /// Reads calls of another process, as their clients do that come back here. Returns the numbers of their readers.
    pub(crate) fn follow(&self, other: &Self, calls: std::ops::Range<usize>) -> Vec<usize> {
        let follow = |(session, reader): &(SessionHandle, usize)| {
            let cursor = lock(&other.readers)[*reader].cursor.clone().expect("it is primed");
            let (wake, key) = (Arc::new(NoWake), 0);
            let look_up = self.engine.look_up_session(session.id(), None, Some(&cursor), DIALECT, wake, key);
            let look_up = look_up.expect("it can be looked up");
            let mut found = None;
            wait_until("the store tells of the session", || {
                found = found.take().or_else(|| look_up.take());
                found.is_some()
            });
            let found = found.expect("it was told").expect("the store can tell").expect("the session is there");
            self.read_by(|key| found.resume(&cursor, None, self.wake(), key).expect("it can be resumed"))
        };
        let numbers: Vec<usize> = other.calls[calls].iter().map(follow).collect();
        let is_primed = |number: &usize| lock(&self.readers)[*number].cursor.is_some();
        wait_until("every reader has come", || numbers.iter().all(is_primed));
        numbers
    }

    /// The readers that came last, so many, go away.
    pub(crate) fn leave(&self, readers: usize) {
        let mut all = lock(&self.readers);
        let left = all.len() - readers;
        // Dropped behind the lock: what wakes others may want it.
        let gone = all.split_off(left);
        drop(all);
        drop(gone);
    }

    /// Sends so many events of a call, each when a reader has the one before.
    pub(crate) fn send(&self, call: usize, events: u64, (at, reader): (&Self, usize)) {
        let request = RequestId::integer(CALL);
        for _ in 0..events {
            let before = lock(&at.readers)[reader].progress;
            let message = OutgoingMessage::notification(Some(&request), PROGRESS.as_bytes());
            self.calls[call].0.send(message).expect("it is taken");
            wait_until("the event is read", || lock(&at.readers)[reader].progress > before);
        }
    }

    /// The number of the reader that a call has here.
    pub(crate) fn reader_of(&self, call: usize) -> usize {
        self.calls[call].1
    }

    /// Nothing was lost, and nobody took anything for gone.
    pub(crate) fn check(&self) {
        let stats = self.engine.stats();
        let lost = [stats.sessions_taken_over, stats.events_unstored, stats.logs_lost, stats.resumes_lost];
        assert!(stats.sessions as usize >= self.sessions && lost == [0; 4], "{stats:?}");
    }

    fn wake(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.bell) as _
    }

    fn read_by(&self, connect: impl FnOnce(u64) -> Connection) -> usize {
        let mut readers = lock(&self.readers);
        let number = readers.len();
        let mut reader = Reader { connection: connect(number as u64), cursor: None, progress: 0 };
        reader.read();
        readers.push(reader);
        number
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        lock(&self.bell.rung).1 = true;
        self.bell.came.notify_one();
        if let Some(host) = self.host.take() {
            let _ = host.join();
        }
        self.engine.release();
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
