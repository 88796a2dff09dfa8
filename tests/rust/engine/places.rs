//! How many sessions there may be, in all and of one principal, and which of them gives way to a newer one (I11).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kit::common::{Bench, NEW, broadcast, call, id, listen, read_now, respond};
use crate::kit::dice::Dice;
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{self, find, sign};
use tailrope_core::Ms;
use tailrope_core::engine::{EngineError, NoWake, Options, SessionHandle};
use tailrope_core::exchange::{Admission, Principal, Request, Requester, Terms};
use tailrope_core::protocol::{Dialect, Head, Refusal, StreamNonce};
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{EventStore, Limits, MemoryStore, SessionRecord, session_name};

const ALL: EngineError = EngineError::TooManySessions { option: "max_sessions", max: 3 };
const OF_PRINCIPAL: EngineError = EngineError::TooManySessions { option: "max_sessions_per_principal", max: 2 };

/// Three places, two of them for each principal.
fn bench() -> Bench {
    Bench::new(Options { max_sessions: 3, max_sessions_per_principal: 2, ..Options::default() })
}

fn open(bench: &Bench, name: &str, principal: Option<&str>) -> SessionHandle {
    let session = bench
        .engine
        .open_session(name, principal.map(Principal::named).as_ref(), &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0)
        .unwrap();
    session.assume_revision(NEW);
    session
}

fn taken(bench: &Bench, name: &str, principal: Option<&str>) -> Result<SessionHandle, EngineError> {
    let session = open(bench, name, principal);
    match session.take_place() {
        Ok(()) => Ok(session),
        Err(error) => {
            session.end();
            Err(error)
        }
    }
}

/// The ids of the sessions that a tick tells of.
fn told(bench: &Bench) -> Vec<String> {
    bench.engine.tick().iter().map(|session| session.id().to_owned()).collect()
}

