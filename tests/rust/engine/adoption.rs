//! Sessions whose owner is gone, and that another process goes on with: each call is served once, and nobody is sent away.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, Options, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::{Dialect, RequestId};
use tailrope_core::session::MAX_HANDSHAKE_BYTES;
use tailrope_core::store::{Answer, Attach, EventStore, Hold, SessionRecord, session_name};
use tailrope_core::stream::{CloseReason, Drain};

use crate::engine::relay_faults::{LOST_MS, fleet, not_begun, only_event};
use crate::kit::adopting::{admit, begin, go_on, initialize, offer, post, replay, take, welcome};
use crate::kit::common::{Bench, NEW, OLD, ask, broadcast, call, id, listen, notify, read_now, respond, resume};
use crate::kit::fleet::{Fleet, nobody};
use crate::kit::processes::events;
use crate::kit::relaying::{
    ALICE, find, held, identity, initialized, pass, read, relay, relay_delete, relay_json, serve, tool_call,
};

/// The ways in which a session loses its owner.
const WAYS: [fn(&Fleet, &SessionHandle); 2] = [|_, session| session.release(), |fleet, _| fleet.lose(0)];

fn status(connection: &Connection) -> Option<u16> {
    read_now(connection).status
}

#[test]
fn a_call_is_served_by_who_adopts_its_session() {
    for (revision, lose) in [NEW, OLD].into_iter().flat_map(|revision| WAYS.map(|lose| (revision, lose))) {
        let fleet = fleet(2);
        let session = begin(&fleet, revision);
        let (view, adopter) = offer(&fleet, 1);
        assert!(take(&view).is_none());
        lose(&fleet, &session);
        let connection = relay(&view, &tool_call(1));
        assert_eq!((adopter.told(), status(&connection)), (1, None), "nothing is said before it is known");
        let (owner, served) = go_on(&view, revision);
        assert_eq!((served, take(&view).is_none()), (vec!["tools/call 1".to_owned()], true));
        assert!(!owner.is_elsewhere() && fleet.benches[1].engine.session("s", None).is_none());
        notify(&owner, 1, "a").unwrap();
        pass(&fleet, 250);
        let begun = read(&fleet, &connection);
        assert_eq!((begun.status, events(&begun)), (Some(200), vec![json!({"event": 1, "is": "a"})]), "{}", begun.text);
        respond(&owner, 1).unwrap();
        pass(&fleet, 250);
        let rest = read(&fleet, &connection);
        let want = vec![json!({"event": 2, "is": {"result": 1}})];
        assert_eq!((events(&rest), rest.end), (want, Some(CloseReason::Complete)));
        drop((connection, view));
        // The session that goes on.
        assert_eq!((held(&fleet, 1), owner.in_flight()), ((1, 0), 0), "I11");
        assert_eq!(fleet.benches[1].engine.stats().sessions_adopted, 1);
        // It is like any other: whoever comes to it is served here, and relayed to from elsewhere.
        let next = call(&owner, 2);
        respond(&owner, 2).unwrap();
        assert_eq!(only_event(&read(&fleet, &next)), json!({"event": 1, "is": {"result": 2}}));
        let elsewhere = relay(&find(&fleet, 0), &tool_call(3));
        fleet.settle();
        assert_eq!(serve(&owner), ["tools/call 3"]);
        respond(&owner, 3).unwrap();
        assert_eq!(only_event(&read(&fleet, &elsewhere)), json!({"event": 1, "is": {"result": 3}}));
    }
}

#[test]
fn i13_what_ran_with_an_owner_that_is_lost_gets_its_end_and_what_is_new_runs() {
    let fleet = fleet(3);
    let session = begin(&fleet, NEW);
    let running = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read(&fleet, &running).last_id();
    let reader = resume(&find(&fleet, 2), &cursor);
    read(&fleet, &reader);
    let (view, _) = offer(&fleet, 1);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    fleet.lose(0);
    let new = relay(&view, &tool_call(2));
    let (owner, served) = go_on(&view, NEW);
    assert_eq!(served, ["tools/call 2"]);
    let left = read(&fleet, &reader);
    assert_eq!(only_event(&left), not_begun(1));
    assert!(left.text.contains("is gone"), "{}", left.text);
    respond(&owner, 2).unwrap();
    pass(&fleet, 250);
    assert_eq!(only_event(&read(&fleet, &new)), json!({"event": 1, "is": {"result": 2}}));
    // The owner before only stood still. It writes nothing, and ends.
    let events_before = fleet.usage().events;
    assert!(notify(&session, 1, "b").is_err() || session.has_ended());
    assert!(session.has_ended() && broadcast(&session, "late").is_err());
    assert_eq!(fleet.usage().events, events_before);
    assert!(!owner.has_ended());
}

