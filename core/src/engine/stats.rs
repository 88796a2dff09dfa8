//! Counters of what an engine did.

use crate::stream::CloseReason;
use crate::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        /// What an engine did since it was made, and what it holds now. [`entries`](Self::entries) names each.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Sessions that are open now.
            pub sessions: u64,
            /// Tasks whose call runs now, or waits for its client.
            pub tasks: u64,
            /// Connections that are open now.
            pub connections: u64,
            /// Logs in the store now.
            pub streams: u64,
            /// Events in the store now.
            pub events: u64,
            /// Bytes in the store now.
            pub bytes: u64,
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* ..Stats::default() }
            }
        }

        impl Stats {
            /// The names of what there is now: for an exporter, gauges. All the others are counters since the engine was
            /// made, and only grow.
            pub const GAUGES: [&str; 6] = ["sessions", "tasks", "connections", "streams", "events", "bytes"];

            /// Every count with its name, in a fixed order: first the [gauges](Self::GAUGES).
            ///
            /// ```
            /// use tailrope_core::engine::{Engine, Options, Stats};
            ///
            /// let engine = Engine::new(Options::default());
            /// for (name, value) in engine.stats().entries() {
            ///     let kind = if Stats::GAUGES.contains(&name) { "gauge" } else { "counter" };
            ///     println!("# TYPE tailrope_{name} {kind}\ntailrope_{name} {value}");
            /// }
            /// ```
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                let now = [self.sessions, self.tasks, self.connections, self.streams, self.events, self.bytes];
                let since = [$((stringify!($name), self.$name)),*];
                Self::GAUGES.into_iter().zip(now).chain(since).collect()
            }
        }
    };
}

counters! {
    /// Sessions that were opened.
    sessions_opened,
    /// Sessions that ended before their idle time, for a newer one of the same principal.
    sessions_gave_way,
    /// Sessions that another process took over, because this one seemed to be gone.
    sessions_taken_over,
    /// Sessions that a drain left to other processes.
    sessions_handed_over,
    /// Sessions whose owner was gone, and that this process has from then on.
    sessions_adopted,
    /// Streams that were opened.
    streams_opened,
    /// Connections that were opened.
    connections_opened,
    /// Events that the store took.
    events_stored,
    /// Events that the store did not take.
    events_unstored,
    /// Messages whose request had its end already, or is answered in JSON.
    messages_late,
    /// Resumes that continue a stream.
    resumes_accepted,
    /// Resumes at the terminal: nothing was left.
    resumes_complete,
    /// Resumes that were not possible and were answered with an error for their request.
    resumes_lost,
    /// Resumes that were refused with a status.
    resumes_refused,
    /// Gaps that were announced.
    gaps,
    /// Positions missing in those gaps.
    events_missed,
    /// Readers that took a stream over from another connection.
    takeovers,
    /// Streams whose reader here was replaced by one in another process.
    takeovers_elsewhere,
    /// Streams whose stored events the store lost.
    logs_lost,
    /// Connections that ended because their stream was complete.
    closes_complete,
    /// Connections that the host closed.
    closes_asked,
    /// Polled connections that were closed after their time.
    closes_polled,
    /// Connections closed at their age or byte limit.
    closes_limit,
    /// Connections closed by a drain.
    closes_drain,
    /// Connections closed because the store could not be read.
    closes_fault,
    /// Connections closed with their session.
    closes_ended,
    /// Connections that the client or the network ended.
    connections_lost,
    /// Answers to questions that an owner before this one asked: nobody waits for them.
    answers_unasked,
    /// Requests for a session of another principal: they were answered as for a session that is not known.
    requests_foreign,
    /// Calls that became tasks.
    tasks_created,
    /// Tasks of other processes that this process goes on with.
    tasks_adopted,
    /// Tasks that this process gave their end, because the process that ran them was gone.
    tasks_lost,
    /// Tasks that were ended because no client asked for them for `max_detached_ms`.
    tasks_unasked,
    /// Requests of 2026-07-28 that were refused, so that their clients fall back to a revision that can resume.
    requests_steered,
    /// Requests of 2026-07-28 that were left to the SDK: they cannot be resumed.
    requests_unresumable,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
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
