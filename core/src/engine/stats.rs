//! What is counted of an engine: one list for the code, the languages, the tests and the documentation.

use crate::engine::Engine;
use crate::engine::durations::{DurationCounters, Durations};
use crate::protocol::{Reason, Refusal};
use crate::session::Outcome;
use crate::stream::CloseReason;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a number says of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from the start of the engine on.
    Counter,
    /// It is of now.
    Gauge,
}

impl Kind {
    /// The name that exporters have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What several engines, or processes, have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// The sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum over their stores. Where the store is a file or PostgreSQL, each process counts all of it: it is counted once.
    Stores,
}

impl Across {
    /// Its name, the same in every language.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Stores => "stores",
        }
    }
}

/// Counters that count one thing, each for another value of a label.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name. That of the counters of it is `prefix` and the value.
    pub name: &'static str,
    /// The label.
    pub label: &'static str,
    /// With what the names of its counters begin.
    pub prefix: &'static str,
    /// What it says, in one sentence.
    pub about: &'static str,
}

static ENDED: Family =
    Family { name: "calls_ended", label: "outcome", prefix: "calls_", about: "Calls that had their end, by how." };
static REFUSED: Family = Family {
    name: "requests_refused",
    label: "reason",
    prefix: "refused_",
    about: "Requests that were refused, by why.",
};
static RESUMES: Family =
    Family { name: "resumes", label: "outcome", prefix: "resumes_", about: "Resumes, by what became of them." };
static CLOSES: Family = Family {
    name: "connections_closed",
    label: "reason",
    prefix: "closes_",
    about: "Connections that were closed here, by why.",
};

/// One thing that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, as Rust and Python spell it. JavaScript has it in camel case.
    pub name: &'static str,
    /// Whether it is of now, or only grows.
    pub kind: Kind,
    /// What is counted.
    pub unit: &'static str,
    /// What several processes have together.
    pub across: Across,
    /// What it is one of.
    pub family: Option<&'static Family>,
    /// What it says, in one sentence.
    pub about: &'static str,
}

