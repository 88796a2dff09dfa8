//! Readers take streams over across processes, and get nothing before the store has counted them (I4).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kit::any_order::{AnyOrder, is_attach, is_look, process_in_any_order};
use crate::kit::common::{Bell, Bench, NEW, OLD, broadcast, call, listen, notify, read_now, respond, resume};
use crate::kit::folder::Folder;
use crate::kit::processes::{
    PATIENCE, begun, ended, events, find_known, has, open_session, process, read_until, store_in,
};
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, NoWake, Options, SessionHandle};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::Dialect;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, Operation, ReadLimit, RunningLog, StoreOptions,
    StreamKey, Ticket, Usage,
};
use tailrope_core::stream::{CloseReason, Drain, Seq};

/// A call with one event, and a cursor after it. The connection is gone.
fn interrupted_call(bench: &Bench, session: &SessionHandle) -> String {
    let first = call(session, 1);
    notify(session, 1, "a").unwrap();
    read_until(bench, &first, has(1)).last_id()
}

/// Waits until the store has counted so many readers, which nobody hears of, and some more. Nothing comes of this one.
fn held(bench: &Bench, store: &AnyOrder, count: usize, connection: &Connection) {
    store.wait_for(bench, count);
    for _ in 0..10 {
        bench.advance(20);
        let answered = read_now(connection);
        assert_eq!((answered.text.as_str(), answered.end), ("", None), "nothing before it is counted");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn resume_held(bench: &Bench, store: &AnyOrder, session: &SessionHandle, cursor: &str) -> Connection {
    store.hold(is_attach);
    let connection = resume(session, cursor);
    held(bench, store, 1, &connection);
    connection
}

fn answer(store: &AnyOrder) {
    store.let_go();
    store.answer_all();
}

/// Adds an event, and waits until the store has it.
fn until_stored<T>(bench: &Bench, add: impl FnOnce() -> T) {
    let stored = bench.engine.stats().events_stored;
    drop(add());
    let deadline = Instant::now() + PATIENCE;
    while bench.engine.stats().events_stored == stored {
        assert!(Instant::now() < deadline, "it is stored");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn i4_a_reader_gets_nothing_before_it_is_counted() {
    for revision in [NEW, OLD] {
        let folder = Folder::new();
        let (here, (there, store)) = (process(&folder, 0), process_in_any_order(&folder));
        let session = open_session(&here, "s", revision);
        let cursor = interrupted_call(&here, &session);
        until_stored(&here, || notify(&session, 1, "b").unwrap());
        let older = resume_held(&there, &store, &find_known(&there), &cursor);
        answer(&store);
        let got = read_until(&there, &older, has(1));
        assert_eq!(events(&got), [json!({"event": 2, "is": "b"})]);
        // Who has read something there goes on here.
        let newer = resume(&session, &got.last_id());
        notify(&session, 1, "c").unwrap();
        assert_eq!(events(&read_until(&here, &newer, has(1))), [json!({"event": 3, "is": "c"})]);
        assert_eq!(read_until(&there, &older, ended).end, Some(CloseReason::Superseded));
        respond(&session, 1).unwrap();
        assert_eq!(read_until(&here, &newer, ended).end, Some(CloseReason::Complete), "it is never fenced");
    }
}

#[test]
fn i4_a_listener_gets_nothing_before_it_is_counted() {
    let folder = Folder::new();
    let (here, (there, store)) = (process(&folder, 0), process_in_any_order(&folder));
    let session = open_session(&here, "s", NEW);
    until_stored(&here, || broadcast(&session, "a").unwrap());
    // Elsewhere, and where the session is.
    let (seen, own) = (find_known(&there), open_session(&there, "own", NEW));
    store.hold(is_attach);
    let elsewhere = listen(&seen);
    held(&there, &store, 1, &elsewhere);
    let listener = listen(&own);
    broadcast(&own, "b").unwrap();
    held(&there, &store, 2, &listener);
    answer(&store);
    assert_eq!(events(&read_until(&there, &elsewhere, has(1))), [json!({"event": 1, "is": "a"})]);
    assert_eq!(events(&read_until(&there, &listener, has(1))), [json!({"event": 1, "is": "b"})]);
}

#[test]
fn i4_a_look_from_before_a_reader_was_counted_takes_nothing_from_it() {
    let folder = Folder::new();
    let (here, (there, store)) = (process(&folder, 0), process_in_any_order(&folder));
    let session = open_session(&here, "s", NEW);
    until_stored(&here, || broadcast(&session, "a").unwrap());
    let seen = find_known(&there);
    drop(read_until(&there, &listen(&seen), has(1)));
    let one = listen(&seen);
    read_until(&there, &one, begun);
    store.hold(is_look);
    store.wait_for(&there, 1);
    let two = listen(&seen);
    read_until(&there, &two, begun);
    answer(&store);
    there.advance(1_000);
    broadcast(&session, "b").unwrap();
    assert_eq!(events(&read_until(&there, &two, has(1))), [json!({"event": 2, "is": "b"})], "it is the newest reader");
}

#[test]
fn i4_the_first_reader_of_a_call_is_not_waited_for() {
    let folder = Folder::new();
    let (there, store) = process_in_any_order(&folder);
    store.hold(is_attach);
    let session = open_session(&there, "s", NEW);
    interrupted_call(&there, &session);
    assert_eq!(store.waiting(), 0);
}

#[test]
fn o12_i4_a_reader_that_leaves_before_it_is_counted_is_called_off() {
    let folder = Folder::new();
    let (here, (there, store)) = (process(&folder, 0), process_in_any_order(&folder));
    let session = open_session(&here, "s", NEW);
    let cursor = interrupted_call(&here, &session);
    let older = resume_held(&there, &store, &find_known(&there), &cursor);
    older.lost();
    assert_eq!(store.waiting(), 0, "it is called off");
    let newer = resume(&session, &cursor);
    let mut got = read_until(&here, &newer, begun);
    notify(&session, 1, "b").unwrap();
    respond(&session, 1).unwrap();
    got.text.push_str(&read_until(&here, &newer, ended).text);
    assert_eq!(events(&got), [json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})]);
}

#[test]
fn i4_the_order_of_the_counts_decides_between_two_processes() {
    for (here_is_newer, here_is_told_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let folder = Folder::new();
        let ((here, store_here), (there, store_there)) = (process_in_any_order(&folder), process_in_any_order(&folder));
        let session = open_session(&here, "s", NEW);
        let cursor = interrupted_call(&here, &session);
        let seen = find_known(&there);
        let resume_here = || resume_held(&here, &store_here, &session, &cursor);
        let resume_there = || resume_held(&there, &store_there, &seen, &cursor);
        // Both are counted before anybody is told.
        let (at_here, at_there) = if here_is_newer {
            let at_there = resume_there();
            (resume_here(), at_there)
        } else {
            (resume_here(), resume_there())
        };
        for is_here in [here_is_told_first, !here_is_told_first] {
            answer(if is_here { &store_here } else { &store_there });
        }
        notify(&session, 1, "b").unwrap();
        let readers = [(&there, &at_there), (&here, &at_here)];
        let [(loser, fenced), (winner, has_it)] = if here_is_newer { readers } else { [readers[1], readers[0]] };
        let case = format!("here is newer: {here_is_newer}, told first: {here_is_told_first}");
        let left = read_until(loser, fenced, ended);
        assert_eq!(left.end, Some(CloseReason::Superseded), "{case}");
        let got = read_until(winner, has_it, has(1));
        assert_eq!(events(&got), [json!({"event": 2, "is": "b"})], "{case}");
        respond(&session, 1).unwrap();
        assert_eq!(read_until(winner, has_it, ended).end, Some(CloseReason::Complete), "{case}");
    }
}

#[test]
fn i9_a_store_that_cannot_count_holds_nobody() {
    let folder = Folder::new();
    let (bench, store) = process_in_any_order(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    notify(&session, 1, "b").unwrap();
    store.hold(is_attach);
    let bell = Arc::new(Bell::default());
    let connection = session.resume(&cursor, None, Arc::clone(&bell) as _, 7).unwrap();
    held(&bench, &store, 1, &connection);
    let rung = bell.0.load(Ordering::SeqCst);
    store.fail_all(&bench);
    store.let_go();
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 2, "is": "b"})]);
    assert!(bell.0.load(Ordering::SeqCst) > rung, "its writer is woken");
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&bench, &connection, ended).end, Some(CloseReason::Complete));
    // One without a cursor has nothing to wait for.
    store.hold(is_attach);
    let listener = listen(&session);
    held(&bench, &store, 1, &listener);
    store.fail_all(&bench);
    broadcast(&session, "c").unwrap();
    assert_eq!(events(&read_until(&bench, &listener, has(1))), [json!({"event": 1, "is": "c"})]);
}