#[test]
fn two_processes_that_adopt_one_session_have_one_owner() {
    let fleet = fleet(3);
    let session = begin(&fleet, NEW);
    let ((one, _), (two, told)) = (offer(&fleet, 1), offer(&fleet, 2));
    session.release();
    // The other is faster than this one knows.
    fleet.nodes[2].is_beaten.store(true, Ordering::SeqCst);
    let waiting = [relay(&two, &tool_call(2)), relay(&two, &initialized())];
    let first = relay(&one, &tool_call(1));
    fleet.nodes[2].is_beaten.store(false, Ordering::SeqCst);
    pass(&fleet, 1_000);
    assert_eq!((told.told(), take(&two).is_none()), (0, true));
    assert_eq!(status(&waiting[0]).unwrap_or(200), 200, "it waits for the owner");
    let (owner, mut served) = go_on(&one, NEW);
    served.sort_unstable();
    assert_eq!(served, ["notifications/initialized", "tools/call 1", "tools/call 2"]);
    for number in [1, 2] {
        respond(&owner, number).unwrap();
    }
    pass(&fleet, 1_000);
    assert_eq!(events(&read(&fleet, &first)), [json!({"event": 1, "is": {"result": 1}})]);
    assert_eq!(events(&read(&fleet, &waiting[0])), [json!({"event": 1, "is": {"result": 2}})]);
    assert_eq!(status(&waiting[1]), Some(202));
}

#[test]
fn o15_a_host_that_cannot_go_on_with_a_session_releases_it() {
    for (revision, is_json) in [(NEW, false), (OLD, false), (NEW, true)] {
        let fleet = fleet(3);
        let session = begin(&fleet, revision);
        let (view, _) = offer(&fleet, 1);
        session.release();
        let call = if is_json { relay_json(&view, &tool_call(1)) } else { relay(&view, &tool_call(1)) };
        let waiting = [call, relay(&view, &initialized()), relay_delete(&view)];
        let adopted = take(&view).expect("it is adopted");
        adopted.refuse(&Fault::Internal.refusal(&Dialect::MCP_PYTHON_2));
        assert!(adopted.session().has_ended());
        for connection in &waiting {
            let answered = read_now(connection);
            assert_eq!((answered.status, answered.end), (Some(500), Some(CloseReason::Complete)));
        }
        drop((waiting, view, adopted));
        assert_eq!(held(&fleet, 1), (0, 0), "I11");
        // Another may do better.
        let (view, _) = offer(&fleet, 2);
        let connection = relay(&view, &tool_call(2));
        let (owner, served) = go_on(&view, revision);
        assert_eq!(served, ["tools/call 2"], "and nothing that was refused");
        respond(&owner, 2).unwrap();
        pass(&fleet, 250);
        assert_eq!(only_event(&read(&fleet, &connection)), json!({"event": 1, "is": {"result": 2}}));
    }
}

