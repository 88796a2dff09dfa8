//! What happened to streams lately: bounded, and the same for each stream.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::Ms;
use crate::engine::live::Note;
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::session::{Outcome, Record};
use crate::stream::ConnectionId;
use crate::sync::Arc;

/// Streams that are remembered. The one that came first makes room for another.
const MAX_TRAILS: usize = 1_024;
/// Connections of a stream that are remembered, and gaps.
const MAX_SPANS: usize = 24;
const MAX_GAPS: usize = 8;
/// Calls that are remembered after their end: those that ended well, and as many others.
const MAX_ENDED: usize = 60;
/// Streams that are shown though no row is theirs.
const MAX_OTHERS: usize = 60;

/// A connection of a stream.
pub(super) struct Span {
    conn: ConnectionId,
    pub(super) from: Ms,
    pub(super) is_resume: bool,
    /// When it was over, and why.
    pub(super) end: Option<(Ms, &'static str)>,
}

/// What happened to a stream.
#[derive(Default)]
pub(super) struct Trail {
    number: u64,
    pub(super) spans: VecDeque<Span>,
    pub(super) gaps: VecDeque<(Ms, u64)>,
}

/// A call that has had its end.
pub(super) struct Ended {
    pub(super) at: Ms,
    pub(super) session: Arc<str>,
    pub(super) user: Option<Box<str>>,
    pub(super) record: Record,
}

#[derive(Default)]
pub(super) struct Trails {
    /// What the page calls the engine.
    pub(super) id: Option<u64>,
    /// Since when all of this is remembered.
    pub(super) since: Ms,
    by_stream: OwnMap<StreamNonce, Trail>,
    /// The streams in the order in which they came.
    order: BTreeMap<u64, StreamNonce>,
    next_number: u64,
    well: VecDeque<Ended>,
    badly: VecDeque<Ended>,
}

fn push<T>(queue: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    queue.push_back(item);
    if queue.len() > max { queue.pop_front() } else { None }
}

impl Trails {
    pub(super) fn note(&mut self, now: Ms, nonce: StreamNonce, note: Note) {
        match note {
            Note::Opened { conn, is_resume } => {
                let span = Span { conn, from: now, is_resume, end: None };
                push(&mut self.trail(nonce).spans, span, MAX_SPANS);
            }
            Note::Closed { conn, why } => {
                let trail = self.by_stream.get_mut(&nonce);
                let span = trail.and_then(|trail| trail.spans.iter_mut().rfind(|span| span.conn == conn));
                if let Some(span) = span {
                    span.end.get_or_insert((now, why));
                }
            }
            Note::Gap { count } => {
                push(&mut self.trail(nonce).gaps, (now, count), MAX_GAPS);
            }
        }
    }

    /// The stream has this connection, which may have come before anybody looked.
    pub(super) fn has_connection(&mut self, nonce: StreamNonce, conn: ConnectionId) {
        let since = self.since;
        let spans = &mut self.trail(nonce).spans;
        if !spans.iter().any(|span| span.conn == conn) {
            push(spans, Span { conn, from: since, is_resume: false, end: None }, MAX_SPANS);
        }
    }

    pub(super) fn of(&self, nonce: StreamNonce) -> Option<&Trail> {
        self.by_stream.get(&nonce)
    }

    fn trail(&mut self, nonce: StreamNonce) -> &mut Trail {
        if !self.by_stream.contains_key(&nonce) {
            if self.by_stream.len() >= MAX_TRAILS
                && let Some((_, oldest)) = self.order.pop_first()
            {
                self.by_stream.remove(&oldest);
            }
            self.order.insert(self.next_number, nonce);
            self.by_stream.insert(nonce, Trail { number: self.next_number, ..Trail::default() });
            self.next_number += 1;
        }
        self.by_stream.entry(nonce).or_default()
    }

    pub(super) fn ended(&mut self, ended: Ended) {
        let queue = if ended.record.outcome == Outcome::Result { &mut self.well } else { &mut self.badly };
        let forgotten = push(queue, ended, MAX_ENDED).and_then(|before| before.record.stream);
        if let Some(trail) = forgotten.and_then(|nonce| self.by_stream.remove(&nonce)) {
            self.order.remove(&trail.number);
        }
    }

    /// The newest streams that no row shows: they are read here, and other processes run their calls.
    pub(super) fn others(&self, shown: &HashSet<StreamNonce>) -> impl Iterator<Item = (StreamNonce, &Trail)> {
        let newest = self.order.values().rev().filter(|nonce| !shown.contains(nonce)).take(MAX_OTHERS);
        newest.filter_map(|nonce| Some((*nonce, self.of(*nonce)?)))
    }

    /// The calls that have had their end, the last ones first.
    pub(super) fn all_ended(&self) -> Vec<&Ended> {
        let mut all: Vec<&Ended> = self.well.iter().chain(&self.badly).collect();
        all.sort_by_key(|ended| std::cmp::Reverse(ended.at));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RequestId;
    use crate::session::Asked;

    fn nonce(number: u16) -> StreamNonce {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        StreamNonce(bytes)
    }

    #[test]
    fn streams_connections_gaps_and_ends_are_bounded() {
        let mut trails = Trails::default();
        for number in 0..400 {
            let at = Ms(u64::from(number));
            for conn in 0..30 {
                trails.note(at, nonce(number), Note::Opened { conn, is_resume: conn > 0 });
                trails.note(at, nonce(number), Note::Gap { count: 1 });
                trails.note(at, nonce(number), Note::Closed { conn, why: "polled" });
            }
            let record = Record::refused(RequestId::integer(1), Asked::default(), "x");
            let outcome = if number % 2 == 0 { Outcome::Result } else { Outcome::Error };
            let record = Record { stream: Some(nonce(number)), outcome, ..record };
            trails.ended(Ended { at, session: "s".into(), user: None, record });
        }
        let all = trails.all_ended();
        assert_eq!((all.len(), all[0].at), (2 * MAX_ENDED, Ms(399)));
        // What is not shown any more is forgotten.
        assert_eq!((trails.by_stream.len(), trails.order.len()), (2 * MAX_ENDED, 2 * MAX_ENDED));
        let trail = trails.of(nonce(399)).unwrap();
        assert_eq!((trail.spans.len(), trail.gaps.len()), (MAX_SPANS, MAX_GAPS));
        for number in 3_000..4_500 {
            trails.note(Ms(9_000), nonce(number), Note::Opened { conn: 1, is_resume: false });
        }
        assert_eq!((trails.by_stream.len(), trails.order.len()), (MAX_TRAILS, MAX_TRAILS));
    }

    #[test]
    fn a_connection_that_came_before_anybody_looked_is_known_once() {
        let mut trails = Trails { since: Ms(5), ..Trails::default() };
        trails.has_connection(nonce(1), 7);
        trails.has_connection(nonce(1), 7);
        trails.note(Ms(9), nonce(1), Note::Closed { conn: 7, why: "lost" });
        trails.note(Ms(10), nonce(2), Note::Closed { conn: 8, why: "lost" });
        let spans = &trails.of(nonce(1)).unwrap().spans;
        assert_eq!((spans.len(), spans[0].from, spans[0].end), (1, Ms(5), Some((Ms(9), "lost"))));
        assert!(trails.of(nonce(2)).is_none());
    }
}
