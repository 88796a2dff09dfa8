//! What the tests of the engine share: reading answers, and a store whose answers are made to wait.
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{
    CallOutcome, Clock, Connection, Engine, EngineError, ManualClock, NoWake, Options, OutgoingMessage, Poll,
    RandomSource, Sent, SessionHandle, Stats, Wake,
};
use tailrope_core::log_lines::{Level, Line, LineSink, send_lines};
use tailrope_core::protocol::{Dialect, EventId, RequestId, Revision};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, AttachedLog, Complete, Epoch, EventStore, Hold, Limits, LogPage, Mail,
    MemoryStore, Operation, Outcome, ReadLimit, RunningLog, StoreError, StreamKey, Ticket, Usage,
};
use tailrope_core::stream::{CloseReason, Seq};

use crate::kit::dice::Dice;

pub(crate) const NEW: Revision = Revision::V2025_11_25;
pub(crate) const OLD: Revision = Revision::V2025_06_18;

/// The randomness of an engine: another one for each engine of a test, the same whenever the test runs. What chance may do is
/// the simulation's to find, which names its seed.
struct Repeated(Mutex<Dice>);

impl Repeated {
    fn next() -> Self {
        thread_local! { static ENGINES: Cell<u64> = const { Cell::new(0) } }
        let number = ENGINES.replace(ENGINES.get() + 1);
        // Each test has a thread that is named like it.
        let mut hasher = DefaultHasher::new();
        (std::thread::current().name(), number).hash(&mut hasher);
        Self(Mutex::new(Dice::Seed(hasher.finish())))
    }
}

impl RandomSource for Repeated {
    fn fill(&self, block: &mut [u8]) {
        let mut dice = self.0.lock().unwrap();
        block.fill_with(|| u8::try_from(dice.below(256)).expect("it is a byte"));
    }
}

/// Wants no line, and leaves none switched off.
struct Unwanted;

impl LineSink for Unwanted {
    fn wants(&self, _: Level) -> bool {
        false
    }

    fn take(&self, _: Level, _: Line) {}
}

/// A test may have a subscriber of its own on its thread. A line that a thread without one comes to first would otherwise be
/// switched off for all threads.
pub(crate) fn keep_lines_on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| send_lines(Unwanted));
}

/// An engine with a clock that stands still.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<ManualClock>,
}

impl Bench {
    pub(crate) fn new(options: Options) -> Self {
        keep_lines_on();
        let clock = Arc::new(ManualClock::default());
        let randomness = options.randomness.clone().or_else(|| Some(Arc::new(Repeated::next())));
        let engine = Engine::new(Options { clock: Some(Arc::clone(&clock) as _), randomness, ..options });
        Self { engine, clock }
    }

    pub(crate) fn session(&self, id: &str, revision: Revision) -> SessionHandle {
        self.session_of(id, revision, &Dialect::MCP_PYTHON_2)
    }

    pub(crate) fn session_of(&self, id: &str, revision: Revision, dialect: &'static Dialect) -> SessionHandle {
        let wake = Arc::new(NoWake);
        let session = self.engine.open_session(id, None, dialect, wake, 0).expect("a session can open");
        session.assume_revision(revision);
        session
    }

    pub(crate) fn clock_ms(&self) -> u64 {
        self.clock.now().0
    }

    /// Moves the clock and does what time asks for.
    pub(crate) fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.engine.tick();
    }

    /// Everything that a connection has, after the time that first bytes may wait.
    pub(crate) fn read(&self, connection: &Connection) -> Answered {
        self.advance(20);
        read_now(connection)
    }
}

/// What was read from a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: Option<u16>,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) text: String,
    pub(crate) end: Option<CloseReason>,
}

impl Answered {
    pub(crate) fn frames(&self) -> Vec<Value> {
        frames(&self.text)
    }

    /// The event ids, in order.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.text.lines().filter_map(|line| line.strip_prefix("id: ")).map(str::to_owned).collect()
    }

    pub(crate) fn last_id(&self) -> String {
        self.ids().pop().expect("there is an event id")
    }
}

/// Everything that a connection has at this moment.
pub(crate) fn read_now(connection: &Connection) -> Answered {
    let mut answered = Answered::default();
    loop {
        let poll: Poll = connection.poll(64 << 10);
        if let Some(head) = poll.head {
            answered.status = Some(head.status);
            answered.content_type = head.content_type;
        }
        answered.text.push_str(&poll.text());
        answered.end = poll.end;
        if poll.end.is_some() || poll.is_empty() {
            return answered;
        }
    }
}

/// The blocks of an event stream as data. A block that is not written exactly as ours are is a fault.
pub(crate) fn frames(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with("\n\n"), "{text:?}");
    text.split_terminator("\n\n").map(frame).collect()
}

