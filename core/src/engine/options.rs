//! What can be set on an engine; the options that are numbers, by name: one table for all languages.

use std::fmt;

use crate::engine::clock::{Clock, RandomSource};
use crate::engine::telemetry::Observer;
use crate::exchange::IDENTITY_HEADERS;
use crate::session::{Pace, Paces};
use crate::store::{EventStore, Limits, StoreOptions};
use crate::stream::{AUTO, Drain, Pacing};
use crate::sync::Arc;

/// What a restart usually takes, in milliseconds.
const RESTART_MS: u32 = 5_000;

/// What becomes of progress that the store does not take: of notifications. Questions and responses are not concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Its sender is told, or the next one.
    #[default]
    Raise,
    /// It is counted and logged.
    DropProgress,
}

impl OnStoreFailure {
    /// The policy with this name, the same in every language.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Raise, Self::DropProgress].into_iter().find(|policy| policy.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raise => "raise",
            Self::DropProgress => "drop_progress",
        }
    }
}

/// Everything that can be set on an engine.
#[derive(Clone)]
pub struct Options {
    /// How connections are paced.
    pub pacing: Pacing,
    /// How the calls of some tools are paced otherwise.
    pub paces: Paces,
    /// The bounds of the memory store, when no other store is given.
    pub limits: Limits,
    /// Sessions that may be open at once.
    pub max_sessions: usize,
    /// Sessions of one principal that may be open at once. Nobody's sessions, of requests without any credential, are
    /// bounded by `max_sessions` alone.
    pub max_sessions_per_principal: usize,
    /// Requests of one session that may run at once.
    pub max_requests_per_session: usize,
    /// How long a session may have running requests and no contact, and a task no client that asks for it, in milliseconds.
    pub max_detached_ms: u64,
    /// After how long without anything a session is idle, in milliseconds; 0 is never. See [`Engine::tick`](crate::engine::Engine::tick).
    pub session_idle_ms: u64,
    /// How long the store may take for an operation, in milliseconds. Then a question counts as failed, and what is
    /// written is asked for again until the store answers. 0 waits for ever.
    pub store_timeout_ms: u64,
    /// What becomes of progress that the store does not take.
    pub on_store_failure: OnStoreFailure,
    /// A stream whose writing process gave no sign for so long gets its end from the process that serves its
    /// reader, in milliseconds (I13).
    pub owner_lost_ms: u64,
    /// How long hosts let handlers run on in a drain, in milliseconds. The engine waits for nothing.
    pub drain_within_ms: u64,
    /// The least `retry` that a drain tells, in milliseconds. [`AUTO`]: `retry_ms` where other processes are there, otherwise
    /// what a restart takes.
    pub drain_retry_ms: u64,
    /// A drain tells each client up to this much more, in milliseconds. [`AUTO`]: half of that.
    pub drain_spread_ms: u64,
    /// A call that takes longer becomes a task, in milliseconds, if its client takes tasks. 0: every call.
    pub task_after_ms: u64,
    /// Further headers in which a proxy says who the user is, in lower case, besides
    /// [`IDENTITY_HEADERS`](crate::exchange::IDENTITY_HEADERS). Clients must not be able to send them.
    pub identity_headers: Vec<String>,
    /// Each call that ends is logged, not only those that end badly.
    pub log_calls: bool,
    /// A larger event is logged as a warning: clients with small buffers drop it (F-60). Bytes.
    pub warn_event_bytes: usize,
    /// The store; the memory store when there is none.
    pub store: Option<Arc<dyn EventStore>>,
    /// Takes what OpenTelemetry is to know of calls and sessions; with none nothing is made for it.
    pub observer: Option<Arc<dyn Observer>>,
    /// The clock; the system's when there is none.
    pub clock: Option<Arc<dyn Clock>>,
    /// The randomness; the system's when there is none.
    pub randomness: Option<Arc<dyn RandomSource>>,
}

impl Options {
    /// The shortest time that finished streams stay readable, in milliseconds.
    pub(crate) fn shortest_retention_ms(&self) -> u64 {
        let of_tools = self.paces.iter().filter_map(|pace| pace.retention_ms);
        of_tools.chain([self.limits.retention_ms]).min().unwrap_or_default()
    }

    /// Whether a header of this name, in lower case, says who sends a request.
    pub fn is_identity_header(&self, name: &str) -> bool {
        IDENTITY_HEADERS.contains(&name) || self.identity_headers.iter().any(|other| other == name)
    }

