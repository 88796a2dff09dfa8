//! Databases of the tests that do something to all of one.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::database::{Administrator, told};

static NEXT: AtomicU64 = AtomicU64::new(0);

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
        format!("{}?namespace=store{options}", self.place())
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
        self.terminate(Duration::from_secs(10));
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