fn frame(block: &str) -> Value {
    let lines: Vec<(&str, &str)> = block
        .lines()
        .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("a field, a colon and a blank: {line:?}")))
        .collect();
    match lines[..] {
        [("", comment)] => match comment.split(' ').collect::<Vec<_>>()[..] {
            ["gap", first, count] => {
                json!({"gap": {"first": first.parse::<u64>().unwrap(), "count": count.parse::<u64>().unwrap()}})
            }
            _ => json!({"comment": comment}),
        },
        [("retry", ms)] => json!({"retry_ms": ms.parse::<u32>().unwrap()}),
        [("data", data)] => json!({"anonymous": message(data)}),
        [("id", id), ("retry", ms), ("data", "")] => match EventId::parse(id) {
            Some(EventId::Position(cursor)) => json!({"priming": cursor.seq, "retry_ms": ms.parse::<u32>().unwrap()}),
            other => panic!("a priming event has a position: {other:?}"),
        },
        [("id", id), ("data", data)] => match EventId::parse(id) {
            Some(EventId::Position(cursor)) => json!({"event": cursor.seq, "is": message(data)}),
            Some(EventId::Tombstone(..)) => json!({"tombstone": message(data)}),
            None => panic!("an event id of our form: {id}"),
        },
        _ => panic!("a block of our form: {block:?}"),
    }
}

/// A message in short: the last part of its method, or what its response is.
fn message(data: &str) -> Value {
    let message: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
    let short = |message: &Value| match message {
        Value::Object(fields) if fields.contains_key("method") => {
            json!(fields["method"].as_str().unwrap().trim_start_matches("notifications/"))
        }
        Value::Object(fields) if fields.contains_key("result") => json!({"result": fields["id"]}),
        Value::Object(fields) => json!({"error": fields["error"]["code"], "id": fields["id"]}),
        other => panic!("a message: {other}"),
    };
    match &message {
        Value::Array(messages) => messages.iter().map(short).collect(),
        one => short(one),
    }
}

pub(crate) fn notification(name: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/{name}"}}"#).into_bytes()
}

pub(crate) fn response(id: &RequestId) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.to_json()).into_bytes()
}

/// A wake-up that counts.
#[derive(Debug, Default)]
pub(crate) struct Bell(pub(crate) AtomicU64);