#[test]
fn o15_what_a_server_object_asks_before_it_is_ready_reaches_its_client() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    broadcast(&session, "a").unwrap();
    let cursor = read(&fleet, &listen(&session)).last_id();
    let (view, _) = offer(&fleet, 1);
    session.release();
    let connection = relay(&view, &tool_call(1));
    let adopted = take(&view).expect("it is adopted");
    let owner = adopted.session();
    assert_eq!(welcome(owner, &id(0), NEW), Sent::Dropped, "its client has that answer");
    // As a server does that wants to know the roots when it is told `notifications/initialized`.
    let question = br#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#;
    owner.send(OutgoingMessage::request(&id(0), None, question)).expect("it is taken");
    let asked = read(&fleet, &resume(owner, &cursor));
    assert_eq!(events(&asked), [json!({"event": 2, "is": "roots/list"})], "O15: nothing else of it is swallowed");
    owner.accept_posted();
    assert_eq!(serve(owner), ["tools/call 1"]);
    let admission = admit(owner, &json!({"jsonrpc": "2.0", "id": "2:0", "result": {}})).expect("it is admitted");
    assert!(admission.rewritten().is_some_and(|body| body.windows(6).any(|part| part == br#""id":0"#)), "O15");
    owner.received(&admission);
    assert_eq!(fleet.benches[1].engine.stats().answers_unasked, 0);
    drop(connection);
}

#[test]
fn o15_what_waits_for_a_server_object_waits_as_long_as_that_takes() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let waiting = [relay(&view, &tool_call(1)), relay(&view, &initialized())];
    let adopted = take(&view).expect("it is adopted");
    pass(&fleet, 3 * LOST_MS);
    assert!(waiting.iter().all(|connection| status(connection).is_none()), "O15: its host is at it");
    adopted.session().accept_posted();
    let mut served = serve(adopted.session());
    served.sort();
    assert_eq!(served, ["notifications/initialized", "tools/call 1"]);
    respond(adopted.session(), 1).unwrap();
    pass(&fleet, 250);
    assert_eq!(only_event(&read(&fleet, &waiting[0])), json!({"event": 1, "is": {"result": 1}}));
    assert_eq!(status(&waiting[1]), Some(202));
}

#[test]
fn a_session_that_its_host_does_not_take_is_released() {
    for lose in WAYS {
        let fleet = fleet(3);
        let session = begin(&fleet, NEW);
        let running = call(&session, 7);
        notify(&session, 7, "a").unwrap();
        let cursor = read(&fleet, &running).last_id();
        let (view, _) = offer(&fleet, 1);
        lose(&fleet, &session);
        let waiting = [relay(&view, &tool_call(1)), relay(&view, &initialized()), relay_delete(&view)];
        pass(&fleet, LOST_MS - 500);
        assert!(waiting.iter().all(|connection| status(connection).is_none()));
        pass(&fleet, 1_000);
        assert!(waiting.iter().all(|connection| status(connection) == Some(503)));
        assert!(take(&view).is_none());
        drop((waiting, view));
        assert_eq!(held(&fleet, 1), (0, 0), "I11");
        let (view, _) = offer(&fleet, 2);
        assert_eq!(only_event(&read(&fleet, &resume(&view, &cursor))), not_begun(7), "I13");
        let next = relay(&view, &tool_call(2));
        assert_eq!(go_on(&view, NEW).1, ["tools/call 2"]);
        drop(next);
    }
}

#[test]
fn a_process_that_goes_away_leaves_what_its_host_did_not_take() {
    let fleet = fleet(3);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let connection = relay(&view, &tool_call(1));
    fleet.benches[1].engine.close();
    assert!(take(&view).is_none());
    pass(&fleet, 500);
    assert_eq!(status(&connection), Some(504));
    let (view, _) = offer(&fleet, 2);
    let connection = relay(&view, &tool_call(2));
    assert_eq!(go_on(&view, NEW).1, ["tools/call 2"]);
    drop(connection);
}

#[test]
fn o17_a_drain_leaves_a_session_to_others_when_nothing_runs_in_it() {
    for revision in [NEW, OLD] {
        let fleet = fleet(2);
        let (here, session) = (&fleet.benches[0].engine, begin(&fleet, revision));
        let running = (revision == NEW).then(|| call(&session, 1));
        here.drain(Drain::after(100));
        if let Some(connection) = running {
            assert!(here.drained(None).is_none() && session.is_handing_over());
            let (view, _) = offer(&fleet, 1);
            let next = relay(&view, &tool_call(2));
            fleet.settle();
            assert_eq!(serve(&session), ["tools/call 2"], "its owner is there");
            assert_eq!(read(&fleet, &connection).end, Some(CloseReason::Drain));
            drop(connection);
            // What follows ticks the engine, which tells its host that the session has ended.
            for number in [1, 2] {
                assert!(!session.has_ended());
                notify(&session, number, "a").unwrap();
                respond(&session, number).unwrap();
            }
            pass(&fleet, 250);
            let want = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 2}})];
            assert_eq!(events(&read(&fleet, &next)), want);
        }
        assert!(session.has_ended() && !session.is_handing_over());
        let told = here.tick().len();
        assert_eq!(
            (told, here.stats().sessions_handed_over, here.stats().sessions),
            (usize::from(revision == OLD), 1, 0)
        );
        // Nobody waits for the time after which an owner is lost.
        let (view, _) = offer(&fleet, 1);
        let connection = relay(&view, &tool_call(3));
        let (owner, served) = go_on(&view, revision);
        assert_eq!(served, ["tools/call 3"]);
        respond(&owner, 3).unwrap();
        pass(&fleet, 250);
        assert_eq!(events(&read(&fleet, &connection)), [json!({"event": 1, "is": {"result": 3}})]);
    }
}

