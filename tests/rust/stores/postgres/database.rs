//! The PostgreSQL servers of tests: a namespace for each, and what an administrator does to them.
#![allow(dead_code, reason = "each test target uses a part")]

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tailrope_core::store::{EventStore, Limits, StoreOptions, WallClock};
use tailrope_stores::PostgresStore;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::kit::eventually::{PATIENCE, eventually};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a variable of `tests/services/with` says.
pub(crate) fn told(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set; this sets it: tests/services/with redis postgres -- cargo test -p tailrope-stores \
             --features redis,postgres --test servers; and of all kinds, for --test every_server"
        )
    })
}

/// The namespace of an address.
pub(crate) fn namespace(address: &str) -> &str {
    let (_, rest) = address.split_once("namespace=").expect("it has one");
    rest.split('&').next().expect("there is a first part")
}

pub(crate) fn at(address: &str, options: &StoreOptions) -> PostgresStore {
    tailrope_stores::postgres::open(address, options).expect("the database can be used")
}

/// Addresses of one server with namespaces that nobody else uses. They go with it.
pub(crate) struct Namespaces {
    address: String,
    options: String,
    made: Mutex<Vec<String>>,
}

impl Namespaces {
    pub(crate) fn direct() -> Self {
        Self::new(told("TAILROPE_TEST_POSTGRES"), "")
    }

    /// Behind a pooler that gives each transaction another connection. A busy machine is waited for.
    pub(crate) fn pooled() -> Self {
        let listen = format!("&timeout_ms=60000&listen={}", told("TAILROPE_TEST_POSTGRES"));
        Self::new(told("TAILROPE_TEST_PGBOUNCER"), &listen)
    }

    pub(crate) fn pooled_without_listen() -> Self {
        Self::new(told("TAILROPE_TEST_PGBOUNCER"), "&timeout_ms=60000&listen=off")
    }

    pub(crate) fn new(address: String, options: &str) -> Self {
        Self { address, options: options.to_owned(), made: Mutex::default() }
    }

    /// The address of an empty store.
    pub(crate) fn address(&self) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("test_{}_{}_{number}", std::process::id(), since.subsec_nanos());
        self.made.lock().unwrap().push(namespace.clone());
        format!("{}?namespace={namespace}{}", self.address, self.options)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in self.made.lock().unwrap().drain(..) {
            // The stores are closed; a test that failed may have left one open.
            let drop = format!("SET lock_timeout = '5s'; DROP SCHEMA IF EXISTS {namespace} CASCADE");
            let _ = std::panic::catch_unwind(|| Administrator::new().run(&drop));
        }
    }
}

/// A connection of its own to the server, without a store.
pub(crate) struct Administrator {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl Administrator {
    pub(crate) fn new() -> Self {
        Self::at(&told("TAILROPE_TEST_POSTGRES"))
    }

    pub(crate) fn at(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(address, NoTls).await.expect("the server is there");
            tokio::spawn(connection);
            client
        });
        Self { runtime, client }
    }

    /// Runs statements.
    pub(crate) fn run(&self, sql: &str) {
        self.wait(self.client.batch_execute(sql)).expect("the statements are right");
    }

    /// The first value of the first row.
    pub(crate) fn ask(&self, sql: &str) -> Option<String> {
        let rows = self.wait(self.client.simple_query(sql)).expect("the statement is right");
        rows.iter().find_map(|row| match row {
            SimpleQueryMessage::Row(row) => Some(row.get(0)?.to_owned()),
            _ => None,
        })
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.ask(sql).and_then(|value| value.parse().ok()).expect("the statement tells a number")
    }

    /// Waits until a statement of this namespace waits for a lock.
    pub(crate) fn see_waiting(&self, namespace: &str) {
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{namespace}%'"
        );
        eventually("it waits for the lock", || self.number(&waits) > 0);
    }

    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, what).await.expect("the server answers") })
    }
}

/// A database of its own. It goes with it.
pub(crate) struct Database {
    pub(crate) administrator: Administrator,
    pub(crate) name: String,
}

impl Database {
    pub(crate) fn new() -> Self {
        let administrator = Administrator::new();
        let name = format!("database_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        administrator.run(&format!("DROP DATABASE IF EXISTS {name}"));
        administrator.run(&format!("CREATE DATABASE {name}"));
        Self { administrator, name }
    }

    /// The address of the store in it.
    pub(crate) fn address(&self, options: &str) -> String {
        format!("{}{options}", self.address_of("store"))
    }

    /// The address of the store with this namespace.
    pub(crate) fn address_of(&self, namespace: &str) -> String {
        format!("{}?namespace={namespace}", self.place())
    }

    fn place(&self) -> String {
        let address = told("TAILROPE_TEST_POSTGRES");
        let (server, _) = address.rsplit_once('/').expect("it names a database");
        format!("{server}/{}", self.name)
    }

    /// Somebody who looks into it.
    pub(crate) fn inside(&self) -> Administrator {
        Administrator::at(&self.place())
    }

    /// Ends every connection to it. Returns how many there were.
    pub(crate) fn end_connections(&self) -> i64 {
        self.terminate(Duration::ZERO)
    }

    /// The same, and comes back when the server has ended them: none of them takes a statement any more.
    pub(crate) fn see_connections_end(&self) {
        // All of them at about the same time: waiting for each in turn may take seconds.
        self.terminate(Duration::ZERO);
        self.terminate(PATIENCE);
    }

    fn terminate(&self, patience: Duration) -> i64 {
        let (name, wait_ms) = (&self.name, patience.as_millis());
        self.administrator.number(&format!(
            "SELECT count(pg_terminate_backend(pid, {wait_ms})) FROM pg_stat_activity WHERE datname = '{name}'"
        ))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = std::panic::catch_unwind(|| Administrator::new().run(&drop));
    }
}

/// Two processes.
pub(crate) fn two(namespaces: &Namespaces) -> (Arc<dyn EventStore>, Arc<dyn EventStore>) {
    let address = namespaces.address();
    let open = || at(&address, &StoreOptions::default());
    (Arc::new(open()), Arc::new(open()))
}

/// Options whose clock stands still until it is moved.
pub(crate) fn with_clock(limits: Limits) -> (StoreOptions, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let wall_clock: WallClock = Arc::new(move || clock.load(Ordering::SeqCst));
    (StoreOptions { limits, wall_clock: Some(wall_clock), ..StoreOptions::default() }, time)
}
