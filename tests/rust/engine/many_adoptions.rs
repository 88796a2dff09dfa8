//! A process dies that had many sessions, and their clients come to another one at the same time (O15).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use tailrope_core::engine::{Adopted, Connection, OfferWake, SessionHandle, Wake};
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use super::relay_faults::{LOST_MS, fleet, only_event};
use crate::kit::adopting::{Adopter, begin, begin_as, offer_as, take};
use crate::kit::common::{NEW, call, notify, read_now, respond, resume};
use crate::kit::eventually::PATIENCE;
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{find, find_named, pass, read, relay, serve, tool_call};

/// Server objects that a process builds at once.
const AT_ONCE: usize = 32;
const SESSIONS: usize = AT_ONCE + 8;

struct Wanted {
    view: SessionHandle,
    adopter: Arc<Adopter>,
    connection: Connection,
}

impl Wanted {
    fn status(&self) -> Option<u16> {
        read_now(&self.connection).status
    }
}

/// A call waits for each session of a process that is gone.
fn wanted(fleet: &Fleet) -> Vec<Wanted> {
    let ids: Vec<String> = (0..SESSIONS).map(|number| format!("s{number}")).collect();
    ids.iter().for_each(|id| begin_as(fleet, id, NEW).release());
    let want = |id: &String| {
        let (view, adopter) = offer_as(fleet, 1, id);
        let connection = relay(&view, &tool_call(1));
        Wanted { view, adopter, connection }
    };
    ids.iter().map(want).collect()
}

fn take_all(wanted: &[Wanted]) -> Vec<Adopted> {
    wanted.iter().filter_map(|wanted| take(&wanted.view)).collect()
}

fn told(wanted: &[Wanted]) -> u64 {
    wanted.iter().map(|wanted| wanted.adopter.told()).sum()
}

#[test]
fn o15_a_few_sessions_are_gone_on_with_at_a_time() {
    let fleet = fleet(2);
    let wanted = wanted(&fleet);
    let mut taken = take_all(&wanted);
    assert_eq!((taken.len(), told(&wanted)), (AT_ONCE, SESSIONS as u64), "O15");
    assert_eq!(take_all(&wanted).len(), 0, "O15: however often its host asks");
    // Each that is ready makes room for one, and so does each that cannot be built, or ends.
    for number in 0..SESSIONS - AT_ONCE {
        let adopted = taken.remove(0);
        match number % 3 {
            0 => adopted.session().accept_posted(),
            1 => adopted.refuse(&Fault::Internal.refusal(&Dialect::MCP_PYTHON_2)),
            _ => adopted.session().end(),
        }
        assert_eq!(told(&wanted), (SESSIONS + number + 1) as u64, "O15: the next one is told");
        assert_eq!(taken.len(), AT_ONCE - 1);
        taken.extend(take_all(&wanted));
        assert_eq!(taken.len(), AT_ONCE, "O15");
    }
    // All are served in the end.
    for adopted in &taken {
        adopted.session().accept_posted();
        assert_eq!(serve(adopted.session()), ["tools/call 1"]);
        respond(adopted.session(), 1).unwrap();
    }
    pass(&fleet, 250);
    let answered = wanted[SESSIONS - 1..].iter().map(|wanted| only_event(&read(&fleet, &wanted.connection)));
    assert_eq!(answered.collect::<Vec<_>>(), [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn o15_what_waits_for_too_long_for_its_turn_may_go_elsewhere() {
    let fleet = fleet(3);
    let wanted = wanted(&fleet);
    let taken = take_all(&wanted);
    pass(&fleet, LOST_MS + 1_000);
    let refused = wanted[AT_ONCE..].iter().filter(|wanted| wanted.status() == Some(503)).count();
    assert_eq!((refused, take_all(&wanted).len()), (SESSIONS - AT_ONCE, 0), "O15");
    let id = format!("s{}", SESSIONS - 1);
    let (view, _) = offer_as(&fleet, 2, &id);
    let connection = relay(&view, &tool_call(2));
    assert!(take(&view).is_some(), "another process goes on with it");
    drop((connection, taken));
}

#[test]
fn o15_a_host_that_is_never_ready_keeps_neither_its_sessions_nor_the_others_from_going_on() {
    let fleet = fleet(2);
    let wanted = wanted(&fleet);
    let taken = take_all(&wanted);
    pass(&fleet, 59_000);
    assert!(taken.iter().all(|adopted| !adopted.session().has_ended()));
    let before = fleet.benches[1].engine.stats().sessions_handed_over;
    for _ in 0..8 {
        fleet.advance(250);
    }
    assert!(taken.iter().all(|adopted| adopted.session().has_ended()), "O15: they are left to others");
    let told: Vec<_> = wanted[..AT_ONCE].iter().map(Wanted::status).collect();
    assert!(told.iter().all(|status| *status == Some(503)), "what waited is sent away: {told:?}");
    assert_eq!(fleet.benches[1].engine.stats().sessions_handed_over - before, AT_ONCE as u64);
    drop((wanted, taken));
    let (view, _) = offer_as(&fleet, 1, "s0");
    let connection = relay(&view, &tool_call(2));
    let adopted = take(&view).expect("O15: there is room again");
    adopted.session().accept_posted();
    assert_eq!(serve(adopted.session()), ["tools/call 2"]);
    drop(connection);
}

#[test]
fn o15_what_a_lost_owner_ran_is_not_ended_all_at_once() {
    let fleet = fleet(2);
    let ids: Vec<String> = (0..100).map(|number| format!("s{number}")).collect();
    let sessions: Vec<SessionHandle> = ids.iter().map(|id| begin_as(&fleet, id, NEW)).collect();
    let running: Vec<Connection> = sessions.iter().map(|session| call(session, 1)).collect();
    for session in &sessions {
        notify(session, 1, "a").unwrap();
    }
    let cursors: Vec<String> = running.iter().map(|connection| read(&fleet, connection).last_id()).collect();
    let follow = |(id, cursor): (&String, &String)| {
        let view = find_named(&fleet, 1, id);
        let connection = resume(&view, cursor);
        read_now(&connection);
        (view, connection)
    };
    let readers: Vec<_> = ids.iter().zip(&cursors).map(follow).collect();
    pass(&fleet, 10_000);
    fleet.lose(0);
    let holds = || fleet.nodes[1].holds.load(Ordering::SeqCst);
    let mut most = 0;
    for _ in 0..200 {
        let before = holds();
        fleet.advance(10);
        most = most.max(holds() - before);
    }
    assert!(holds() >= 100, "each is taken over: {}", holds());
    // An eighth is expected in one look of the process; half would be no chance.
    assert!(most <= 50, "O15: {most} of 100 in one moment");
    drop(readers);
}

/// Looks at the session when it is woken, and when it goes.
struct Curious(SessionHandle);

impl Wake for Curious {
    fn wake(&self, _key: u64) {
        assert!(!self.0.has_posted());
    }
}

impl Drop for Curious {
    fn drop(&mut self) {
        self.wake(0);
    }
}

#[test]
fn a_hosts_code_that_runs_when_a_wake_goes_may_use_the_session() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let fleet = fleet(2);
        let session = begin(&fleet, NEW);
        let view = find(&fleet, 1);
        for _ in 0..2 {
            let (wake, _) = OfferWake::new(Arc::new(Curious(view.clone())), 1);
            view.offer_adoption(Arc::new(wake), 1);
        }
        drop(session.listen(Arc::new(Curious(session.clone())), 1).unwrap());
        done.send(()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(PATIENCE), Ok(()), "it waits for itself");
}
