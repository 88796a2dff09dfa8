//! The front, in front of an application on a Unix socket that has our service inside.
#![cfg(unix)]

mod kit;
mod sessions;
