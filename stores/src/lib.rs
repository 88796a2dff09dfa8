#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod decoding;
#[cfg_attr(not(all(feature = "postgres", feature = "redis", feature = "sqlite")), allow(unused))]
pub mod inspect;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod next;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use address::{OpenError, is_remote, open, shown_address};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use sqlite::{Forking, SqliteStore};