impl Wake for Bell {
    fn wake(&self, _key: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A memory store that answers when it is told to, or fails.
pub(crate) struct SlowStore {
    inner: MemoryStore,
    pub(crate) waits: AtomicBool,
    pub(crate) fails: AtomicBool,
    /// Calls off what is abandoned. Otherwise it is done late.
    pub(crate) calls_off: AtomicBool,
    /// The numbers of what was.
    abandoned: Mutex<HashSet<u64>>,
    pending: Mutex<VecDeque<Pending>>,
    /// Of the hold that came last.
    epoch: Mutex<Epoch>,
    /// Whoever asks waits for ever, as for a lock whose holder is not there.
    pub(crate) stands_still: AtomicBool,
    /// How many do.
    pub(crate) waiting: AtomicU64,
}

/// Who does not wait for anything.
struct Nobody;

impl Complete for Nobody {
    fn complete(&self, _: &Ticket, _: Outcome) {}
}

enum Pending {
    Hold(String, Hold, Ticket),
    Append(Ms, StreamKey, Epoch, Append, Ticket),
    Attach(String, Attach, Ticket),
    Read(StreamKey, Seq, ReadLimit, Ticket),
}

impl Pending {
    fn ticket(&self) -> &Ticket {
        match self {
            Self::Hold(.., ticket) | Self::Append(.., ticket) | Self::Attach(.., ticket) | Self::Read(.., ticket) => {
                ticket
            }
        }
    }
}

impl SlowStore {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(limits),
            waits: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            calls_off: AtomicBool::new(false),
            abandoned: Mutex::default(),
            pending: Mutex::default(),
            epoch: Mutex::default(),
            stands_still: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
        })
    }

    fn inner(&self) -> &MemoryStore {
        if self.stands_still.load(Ordering::SeqCst) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            loop {
                std::thread::park();
            }
        }
        &self.inner
    }

    pub(crate) fn set(&self, waits: bool, fails: bool) {
        self.waits.store(waits, Ordering::SeqCst);
        self.fails.store(fails, Ordering::SeqCst);
    }

    /// All that the store has of a log, however slow it is told to be.
    pub(crate) fn log_now(&self, key: &StreamKey) -> Option<AttachedLog> {
        let nobody: std::sync::Weak<Nobody> = std::sync::Weak::new();
        let ticket = Ticket { to: nobody, nonce: key.nonce, operation: Operation::Attach(0), number: 0 };
        let limit = ReadLimit { up_to: Seq::MAX, events: usize::MAX, bytes: usize::MAX };
        let attach = Attach { stream: Some(key.nonce), limit, ..Attach::default() };
        match self.inner().attach(&key.session, &attach, &ticket) {
            Answer::Now(attached) => attached.expect("the memory store does not fail").log,
            Answer::Later => unreachable!("the memory store answers at once"),
        }
    }

    /// Everything that a log holds, however slow the store is told to be.
    pub(crate) fn text_now(&self, key: &StreamKey) -> String {
        let log = self.log_now(key).unwrap_or_default();
        log.page.page.events.iter().map(|event| String::from_utf8_lossy(&event.frame)).collect()
    }

    /// What the session writes with that came last.
    pub(crate) fn epoch(&self) -> Epoch {
        *self.epoch.lock().unwrap()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.lock().unwrap().len()
    }

    /// How many operations that wait were abandoned.
    pub(crate) fn abandoned(&self) -> usize {
        let abandoned = self.abandoned.lock().unwrap();
        self.pending.lock().unwrap().iter().filter(|pending| abandoned.contains(&pending.ticket().number)).count()
    }

    /// Answers the oldest operation. False when there is none.
    pub(crate) fn answer(&self, succeed: bool) -> bool {
        self.answer_nth(0, succeed)
    }

    pub(crate) fn answer_nth(&self, at: usize, succeed: bool) -> bool {
        let Some(pending) = self.pending.lock().unwrap().remove(at) else { return false };
        match pending {
            Pending::Hold(session, hold, ticket) => {
                let result = if succeed { now(self.inner().hold(&session, &hold, &ticket)) } else { Err(failed()) };
                ticket.complete(Outcome::Held(result));
            }
            Pending::Append(at, key, epoch, append, ticket) => {
                let result = match succeed {
                    true => now(self.inner().append(at, &key, epoch, &append, &ticket)),
                    false => Err(failed()),
                };
                ticket.complete(Outcome::Done(result));
            }
            Pending::Attach(session, attach, ticket) => {
                let result = if succeed { now(self.inner().attach(&session, &attach, &ticket)) } else { Err(failed()) };
                ticket.complete(Outcome::Attached(result));
            }
            Pending::Read(key, after, limit, ticket) => {
                let result = if succeed { now(self.inner().read(&key, after, limit, &ticket)) } else { Err(failed()) };
                ticket.complete(Outcome::Page(result));
            }
        }
        true
    }

    pub(crate) fn answer_all(&self) {
        while self.answer(true) {}
    }

    /// Does the oldest append, and says that it got no answer in its own time: as a store does whose server
    /// took the append and was not heard. False when the oldest operation is no append.
    pub(crate) fn answer_unheard(&self) -> bool {
        let Some(Pending::Append(at, key, epoch, append, ticket)) = self.pending.lock().unwrap().pop_front() else {
            return false;
        };
        assert!(matches!(self.inner().append(at, &key, epoch, &append, &ticket), Answer::Now(Ok(()))), "it is taken");
        ticket.complete(Outcome::Done(Err(StoreError::TimedOut { after_ms: 10_000 })));
        true
    }

    /// Gives the oldest append this outcome, and does not do it. False when the oldest operation is no append.
    pub(crate) fn answer_with(&self, error: StoreError) -> bool {
        let Some(Pending::Append(.., ticket)) = self.pending.lock().unwrap().pop_front() else { return false };
        ticket.complete(Outcome::Done(Err(error)));
        true
    }

    fn does_wait(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    fn does_fail(&self) -> bool {
        self.fails.load(Ordering::SeqCst)
    }

    fn put(&self, pending: Pending) {
        self.pending.lock().unwrap().push_back(pending);
    }
}

/// The memory store answers at once.
fn now<T>(answer: Answer<T>) -> Result<T, StoreError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later => unreachable!("the memory store answers at once"),
    }
}

/// Names what must never reach a client.
pub(crate) const SECRET: &str = "password at db.internal:5432";

fn failed() -> StoreError {
    StoreError::Failed(SECRET.to_owned())
}

