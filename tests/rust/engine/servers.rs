//! Two servers in one store: neither finds a session of the other, in another process or in the same one (O7).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use tailrope_core::engine::{Connection, NoWake, SessionHandle};
use tailrope_core::protocol::Dialect;
use tailrope_core::store::{SessionId, session_name};

use super::relay_faults::{fleet, only_event};
use crate::kit::common::{Bench, NEW, broadcast, call, listen, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{ALICE, pass, read, relay, serve, tool_call};

const ADMIN: &str = "/admin/mcp";
const PUBLIC: &str = "/public/mcp";

fn open(bench: &Bench, server: &str) -> SessionHandle {
    let (principal, dialect) = (ALICE.principal().unwrap(), &Dialect::MCP_PYTHON_2);
    let id = SessionId::new(server, "s");
    let session = bench.engine.open_session(id, principal.as_ref(), dialect, Arc::new(NoWake), 0);
    let session = session.expect("it is the first of its server");
    session.assume_revision(NEW);
    session.accept_posted();
    session
}

fn find(bench: &Bench, server: &str) -> Option<SessionHandle> {
    let (principal, dialect) = (ALICE.principal().unwrap(), &Dialect::MCP_PYTHON_2);
    let id = SessionId::new(server, "s");
    let found = bench.engine.look_up_session(id, principal.as_ref(), None, dialect, Arc::new(NoWake), 0).unwrap();
    found.take().expect("the store answers at once").expect("the store works")
}

fn first(fleet: &Fleet, connection: &Connection) -> String {
    read(fleet, connection).last_id()
}

#[test]
fn o7_i7_another_server_finds_no_session_wherever_it_is_asked() {
    let fleet = fleet(2);
    let session = open(&fleet.benches[0], ADMIN);
    let running = call(&session, 1);
    notify(&session, 1, "secret").unwrap();
    let cursor = first(&fleet, &running);
    for bench in &fleet.benches {
        assert!(find(bench, PUBLIC).is_none() && find(bench, "").is_none(), "O7: it is not found");
    }
    // With the id of an event, too; and it is not told apart from one that never was.
    let at = &fleet.benches[1].engine;
    let other = open(&fleet.benches[1], PUBLIC);
    let foreign = read_now(&resume(&other, &cursor));
    let unknown = read_now(&resume(&other, &cursor.replace(&cursor[1..5], "AAAA")));
    assert_eq!((foreign.status, foreign.end), (unknown.status, unknown.end), "O7");
    assert!(!foreign.text.contains("secret"), "O7");
    assert_eq!(at.stats().requests_foreign, 0, "nobody is told that it is there");
    // Only its own server serves it, in every process. Routers differ in what they take for the same path.
    for other in ["/admin/mcp/", "//admin/mcp", "/admin%2Fmcp", "/%61dmin/mcp", "/ADMIN/mcp"] {
        assert!(find(&fleet.benches[1], other).is_none(), "O7: {other}");
    }
    let view = find(&fleet.benches[1], ADMIN).expect("it is of this server");
    let relayed = relay(&view, &tool_call(2));
    fleet.settle();
    assert_eq!(serve(&session), ["tools/call 2"]);
    respond(&session, 2).unwrap();
    pass(&fleet, 250);
    assert_eq!(only_event(&read(&fleet, &relayed)), json!({"event": 1, "is": {"result": 2}}));
}

#[test]
fn o7_another_server_goes_on_with_no_session_whose_owner_is_gone() {
    let fleet = fleet(2);
    open(&fleet.benches[0], ADMIN).release();
    assert!(find(&fleet.benches[1], PUBLIC).is_none(), "O7: it is not adopted");
    assert!(find(&fleet.benches[1], ADMIN).is_some());
}

#[test]
fn o7_two_servers_of_one_process_may_have_sessions_of_one_id() {
    let fleet = fleet(1);
    let bench = &fleet.benches[0];
    let [admin, public] = [ADMIN, PUBLIC].map(|server| open(bench, server));
    let listeners = [listen(&admin), listen(&public)];
    broadcast(&admin, "for admins").unwrap();
    let told = listeners.each_ref().map(|listener| read(&fleet, listener).text.contains("for admins"));
    assert_eq!(told, [true, false], "O7");
    let of = |server| bench.engine.session(SessionId::new(server, "s"), ALICE.principal().unwrap().as_ref());
    assert!(of(ADMIN).is_some_and(|found| found.name() == admin.name()));
    assert!(bench.engine.session("s", ALICE.principal().unwrap().as_ref()).is_none());
    public.end();
    assert!(!admin.has_ended() && of(ADMIN).is_some() && of(PUBLIC).is_none(), "one that ends takes no other along");
}

#[test]
fn o7_a_name_is_of_one_server_and_one_id() {
    let of = |server, id| session_name(SessionId::new(server, id));
    let names = [of("", "s"), of("/", "s"), of("/a", "s"), of("/b", "s"), of("/a", "t"), of("/as", "")];
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
    assert_eq!(of("", "s"), session_name("s"));
    // `printf '/a\ns' | sha256sum`
    assert_eq!(&*of("/a", "s"), "191d11abdee928d2271c6e0489824304");
}
