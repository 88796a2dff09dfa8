//! What several tests share. Nothing here is a test.
#![allow(dead_code, unused_macros, reason = "each test target uses a part")]

#[macro_use]
mod passing_on;
pub(crate) mod adopting;
pub(crate) mod any_order;
pub(crate) mod common;
pub(crate) mod dice;
pub(crate) mod events;
pub(crate) mod eventually;
pub(crate) mod fleet;
pub(crate) mod folder;
pub(crate) mod forging;
pub(crate) mod late_looks;
pub(crate) mod processes;
pub(crate) mod relaying;
pub(crate) mod task_life;
pub(crate) mod tasks;
pub(crate) mod vectors;
