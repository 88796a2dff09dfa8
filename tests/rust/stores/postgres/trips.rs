//! How often a process asks the server until a reader that comes to it has its first event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::engine::{Engine, NoWake, Options};
use tailrope_core::protocol::Dialect;
use tailrope_core::store::StoreOptions;
use tailrope_stores::open;

use super::database::Namespaces;
use super::proxy::Proxy;
use crate::kit::common::{NEW, call, notify, read_now, resume};
use crate::kit::eventually::PATIENCE;

/// No sign of life, and no housekeeping, falls into the test.
const OWNER_LOST_MS: u64 = 3_600_000;
/// How long an attempt waits. Where a store asks for something else at that moment, the request that passes may be that, and the
/// attempt says nothing. It is shorter than a store waits for its server, so that nothing connects again because of it.
const ONE_ANSWER: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 30;

#[test]
fn a_resume_elsewhere_has_its_first_event_after_one_round_trip() {
    let namespaces = Namespaces::direct();
    resume_takes_one_round_trip(&namespaces.address());
}

/// Lets one request of the process pass that the reader comes to, and waits for the event.
pub(crate) fn resume_takes_one_round_trip(address: &str) {
    let place =
        address.split(['@', '/', '?']).find_map(|part| part.parse::<SocketAddr>().ok()).expect("a host and a port");
    let proxy = Proxy::new(place);
    let through = address.replace(&place.to_string(), &format!("127.0.0.1:{}", proxy.port));
    let (here, there) = (process(address), process(&through));
    let session = here.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).expect("it is new");
    session.assume_revision(NEW);
    let connection = call(&session, 1);
    notify(&session, 1, "a").expect("it is taken");
    let mut text = String::new();
    wait_for(PATIENCE, || {
        here.tick();
        text += &read_now(&connection).text;
        text.contains("notifications/a").then_some(())
    })
    .expect("the event is stored");
    let primed = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("it is primed");
    let look_up = |cursor| {
        let look_up = there.look_up_session("s", None, cursor, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0);
        look_up.expect("it can be looked up")
    };
    for _ in 0..ATTEMPTS {
        // There is a connection for it, and nothing of the last attempt is left.
        let before = look_up(None);
        let found = wait_for(PATIENCE, || before.take()).expect("the server answers").expect("the store can tell");
        found.expect("the session is there").let_go();
        proxy.let_pass(0);
        let look_up = look_up(Some(primed));
        std::thread::sleep(Duration::from_millis(50));
        assert!(look_up.take().is_none(), "only the server knows of the session");
        proxy.let_pass(1);
        let got = wait_for(ONE_ANSWER, || look_up.take()).and_then(|found| {
            let found = found.ok()?.expect("the session is there");
            let connection = resume(&found, primed);
            wait_for(ONE_ANSWER, || {
                there.tick();
                read_now(&connection).text.contains("notifications/a").then_some(())
            })
        });
        proxy.let_pass(u64::MAX);
        if got.is_some() {
            return;
        }
    }
    panic!("a reader that comes to another process waits for more than one answer of the server");
}

fn process(address: &str) -> Engine {
    let options = StoreOptions { owner_lost_ms: OWNER_LOST_MS, ..StoreOptions::default() };
    let store = open(address, &options).expect("the store can be used");
    Engine::new(Options { store: Some(store), owner_lost_ms: OWNER_LOST_MS, ..Options::default() })
}

fn wait_for<T>(at_most: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + at_most;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
