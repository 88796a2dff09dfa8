//! What the tests of the stores write, and how they look at what is left.

use bytes::Bytes;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::stream::{EventKind, Seq};

pub(crate) fn sized(bytes: usize) -> Event {
    progress(&"x".repeat(bytes))
}

pub(crate) fn question() -> Event {
    (EventKind::Question, Bytes::from_static(b"question"))
}

pub(crate) fn terminal() -> Event {
    (EventKind::Terminal, Bytes::from_static(b"terminal"))
}

pub(crate) fn positions(caller: &Caller<'_>, log: &Log, after: Seq) -> Vec<Seq> {
    caller.read_all(log, after).iter().map(|event| event.seq).collect()
}
