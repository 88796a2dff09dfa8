//! Log lines, for subscribers that call the engine.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::kit::common::{Bench, NEW, broadcast, call, id, read_now, resume};
use tailrope_core::engine::{Options, OutgoingMessage, SessionHandle};
use tracing::{Event, Metadata, Subscriber, span};

thread_local! {
    static IS_FORWARDING: Cell<bool> = const { Cell::new(false) };
}

/// Sends each line to the client of a session, as a notification.
struct Forwarding {
    session: SessionHandle,
    sent: Mutex<usize>,
}

impl Subscriber for Forwarding {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, _: &Event<'_>) {
        // What it sends has lines of its own.
        if !IS_FORWARDING.replace(true) {
            broadcast(&self.session, "log").unwrap();
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
    let forwarding = Forwarding { session: session.clone(), sent: Mutex::default() };
    let dispatch = tracing::Dispatch::new(forwarding);
    tracing::dispatcher::with_default(&dispatch, || {
        // Lines for a large event, for a resume, and for connections that end.
        let first = call(&session, 1);
        session.send(OutgoingMessage::notification(Some(&id(1)), br#"{"jsonrpc":"2.0","method":"n"}"#)).unwrap();
        let told = bench.read(&first);
        let again = resume(&session, &told.ids()[0]);
        read_now(&again);
        session.close_connection(&id(1), None, None);
        drop(again);
    });
    *dispatch.downcast_ref::<Forwarding>().unwrap().sent.lock().unwrap()
}

#[test]
fn a_subscriber_may_send_its_lines_to_the_session_that_they_are_of() {
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        // A place in the code that another test comes to for the first time just now may count as one that no
        // subscriber wants. The next subscriber has it.
        done.send((0..10).map(|_| lines_sent()).find(|sent| *sent >= 3)).unwrap();
    });
    let sent = is_done.recv_timeout(Duration::from_secs(60)).expect("nothing waits for itself");
    assert!(sent.is_some(), "the lines are sent");
}
