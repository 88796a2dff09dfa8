//! What stores make of bytes that come back to them, for tests that give them any bytes.

#[cfg(any(feature = "postgres", feature = "redis"))]
use tailrope_core::store::StoreError;
#[cfg(feature = "redis")]
use tailrope_core::store::{Attached, LogPage, Mail, RunningLog};

/// One result of a reply, read as each of the things that it may be.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisResult {
    /// As the answer to a read.
    pub page: Option<LogPage>,
    /// As the answer to a look for a stream.
    pub attached: Option<Attached>,
    /// As the answer to a hold.
    pub running: Option<Vec<RunningLog>>,
    /// As the answer to a take.
    pub mail: Option<Vec<Mail>>,
    /// As what a log holds after a write: events, bytes, whether it has ended.
    pub log: Option<(u64, u64, bool)>,
}

/// Reads the bytes of a server as the reply of the script of the Redis store; none when they are none.
#[cfg(feature = "redis")]
pub fn redis_reply(bytes: &[u8]) -> Option<Vec<Result<RedisResult, StoreError>>> {
    crate::redis::seams::read_reply(bytes)
}

/// The places of the servers of a cluster, with their first and last slots, as a server at `host` tells them.
#[cfg(feature = "redis")]
pub fn redis_slots(bytes: &[u8], host: &str) -> Vec<(u16, u16, String)> {
    crate::redis::seams::read_slots(bytes, host)
}

/// Takes the address of a PostgreSQL server apart.
///
/// # Errors
/// What is wrong with it.
#[cfg(feature = "postgres")]
pub fn postgres_address(address: &str) -> Result<(), StoreError> {
    crate::postgres::read_address(address).map_err(StoreError::Failed)
}

/// Takes the address of a Redis server apart, and tells it without what is secret.
///
/// # Errors
/// What is wrong with it.
#[cfg(feature = "redis")]
pub fn redis_address(address: &str) -> Result<String, StoreError> {
    crate::redis::seams::read_address(address).map_err(StoreError::Failed)
}