#[test]
fn i9_a_count_that_is_never_told_holds_nobody_for_longer_than_the_store_may_take() {
    let folder = Folder::new();
    let (bench, store) = process_in_any_order(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    until_stored(&bench, || notify(&session, 1, "b").unwrap());
    store.hold(is_attach);
    let (bell, asked) = (Arc::new(Bell::default()), session.now());
    let connection = session.resume(&cursor, None, Arc::clone(&bell) as _, 7).unwrap();
    held(&bench, &store, 1, &connection);
    store.let_go();
    let due = connection.poll(64 << 10).wait_until;
    assert!(due.0 <= session.now().0 + 30_000, "the tick comes in time: {due:?}");
    bench.advance(asked.0 + 29_999 - session.now().0);
    assert_eq!(read_now(&connection).text, "");
    let rung = bell.0.load(Ordering::SeqCst);
    bench.advance(1);
    assert_eq!(store.waiting(), 0, "it is called off");
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 2, "is": "b"})]);
    assert!(bell.0.load(Ordering::SeqCst) > rung, "its writer is woken");
    notify(&session, 1, "c").unwrap();
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 3, "is": "c"})]);
    assert_eq!(bench.engine.stats().takeovers_elsewhere, 0);
}

#[test]
fn i4_a_newer_reader_here_ends_one_that_is_held() {
    let folder = Folder::new();
    let (bench, store) = process_in_any_order(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let older = resume_held(&bench, &store, &session, &cursor);
    let newer = resume(&session, &cursor);
    held(&bench, &store, 2, &newer);
    store.answer(1);
    let fenced = read_until(&bench, &older, ended);
    assert_eq!((fenced.text.as_str(), fenced.end), ("", Some(CloseReason::Superseded)));
    answer(&store);
    assert_eq!(read_until(&bench, &newer, begun).end, None);
}

#[test]
fn i11_a_session_that_ends_lets_go_of_those_who_are_held() {
    let folder = Folder::new();
    let (bench, store) = process_in_any_order(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let connection = resume_held(&bench, &store, &session, &cursor);
    session.end();
    let last = read_now(&connection);
    assert_eq!((last.status, last.end), (Some(404), Some(CloseReason::Ended)));
    answer(&store);
    let stats = bench.engine.stats();
    assert_eq!((stats.sessions, stats.connections), (0, 0));
}

#[test]
fn f44_a_drain_lets_go_of_those_who_are_held() {
    // By then a drain has sent everybody away.
    const DRAINED_MS: u64 = 60_000;
    let folder = Folder::new();
    let (there, (bench, store)) = (process(&folder, 0), process_in_any_order(&folder));
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let resumed = resume_held(&bench, &store, &session, &cursor);
    let listener = listen(&session);
    held(&bench, &store, 2, &listener);
    bench.engine.drain(Drain::after(100));
    bench.advance(DRAINED_MS);
    for connection in [&resumed, &listener] {
        let last = read_until(&bench, connection, ended);
        assert_eq!(last.end, Some(CloseReason::Drain));
        assert!(last.frames()[0]["priming"].is_number(), "I5: {}", last.text);
    }
    assert_eq!(store.waiting(), 0, "nobody is fenced for those who are sent away");
    // Who comes now is sent away as well, and need not wait for that.
    let elsewhere = resume(&find_known(&there), &cursor);
    read_until(&there, &elsewhere, begun);
    let late = resume(&session, &cursor);
    bench.advance(DRAINED_MS);
    assert_eq!(read_until(&bench, &late, ended).end, Some(CloseReason::Drain));
    assert_eq!(store.waiting(), 0);
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&there, &elsewhere, ended).end, Some(CloseReason::Complete));
}

