//! A connection to a server, and how long its answers are waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::RedisError;
use ::redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// A connection that everything for its server goes through.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
    /// When the server last answered something.
    heard: Arc<Mutex<Instant>>,
}

/// Why there is no answer yet.
pub(super) enum Late {
    /// Others had theirs lately.
    Busy,
    /// Nobody had one: the connection may be of no use.
    Silent,
}

impl Live {
    pub(super) fn new(connection: MultiplexedConnection, driver: AbortHandle) -> Self {
        Self { connection, driver, heard: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Ends it. Those who wait for an answer learn that there will be none.
    pub(super) fn cut(&self) {
        self.driver.abort();
    }

    pub(super) fn is_over(&self) -> bool {
        self.driver.is_finished()
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.heard, &other.heard)
    }

    /// Waits for an answer until the server has said nothing for `limit`, and for twice that in all: it answers in
    /// the order of asking, and what is before this may be much.
    pub(super) async fn answer<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<Result<T, RedisError>, Late> {
        let asked = Instant::now();
        let mut answer = std::pin::pin!(answer);
        loop {
            let silent_at = asked.max(*self.heard()) + limit;
            let until = silent_at.min(asked + 2 * limit);
            if let Ok(answer) = timeout_at(until, &mut answer).await {
                *self.heard() = Instant::now();
                return Ok(answer);
            }
            if *self.heard() + limit <= until {
                return Err(Late::Silent);
            }
            if until == asked + 2 * limit {
                return Err(Late::Busy);
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, Instant> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