macro_rules! counters {
    (
        gauges { $($(#[doc = $now_about:literal])+ $now:ident: $now_unit:literal, $across:ident;)* }
        counters { $($(#[doc = $about:literal])+ $name:ident: $unit:literal $(of $family:ident)?;)* }
    ) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            pub(crate) durations: DurationCounters,
            $(pub(crate) $name: AtomicU64),*
        }

        /// What an engine did since it was made, and what it holds now. [`entries`](Self::entries) names each.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $now_about])+ pub $now: u64,)*
            $($(#[doc = $about])+ pub $name: u64,)*
            /// How long calls took, by their outcome.
            pub durations: Durations,
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                let durations = self.durations.read();
                Stats { durations, $($name: self.$name.load(Ordering::Relaxed),)* ..Stats::default() }
            }
        }

        /// Everything that is counted, in a fixed order: first what is of now.
        pub static COUNTERS: &[Counter] = &[
            $(Counter {
                name: stringify!($now),
                kind: Kind::Gauge,
                unit: $now_unit,
                across: Across::$across,
                family: None,
                about: concat!($($now_about),+).trim_ascii(),
            },)*
            $(Counter {
                name: stringify!($name),
                kind: Kind::Counter,
                unit: $unit,
                across: Across::Sum,
                family: counters!(@family $($family)?),
                about: concat!($($about),+).trim_ascii(),
            },)*
        ];

        impl Stats {
            /// Every number, with what it is, in the order of [`COUNTERS`].
            ///
            /// ```
            /// use tailrope_core::engine::{Engine, Options};
            ///
            /// let engine = Engine::new(Options::default());
            /// for (counter, value) in engine.stats().entries() {
            ///     println!("{value} {}: {}", counter.unit, counter.about);
            /// }
            /// ```
            pub fn entries(&self) -> impl Iterator<Item = (&'static Counter, u64)> + use<> {
                COUNTERS.iter().zip([$(self.$now,)* $(self.$name,)*])
            }

            fn entries_mut(&mut self) -> impl Iterator<Item = (&'static Counter, &mut u64)> {
                COUNTERS.iter().zip([$(&mut self.$now,)* $(&mut self.$name,)*])
            }
        }
    };
    (@family) => { None };
    (@family $family:ident) => { Some(&$family) };
}

counters! {
    gauges {
        /// Sessions that are open here and that this process has.
        sessions: "sessions", Sum;
        /// As many sessions as may be open here: `max_sessions`.
        sessions_max: "sessions", Sum;
        /// Sessions of other processes that are read here.
        sessions_read: "sessions", Sum;
        /// Calls that run, or whose response the event store has not answered for.
        calls_running: "calls", Sum;
        /// For how long the oldest of them has done so.
        oldest_call_ms: "ms", Max;
        /// Tasks whose call runs now, or waits for its client.
        tasks: "tasks", Sum;
        /// Connections that are open now.
        connections: "connections", Sum;
        /// Bytes of events that wait for the event store.
        bytes_waiting: "bytes", Sum;
        /// As many of them as may wait before calls are refused.
        bytes_waiting_max: "bytes", Sum;
        /// Whether the event store was reached: 1, or 0 while it is away.
        store_up: "stores", Min;
        /// For how long the event store has been away.
        store_away_ms: "ms", Max;
        /// Logs in the store now.
        streams: "streams", Stores;
        /// Events in the store now.
        events: "events", Stores;
        /// Bytes in the store now.
        bytes: "bytes", Stores;
    }
    counters {
        /// Calls that were begun here: requests of clients in a session, and calls of 2026-07-28 that may become tasks.
        calls_begun: "calls";
        /// Calls that ended with a result of their handler.
        calls_result: "calls" of ENDED;
        /// Calls that ended with a result that says that the tool failed.
        calls_tool_error: "calls" of ENDED;
        /// Calls that ended with an error of their handler.
        calls_error: "calls" of ENDED;
        /// Calls that their clients cancelled.
        calls_cancelled: "calls" of ENDED;
        /// Calls that ended because their client did not come back for `max_detached_ms`, or left before there was a task.
        calls_client_gone: "calls" of ENDED;
        /// Calls that ended because the server stopped.
        calls_drained: "calls" of ENDED;
        /// Calls that ended because the process that ran them was gone, or was taken for gone.
        calls_owner_gone: "calls" of ENDED;
        /// Calls whose response the event store did not take, or of which it lost events.
        calls_store_refused: "calls" of ENDED;
        /// Calls whose response was larger than the server keeps, or whose retention was over.
        calls_limit: "calls" of ENDED;
        /// Calls that ended with their session.
        calls_session_ended: "calls" of ENDED;
        /// Requests that were refused: the request is not as it must be (400, 405, 406, 413, 415).
        refused_bad_request: "requests" of REFUSED;
        /// Requests that were refused: the host or the origin is not served (403).
        refused_forbidden: "requests" of REFUSED;
        /// Requests that were refused: nobody can tell whose request it is (500).
        refused_unidentified: "requests" of REFUSED;
        /// Requests that were refused: code around the session failed (500).
        refused_internal: "requests" of REFUSED;
        /// Requests that were refused: there is no such session for this user (404).
        refused_unknown_session: "requests" of REFUSED;
        /// Requests that were refused: the session has ended (404).
        refused_ended_session: "requests" of REFUSED;
        /// Requests that were refused: the event id names nothing that can be resumed (400).
        refused_unknown_cursor: "requests" of REFUSED;
        /// Requests that were refused: a request with this id is running (400).
        refused_duplicate_id: "requests" of REFUSED;
        /// Requests that were refused: as many requests of the session run as may: `max_requests_per_session` (429).
        refused_too_many_requests: "requests" of REFUSED;
        /// Requests that were refused: as many sessions are open as may, and none is idle: `max_sessions`, `max_sessions_per_principal` (503).
        refused_too_many_sessions: "requests" of REFUSED;
        /// Requests that were refused: the server is stopping (503).
        refused_stopping: "requests" of REFUSED;
        /// Requests that were refused: the event store gives no sign, so another process may have the session (503).
        refused_store_silent: "requests" of REFUSED;
        /// Requests that were refused: too much waits for the event store (503).
        refused_store_behind: "requests" of REFUSED;
        /// Requests that were refused: the event store cannot say now whether there is such a session or task (503).
        refused_store_unread: "requests" of REFUSED;
        /// Requests that were refused: the request does not get to the process that has the session (503).
        refused_not_relayed: "requests" of REFUSED;
        /// Requests that were refused: the request may run, and its answer cannot be given (504).
        refused_answer_unknown: "requests" of REFUSED;
        /// Sessions that were opened.
        sessions_opened: "sessions";
        /// Sessions that ended before their idle time, for a newer one of the same principal.
        sessions_gave_way: "sessions";
        /// Sessions that another process took over, because this one seemed to be gone.
        sessions_taken_over: "sessions";
        /// Sessions that a drain left to other processes.
        sessions_handed_over: "sessions";
        /// Sessions whose owner was gone, and that this process has from then on.
        sessions_adopted: "sessions";
        /// Streams that were opened.
        streams_opened: "streams";
        /// Connections that were opened.
        connections_opened: "connections";
        /// Events that the store took.
        events_stored: "events";
        /// Events that the store did not take.
        events_unstored: "events";
        /// Messages that a tool sent and no client gets, because the request had its end already, or is answered in JSON.
        messages_late: "messages";
        /// Resumes that continue a stream.
        resumes_accepted: "connections" of RESUMES;
        /// Resumes at the terminal: nothing was left.
        resumes_complete: "connections" of RESUMES;
        /// Resumes that were not possible and were answered with an error for their request.
        resumes_lost: "connections" of RESUMES;
        /// Resumes that were refused with a status.
        resumes_refused: "connections" of RESUMES;
        /// Gaps that were announced.
        gaps: "gaps";
        /// Positions missing in those gaps.
        events_missed: "positions";
        /// Readers that took a stream over from another connection.
        takeovers: "connections";
        /// Streams whose reader here was replaced by one in another process.
        takeovers_elsewhere: "streams";
        /// Streams whose stored events the store lost.
        logs_lost: "streams";
        /// Connections that ended because their stream was complete.
        closes_complete: "connections" of CLOSES;
        /// Connections that the host closed.
        closes_asked: "connections" of CLOSES;
        /// Polled connections that were closed after their time.
        closes_polled: "connections" of CLOSES;
        /// Connections closed at their age or byte limit.
        closes_limit: "connections" of CLOSES;
        /// Connections closed by a drain.
        closes_drain: "connections" of CLOSES;
        /// Connections closed because the store could not be read.
        closes_fault: "connections" of CLOSES;
        /// Connections closed with their session.
        closes_ended: "connections" of CLOSES;
        /// Connections that the client or the network ended.
        connections_lost: "connections";
        /// Answers to questions that an owner before this one asked: nobody waits for them.
        answers_unasked: "messages";
        /// Requests for a session of another principal: they were answered as for a session that is not known.
        requests_foreign: "requests";
        /// Calls that became tasks.
        tasks_created: "tasks";
        /// Tasks of other processes that this process goes on with.
        tasks_adopted: "tasks";
        /// Tasks that this process gave their end, because the process that ran them was gone.
        tasks_lost: "tasks";
        /// Tasks that were ended because no client asked for them for `max_detached_ms`.
        tasks_unasked: "tasks";
        /// Requests of 2026-07-28 that were refused, so that their clients fall back to a revision that can resume.
        requests_steered: "requests";
        /// Requests of 2026-07-28 that were left to the SDK: they cannot be resumed.
        requests_unresumable: "requests";
    }
}

impl Stats {
    /// What several engines of one process have together. Of those that share a store one says what that holds.
    pub fn of_all<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Self {
        let mut total: Option<Self> = None;
        let mut before: Vec<&Engine> = Vec::new();
        for engine in engines {
            let stats = engine.stats();
            let is_counted = before.iter().any(|other| Arc::ptr_eq(&other.0.store, &engine.0.store));
            before.push(engine);
            let Some(total) = &mut total else {
                total = Some(stats);
                continue;
            };
            total.durations.add(&stats.durations);
            for ((counter, sum), (_, value)) in total.entries_mut().zip(stats.entries()) {
                match counter.across {
                    Across::Max => *sum = value.max(*sum),
                    Across::Min => *sum = value.min(*sum),
                    Across::Stores if is_counted => {}
                    Across::Sum | Across::Stores => *sum += value,
                }
            }
        }
        // No store is away of a process without engines.
        total.unwrap_or_else(|| Self { store_up: 1, ..Self::default() })
    }
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// A call has ended so. One that was refused is counted with its request.
    pub(crate) fn ended(&self, outcome: Outcome, duration_ms: Option<u64>) {
        let counter = match outcome {
            Outcome::Refused => return,
            Outcome::Result => &self.calls_result,
            Outcome::ToolError => &self.calls_tool_error,
            Outcome::Error => &self.calls_error,
            Outcome::Cancelled => &self.calls_cancelled,
            Outcome::ClientGone => &self.calls_client_gone,
            Outcome::Drained => &self.calls_drained,
            Outcome::OwnerGone => &self.calls_owner_gone,
            Outcome::StoreRefused => &self.calls_store_refused,
            Outcome::Limit => &self.calls_limit,
            Outcome::SessionEnded => &self.calls_session_ended,
        };
        Self::add(counter, 1);
        if let Some(ms) = duration_ms {
            self.durations.add(outcome, ms);
        }
    }

    /// A request was refused for this reason.
    pub(crate) fn refused(&self, reason: Reason) {
        let counter = match reason {
            Reason::Steered => &self.requests_steered,
            Reason::BadRequest => &self.refused_bad_request,
            Reason::Forbidden => &self.refused_forbidden,
            Reason::Unidentified => &self.refused_unidentified,
            Reason::Internal => &self.refused_internal,
            Reason::UnknownSession => &self.refused_unknown_session,
            Reason::EndedSession => &self.refused_ended_session,
            Reason::UnknownCursor => &self.refused_unknown_cursor,
            Reason::DuplicateId => &self.refused_duplicate_id,
            Reason::TooManyRequests => &self.refused_too_many_requests,
            Reason::TooManySessions => &self.refused_too_many_sessions,
            Reason::Stopping => &self.refused_stopping,
            Reason::StoreSilent => &self.refused_store_silent,
            Reason::StoreBehind => &self.refused_store_behind,
            Reason::StoreUnread => &self.refused_store_unread,
            Reason::NotRelayed => &self.refused_not_relayed,
            Reason::AnswerUnknown => &self.refused_answer_unknown,
        };
        Self::add(counter, 1);
    }

    /// The engine answers with this refusal.
    pub(crate) fn counted(&self, refusal: Refusal) -> Refusal {
        self.refused(refusal.reason);
        Refusal { is_counted: true, ..refusal }
    }

    pub(crate) fn closed(&self, why: CloseReason) {
        let counter = match why {
            CloseReason::Complete => &self.closes_complete,
            CloseReason::Asked => &self.closes_asked,
            CloseReason::Polled => &self.closes_polled,
            CloseReason::Limit => &self.closes_limit,
            CloseReason::Drain => &self.closes_drain,
            CloseReason::Superseded => &self.takeovers,
            CloseReason::Fault => &self.closes_fault,
            CloseReason::Ended => &self.closes_ended,
        };
        Self::add(counter, 1);
    }
}
