//! The record of a call that is relayed and refused: there is one, in the process that refuses it, and it says why.

use std::sync::atomic::Ordering;

use tailrope_core::engine::Options;
use tailrope_core::protocol::{Dialect, Reason, Refusal};
use tailrope_core::store::MAX_INBOX_MESSAGES;
use tailrope_core::stream::Drain;
use tracing::Level;

use super::relay_faults::{LOST_MS, fleet};
use crate::engine::call_records::{Fields, lines};
use crate::kit::common::{NEW, OLD, call, read_now, respond};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{cancellation, find, initialized, open, open_as, pass, relay, serve, tool_call};

/// The only record of what is done.
fn only(done: impl FnOnce()) -> Fields {
    let mut found = lines("call ended", done);
    assert_eq!(found.len(), 1, "{found:?}");
    let (level, fields) = found.pop().unwrap();
    assert_eq!(level, if fields["outcome"] == "cancelled" { Level::INFO } else { Level::WARN });
    let asked = ["method", "tool", "request"].map(|name| fields.get(name).map(String::as_str));
    assert_eq!(asked, [Some("tools/call"), Some("t"), Some("2")], "{fields:?}");
    fields
}

/// The same of a call that is refused for this reason.
fn refused(reason: Reason, done: impl FnOnce()) {
    let fields = only(done);
    assert_eq!((fields["outcome"].as_str(), fields["cause"].as_str()), ("refused", reason.cause()));
}

#[test]
fn an_owner_that_refuses_what_is_relayed_says_why() {
    refused(Reason::TooManyRequests, || {
        let options = Options { owner_lost_ms: LOST_MS, max_requests_per_session: 1, ..Options::default() };
        let fleet = Fleet::with(2, options);
        let session = open(&fleet, NEW);
        let _first = call(&session, 1);
        let _second = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        assert_eq!(serve(&session), [""; 0]);
        assert_eq!(fleet.benches[0].engine.stats().refused_too_many_requests, 1);
        // The call that runs has no record yet, and none of what became of the other.
        respond(&session, 1).unwrap();
    });
    refused(Reason::DuplicateId, || {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let _first = call(&session, 2);
        let _copy = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        assert_eq!(serve(&session), [""; 0]);
    });
    refused(Reason::Stopping, || {
        let fleet = fleet(2);
        let session = open(&fleet, OLD);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        fleet.benches[0].engine.drain(Drain::after(100));
        assert_eq!(serve(&session), [""; 0]);
    });
    refused(Reason::Stopping, || {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        session.release();
    });
    refused(Reason::NotRelayed, || {
        let fleet = fleet(2);
        let session = open_as(&fleet, NEW, &Dialect::MCP_PYTHON_2);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        assert!(session.take_posted().is_empty(), "its host takes nothing");
    });
}

#[test]
fn what_a_host_refuses_has_the_hosts_reason() {
    refused(Reason::BadRequest, || {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        session.take_posted()[0].refuse(&Refusal::new(400, -32602, "it is not so"));
    });
    refused(Reason::Internal, || {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        drop(session.take_posted());
    });
}

#[test]
fn a_call_that_is_cancelled_before_its_owner_has_it_was_cancelled() {
    let fields = only(|| {
        let fleet = fleet(3);
        let session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        session.received(&crate::kit::relaying::admitted(&cancellation(2).to_string()));
        fleet.nodes[0].is_deaf.store(false, Ordering::SeqCst);
        fleet.disturb();
        assert_eq!(serve(&session), [""; 0]);
    });
    assert_eq!((fields["outcome"].as_str(), fields["cause"].as_str()), ("cancelled", "the client cancelled the call"));
}

#[test]
fn who_relays_says_why_a_call_does_not_get_to_its_owner() {
    refused(Reason::NotRelayed, || {
        let fleet = fleet(2);
        let _session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        // Its client does not wait until it is known.
        drop(relay(&find(&fleet, 1), &tool_call(2)));
        pass(&fleet, LOST_MS + 1_500);
    });
    refused(Reason::NotRelayed, || {
        let fleet = fleet(2);
        let _session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        let there = find(&fleet, 1);
        for _ in 0..MAX_INBOX_MESSAGES {
            relay(&there, &initialized());
        }
        assert_eq!(read_now(&relay(&there, &tool_call(2))).status, Some(503));
    });
}

#[test]
fn a_call_that_is_relayed_and_ends_well_has_no_record() {
    let found = lines("call ended", || {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let _call = relay(&find(&fleet, 1), &tool_call(2));
        fleet.settle();
        assert_eq!(serve(&session), ["tools/call 2"]);
        respond(&session, 2).unwrap();
        pass(&fleet, 2 * LOST_MS);
    });
    assert_eq!(found, []);
}