#[test]
fn f44_who_comes_to_a_draining_process_takes_the_stream_from_nobody_elsewhere() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let cursor = interrupted_call(&here, &session);
    let reader = resume(&session, &cursor);
    read_until(&here, &reader, begun);
    there.engine.drain(Drain::after(100));
    let seen = found(&there, &cursor);
    for _ in 0..2 {
        assert_eq!(read_until(&there, &resume(&seen, &cursor), ended).end, Some(CloseReason::Drain));
    }
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&here, &reader, ended).end, Some(CloseReason::Complete));
}

#[test]
fn i10_what_is_held_is_bounded() {
    let folder = Folder::new();
    let (bench, store) = process_in_any_order(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let connection = resume_held(&bench, &store, &session, &cursor);
    let name = "x".repeat(8 << 10);
    for _ in 0..64 {
        notify(&session, 1, &name).unwrap();
        bench.advance(20);
        assert_eq!(connection.poll(16 << 10).len(), 0);
    }
    answer(&store);
    let mut most = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut count = 0;
    while count < 64 {
        let poll = connection.poll(16 << 10);
        most = most.max(poll.len());
        count += poll.text().matches("data: {").count();
        assert!(Instant::now() < deadline && poll.end.is_none());
        bench.advance(1);
        if poll.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(most <= 64 << 10, "{most} bytes at once");
}

#[test]
fn a_resume_asks_the_store_once_before_its_first_event() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let store = Arc::new(Counting { inner: store_in(&folder, StoreOptions::default()), asked: Mutex::default() });
    let there = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = open_session(&here, "s", NEW);
    let cursor = interrupted_call(&here, &session);
    until_stored(&here, || notify(&session, 1, "b").unwrap());
    let seen = found(&there, &cursor);
    let first = resume(&seen, &cursor);
    assert_eq!(events(&read_now(&first)), [json!({"event": 2, "is": "b"})]);
    assert!(matches!(store.asked.lock().unwrap()[..], [Operation::Attach(_)]), "{:?}", store.asked);
    // One that comes where the session is known already.
    store.asked.lock().unwrap().clear();
    let second = resume(&seen, &cursor);
    let deadline = Instant::now() + PATIENCE;
    while events(&read_now(&second)).is_empty() {
        assert!(Instant::now() < deadline, "the store tells of the stream");
    }
    assert!(matches!(store.asked.lock().unwrap()[..], [Operation::Attach(_)]), "{:?}", store.asked);
}

#[test]
fn a_reader_at_home_gets_what_was_stored_without_a_question() {
    let folder = Folder::new();
    let store = Arc::new(Counting { inner: store_in(&folder, StoreOptions::default()), asked: Mutex::default() });
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = open_session(&bench, "s", NEW);
    let reader = call(&session, 1);
    let mut got = Vec::new();
    for number in 0..10 {
        got.extend(events(&read_now(&reader)));
        assert_eq!(got.len(), number, "it has everything, and waits");
        until_stored(&bench, || notify(&session, 1, &format!("{number}")).unwrap());
        let deadline = Instant::now() + PATIENCE;
        while got.len() <= number {
            got.extend(events(&read_now(&reader)));
            assert!(Instant::now() < deadline, "what is stored is sent: {got:?}");
        }
    }
    let asked = store.asked.lock().unwrap();
    assert!(asked.iter().all(|operation| matches!(operation, Operation::Hold | Operation::Append)), "{asked:?}");
}

/// However many streams of other processes are read here, their logs are looked at a few times a second (O11).
#[test]
fn o11_logs_of_other_processes_are_looked_at_together() {
    const STREAMS: i64 = 40;
    const STEP_MS: u64 = 25;
    const FOR_MS: u64 = 5_000;
    let folder = Folder::new();
    let here = process(&folder, 0);
    let store = Arc::new(Counting { inner: store_in(&folder, StoreOptions::default()), asked: Mutex::default() });
    let there = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = open_session(&here, "s", NEW);
    let cursors: Vec<String> = (1..=STREAMS)
        .map(|id| {
            let first = call(&session, id);
            notify(&session, id, "a").unwrap();
            read_until(&here, &first, has(1)).last_id()
        })
        .collect();
    let seen = find_known(&there);
    let readers: Vec<Connection> = cursors.iter().map(|cursor| resume(&seen, cursor)).collect();
    for reader in &readers {
        read_until(&there, reader, begun);
    }
    let asked = || store.asked.lock().unwrap().len();
    let (mut times, mut looks) = (0, 0);
    let start = asked();
    for _ in 0..FOR_MS / STEP_MS {
        let before = asked();
        there.advance(STEP_MS);
        looks = asked() - start;
        times += usize::from(asked() > before);
        // The store answers on a thread of its own.
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = usize::try_from(FOR_MS / 125 + 1).unwrap();
    assert!(looks > usize::try_from(STREAMS).unwrap(), "they are looked at: {looks}");
    assert!(times <= most, "{looks} looks at {times} times, not {most}");
}

#[test]
fn a_short_call_asks_the_store_for_one_append() {
    let folder = Folder::new();
    let asked = Mutex::default();
    let store = Arc::new(Counting { inner: store_in(&folder, StoreOptions::default()), asked });
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = open_session(&bench, "s", NEW);
    for number in 1..4 {
        store.asked.lock().unwrap().clear();
        let connection = call(&session, number);
        // Its reader waits for what is stored, as that of a server does.
        assert!(events(&read_now(&connection)).is_empty());
        respond(&session, number).unwrap();
        assert_eq!(events(&read_until(&bench, &connection, ended)).len(), 1);
        let asked = store.asked.lock().unwrap().clone();
        // The first call brings the session along.
        assert!(number == 1 || asked == [Operation::Append], "call {number}: {asked:?}");
    }
}

/// The session, looked up together with the stream of a cursor.
fn found(bench: &Bench, cursor: &str) -> SessionHandle {
    let wake = Arc::new(NoWake);
    let found = bench
        .engine
        .look_up_session("s", Some(&Principal::named("alice")), Some(cursor), &Dialect::MCP_PYTHON_2, wake, 0)
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(outcome) = found.take() {
            return outcome.unwrap().expect("it is alice's");
        }
        assert!(Instant::now() < deadline, "the store tells of the session");
    }
}

/// Another store, with what it was asked. It gives no hints, so nothing else is asked meanwhile.
struct Counting {
    inner: Arc<dyn EventStore>,
    asked: Mutex<Vec<Operation>>,
}

impl EventStore for Counting {
    passes_on!(take withdraw release settle drop_stream drop_session sweep usage answers_elsewhere outlives_process);

    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.asked.lock().unwrap().push(ticket.operation);
        self.inner.hold(session, hold, ticket)
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        self.asked.lock().unwrap().push(ticket.operation);
        self.inner.append(now, key, epoch, append, ticket)
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.asked.lock().unwrap().push(ticket.operation);
        self.inner.attach(session, attach, ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.asked.lock().unwrap().push(ticket.operation);
        self.inner.read(key, after, limit, ticket)
    }
}
