//! Logs: what is written to them, read from them, and heard of them from other processes.

pub(crate) mod appending;
pub(crate) mod confirmed;
pub(crate) mod following;
pub(crate) mod hook_log;
pub(crate) mod log;
pub(crate) mod lost;
pub(crate) mod reading;
pub(crate) mod watching;
pub(crate) mod writing;