    /// After what time, in milliseconds, a reader that takes nothing is cut off, if it is.
    pub fn patience_ms(&self) -> Option<u64> {
        Some(self.pacing.max_connection_ms).filter(|ms| ![0, AUTO].contains(ms))
    }

    /// A drain with these times, in milliseconds. What is not named is as the options say. `has_company`: other processes are
    /// there for the clients, so these need not wait for a restart.
    pub(crate) fn drain(&self, retry_ms: Option<u32>, spread_ms: Option<u32>, has_company: bool) -> Drain {
        let set = |ms: u64| (ms != AUTO).then(|| u32::try_from(ms).unwrap_or(u32::MAX));
        let usual_ms = || if has_company { self.pacing.retry_ms } else { self.pacing.retry_ms.max(RESTART_MS) };
        let drain = Drain::after(retry_ms.or_else(|| set(self.drain_retry_ms)).unwrap_or_else(usual_ms).max(1));
        Drain { spread_ms: spread_ms.or_else(|| set(self.drain_spread_ms)).unwrap_or(drain.spread_ms), ..drain }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pacing: Pacing::default(),
            paces: Paces::default(),
            limits: Limits::default(),
            max_sessions: 10_000,
            max_sessions_per_principal: 1_000,
            max_requests_per_session: 1_000,
            max_detached_ms: 60 * 60 * 1_000,
            session_idle_ms: 30 * 60 * 1_000,
            store_timeout_ms: 30_000,
            on_store_failure: OnStoreFailure::Raise,
            owner_lost_ms: 10_000,
            drain_within_ms: 5_000,
            drain_retry_ms: AUTO,
            drain_spread_ms: AUTO,
            task_after_ms: 1_000,
            identity_headers: Vec::new(),
            log_calls: false,
            warn_event_bytes: 1 << 20,
            store: None,
            observer: None,
            clock: None,
            randomness: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("pacing", &self.pacing).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// An option that is a whole number: of an engine, or of a [`Pace`].
pub struct NumberOption<T: 'static = Options> {
    /// Its name, as Rust and Python spell it. JavaScript has it in camel case.
    pub name: &'static str,
    /// It is an option of the store, too.
    pub is_of_store: bool,
    /// Zero switches something off. Otherwise zero is refused: a bound of nothing would serve nobody.
    pub may_be_zero: bool,
    /// It may also be the word [`AUTO_WORD`].
    pub may_be_auto: bool,
    get: fn(&T) -> u64,
    set: fn(&mut T, u64),
}

/// What [`AUTO`] is called where it is given as a text.
pub const AUTO_WORD: &str = "auto";

macro_rules! numbers {
    ($($store:ident $zero:ident $auto:ident $name:ident: $($field:ident).+ as $type:ty;)*) => {
        /// Every one of them, in a fixed order.
        pub static NUMBER_OPTIONS: &[NumberOption] = &[$(
            NumberOption {
                name: stringify!($name),
                is_of_store: $store,
                may_be_zero: $zero,
                may_be_auto: $auto,
                get: |options| options.$($field).+ as u64,
                // Larger values end at the largest.
                set: |options, number| options.$($field).+ = <$type>::try_from(number).unwrap_or(<$type>::MAX),
            },
        )*];
    };
}

const STORE: bool = true;
const ENGINE: bool = false;
const ZERO: bool = true;
const SOME: bool = false;
const WORD: bool = true;
const PLAIN: bool = false;

numbers! {
    ENGINE ZERO PLAIN retry_ms: pacing.retry_ms as u32;
    ENGINE ZERO PLAIN keep_alive_ms: pacing.keep_alive_ms as u64;
    ENGINE ZERO WORD max_connection_ms: pacing.max_connection_ms as u64;
    ENGINE ZERO PLAIN max_connection_bytes: pacing.max_connection_bytes as u64;
    ENGINE ZERO PLAIN store_wait_ms: pacing.store_wait_ms as u64;
    ENGINE SOME PLAIN store_timeout_ms: store_timeout_ms as u64;
    STORE SOME PLAIN max_events_per_stream: limits.max_events_per_stream as usize;
    STORE SOME PLAIN max_bytes_per_stream: limits.max_bytes_per_stream as usize;
    STORE SOME PLAIN max_bytes_per_session: limits.max_bytes_per_session as usize;
    STORE SOME PLAIN max_bytes: limits.max_bytes as usize;
    STORE SOME PLAIN max_event_bytes: limits.max_event_bytes as usize;
    STORE SOME PLAIN retention_ms: limits.retention_ms as u64;
    STORE SOME PLAIN max_age_ms: limits.max_age_ms as u64;
    STORE SOME PLAIN owner_lost_ms: owner_lost_ms as u64;
    ENGINE SOME PLAIN max_sessions: max_sessions as usize;
    ENGINE SOME PLAIN max_sessions_per_principal: max_sessions_per_principal as usize;
    ENGINE SOME PLAIN max_requests_per_session: max_requests_per_session as usize;
    ENGINE SOME PLAIN max_detached_ms: max_detached_ms as u64;
    ENGINE ZERO PLAIN session_idle_ms: session_idle_ms as u64;
    ENGINE ZERO PLAIN drain_within_ms: drain_within_ms as u64;
    ENGINE ZERO WORD drain_retry_ms: drain_retry_ms as u64;
    ENGINE ZERO WORD drain_spread_ms: drain_spread_ms as u64;
    ENGINE ZERO PLAIN task_after_ms: task_after_ms as u64;
    ENGINE SOME PLAIN warn_event_bytes: warn_event_bytes as usize;
}

macro_rules! of_pace {
    ($($zero:ident $name:ident as $type:ty;)*) => {
        /// What a [`Pace`] can say, in a fixed order.
        pub static PACE_OPTIONS: &[NumberOption<Pace>] = &[$(
            NumberOption {
                name: stringify!($name),
                is_of_store: false,
                may_be_zero: $zero,
                may_be_auto: false,
                get: |pace| pace.$name.map_or(0, |number| number as u64),
                set: |pace, number| pace.$name = Some(<$type>::try_from(number).unwrap_or(<$type>::MAX)),
            },
        )*];
    };
}

of_pace! {
    ZERO retry_ms as u32;
    ZERO hold_ms as u64;
    ZERO max_connection_ms as u64;
    ZERO max_connection_bytes as u64;
    ZERO heartbeat_ms as u64;
    SOME retention_ms as u64;
    ZERO task_after_ms as u64;
}

/// What a [`Pace`] says with yes or no.
pub struct PaceFlag {
    /// Its name, as Rust and Python spell it. JavaScript has it in camel case.
    pub name: &'static str,
    set: fn(&mut Pace, bool),
}

/// Every one of them.
pub static PACE_FLAGS: &[PaceFlag] =
    &[PaceFlag { name: "requires_task", set: |pace, value| pace.requires_task = value }];

impl PaceFlag {
    /// Checks what was given: none where it is no boolean.
    ///
    /// # Errors
    /// What it must be, to be said behind its name.
    pub fn check(&self, given: Option<bool>) -> Result<bool, &'static str> {
        given.ok_or("must be true or false")
    }