#[test]
fn o17_a_question_that_no_call_waits_for_keeps_no_session_in_a_drain() {
    let fleet = fleet(1);
    let (here, session) = (&fleet.benches[0].engine, begin(&fleet, NEW));
    let running = call(&session, 1);
    ask(&session, 1, "of the call").unwrap();
    let question = br#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#;
    session.send(OutgoingMessage::request(&id(0), None, question)).unwrap();
    here.drain(Drain::after(100));
    read(&fleet, &running);
    drop(running);
    pass(&fleet, 250);
    assert_eq!((session.has_ended(), here.drained(None)), (false, None), "the call waits for an answer");
    respond(&session, 1).unwrap();
    pass(&fleet, 250);
    assert_eq!((session.has_ended(), here.drained(None)), (true, Some(true)));
}

/// Its host may end the process as soon as it is told that nothing is left to do.
#[test]
fn o17_a_drain_is_not_over_before_the_store_is_told_whose_session_was_left() {
    let fleet = fleet(1);
    let session = begin(&fleet, NEW);
    let connection = call(&session, 1);
    let here = fleet.benches[0].engine.clone();
    let seen = Arc::new(Mutex::new(None));
    let (engine, handle, told) = (here.clone(), session.clone(), Arc::clone(&seen));
    let look = move || *told.lock().unwrap() = Some((engine.drained(None), handle.is_handing_over()));
    fleet.nodes[0].at_release(look);
    here.drain(Drain::after(100));
    drop(connection);
    respond(&session, 1).unwrap();
    pass(&fleet, 250);
    assert!(session.has_ended());
    assert_eq!(*seen.lock().unwrap(), Some((None, true)));
    assert!(here.drained(None) == Some(true) && !session.is_handing_over());
}

#[test]
fn o17_a_process_that_drains_goes_on_with_what_it_is_asked_for_and_leaves_that_again() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    fleet.benches[1].engine.drain(Drain::after(100));
    session.release();
    let (view, _) = offer(&fleet, 1);
    let connection = relay(&view, &tool_call(1));
    let (owner, served) = go_on(&view, NEW);
    assert_eq!((served, owner.has_ended()), (vec!["tools/call 1".to_owned()], false));
    respond(&owner, 1).unwrap();
    pass(&fleet, 250);
    assert_eq!((read(&fleet, &connection).end, owner.has_ended()), (Some(CloseReason::Drain), true));
    drop(connection);
    let (view, _) = offer(&fleet, 0);
    let connection = relay(&view, &tool_call(2));
    assert_eq!(go_on(&view, NEW).1, ["tools/call 2"]);
    drop(connection);
}

#[test]
fn o17_a_store_that_ends_with_the_process_keeps_its_sessions_in_a_drain() {
    let bench = Bench::new(Options::default());
    let session = bench.session("s", NEW);
    bench.engine.drain(Drain::after(100));
    assert!(!session.has_ended() && bench.engine.drained(None) == Some(true));
}

#[test]
fn i13_a_drain_waits_for_connections_and_calls_for_so_long_from_the_first_one_on() {
    let fleet = fleet(1);
    let (here, session) = (&fleet.benches[0].engine, begin(&fleet, NEW));
    let connection = call(&session, 1);
    assert_eq!(here.drained(Some(0)), None, "none has begun");
    here.drain(Drain::after(100));
    pass(&fleet, 2_000);
    here.drain(Drain::after(100));
    assert_eq!((here.drained(Some(1_999)), here.drained(None)), (Some(false), None));
    respond(&session, 1).unwrap();
    assert_eq!(here.drained(None), None, "its connection is open");
    drop(connection);
    pass(&fleet, 250);
    assert_eq!(here.drained(Some(0)), Some(true));
}

