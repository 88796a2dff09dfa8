//! The record of each call that has had its end: counted, and logged if it ended badly or the operator wants every call.

use std::borrow::Cow;

use crate::Ms;
use crate::engine::lines::{Later, shown};
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::change::Change;
use crate::engine::shared::Shared;
use crate::exchange::Admission;
use crate::protocol::{Envelope, Refusal, RequestId, StreamNonce};
use crate::repeats::{BURST, Bounded};
use crate::session::{Asked, Outcome, Record, SynthesizedEnd, Weight};
use crate::sync::Arc;

/// How many records of calls that ended alike are logged in each interval. Each is about another call.
const RECORDS: u32 = 60;

/// What a record says of its session.
pub(crate) struct Of {
    pub(crate) session: Arc<str>,
    pub(crate) sdk: Option<&'static str>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) duration_ms: Option<u64>,
}

impl Of {
    /// Its user, or the session where the operator names no users.
    fn whose(&self) -> Arc<str> {
        self.user.as_deref().map_or_else(|| Arc::clone(&self.session), Into::into)
    }
}

impl Change<'_> {
    /// Takes note of the calls that have had their end.
    pub(crate) fn note_records(&mut self) {
        let (results, over) = self.state.session.take_over();
        let counters = &self.cell.shared.counters;
        for begun in results {
            counters.ended(Outcome::Result, self.duration_ms(Some(begun)));
        }
        for record in over {
            counters.ended(record.outcome, self.duration_ms(record.begun));
            self.log_record(record);
        }
    }

    /// A call of a process that is gone gets its end here, where nobody knows what it asked for.
    pub(crate) fn note_lost(&mut self, nonce: StreamNonce, request: &RequestId, end: SynthesizedEnd) {
        let outcome = end.into();
        self.cell.shared.counters.ended(outcome, None);
        self.log_record(Box::new(Record::lost(nonce, request.clone(), outcome)));
    }

    fn duration_ms(&self, begun: Option<Ms>) -> Option<u64> {
        begun.filter(|begun| *begun != Ms::NEVER).map(|begun| self.now.since(begun))
    }

    fn log_record(&mut self, record: Box<Record>) {
        let duration_ms = self.duration_ms(record.begun);
        self.note_ended(&record);
        self.observe_call(&record, duration_ms);
        let shared = &self.cell.shared;
        if record.outcome == Outcome::Result {
            // The live page, or an observer, may have had it kept.
            let is_wanted = shared.options.log_calls || shared.is_observed() || shared.live.is_watched(self.now);
            self.state.session.record_results(is_wanted);
        }
        let of = Of {
            session: Arc::clone(&self.cell.name),
            sdk: Some(self.cell.dialect.sdk),
            user: self.state.user.as_ref().map(|user| user.name.clone()),
            duration_ms,
        };
        self.effects.lines.extend(later(shared, of, record));
    }

    /// Calls are refused before they have begun.
    pub(crate) fn note_refused(&mut self, calls: impl IntoIterator<Item = (RequestId, Asked)>, refusal: &Refusal) {
        for (id, asked) in calls {
            self.log_record(Box::new(Record::refused(id, asked, refusal.reason.cause())));
        }
    }

    /// A call of another process is cancelled before it has begun.
    pub(crate) fn note_cancelled_posted(&mut self, (id, asked): (RequestId, Asked)) {
        let (outcome, cause) = (Outcome::Cancelled, None);
        self.log_record(Box::new(Record { outcome, cause, ..Record::refused(id, asked, "") }));
    }
}

/// The requests of a message, and what they ask for.
pub(crate) fn calls(envelopes: &[Envelope], requests: &[RequestId]) -> Vec<(RequestId, Asked)> {
    requests.iter().map(|id| (id.clone(), Asked::of_request(envelopes, id))).collect()
}

impl Cell {
    /// A call is refused before it has begun.
    pub(crate) fn note_refused(&self, admission: &Admission, refusal: &Refusal) {
        let calls = calls(admission.envelopes(), &admission.requests());
        self.change_or((), |change| change.note_refused(calls, refusal));
    }
}

/// The line of a call that has had its end, if it has one.
pub(crate) fn later(shared: &Shared, of: Of, record: Box<Record>) -> Option<Later> {
    let is_every = shared.options.log_calls;
    if record.outcome.weight() == Weight::Well && !is_every {
        return None;
    }
    let level = match record.outcome.weight() {
        Weight::Well | Weight::Told => tracing::Level::INFO,
        Weight::Lost => tracing::Level::WARN,
        Weight::Broken => tracing::Level::ERROR,
    };
    if level > tracing::level_filters::LevelFilter::current() {
        return None;
    }
    let (kind, whose, burst) = match (record.outcome, &record.cause) {
        // A client that is refused again and again must hide neither what happens to others nor what else happens to it.
        (Outcome::Refused, Some(Cow::Borrowed(cause))) => (*cause, Some(of.whose()), BURST),
        (outcome, _) => (outcome.as_str(), None, RECORDS),
    };
    let line = Box::new(move |repeated| write(level, &of, &record, repeated));
    Some(if is_every { Later::Always(line) } else { Later::Bounded(Bounded { kind, whose, burst, line }) })
}

fn write(level: tracing::Level, of: &Of, record: &Record, repeated: Option<u64>) {
    macro_rules! write {
        ($level:ident) => {
            tracing::event!(
                target: "tailrope", tracing::Level::$level,
                session = &*of.session,
                stream = record.stream.map(|nonce| nonce.hex()),
                request = record.request.to_json(),
                method = Some(record.asked.method).filter(|method| !method.is_empty()),
                tool = record.asked.tool.as_deref().map(shown),
                user = of.user.as_deref(),
                sdk = of.sdk,
                duration_ms = of.duration_ms,
                connections = record.counts.connections,
                resumes = record.counts.resumes,
                gaps = record.counts.gaps,
                outcome = record.outcome.as_str(),
                cause = record.cause(),
                repeated,
                "call ended"
            )
        };
    }
    match level {
        tracing::Level::ERROR => write!(ERROR),
        tracing::Level::WARN => write!(WARN),
        _ => write!(INFO),
    }
}
