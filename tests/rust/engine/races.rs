//! Two processes that adopt one session at the same time, and a DELETE for it, in every order that a seed draws.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, NoWake, Options, SessionHandle};
use tailrope_core::exchange::RelayedMethod;
use tailrope_core::protocol::{Dialect, EventId, StreamNonce};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, Mail, Outcome, ReadLimit, RunningLog,
    StoreError, StreamKey, Ticket, Usage, Watcher, session_name,
};
use tailrope_core::stream::Seq;

use crate::kit::adopting::{Adopter, begin, replay, take, welcome};
use crate::kit::common::{Answered, Bench, NEW, call, id, notify, read_now, respond};
use crate::kit::dice::{Dice, depth};
use crate::kit::fleet::{Fleet, Node, nobody};
use crate::kit::processes::events;
use crate::kit::relaying::{ALICE, relay_by, serve, tool_call};

const LOST_MS: u64 = 2_000;

/// One process's way to the store: what it asks is done in its order, when the test lets it.
struct Late {
    inner: Arc<Node>,
    is_late: AtomicBool,
    queue: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
}

impl Late {
    /// Does what was asked first. False if nothing was.
    fn step(&self) -> bool {
        let next = self.queue.lock().unwrap().pop_front();
        next.map(|next| next()).is_some()
    }

    fn ask<T: 'static>(
        &self,
        ticket: &Ticket,
        outcome: fn(Result<T, StoreError>) -> Outcome,
        ask: impl FnOnce(&Node) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if !self.is_late.load(Ordering::SeqCst) {
            return ask(&self.inner);
        }
        let (inner, ticket) = (Arc::clone(&self.inner), ticket.clone());
        self.enqueue(move || match ask(&inner) {
            Answer::Now(result) => ticket.complete(outcome(result)),
            Answer::Later => unreachable!("the store of a fleet answers at once"),
        });
        Answer::Later
    }

    fn enqueue(&self, what: impl FnOnce() + Send + 'static) {
        self.queue.lock().unwrap().push_back(Box::new(what));
        if !self.is_late.load(Ordering::SeqCst) {
            self.step();
        }
    }
}

impl EventStore for Late {
    passes_on!(unwatch sweep usage outlives_process);

    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let (session, hold) = (session.to_owned(), hold.clone());
        self.ask(ticket, Outcome::Held, move |store| store.hold(&session, &hold, &nobody()))
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let (key, append) = (key.clone(), append.clone());
        self.ask(ticket, Outcome::Done, move |store| store.append(now, &key, epoch, &append, &nobody()))
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let (session, attach) = (session.to_owned(), attach.clone());
        self.ask(ticket, Outcome::Attached, move |store| store.attach(&session, &attach, &nobody()))
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let key = key.clone();
        self.ask(ticket, Outcome::Page, move |store| store.read(&key, after, limit, &nobody()))
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        let session = session.to_owned();
        self.ask(ticket, Outcome::Taken, move |store| store.take(&session, epoch, after, &nobody()))
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &bytes::Bytes, ticket: &Ticket) -> Answer<bool> {
        let (key, end) = (key.clone(), end.clone());
        self.ask(ticket, Outcome::Withdrawn, move |store| store.withdraw(now, &key, &end, &nobody()))
    }

    fn release(&self, session: &str, epoch: Epoch) {
        let (inner, session) = (Arc::clone(&self.inner), session.to_owned());
        self.enqueue(move || inner.release(&session, epoch));
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.enqueue(move || inner.settle(&key, epoch, seq));
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.enqueue(move || inner.drop_stream(&key, epoch));
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        let (inner, session) = (Arc::clone(&self.inner), session.to_owned());
        self.enqueue(move || inner.drop_session(&session, epoch));
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.inner.watch(session, watcher);
    }
}

/// A process that adopts.
struct Process {
    bench: Bench,
    store: Arc<Late>,
    view: SessionHandle,
    owners: Vec<SessionHandle>,
}

impl Process {
    fn new(fleet: &Fleet, index: usize) -> Self {
        let inner = Arc::clone(&fleet.nodes[index]);
        let store = Arc::new(Late { inner, is_late: AtomicBool::new(false), queue: Mutex::default() });
        let options = Options { store: Some(Arc::clone(&store) as _), owner_lost_ms: LOST_MS, ..Options::default() };
        let bench = Bench::new(options);
        let (principal, wake) = (ALICE.principal().unwrap(), Arc::new(NoWake));
        let found = bench.engine.look_up_session("s", principal.as_ref(), None, &Dialect::MCP_PYTHON_2, wake, 0);
        let view = found.unwrap().take().expect("it is told").unwrap().expect("it is alice's");
        view.offer_adoption(Arc::new(Adopter::default()), 0);
        store.is_late.store(true, Ordering::SeqCst);
        Self { bench, store, view, owners: Vec::new() }
    }

    /// The host takes the session if it can, and serves what waits. Returns what it has dispatched.
    fn serve(&mut self) -> Vec<String> {
        if let Some(adopted) = take(&self.view) {
            let session = adopted.session().clone();
            for message in replay(&adopted) {
                if let Some(request) = message["id"].as_i64() {
                    welcome(&session, &id(request), NEW);
                }
            }
            session.accept_posted();
            self.owners.push(session);
        }
        let dispatched: Vec<String> = self.owners.iter().flat_map(serve).collect();
        for number in dispatched.iter().filter_map(|what| what.strip_prefix("tools/call ")?.parse().ok()) {
            // It may have ended by now.
            self.owners.iter().for_each(|owner| drop(respond(owner, number)));
        }
        dispatched
    }
}