#[test]
fn i2_the_standalone_stream_goes_on_where_it_was() {
    for revision in [NEW, OLD] {
        let fleet = fleet(2);
        let session = begin(&fleet, revision);
        let listener = listen(&session);
        broadcast(&session, "a").unwrap();
        let here = read(&fleet, &listener);
        assert_eq!(events(&here), [json!({"event": 1, "is": "a"})]);
        let (view, _) = offer(&fleet, 1);
        let there = resume(&view, &here.last_id());
        read(&fleet, &there);
        session.release();
        let connection = relay(&view, &tool_call(1));
        let (owner, _) = go_on(&view, revision);
        let question = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
        owner.send(OutgoingMessage::request(&RequestId::text_id("q"), None, question.as_bytes())).unwrap();
        let closed = read(&fleet, &there);
        assert_eq!(closed.end, Some(CloseReason::Drain), "its client comes to the owner");
        let cursor = if closed.ids().is_empty() { here.last_id() } else { closed.last_id() };
        let again = resume(&owner, &cursor);
        broadcast(&owner, "b").unwrap();
        let want = [json!({"event": 2, "is": "roots/list"}), json!({"event": 3, "is": "b"})];
        assert_eq!(events(&read(&fleet, &again)), want);
        // Who was given it by the owner before goes on, too.
        assert_eq!(events(&read(&fleet, &resume(&owner, &here.last_id()))), want);
        drop(connection);
    }
}

#[test]
fn a_delete_may_be_the_first_that_comes() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let connection = relay_delete(&view);
    assert_eq!(go_on(&view, NEW).1, ["DELETE"]);
    pass(&fleet, 500);
    assert_eq!((status(&connection), fleet.usage().sessions), (Some(200), 0));
    drop((connection, view));
    assert_eq!((held(&fleet, 1), fleet.usage().streams), ((0, 0), 0), "I11");
}

#[test]
fn a_message_without_an_answer_is_accepted_when_somebody_takes_it() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let first = relay(&view, &initialized());
    let adopted = take(&view).expect("it is adopted");
    let second = relay(&view, &initialized());
    pass(&fleet, 500);
    assert_eq!(status(&first), None);
    adopted.session().accept_posted();
    assert_eq!((status(&first), status(&second)), (Some(202), Some(202)));
    assert_eq!(serve(adopted.session()), ["notifications/initialized"; 2]);
}

#[test]
fn a_server_object_is_told_what_its_client_has() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let request =
        |id: i64, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let level = request(1, "logging/setLevel", json!({"level": "debug"}));
    let subscribe = |id, uri| request(id, "resources/subscribe", json!({"uri": uri}));
    drop(post(&session, &level));
    drop(post(&session, &subscribe(2, "a")));
    // Others know of the session by now.
    let (view, _) = offer(&fleet, 1);
    drop(post(&session, &subscribe(3, "b")));
    drop(post(&session, &request(4, "resources/unsubscribe", json!({"uri": "a"}))));
    session.release();
    let connection = relay(&view, &tool_call(5));
    let adopted = take(&view).expect("it is adopted");
    let want = [initialize(NEW), initialized(), level.clone(), subscribe(3, "b")];
    assert_eq!(replay(&adopted), want);
    adopted.session().accept_posted();
    drop(post(adopted.session(), &subscribe(6, "c")));
    adopted.session().release();
    drop((connection, view, adopted));
    let (view, _) = offer(&fleet, 0);
    let connection = relay(&view, &tool_call(7));
    let again = take(&view).expect("it is adopted again");
    assert_eq!(replay(&again), [&want[..], &[subscribe(6, "c")]].concat());
    drop(connection);
}

