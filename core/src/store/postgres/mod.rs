//! The event store in a PostgreSQL database, for processes on any machine.
//!
//! One thread with a small runtime does everything that is asked, so that no caller ever waits for the
//! network. Sessions are spread over a few connections; what waits for one of them is written as one
//! transaction by one call of a function, so that hundreds of appends share a commit and a round trip.
//! No statement relies on the state of a connection: a pooler may give each transaction another one.
//!
//! A caller's `now` is not used: times are the database's. None of them says that an owner is gone: that is seen, by
//! its beat.

mod address;
mod batch;
mod hints;
mod house;
mod lane;
mod link;
mod queue;
mod reader;
mod schema;
mod server;
mod usage;
mod vacuum;
mod wake;

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use address::Address;
use link::{Heard, Link};
use queue::{Change, Look, Shared, Write, lock};
use schema::Statements;
use server::Server;
use tokio_postgres::types::Type;

use super::liveness::{Sightings, beat_ms};
use super::threads::{self, Threads};
use super::{
    Answer, Append, Attach, Attached, Durability, Epoch, EventStore, Hold, LogPage, OpenError, ReadLimit, RunningLog,
    StoreError, StoreOptions, StreamKey, Ticket, Usage, WallClock, Watcher,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::Seq;

/// For tests that give it any text.
#[cfg(feature = "testing")]
pub(super) fn read_address(address: &str) -> Result<(), String> {
    Address::parse(address).map(drop)
}

/// What an event takes in the database besides its frame, as measured with events of 300 bytes.
const EVENT_OVERHEAD: i64 = 112;
/// What a log takes in the database without events.
const LOG_OVERHEAD: i64 = 480;
/// The beat of an owner that said goodbye, or released the session.
const GOODBYE: i64 = -1;
/// How long opening may take besides connecting.
const OPENING: Duration = Duration::from_secs(30);

/// What all tasks know.
struct Context {
    /// This store object among all that ever used the namespace.
    owner: i64,
    opened: Instant,
    /// Of the other store objects.
    sightings: Mutex<Sightings>,
    owner_lost_ms: u64,
    /// The pause between two signs of life.
    pause: Duration,
    wall_clock: Option<WallClock>,
    waits_for_disk: bool,
    /// How long a lock of somebody else is waited for, as a setting of the server.
    lock_ms: String,
    /// What `apply` is told of the bounds.
    bounds: Vec<i64>,
    max_bytes: i64,
    /// Retention of finished streams, and of sessions that were left.
    sweep_ms: [i64; 2],
    timeout: Duration,
    statements: Statements,
    namespace: String,
    channel: String,
}

impl Context {
    fn new(owner: i64, address: &Address, options: &StoreOptions) -> Self {
        let StoreOptions { limits, durability, owner_lost_ms, ref wall_clock, .. } = *options;
        let signed = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        // Some are subtracted from times.
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 4);
        let bounds = vec![
            signed(limits.max_events_per_stream),
            signed(limits.max_bytes_per_stream),
            signed(limits.max_bytes_per_session),
            ms(limits.max_age_ms),
            EVENT_OVERHEAD,
            LOG_OVERHEAD,
        ];
        Self {
            owner,
            opened: Instant::now(),
            sightings: Mutex::new(Sightings::new(owner_lost_ms)),
            owner_lost_ms,
            pause: Duration::from_millis(beat_ms(owner_lost_ms).max(10)),
            wall_clock: wall_clock.clone(),
            waits_for_disk: durability == Durability::Power,
            lock_ms: (address.timeout / 4).as_millis().max(1).to_string(),
            bounds,
            max_bytes: signed(limits.max_bytes),
            sweep_ms: [ms(limits.retention_ms), ms(limits.max_age_ms)],
            timeout: address.timeout,
            statements: Statements::new(&address.namespace),
            namespace: address.namespace.clone(),
            channel: schema::channel(&address.namespace),
        }
    }

    /// The database has this beat of an owner, or none. Returns for how many milliseconds it is known to give no sign.
    fn unseen_ms(&self, owner: i64, beat: Option<i64>) -> u64 {
        if beat == Some(GOODBYE) {
            return u64::MAX;
        }
        let now = Ms(self.opened.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        lock(&self.sightings).saw(&owner.to_string(), beat.map(i64::cast_unsigned), now)
    }

    /// What takes the place of the database's clock.
    fn clock(&self) -> Option<i64> {
        self.wall_clock.as_ref().map(|clock| i64::try_from(clock()).unwrap_or(i64::MAX))
    }
}

/// An event store in a PostgreSQL database. See [`open`](super::open).
///
/// Dropping it writes what waits, for two seconds at most.
pub struct PostgresStore {
    shared: Arc<Shared>,
    max_event_bytes: usize,
    thread: Threads,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, and makes the tables where there are none. This waits for the server.
    ///
    /// # Errors
    /// [`OpenError`] when the address is wrong, the server cannot be reached or used, or its tables are of
    /// another version.
    pub fn open(address: &str, options: &StoreOptions) -> Result<Self, OpenError> {
        let shown = super::open::shown(address);
        let refuse = |what: String| OpenError::new(&shown, what);
        let parsed = Address::parse(address).map_err(refuse)?;
        let server = Server::new(parsed.place.clone()).map_err(refuse)?;
        let listen = match &parsed.listen {
            address::Listen::Main => Listen::Main,
            address::Listen::Elsewhere(place) => {
                let listener = Server::new(address::Place::clone(place));
                Listen::Elsewhere(Box::new(listener.map_err(|what| refuse(format!("listen: {what}")))?))
            }
            address::Listen::Off => Listen::Off,
        };
        let shared = Arc::new(Shared::new(parsed.connections));
        let (opened, outcome) = channel();
        let (of_thread, options) = (Arc::clone(&shared), options.clone());
        let max_event_bytes = options.limits.max_event_bytes;
        let thread = std::thread::Builder::new()
            .name("tailrope-postgres".to_owned())
            .spawn(move || run(&parsed, Servers { main: server, listen }, &of_thread, &options, &opened))
            .map_err(|error| refuse(format!("no thread for it: {error}")))?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Self { shared, max_event_bytes, thread: Threads::new(vec![thread]) }),
            Ok(Err(what)) => Err(refuse(what)),
            Err(_) => Err(refuse("its thread ended".to_owned())),
        }
    }

    fn later<T>(queued: Result<(), StoreError>) -> Answer<T> {
        match queued {
            Ok(()) => Answer::Later,
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Queues what is answered.
    fn ask<T>(
        &self,
        session: Arc<str>,
        nonce: Option<StreamNonce>,
        epoch: Epoch,
        change: Change,
        ticket: &Ticket,
    ) -> Answer<T> {
        Self::later(self.shared.write(Write { session, nonce, epoch, change, ticket: Some(ticket.clone()) }))
    }

    /// Queues what has no answer.
    fn tell(&self, session: Arc<str>, nonce: Option<StreamNonce>, epoch: Epoch, change: Change) {
        if let Err(error) = self.shared.write(Write { session, nonce, epoch, change, ticket: None }) {
            tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
        }
    }

    fn look<T>(&self, session: Arc<str>, attach: Attach, is_read: bool, ticket: &Ticket) -> Answer<T> {
        let (ticket, asked) = (ticket.clone(), Instant::now());
        Self::later(self.shared.look(Look { session, attach, is_read, ticket, asked }))
    }
}

struct Servers {
    main: Server,
    listen: Listen,
}

/// Where notifications come from.
enum Listen {
    Main,
    Elsewhere(Box<Server>),
    Off,
}

/// The thread: ends when the store is closed and everything is written.
fn run(
    address: &Address,
    servers: Servers,
    shared: &Arc<Shared>,
    options: &StoreOptions,
    opened: &Sender<Result<(), String>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = opened.send(Err(format!("no runtime for it: {error}")));
            return;
        }
    };
    runtime.block_on(async {
        match prepare(&servers.main, &address.namespace).await {
            Ok(owner) => {
                let context = Arc::new(Context::new(owner, address, options));
                let _ = opened.send(Ok(()));
                serve(servers, shared, &context).await;
            }
            Err(what) => {
                let _ = opened.send(Err(what));
            }
        }
    });
    // Connections that are about to be closed need not be waited for.
    runtime.shutdown_background();
}