fn initialize(session: &SessionHandle, body: &str) -> Result<Admission, Refusal> {
    let accept = Some("application/json, text/event-stream");
    let head = Head { method: "POST", accept, content_type: Some("application/json"), ..Head::default() };
    session.admit(&Request { head, body: body.as_bytes(), ..Request::default() }, &Terms::default())
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
    "capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;

#[test]
fn i11_the_idlest_session_of_the_same_principal_gives_way() {
    let bench = bench();
    let first: Vec<_> = ["a", "b", "c"].map(|name| (bench.advance(10), taken(&bench, name, None).unwrap()).1).into();
    sign(&first[0]);
    assert_eq!(told(&bench), Vec::<String>::new());
    bench.advance(10);
    let _newer = taken(&bench, "d", None).unwrap();
    assert_eq!(first.iter().map(SessionHandle::has_ended).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(bench.engine.due_in_ms(), 0, "its host is told at once");
    assert_eq!((told(&bench), told(&bench)), (vec!["b".to_owned()], vec![]));
    let stats = bench.engine.stats();
    assert_eq!((stats.sessions, stats.sessions_gave_way), (3, 1));
    assert_eq!(first[1].listen(Arc::new(NoWake), 0).unwrap_err().status, 404);
}

#[test]
fn i11_a_principal_has_its_share_and_takes_nothing_from_others() {
    let bench = bench();
    let of_alice = ["a", "b"].map(|name| taken(&bench, name, Some("alice")).unwrap());
    let held = of_alice.each_ref().map(listen);
    assert_eq!(taken(&bench, "c", Some("alice")).unwrap_err(), OF_PRINCIPAL, "none of hers is idle");
    drop(held);
    let bobs = taken(&bench, "d", Some("bob")).unwrap();
    assert_eq!(taken(&bench, "e", Some("carol")).unwrap_err(), ALL, "nobody loses a session to somebody else");
    assert!(![&of_alice[0], &of_alice[1], &bobs].iter().any(|session| session.has_ended()));
    bench.advance(100_000);
    taken(&bench, "f", Some("alice")).unwrap();
    taken(&bench, "g", Some("bob")).unwrap();
    assert!(of_alice[0].has_ended() && !of_alice[1].has_ended() && bobs.has_ended());
    of_alice[1].end();
    taken(&bench, "h", Some("carol")).unwrap();
    assert_eq!(bench.engine.stats().sessions, 3);
}

#[test]
fn i11_a_made_up_credential_gives_nobody_a_second_share() {
    // S3: one token, and another key for each session.
    let bench = bench();
    let token = "Bearer e30.eyJpc3MiOiJpIiwic3ViIjoiYWxpY2UifQ.x";
    let open = |number: u32| {
        let key = number.to_string();
        let credentials = [("authorization", token), ("x-api-key", &*key)];
        let principal = Requester { credentials: &credentials, ..Requester::default() }.principal().unwrap();
        let session =
            bench.engine.open_session(&key, principal.as_ref(), &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
        session.take_place().map(|()| session)
    };
    let kept = [open(1).unwrap(), open(2).unwrap()];
    for number in 3..10 {
        assert_eq!(open(number).unwrap_err(), OF_PRINCIPAL, "I11");
    }
    assert!(!kept.iter().any(SessionHandle::has_ended), "another identity takes no session from them");
    taken(&bench, "b", Some("bob")).expect("there is room for others");
}

#[test]
fn i11_nobody_has_all_places_that_there_are() {
    let bench = Bench::new(Options { max_sessions: 4, max_sessions_per_principal: 1, ..Options::default() });
    let sessions: Vec<_> = (0..4).map(|number| taken(&bench, &number.to_string(), None).unwrap()).collect();
    assert!(!sessions.iter().any(SessionHandle::has_ended), "whoever sends no credential may be anybody");
}

#[test]
fn i11_a_session_that_is_in_use_does_not_give_way() {
    let bench = Bench::new(Options { max_sessions: 1, max_detached_ms: 500_000, ..Options::default() });
    let session = taken(&bench, "s", None).unwrap();
    let is_refused = |why: &str| {
        let error = taken(&bench, "newer", None).expect_err(why);
        assert_eq!(error, EngineError::TooManySessions { option: "max_sessions", max: 1 });
    };
    let connection = listen(&session);
    bench.advance(24 * 3_600_000);
    is_refused("it has an open connection");
    connection.lost();
    bench.advance(59_999);
    is_refused("its client may come back");
    let running = call(&session, 1);
    drop(running);
    bench.advance(499_999);
    is_refused("its request runs");
    respond(&session, 1).unwrap();
    bench.advance(1);
    taken(&bench, "newer", None).expect("nothing holds it");
    assert!(session.has_ended());
}

#[test]
fn i11_a_session_that_is_being_opened_does_not_give_way_for_a_minute() {
    let bench = Bench::new(Options { max_sessions: 1, ..Options::default() });
    let opening = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
    opening.take_place().unwrap();
    bench.advance(59_999);
    assert!(taken(&bench, "newer", None).is_err(), "its initialize is on its way");
    bench.advance(1);
    taken(&bench, "newer", None).unwrap();
}

#[test]
fn i11_a_newcomer_looks_at_a_few_sessions_and_the_next_one_at_others() {
    let count = 200;
    let bench = Bench::new(Options { max_sessions: count, ..Options::default() });
    let sessions: Vec<_> = (0..count).map(|number| taken(&bench, &number.to_string(), None).unwrap()).collect();
    let held: Vec<_> = sessions[..count - 1].iter().map(listen).collect();
    let tries = (0..10).take_while(|_| (bench.advance(1), taken(&bench, "newer", None)).1.is_err()).count();
    assert!(sessions[count - 1].has_ended());
    assert_eq!(tries, 3, "64 looks for each of them");
    drop(held);
}

/// What is known of a session is late; which one gives way is exact all the same.
#[test]
fn i11_the_idlest_is_found_under_any_order_of_contacts() {
    for seed in 0..50 {
        let mut dice = Dice::Seed(seed);
        let bench = Bench::new(Options { max_sessions: 8, ..Options::default() });
        // By id: when it was heard of last.
        let mut open: BTreeMap<String, (u64, SessionHandle)> = BTreeMap::new();
        for step in 0..200_u64 {
            bench.clock.advance(1);
            if !open.is_empty() && dice.place(3) > 0 {
                let at = dice.place(open.len());
                let (heard, session) = open.values_mut().nth(at).unwrap();
                sign(session);
                *heard = step;
                continue;
            }
            let idlest = open.iter().min_by_key(|(_, (heard, _))| *heard).map(|(name, _)| name.clone());
            let is_full = open.len() == 8;
            let name = step.to_string();
            let session = taken(&bench, &name, None).unwrap();
            let want = idlest.filter(|_| is_full).into_iter().collect::<Vec<_>>();
            assert_eq!(told(&bench), want, "seed {seed}, step {step}");
            want.iter().for_each(|name| drop(open.remove(name)));
            open.insert(name, (step, session));
        }
    }
}

#[test]
fn i11_a_place_is_taken_by_the_first_request_that_is_admitted() {
    let bench = Bench::new(Options { max_sessions: 1, ..Options::default() });
    let sessions = ["a", "b", "c"]
        .map(|name| bench.engine.open_session(name, None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap());
    assert_eq!(initialize(&sessions[0], "no JSON").unwrap_err().status, 400);
    for again in 0..2 {
        let admission = initialize(&sessions[1], INITIALIZE).unwrap();
        assert!(admission.initialize().is_some(), "{again}");
    }
    let running = sessions[1].open(&initialize(&sessions[1], INITIALIZE).unwrap(), false, Arc::new(NoWake), 0).unwrap();
    let refusal = initialize(&sessions[2], INITIALIZE).unwrap_err();
    assert_eq!((refusal.status, refusal.message.as_str()), (503, "Too many open sessions"));
    sessions[1].end();
    assert!(read_now(&running).end.is_some());
    sessions[0].end();
    assert_eq!(initialize(&sessions[0], INITIALIZE).unwrap_err().status, 404, "it has ended, and takes no place");
    assert!(initialize(&sessions[2], INITIALIZE).is_ok());
}

#[test]
fn i11_ended_and_drained_sessions_free_their_places() {
    let bench = bench();
    for round in 0..3 {
        let sessions = ["a", "b", "c"].map(|name| taken(&bench, name, None).unwrap());
        match round {
            0 => sessions.iter().for_each(SessionHandle::end),
            1 => sessions.iter().for_each(SessionHandle::release),
            _ => bench.engine.close(),
        }
        assert_eq!((bench.engine.stats().sessions, told(&bench)), (0, vec![]));
    }
    assert_eq!(bench.engine.stats().sessions_gave_way, 0);
}

#[test]
fn i11_a_drained_session_is_waited_for_before_it_gives_way() {
    let bench = Bench::new(Options { max_sessions: 1, ..Options::default() });
    let session = taken(&bench, "s", None).unwrap();
    let connection = listen(&session);
    session.drain();
    bench.read(&connection);
    assert!(taken(&bench, "newer", None).is_err(), "its client was told to come back");
    bench.advance(100_000);
    taken(&bench, "newer", None).unwrap();
}

#[test]
fn i11_a_session_that_gives_way_tells_whoever_still_sends() {
    let bench = Bench::new(Options { max_sessions: 1, ..Options::default() });
    let session = taken(&bench, "s", None).unwrap();
    broadcast(&session, "a").unwrap();
    assert_eq!(bench.engine.stats().streams, 1);
    taken(&bench, "newer", None).unwrap();
    assert_eq!(bench.engine.stats().streams, 0, "its logs go with it");
    assert_eq!(respond(&session, 1), Err(EngineError::SessionEnded));
    assert!(session.call(&[id(1)], None, Arc::new(NoWake), 0).is_err());
}

#[test]
fn i11_a_reader_of_a_session_elsewhere_takes_a_place_while_it_reads() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let record =
        SessionRecord { revision: Some(NEW), standalone: Some(StreamNonce([1; 12])), ..SessionRecord::default() };
    let options = Options { max_sessions: 1, store: Some(Arc::clone(&store)), ..Options::default() };
    let bench = Bench::new(options);
    Caller::new(&*store, Ms(0)).hold(&session_name("elsewhere"), record);
    let find = || {
        let look_up =
            bench.engine.look_up_session("elsewhere", None, None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0);
        look_up.unwrap().take().expect("the store answers at once").map(|session| session.expect("it is known"))
    };
    let reader = find().unwrap();
    assert!(taken(&bench, "newer", None).is_err(), "its reader is on its way");
    let connection = listen(&reader);
    listen(&find().unwrap()).lost();
    bench.advance(24 * 3_600_000);
    assert!(taken(&bench, "newer", None).is_err());
    drop(connection);
    let newer = taken(&bench, "newer", None).unwrap();
    let held = listen(&newer);
    assert_eq!(find().unwrap_err(), EngineError::TooManySessions { option: "max_sessions", max: 1 });
    assert_eq!(bench.engine.stats().sessions, 1, "the one that is refused leaves nothing");
    drop(held);
    bench.advance(100_000);
    find().unwrap().let_go();
    assert_eq!((told(&bench), bench.engine.is_idle()), (vec!["newer".to_owned()], true));
}

#[test]
fn i11_a_session_that_is_read_at_another_process_does_not_give_way() {
    let fleet = Fleet::with(2, Options { max_sessions: 1, ..Options::default() });
    let session = relaying::open(&fleet, NEW);
    session.take_place().unwrap();
    broadcast(&session, "a").unwrap();
    let newcomer = || taken(&fleet.benches[0], "newer", Some("alice"));
    let connection = listen(&find(&fleet, 1));
    fleet.settle();
    for minute in 0..60 {
        assert!(newcomer().is_err(), "after {minute} minutes its reader is there");
        fleet.advance(60_000);
    }
    drop(connection);
    // Its last sign is five minutes old at most.
    fleet.advance(240_000);
    assert!(newcomer().is_err(), "that it is gone is not known");
    fleet.advance(360_000);
    newcomer().expect("nothing holds it");
    assert!(session.has_ended());
}

#[test]
fn a_closed_engine_and_a_forked_one_give_no_places() {
    let bench = bench();
    let sessions = ["a", "b"].map(|name| open(&bench, name, None));
    taken(&bench, "c", None).unwrap();
    bench.engine.release();
    assert_eq!(sessions[0].take_place(), Err(EngineError::Closed));
    bench.engine.mark_forked();
    assert_eq!(sessions[1].take_place(), Err(EngineError::Forked));
    assert!(sessions[1].has_ended());
}