#[test]
fn a_session_of_which_too_little_is_known_is_not_adopted() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let uri = "u".repeat(MAX_HANDSHAKE_BYTES);
    drop(post(&session, &json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": uri}})));
    let (view, told) = offer(&fleet, 1);
    session.release();
    for connection in [relay(&view, &tool_call(2)), relay(&view, &initialized())] {
        pass(&fleet, 500);
        assert_eq!(status(&connection), Some(404), "its client begins anew");
    }
    assert_eq!((told.told(), take(&view).is_none()), (0, true));
}

#[test]
fn o22_a_session_that_a_later_release_has_written_is_left_to_that() {
    let fleet = fleet(3);
    let session = begin(&fleet, NEW);
    let (view, told) = offer(&fleet, 1);
    let name = session_name("s");
    let key = identity(ALICE);
    let kept = |note: Bytes| {
        let record = SessionRecord { revision: Some(NEW), principal: key.clone(), note, ..SessionRecord::default() };
        let hold = Hold { epoch: fleet.epoch("s"), seen: None, record: Some(record) };
        assert!(matches!(fleet.nodes[0].hold(&name, &hold, &nobody()), Answer::Now(Ok(_))));
    };
    let attached = fleet.post(2, &name, &Attach { principal: key.clone(), ..Attach::default() });
    let note = attached.session.expect("it is alice's").note;
    kept([&[note[0] + 1], &note[1..]].concat().into());
    session.release();
    let refused = relay(&view, &tool_call(1));
    pass(&fleet, 500);
    assert_eq!((status(&refused), told.told()), (Some(503), 0), "O22: its client may come again");
    // A process of that release goes on with it, as this one does where it can read what is kept.
    kept(note);
    fleet.nodes[0].release(&name, fleet.epoch("s"));
    let (view, _) = offer(&fleet, 2);
    let connection = relay(&view, &tool_call(2));
    assert_eq!(go_on(&view, NEW).1, ["tools/call 2"]);
    drop(connection);
}

#[test]
fn o7_a_server_object_of_another_revision_ends_the_session() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let connection = relay(&view, &tool_call(1));
    let adopted = take(&view).expect("it is adopted");
    welcome(adopted.session(), &id(0), OLD);
    assert!(adopted.session().has_ended() && fleet.usage().sessions == 0);
    pass(&fleet, 500);
    assert_eq!(status(&connection), Some(404), "nobody has begun it");
    let next = relay(&view, &tool_call(2));
    assert_eq!(status(&next), Some(404));
}

#[test]
fn o6_an_answer_to_a_question_of_an_earlier_owner_is_for_nobody() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let answer = json!({"jsonrpc": "2.0", "id": "before", "result": {}});
    let connection = relay(&view, &answer);
    let (owner, served) = go_on(&view, NEW);
    assert_eq!((served, status(&connection)), (Vec::<String>::new(), Some(202)));
    let stats = fleet.benches[1].engine.stats();
    assert_eq!(stats.answers_unasked, 1);
    drop(owner);
}

#[test]
fn o6_the_questions_of_an_adopted_session_have_names_of_their_own() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let (view, _) = offer(&fleet, 1);
    session.release();
    let connection = relay(&view, &tool_call(1));
    let (owner, _) = go_on(&view, NEW);
    let question = br#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#;
    let (own, call) = (id(0), id(1));
    owner.send(OutgoingMessage::request(&own, Some(&call), question)).expect("it is taken");
    pass(&fleet, 500);
    let asked = read(&fleet, &connection).text;
    assert!(asked.contains(r#""id":"2:0","method":"elicitation/create""#), "{asked}");
    for (told, given) in [(json!(0), None), (json!("2:0"), Some(json!(0)))] {
        let answer = json!({"jsonrpc": "2.0", "id": told, "result": {}});
        let admission = admit(&owner, &answer).expect("it is admitted");
        let rewritten = admission.rewritten().expect("its id is told by another name");
        let heard = serde_json::from_slice::<Value>(rewritten).ok().map(|message| message["id"].clone());
        assert_eq!(heard, given);
        owner.received(&admission);
    }
    assert_eq!(fleet.benches[1].engine.stats().answers_unasked, 1);
}

#[test]
fn a_host_that_does_not_adopt_says_that_the_session_is_over() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    let view = find(&fleet, 1);
    session.release();
    assert_eq!(status(&relay(&view, &tool_call(1))), Some(404));
    assert!(take(&view).is_none());
}

#[test]
fn an_owner_that_is_lost_while_a_message_waits_is_replaced() {
    let fleet = fleet(2);
    let session = begin(&fleet, NEW);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let (view, _) = offer(&fleet, 1);
    let waiting = [relay(&view, &tool_call(1)), relay_delete(&view)];
    pass(&fleet, 500);
    fleet.lose(0);
    pass(&fleet, 1_000);
    assert_eq!(go_on(&view, NEW).1, ["tools/call 1", "DELETE"]);
    pass(&fleet, 500);
    assert_eq!(status(&waiting[1]), Some(200));
    drop(session);
}
