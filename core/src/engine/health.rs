//! Whether a process can serve: what operators and load balancers ask.

use std::fmt::Write as _;

use crate::engine::Engine;
use crate::engine::shared::lock;
use crate::sync::atomic::Ordering;

/// How well something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// All is well.
    #[default]
    Ok,
    /// It serves, and somebody should look.
    Degraded,
    /// It refuses: requests should go elsewhere.
    Unavailable,
}

impl Condition {
    /// Its name, the same in every language.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Whether an engine can serve. The default is that of a process without engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// For how many milliseconds the event store has been away; none while it is there.
    pub store_away_ms: Option<u64>,
    /// For how many milliseconds the event store has refused what was to be stored; none while it stores.
    pub store_refused_ms: Option<u64>,
    /// Calls are refused, because another process may have the sessions by now.
    pub is_refusing: bool,
    /// A drain has begun, or the engine is closed.
    pub is_draining: bool,
    /// Bytes of events that wait for the store.
    pub waiting_bytes: u64,
    /// So much waits that calls are refused.
    pub is_behind: bool,
}

impl Health {
    /// The event store.
    pub fn store(&self) -> Condition {
        match (self.is_refusing, self.store_away_ms.or(self.store_refused_ms)) {
            (true, _) => Condition::Unavailable,
            (false, Some(_)) => Condition::Degraded,
            (false, None) => Condition::Ok,
        }
    }

    /// The process.
    pub fn drain(&self) -> Condition {
        if self.is_draining { Condition::Unavailable } else { Condition::Ok }
    }

    /// What waits for the store.
    pub fn waiting(&self) -> Condition {
        if self.is_behind { Condition::Unavailable } else { Condition::Ok }
    }

    /// The worst of these.
    pub fn status(&self) -> Condition {
        self.store().max(self.drain()).max(self.waiting())
    }

    /// The HTTP status for a load balancer: 503 where requests should go elsewhere.
    pub fn http_status(&self) -> u16 {
        if self.status() == Condition::Unavailable { 503 } else { 200 }
    }

    /// That of several engines together: each has to be well.
    pub fn of_all(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |one, other| Self {
            store_away_ms: one.store_away_ms.max(other.store_away_ms),
            store_refused_ms: one.store_refused_ms.max(other.store_refused_ms),
            is_refusing: one.is_refusing || other.is_refusing,
            is_draining: one.is_draining || other.is_draining,
            waiting_bytes: one.waiting_bytes + other.waiting_bytes,
            is_behind: one.is_behind || other.is_behind,
        })
    }

    /// As JSON, the same in every language.
    pub fn to_json(&self) -> String {
        let mut json = format!(r#"{{"status":"{}""#, self.status().as_str());
        let (away_ms, refused_ms) = (self.store_away_ms.unwrap_or(0), self.store_refused_ms.unwrap_or(0));
        let refusing = self.is_refusing;
        let (store, drain, waiting) = (self.store().as_str(), self.drain().as_str(), self.waiting().as_str());
        // Writing into a String does not fail.
        let _ = write!(
            json,
            r#","store":{{"status":"{store}","away_ms":{away_ms},"refused_ms":{refused_ms},"refusing":{refusing}}}"#
        );
        let _ = write!(json, r#","drain":{{"status":"{drain}","draining":{}}}"#, self.is_draining);
        let _ = write!(json, r#","waiting":{{"status":"{waiting}","bytes":{}}}}}"#, self.waiting_bytes);
        json
    }
}

impl Engine {
    /// Whether the engine can serve now. Nothing is asked for it: what it needs to know the engine knows.
    pub fn health(&self) -> Health {
        let shared = &self.0;
        if shared.check().is_err() {
            return Health { is_draining: true, ..Health::default() };
        }
        Health {
            store_away_ms: shared.store.away_ms(),
            store_refused_ms: shared.store.refused_ms(),
            is_refusing: shared.store.is_cut_off(),
            is_draining: lock(&shared.draining).is_some(),
            waiting_bytes: shared.unanswered.load(Ordering::Relaxed),
            is_behind: shared.is_store_behind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_well_as_the_worst_of_it() {
        let away = Health { store_away_ms: Some(700), waiting_bytes: 3, ..Health::default() };
        let refusing = Health { is_refusing: true, ..away };
        let draining = Health { is_draining: true, ..Health::default() };
        for (health, status, http) in [
            (Health::default(), "ok", 200),
            (away, "degraded", 200),
            (Health { store_refused_ms: Some(1), ..Health::default() }, "degraded", 200),
            (refusing, "unavailable", 503),
            (draining, "unavailable", 503),
            (Health { is_behind: true, ..Health::default() }, "unavailable", 503),
        ] {
            assert_eq!((health.status().as_str(), health.http_status()), (status, http), "{health:?}");
        }
        let all = Health::of_all([away, Health::default()]);
        assert_eq!(all, away);
        assert_eq!(
            all.to_json(),
            r#"{"status":"degraded","store":{"status":"degraded","away_ms":700,"refused_ms":0,"refusing":false},"drain":{"status":"ok","draining":false},"waiting":{"status":"ok","bytes":3}}"#
        );
    }
}