#[derive(Default)]
struct Races {
    adopted: usize,
    deleted: usize,
    called: usize,
    refused: usize,
}

fn race(seed: u64, races: &mut Races) {
    let mut dice = Dice::Seed(seed);
    let fleet = Fleet::with(3, Options { owner_lost_ms: LOST_MS, ..Options::default() });
    let session = begin(&fleet, NEW);
    let running = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    fleet.advance(20);
    let cursor = read_now(&running).last_id();
    let mut processes = [1, 2].map(|index| Process::new(&fleet, index));
    fleet.lose(0);
    let mut wanted = vec![(0, "call 2"), (1, "call 3"), (dice.place(2), "delete")];
    let mut open: Vec<(&str, Connection)> = Vec::new();
    let mut dispatched = Vec::new();
    for step in 0..600 {
        let is_over = step > 400;
        let at = dice.place(2);
        if (is_over || dice.one_in(12)) && !wanted.is_empty() {
            let (at, what) = wanted.swap_remove(dice.place(wanted.len()));
            let (method, body) = match what {
                "delete" => (RelayedMethod::Delete, Value::Null),
                call => (RelayedMethod::Post, tool_call(call[5..].parse().unwrap())),
            };
            // It is refused at once where the session is over, or is here by now.
            let relayed = relay_by(&processes[at].view, method, &body);
            open.extend(relayed.ok().map(|connection| (what, connection)));
        }
        match dice.below(4) {
            0 => dispatched.extend(processes[at].serve()),
            1 => processes[at].bench.advance(1 + dice.below(250)),
            _ => drop(processes[at].store.step()),
        }
        if dice.one_in(3) {
            fleet.settle();
        }
    }
    // Everything works again.
    for _ in 0..600 {
        for process in &mut processes {
            while process.store.step() {}
            process.bench.advance(100);
            dispatched.extend(process.serve());
        }
        fleet.settle();
    }
    for number in [2, 3] {
        let times = dispatched.iter().filter(|what| **what == format!("tools/call {number}")).count();
        assert!(times <= 1, "O4, seed {seed}: {dispatched:?}");
    }
    let owners = processes.iter().flat_map(|process| &process.owners);
    let owners = owners.filter(|owner| !owner.has_ended()).count();
    assert!(owners <= 1, "O1, seed {seed}: {owners} owners");
    let is_there = fleet.usage().sessions == 1;
    assert!(is_there || owners == 0, "seed {seed}: the session is over for its owner, too");
    for (what, connection) in &open {
        let answered = read_now(connection);
        let has_answer = answered.end.is_some() || answered.status.is_some_and(|status| status != 200);
        assert!(has_answer, "I13, seed {seed}, {what}: {answered:?} {dispatched:?}");
        match *what {
            "delete" if answered.status == Some(200) => assert!(!is_there, "seed {seed}: it is over"),
            "delete" => {}
            what => check_call(seed, what, &answered, &dispatched, races),
        }
    }
    if is_there {
        let nonce = nonce_of(&cursor);
        let key = StreamKey { session: session_name("s"), nonce };
        let page = fleet.nodes[1].read(&key, 0, ReadLimit::default(), &nobody());
        let Answer::Now(Ok(page)) = page else { panic!("seed {seed}: the log is there") };
        assert!(
            page.is_finished || dispatched.is_empty(),
            "I13, seed {seed}: what ran with the owner before has an end"
        );
    }
    races.adopted += usize::from(processes.iter().any(|process| !process.owners.is_empty()));
    races.deleted += usize::from(!is_there);
}

fn nonce_of(cursor: &str) -> StreamNonce {
    match EventId::parse(cursor) {
        Some(EventId::Position(cursor)) => cursor.nonce,
        other => panic!("a position: {other:?}"),
    }
}

/// A call that began has one end, and one that did not begin an error.
fn check_call(seed: u64, what: &str, answered: &Answered, dispatched: &[String], races: &mut Races) {
    let has_begun = dispatched.iter().any(|other| other.ends_with(&what[4..]));
    if answered.status != Some(200) {
        races.refused += 1;
        return;
    }
    let ends = events(answered);
    assert_eq!(ends.len(), 1, "I13, seed {seed}, {what}: {ends:?}");
    let end = ends[0].get("is").unwrap_or_else(|| &ends[0]["tombstone"]);
    assert!(end.get("error").is_some() || has_begun, "seed {seed}, {what}: {end}");
    races.called += usize::from(end.get("result").is_some());
}

#[test]
fn o1_o5_i13_two_heirs_and_a_delete_leave_one_owner_or_none_and_every_request_one_end() {
    let mut races = Races::default();
    for seed in 0..60 * depth() {
        race(seed, &mut races);
    }
    let Races { adopted, deleted, called, refused } = races;
    assert!(
        [adopted, deleted, called, refused].iter().all(|times| *times > 0),
        "{adopted} {deleted} {called} {refused}"
    );
}
