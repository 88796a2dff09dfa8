//! The log of `initialize`: it goes as soon as the client has shown that it has read the answer.

use std::sync::Arc;

use serde_json::json;
use tailrope_core::engine::{Connection, NoWake, Options, SessionHandle};
use tailrope_core::protocol::Dialect;

use crate::kit::adopting::{initialize, post, welcome};
use crate::kit::common::{Answered, Bench, NEW, id, read_now, resume};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{ALICE, find, initialized, read, relay, serve};

/// A session whose client has asked to open it.
fn ask(bench: &Bench) -> (SessionHandle, Connection) {
    let (principal, dialect) = (ALICE.principal().unwrap(), &Dialect::MCP_PYTHON_2);
    let session = bench.engine.open_session("s", principal.as_ref(), dialect, Arc::new(NoWake), 0).expect("it is new");
    session.accept_posted();
    let connection = post(&session, &initialize(NEW)).expect("it is admitted").expect("it is a call");
    (session, connection)
}

/// The same, and what the client was answered.
fn open(bench: &Bench) -> (SessionHandle, Answered) {
    let (session, connection) = ask(bench);
    welcome(&session, &id(0), NEW);
    let answered = bench.read(&connection);
    (session, answered)
}

fn greet(session: &SessionHandle) {
    post(session, &initialized()).expect("it is admitted");
}

#[test]
fn i11_the_log_of_an_initialize_goes_when_its_client_has_read_it() {
    let bench = Bench::new(Options::default());
    let (session, answered) = open(&bench);
    assert_eq!(bench.engine.stats().streams, 1);
    let cursor = &answered.ids()[0];
    let again = read_now(&resume(&session, cursor));
    assert_eq!(again.frames()[1..], answered.frames()[1..], "nothing shows that it was read");
    greet(&session);
    assert_eq!((bench.engine.stats().streams, bench.engine.stats().bytes), (0, 0));
    for cursor in answered.ids() {
        assert_eq!(read_now(&resume(&session, &cursor)).status, Some(204), "nothing is left of it");
    }
    greet(&session);
}

#[test]
fn i8_a_client_that_lies_about_its_initialize_loses_nothing() {
    let bench = Bench::new(Options::default());
    let (session, connection) = ask(&bench);
    greet(&session);
    welcome(&session, &id(0), NEW);
    assert_eq!(bench.read(&connection).frames().len(), 2, "the answer was not there");
    assert_eq!(bench.engine.stats().streams, 1);
}

#[test]
fn i11_the_log_of_an_initialize_is_not_written_again() {
    for is_relayed in [false, true] {
        let fleet = Fleet::new(2);
        let (session, answered) = open(&fleet.benches[0]);
        let elsewhere = find(&fleet, 1);
        let before = fleet.usage().streams;
        if is_relayed {
            let accepted = relay(&elsewhere, &initialized());
            fleet.settle();
            serve(&session);
            assert_eq!(read(&fleet, &accepted).status, Some(202));
        } else {
            greet(&session);
        }
        fleet.disturb();
        assert_eq!(fleet.usage().streams, before - 1);
        let cursor = &answered.ids()[0];
        assert_eq!(read(&fleet, &resume(&session, cursor)).status, Some(204));
        let lost = read(&fleet, &resume(&elsewhere, cursor));
        assert_eq!(lost.frames(), [json!({"tombstone": {"error": -32603, "id": 0}})], "as for any log that is gone");
    }
}
