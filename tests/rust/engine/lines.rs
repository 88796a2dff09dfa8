//! Log lines, for subscribers that call the engine.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::kit::adopting::{go_on, initialize, post, welcome};
use crate::kit::common::{Bench, NEW, broadcast, call, id, keep_lines_on, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::processes::find;
use crate::kit::relaying::{ALICE, admitted, initialized, pass, read, relay, relayed, tool_call};
use tailrope_core::engine::{NoWake, Options, OutgoingMessage};
use tailrope_core::exchange::RelayedMethod;
use tailrope_core::protocol::Dialect;
use tailrope_core::store::{EncryptionKey, SealedStore, session_name};
use tailrope_core::stream::Drain;
use tracing::{Event, Metadata, Subscriber, span};

thread_local! {
    static IS_FORWARDING: Cell<bool> = const { Cell::new(false) };
}

/// Does something for each line.
struct Forwarding {
    call: Box<dyn Fn(&Event<'_>) + Send + Sync>,
    sent: Mutex<usize>,
}

impl Subscriber for Forwarding {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        // What it sends has lines of its own.
        if !IS_FORWARDING.replace(true) {
            (self.call)(event);
            *self.sent.lock().unwrap() += 1;
            IS_FORWARDING.set(false);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// How many lines a session's own subscriber has sent to it.
fn lines_sent() -> usize {
    let bench = Bench::new(Options { warn_event_bytes: 10, ..Options::default() });
    let session = bench.session("s", NEW);
    let client = session.clone();
    lines_of(
        move |_: &Event<'_>| assert!(broadcast(&client, "log").is_ok()),
        || {
            // Lines for a large event, for a resume, and for connections that end.
            let first = call(&session, 1);
            session.send(OutgoingMessage::notification(Some(&id(1)), br#"{"jsonrpc":"2.0","method":"n"}"#)).unwrap();
            let told = bench.read(&first);
            let again = resume(&session, &told.ids()[0]);
            read_now(&again);
            session.close_connection(&id(1), None, None);
            drop(again);
        },
    )
}

/// How many lines there are of what is done. `call` is called for each.
pub(crate) fn lines_of(call: impl Fn(&Event<'_>) + Send + Sync + 'static, done: impl FnOnce()) -> usize {
    keep_lines_on();
    let dispatch = tracing::Dispatch::new(Forwarding { call: Box::new(call), sent: Mutex::default() });
    tracing::dispatcher::with_default(&dispatch, done);
    *dispatch.downcast_ref::<Forwarding>().unwrap().sent.lock().unwrap()
}

/// How many lines there are of a session whose store was given other keys meanwhile. A subscriber calls it for each.
fn lines_of_what_cannot_be_read() -> usize {
    let fleet = Fleet::new(3);
    let process = |index: usize, keys: &[char]| {
        let keys = keys.iter().map(|key| EncryptionKey::from_hex(&key.to_string().repeat(64)).unwrap());
        let keys: Vec<EncryptionKey> = keys.collect();
        let store = SealedStore::new(Arc::clone(&fleet.nodes[index]) as _, &keys).unwrap();
        Bench::new(Options { store: Some(Arc::new(store)), owner_lost_ms: 1_000, ..Options::default() })
    };
    let (here, there) = (process(0, &['a']), process(1, &['b', 'a']));
    let session = here.session("s", NEW);
    session.accept_posted();
    session.received(&admitted(&initialized().to_string()));
    let running = call(&session, 1);
    let cursor = here.read(&running).ids()[0].clone();
    let view = find(&there, "s", None).unwrap().unwrap();
    let relay = || {
        let relayed = relayed(RelayedMethod::Post, &tool_call(2));
        view.relay(&admitted(&tool_call(2).to_string()), relayed, Arc::new(NoWake), 0).unwrap()
    };
    let called = [view.clone(), session.clone()];
    let look = move |_: &Event<'_>| assert!(called.iter().all(|session| !session.has_ended()));
    lines_of(look, || {
        // A log.
        let reader = resume(&view, &cursor);
        read_now(&reader);
        // A message.
        let refused = relay();
        fleet.settle();
        assert!(session.take_posted().is_empty());
        drop(refused);
        // What runs, as an heir is told.
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        let waiting = relay();
        fleet.lose(0);
        (0..10).for_each(|_| there.advance(500));
        assert!(fleet.epoch("s").number > 1, "it is taken over");
        drop(waiting);
    })
}

/// The first number of lines that is not too small, in a thread of its own.
pub(crate) fn tried(lines: fn() -> usize, at_least: usize) -> Option<usize> {
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        // A place in the code that another test comes to for the first time just now may count as one that no
        // subscriber wants. The next subscriber has it.
        done.send((0..10).map(|_| lines()).find(|sent| *sent >= at_least)).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("nothing waits for itself")
}

#[test]
fn a_subscriber_may_send_its_lines_to_the_session_that_they_are_of() {
    assert!(tried(lines_sent, 3).is_some(), "the lines are sent");
}

#[test]
fn a_subscriber_may_call_a_session_of_which_a_store_cannot_read_all() {
    assert!(tried(lines_of_what_cannot_be_read, 3).is_some(), "it is told");
}

/// A line, with all that it tells.
fn text_of(event: &Event<'_>) -> String {
    let mut line = event.metadata().level().to_string();
    event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
        line += &format!(" {field}={value:?}");
    });
    line
}

/// The life of a session in three processes: its client comes back elsewhere, its process drains, another one adopts it, and a
/// third takes it over.
fn live(id_of_session: &str) {
    let fleet = Fleet::with(3, Options { owner_lost_ms: 1_000, ..Options::default() });
    let (principal, wake) = (ALICE.principal().unwrap(), || Arc::new(NoWake));
    let (engine, dialect) = (&fleet.benches[0].engine, &Dialect::MCP_PYTHON_2);
    let session = engine.open_session(id_of_session, principal.as_ref(), dialect, wake(), 0).unwrap();
    session.accept_posted();
    let first = post(&session, &initialize(NEW)).unwrap();
    welcome(&session, &id(0), NEW);
    drop(first);
    post(&session, &initialized()).unwrap();
    let running = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read(&fleet, &running).last_id();
    let look_up = |index: usize| find(&fleet.benches[index], id_of_session, Some("alice")).unwrap().unwrap();
    let view = look_up(1);
    let reader = resume(&view, &cursor);
    read(&fleet, &reader);
    fleet.benches[0].engine.drain(Drain::after(10));
    respond(&session, 1).unwrap();
    pass(&fleet, 1_000);
    drop((running, reader));
    pass(&fleet, 1_000);
    view.offer_adoption(wake(), 0);
    let waiting = relay(&view, &tool_call(2));
    let (owner, served) = go_on(&view, NEW);
    assert_eq!(served, ["tools/call 2"]);
    let elsewhere = resume(&look_up(2), &cursor);
    read(&fleet, &elsewhere);
    fleet.take_over(2, id_of_session);
    assert!(notify(&owner, 2, "b").is_err() || owner.has_ended());
    pass(&fleet, 1_000);
    drop(waiting);
}

#[test]
fn no_line_of_the_log_has_the_id_of_a_session() {
    const ID: &str = "an-id-that-nobody-else-may-know";
    let name = session_name(ID);
    let lines = (0..10).find_map(|_| {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&lines);
        lines_of(move |event: &Event<'_>| keeps.lock().unwrap().push(text_of(event)), || live(ID));
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        assert!(lines.iter().all(|line| !line.contains(ID)), "R-S7: {lines:#?}");
        let has = |said: &str| lines.iter().any(|line| line.contains(&*name) && line.contains(said));
        let said = ["session opened", "session of another process served", "session adopted", "has the session"];
        said.into_iter().all(has).then_some(lines)
    });
    assert!(lines.is_some(), "it is said what happened, and to which session");
}
