//! The event store in a PostgreSQL database, for processes on any machine.
//!
//! One thread with a small runtime does everything that is asked, so that no caller ever waits for the
//! network. A few connections write: each takes what waits of many sessions and writes it as one transaction, by one call
//! of a function, so that hundreds of appends share a commit and a round trip.
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
mod looking;
mod looks;
mod reader;
mod schema;
mod server;
mod usage;
mod vacuum;
mod wake;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use address::Address;
use link::{Heard, SharedLink};
pub(crate) use looking::Looking;
use schema::Statements;
use server::Server;
use tailrope_core::Ms;
use tailrope_core::store::parts::{Backend, Mailbox, Pulse, Queued, Sightings, Threads, beat_ms};
use tailrope_core::store::{
    Durability, MAX_INBOX_BYTES, MAX_INBOX_MESSAGES, MAX_TAKEN, StoreOptions, Usage, WallClock, Watcher,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use usage::Book;
use wake::Wake;

use crate::OpenError;

/// For tests that give it any text.
#[cfg(feature = "testing")]
pub(crate) fn read_address(address: &str) -> Result<(), String> {
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

/// How long what waits is written on when the store is closed.
const CLOSING: Duration = Duration::from_secs(2);

/// What all tasks know, and callers share with them.
struct Context {
    mailbox: Arc<Mailbox>,
    /// For the housekeeper: a sweep was asked for, too much is held, or it is over.
    house: Notify,
    closing: Notify,
    book: Mutex<Book>,
    wake: Wake,
    /// This store object among all that ever used the namespace.
    owner: i64,
    opened: Instant,
    pulse: Pulse,
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
    /// Retention of sessions that were left.
    max_age_ms: i64,
    timeout: Duration,
    /// Connections that write.
    lanes: usize,
    statements: Statements,
    namespace: String,
}

/// Milliseconds as PostgreSQL has them: they are added to times, and subtracted.
fn ms(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

impl Context {
    fn new(owner: i64, address: &Address, options: &StoreOptions) -> Self {
        let StoreOptions { limits, durability, owner_lost_ms, ref wall_clock, .. } = *options;
        let signed = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        let bounds = vec![
            signed(limits.max_events_per_stream),
            signed(limits.max_bytes_per_stream),
            signed(limits.max_bytes_per_session),
            ms(limits.max_age_ms),
            EVENT_OVERHEAD,
            LOG_OVERHEAD,
            signed(MAX_INBOX_MESSAGES),
            signed(MAX_INBOX_BYTES),
            signed(MAX_TAKEN),
            ms(limits.retention_ms),
        ];
        Self {
            mailbox: Arc::new(Mailbox::new(address.timeout, CLOSING)),
            house: Notify::new(),
            closing: Notify::new(),
            book: Mutex::new(Book::new(address.connections + 1)),
            wake: Wake::default(),
            owner,
            opened: Instant::now(),
            pulse: Pulse::new(owner_lost_ms),
            sightings: Mutex::new(Sightings::new(owner_lost_ms)),
            owner_lost_ms,
            pause: Duration::from_millis(beat_ms(owner_lost_ms).max(10)),
            wall_clock: wall_clock.clone(),
            waits_for_disk: durability == Durability::Power,
            lock_ms: (address.timeout / 4).as_millis().max(1).to_string(),
            bounds,
            max_bytes: signed(limits.max_bytes),
            max_age_ms: ms(limits.max_age_ms),
            timeout: address.timeout,
            lanes: address.connections,
            statements: Statements::new(&address.namespace),
            namespace: address.namespace.clone(),
        }
    }

    /// A sign of life. Returns what the database tells with it.
    async fn beat(&self, client: &Client) -> Result<Row, Error> {
        let given = Instant::now();
        let row = client.query_typed_one(&self.statements.beat, &[(&self.owner, Type::INT8)]).await?;
        self.pulse.answered(given);
        Ok(row)
    }

    /// The database has this beat of an owner, or none. Returns for how many milliseconds it is known to give no sign.
    fn unseen_ms(&self, owner: i64, beat: Option<i64>) -> u64 {
        if beat == Some(GOODBYE) {
            return u64::MAX;
        }
        let now = Ms(self.opened.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        // A database that takes no writes shows old beats.
        let beat = beat.filter(|_| !self.pulse.is_cut_off());
        lock(&self.sightings).saw(&owner.to_string(), beat.map(i64::cast_unsigned), now)
    }

    /// What takes the place of the database's clock.
    fn clock(&self) -> Option<i64> {
        self.wall_clock.as_ref().map(|clock| i64::try_from(clock()).unwrap_or(i64::MAX))
    }
}

/// An event store in a PostgreSQL database. See [`open`](crate::open).
///
/// Dropping it writes what waits, for two seconds at most.
pub type PostgresStore = Queued<Postgres>;

/// What a [`PostgresStore`] is besides its mailbox.
pub struct Postgres(Arc<Context>);

impl Backend for Postgres {
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.0.wake.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.0.wake.unwatch(session, watcher);
    }

    /// The housekeeper does it by itself, with every sign of life, and on request.
    fn sweep(&self) {
        self.0.house.notify_one();
    }

    fn usage(&self) -> Usage {
        lock(&self.0.book).usage()
    }

    fn is_cut_off(&self) -> bool {
        self.0.pulse.is_cut_off()
    }

    fn has_company(&self) -> bool {
        self.0.pulse.has_company()
    }

    fn silent_ms(&self) -> Option<u64> {
        self.0.pulse.silent_ms()
    }

    fn namespace(&self) -> &str {
        &self.0.namespace
    }

    fn close(&self) {
        self.0.house.notify_one();
        self.0.wake.close();
        self.0.closing.notify_one();
    }
}

/// Connects, and makes the tables where there are none. This waits for the server.
///
/// # Errors
/// [`OpenError`] when the address is wrong, the server cannot be reached or used, or its tables are of
/// another version.
pub fn open(address: &str, options: &StoreOptions) -> Result<PostgresStore, OpenError> {
    let shown = crate::shown_address(address);
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
    let (opened, outcome) = channel();
    let (max_event_bytes, options) = (options.limits.max_event_bytes, options.clone());
    let thread = std::thread::Builder::new()
        .name("tailrope-postgres".to_owned())
        .spawn(move || run(&parsed, Servers { main: server, listen }, &options, &opened))
        .map_err(|error| refuse(format!("no thread for it: {error}")))?;
    let opened = outcome.recv().unwrap_or_else(|_| Err("its thread ended".to_owned()));
    let context = opened.map_err(refuse)?;
    let mailbox = Arc::clone(&context.mailbox);
    Ok(PostgresStore::new(mailbox, max_event_bytes, Threads::new(vec![thread]), Postgres(context)))
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
fn run(address: &Address, servers: Servers, options: &StoreOptions, opened: &Sender<Result<Arc<Context>, String>>) {
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
                let _ = opened.send(Ok(Arc::clone(&context)));
                serve(servers, &context).await;
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
    let client = link::connect(server, None, Arc::default()).await.map_err(|fault| fault.what)?;
    let preparing = tokio::time::timeout(OPENING, schema::prepare(&client, namespace));
    preparing.await.unwrap_or_else(|_| Err("the server did not answer in time".to_owned()))
}

async fn serve(servers: Servers, context: &Arc<Context>) {
    let Servers { main: server, listen } = servers;
    let shared = || Arc::clone(context);
    let of_heard = shared();
    let heard: Heard = Arc::new(move |payload| of_heard.wake.heard(payload));
    // Everything that takes a moment only.
    let talk = SharedLink::new(server.clone(), None);
    // Says nothing by itself: behind a pooler a connection may hear what was meant for another one, and take it
    // for a sign that notifications come through.
    let quiet = SharedLink::new(server.clone(), Some(Arc::clone(&heard)));
    let mut workers = JoinSet::new();
    for lane in 0..context.lanes {
        workers.spawn(lane::run(lane, SharedLink::new(server.clone(), None), shared()));
    }
    workers.spawn(reader::run(talk.clone(), shared()));
    workers.spawn(house::run(talk.clone(), quiet.clone(), shared()));
    workers.spawn(hints::tell(talk.clone(), shared()));
    tokio::spawn(looks::run(talk.clone(), shared()));
    let listening = match listen {
        Listen::Main => Some(quiet),
        Listen::Elsewhere(server) => Some(SharedLink::new(*server, Some(heard))),
        Listen::Off => None,
    };
    if let Some(link) = listening {
        tokio::spawn(hints::listen(link, shared()));
    }
    context.closing.notified().await;
    let ended = async { while workers.join_next().await.is_some() {} };
    // A moment longer than the mailbox, which says what is lost.
    let _ = tokio::time::timeout(CLOSING * 3 / 2, ended).await;
    let last = async {
        hints::say(&talk, context).await;
        say_goodbye(&talk, context).await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), last).await;
}

/// So readers of this store object's logs need not wait until it counts as gone.
async fn say_goodbye(link: &SharedLink, context: &Context) {
    let clock = context.clock();
    let who = [(&context.owner as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT8), (&clock, Type::INT8)];
    let _ = link.ask(context.timeout, async |client| client.query_typed(&context.statements.goodbye, &who).await).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
