//! The PostgreSQL servers of tests: a namespace for each, and what an administrator does to them.
#![allow(dead_code, reason = "each test uses a part")]

use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tailrope_core::store::{PostgresStore, StoreOptions};
use tokio_postgres::{NoTls, SimpleQueryMessage};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a variable of `tests/services/with` says.
pub(crate) fn told(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set; run the tests with servers: tests/services/with postgres postgres-tls pgbouncer \
             -- cargo test -p tailrope-core --features postgres"
        )
    })
}

/// The namespace of an address.
pub(crate) fn namespace(address: &str) -> &str {
    let (_, rest) = address.split_once("namespace=").expect("it has one");
    rest.split('&').next().expect("there is a first part")
}

/// Waits for what comes about in time.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn at(address: &str, options: &StoreOptions) -> PostgresStore {
    PostgresStore::open(address, options).expect("the database can be used")
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

    /// Behind a pooler that gives each transaction another connection.
    pub(crate) fn pooled() -> Self {
        let listen = format!("&listen={}", told("TAILROPE_TEST_POSTGRES"));
        Self::new(told("TAILROPE_TEST_PGBOUNCER"), &listen)
    }

    pub(crate) fn pooled_without_listen() -> Self {
        Self::new(told("TAILROPE_TEST_PGBOUNCER"), "&listen=off")
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

    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), what).await.expect("the server answers") })
    }
}
