//! What the tests of the stores write, and how they look at what is left.

use bytes::Bytes;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{ReadLimit, StoreError};
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

/// The positions of a short log, or nothing where the store has taken it all away.
pub(crate) fn positions_if_kept(caller: &Caller<'_>, log: &Log) -> Option<Vec<Seq>> {
    let limit = ReadLimit { up_to: Seq::MAX, events: 100, bytes: 64 << 10 };
    match caller.read(log, 0, limit) {
        Ok(page) => Some(page.page.events.iter().map(|event| event.seq).collect()),
        Err(StoreError::Gone) => None,
        Err(error) => panic!("the log is readable: {error:?}"),
    }
}