async fn prepare(server: &Server, namespace: &str) -> Result<i64, String> {
    let client = link::connect(server, None, Arc::default()).await.map_err(|fault| fault.text)?;
    let preparing = tokio::time::timeout(OPENING, schema::prepare(&client, namespace));
    preparing.await.unwrap_or_else(|_| Err("the server did not answer in time".to_owned()))
}

async fn serve(servers: Servers, shared: &Arc<Shared>, context: &Arc<Context>) {
    let Servers { main: server, listen } = servers;
    let both = || (Arc::clone(shared), Arc::clone(context));
    let lanes: Vec<_> = (0..shared.lanes.len())
        .map(|lane| {
            let (shared, context) = both();
            tokio::spawn(lane::run(lane, Link::new(server.clone()), shared, context))
        })
        .collect();
    let (of_reader, of_house, of_tell, of_look, of_listen, of_heard) = (both(), both(), both(), both(), both(), both());
    let heard: Heard = Arc::new(move |payload| of_heard.0.wake.heard(of_heard.1.owner, payload));
    // Everything that takes a moment only.
    let talk = Arc::new(tokio::sync::Mutex::new(Link::new(server.clone())));
    // Says nothing by itself: behind a pooler whoever speaks may hear what was meant for somebody else, and take it
    // for a sign that notifications come through.
    let quiet = Link::hearing(server, Arc::clone(&heard));
    let reader = tokio::spawn(reader::run(Arc::clone(&talk), of_reader.0, of_reader.1));
    let house = tokio::spawn(house::run(Arc::clone(&talk), Arc::clone(&quiet), of_house.0, of_house.1));
    let tell = tokio::spawn(hints::tell(Arc::clone(&talk), of_tell.0, of_tell.1));
    tokio::spawn(hints::look(Arc::clone(&talk), of_look.0, of_look.1));
    let listening = match listen {
        Listen::Main => Some(quiet),
        Listen::Elsewhere(server) => Some(Link::hearing(*server, heard)),
        Listen::Off => None,
    };
    if let Some(link) = listening {
        tokio::spawn(hints::listen(link, of_listen.0, of_listen.1));
    }
    for lane in lanes {
        let _ = lane.await;
    }
    shared.close_looks();
    shared.wake.close();
    let _ = reader.await;
    let _ = house.await;
    let last = async {
        let _ = tell.await;
        say_goodbye(&mut *talk.lock().await, context).await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), last).await;
}

