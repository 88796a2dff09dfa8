//! The front, in front of an application on a Unix socket that has our service inside.
#![cfg(unix)]

mod abuse;
#[cfg(target_os = "linux")]
mod descriptors;
mod ending;
mod kit;
mod parked;
mod proxying;
mod sessions;
mod waiting;