impl EventStore for SlowStore {
    fn away_ms(&self) -> Option<u64> {
        self.does_fail().then_some(1)
    }

    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        *self.epoch.lock().unwrap() = hold.epoch;
        match (self.does_wait(), self.does_fail()) {
            (true, _) => {
                self.put(Pending::Hold(session.to_owned(), hold.clone(), ticket.clone()));
                Answer::Later
            }
            (_, true) => Answer::Now(Err(failed())),
            _ => self.inner().hold(session, hold, ticket),
        }
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        match (self.does_wait(), self.does_fail()) {
            (true, _) => {
                self.put(Pending::Append(now, key.clone(), epoch, append.clone(), ticket.clone()));
                Answer::Later
            }
            (_, true) => Answer::Now(Err(failed())),
            _ => self.inner().append(now, key, epoch, append, ticket),
        }
    }

    fn abandon(&self, _key: &StreamKey, abandoned: &Ticket) {
        self.abandoned.lock().unwrap().insert(abandoned.number);
        if self.calls_off.load(Ordering::SeqCst) {
            self.pending.lock().unwrap().retain(|pending| pending.ticket().number != abandoned.number);
        }
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        match (self.does_wait(), self.does_fail()) {
            (true, _) => {
                self.put(Pending::Attach(session.to_owned(), attach.clone(), ticket.clone()));
                Answer::Later
            }
            (_, true) => Answer::Now(Err(failed())),
            _ => self.inner().attach(session, attach, ticket),
        }
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        match (self.does_wait(), self.does_fail()) {
            (true, _) => {
                self.put(Pending::Read(key.clone(), after, limit, ticket.clone()));
                Answer::Later
            }
            (_, true) => Answer::Now(Err(failed())),
            _ => self.inner().read(key, after, limit, ticket),
        }
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        self.inner().take(session, epoch, after, ticket)
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        self.inner().withdraw(now, key, end, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.inner().release(session, epoch);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.inner().settle(key, epoch, seq);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.inner().drop_stream(key, epoch);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.inner().drop_session(session, epoch);
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.inner().sweep(now)
    }

    fn usage(&self) -> Usage {
        self.inner().usage()
    }
}

pub(crate) fn id(number: i64) -> RequestId {
    RequestId::integer(number)
}

pub(crate) fn call(session: &SessionHandle, number: i64) -> Connection {
    session.call(&[id(number)], None, Arc::new(NoWake), 0).expect("the id is free")
}

pub(crate) fn call_json(session: &SessionHandle, number: i64) -> Connection {
    session.call_json(&[id(number)], None, Arc::new(NoWake), 0).expect("the id is free")
}

pub(crate) fn listen(session: &SessionHandle) -> Connection {
    session.listen(Arc::new(NoWake), 0).expect("the session is open")
}

pub(crate) fn resume(session: &SessionHandle, last_event_id: &str) -> Connection {
    session.resume(last_event_id, None, Arc::new(NoWake), 0).expect("the id is of our form")
}

pub(crate) fn notify(session: &SessionHandle, number: i64, name: &str) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::notification(Some(&id(number)), &notification(name)))
}

/// A notification that belongs to no request.
pub(crate) fn broadcast(session: &SessionHandle, name: &str) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::notification(None, &notification(name)))
}

pub(crate) fn respond(session: &SessionHandle, number: i64) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::response(&id(number), &response(&id(number))))
}

pub(crate) fn ask(session: &SessionHandle, number: i64, question: &str) -> Result<Sent, EngineError> {
    let question = RequestId::text_id(question);
    let payload = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list"}}"#, question.to_json());
    session.send(OutgoingMessage::request(&question, Some(&id(number)), payload.as_bytes()))
}

pub(crate) fn slow(options: Options) -> (Bench, Arc<SlowStore>) {
    let store = SlowStore::new(Limits::default());
    (Bench::new(Options { store: Some(Arc::clone(&store) as _), ..options }), store)
}

/// Each call that has begun runs, or has had its end.
pub(crate) fn check_sum(stats: &Stats) {
    let is_end =
        |name: &str| CallOutcome::ALL.iter().any(|outcome| name.strip_prefix("calls_") == Some(outcome.as_str()));
    let ended: u64 = stats.entries().filter(|(counter, _)| is_end(counter.name)).map(|(_, value)| value).sum();
    assert_eq!(stats.calls_begun, stats.calls_running + ended, "{stats:?}");
}

pub(crate) fn unused(bench: &Bench) {
    let stats = bench.engine.stats();
    assert_eq!((stats.sessions, stats.connections, stats.streams, stats.events, stats.bytes), (0, 0, 0, 0, 0));
}

/// What a document has between its fences, in the block that begins with these words.
pub(crate) fn documented(file: &str, begins: &str) -> String {
    let path = format!("{}/../docs/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the document is there");
    let mut blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let found = blocks.find(|(_, block)| block.starts_with(begins)).map(|(_, block)| block.to_owned());
    found.unwrap_or_else(|| panic!("{file} has no block that begins with {begins:?}"))
}