/// Whoever reads the logs of this store object need not wait until it counts as gone.
async fn say_goodbye(link: &mut Link, context: &Context) {
    if let Ok(client) = link.client(Duration::ZERO).await {
        let who = [
            (&context.owner as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT8),
            (&context.clock(), Type::INT8),
        ];
        let _ = client.query_typed(&context.statements.goodbye, &who).await;
    }
}

impl EventStore for PostgresStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.ask(session.into(), None, hold.epoch, Change::Hold(hold.clone()), ticket)
    }

    fn append(&self, _now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        if let Err(error) = append.check_size(self.max_event_bytes) {
            return Answer::Now(Err(error));
        }
        self.ask(Arc::clone(&key.session), Some(key.nonce), epoch, Change::Append(append.clone()), ticket)
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        self.shared.call_off(&key.session, ticket);
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        if attach.counts && attach.stream.is_some() {
            return self.ask(session.into(), attach.stream, Epoch::default(), Change::Attach(attach.clone()), ticket);
        }
        self.look(session.into(), attach.clone(), false, ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let attach = Attach { stream: Some(key.nonce), after, limit, ..Attach::default() };
        self.look(Arc::clone(&key.session), attach, true, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.tell(session.into(), None, epoch, Change::Release);
    }

    fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        self.shared.wake.watch(key, watcher);
    }

    fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        self.shared.wake.unwatch(key, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.tell(Arc::clone(&key.session), Some(key.nonce), epoch, Change::Settle(seq));
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.tell(Arc::clone(&key.session), Some(key.nonce), epoch, Change::DropStream);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.tell(session.into(), None, epoch, Change::DropSession);
    }

    /// The housekeeper does it by itself, with every sign of life, and on request.
    fn sweep(&self, _now: Ms) -> Ms {
        self.shared.ask_sweep();
        Ms::NEVER
    }

    fn usage(&self) -> Usage {
        lock(&self.shared.book).usage()
    }

    fn answers_elsewhere(&self) -> bool {
        true
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.close();
        threads::join(thread);
    }
}