    /// Sets it.
    pub fn set(&self, pace: &mut Pace, value: bool) {
        (self.set)(pace, value);
    }
}

impl<T> NumberOption<T> {
    /// Checks what was given for the option: a whole number that is not negative, or none where it is something else.
    ///
    /// # Errors
    /// What it must be, to be said behind its name.
    pub fn check(&self, given: Option<u64>) -> Result<u64, &'static str> {
        match given {
            None if self.may_be_auto => Err("must be 'auto', or a whole number that is not negative"),
            None => Err("must be a whole number that is not negative"),
            Some(0) if !self.may_be_zero => Err("must be at least 1"),
            Some(number) => Ok(number),
        }
    }

    /// The number that is meant by a text, where the option takes one.
    pub fn of_text(&self, text: &str) -> Option<u64> {
        (self.may_be_auto && text == AUTO_WORD).then_some(AUTO)
    }

    /// Sets it.
    pub fn set(&self, options: &mut T, number: u64) {
        (self.set)(options, number);
    }
}

impl NumberOption {
    /// Sets it for a store, where it is an option of one.
    pub fn set_of_store(&self, options: &mut StoreOptions, number: u64) {
        let mut both = Options { limits: options.limits, owner_lost_ms: options.owner_lost_ms, ..Options::default() };
        (self.set)(&mut both, number);
        options.limits = both.limits;
        options.owner_lost_ms = both.owner_lost_ms;
    }

    /// What is in force; none where that is [`AUTO_WORD`].
    pub fn get(&self, options: &Options) -> Option<u64> {
        Some((self.get)(options)).filter(|number| !self.may_be_auto || *number != AUTO)
    }
}
