//! The options that are numbers, by name: one table for all languages.

use super::Options;
use crate::store::StoreOptions;

/// An option that is a whole number.
pub struct NumberOption {
    /// Its name, as Rust and Python spell it. JavaScript has it in camel case.
    pub name: &'static str,
    /// It is an option of the store, too.
    pub is_of_store: bool,
    /// Zero switches something off. Otherwise zero is refused: a bound of nothing would serve nobody.
    pub may_be_zero: bool,
    get: fn(&Options) -> u64,
    set: fn(&mut Options, u64),
}

macro_rules! numbers {
    ($($store:ident $zero:ident $name:ident: $($field:ident).+ as $type:ty;)*) => {
        /// Every one of them, in a fixed order.
        pub static NUMBER_OPTIONS: &[NumberOption] = &[$(
            NumberOption {
                name: stringify!($name),
                is_of_store: $store,
                may_be_zero: $zero,
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

numbers! {
    ENGINE ZERO retry_ms: pacing.retry_ms as u32;
    ENGINE ZERO keep_alive_ms: pacing.keep_alive_ms as u64;
    ENGINE ZERO max_connection_ms: pacing.max_connection_ms as u64;
    ENGINE ZERO max_connection_bytes: pacing.max_connection_bytes as u64;
    ENGINE ZERO store_wait_ms: pacing.store_wait_ms as u64;
    ENGINE SOME store_timeout_ms: store_timeout_ms as u64;
    STORE SOME max_events_per_stream: limits.max_events_per_stream as usize;
    STORE SOME max_bytes_per_stream: limits.max_bytes_per_stream as usize;
    STORE SOME max_bytes_per_session: limits.max_bytes_per_session as usize;
    STORE SOME max_bytes: limits.max_bytes as usize;
    STORE SOME max_event_bytes: limits.max_event_bytes as usize;
    STORE SOME retention_ms: limits.retention_ms as u64;
    STORE SOME max_age_ms: limits.max_age_ms as u64;
    STORE SOME owner_lost_ms: owner_lost_ms as u64;
    ENGINE SOME max_sessions: max_sessions as usize;
    ENGINE SOME max_sessions_per_principal: max_sessions_per_principal as usize;
    ENGINE SOME max_requests_per_session: max_requests_per_session as usize;
    ENGINE SOME max_detached_ms: max_detached_ms as u64;
    ENGINE ZERO session_idle_ms: session_idle_ms as u64;
    ENGINE SOME warn_event_bytes: warn_event_bytes as usize;
}

impl NumberOption {
    /// Checks what was given for the option: a whole number that is not negative, or none where it is something else.
    ///
    /// # Errors
    /// What it must be, to be said behind its name.
    pub fn check(&self, given: Option<u64>) -> Result<u64, &'static str> {
        match given {
            None => Err("must be a whole number that is not negative"),
            Some(0) if !self.may_be_zero => Err("must be at least 1"),
            Some(number) => Ok(number),
        }
    }

    /// Sets it for an engine.
    pub fn set(&self, options: &mut Options, number: u64) {
        (self.set)(options, number);
    }

    /// Sets it for a store, where it is an option of one.
    pub fn set_of_store(&self, options: &mut StoreOptions, number: u64) {
        let mut both = Options { limits: options.limits, owner_lost_ms: options.owner_lost_ms, ..Options::default() };
        (self.set)(&mut both, number);
        options.limits = both.limits;
        options.owner_lost_ms = both.owner_lost_ms;
    }

    /// What is in force.
    pub fn get(&self, options: &Options) -> u64 {
        (self.get)(options)
    }
}
