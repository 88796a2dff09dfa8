//! Whose requests are, as far as the operator has to know: what is logged about them, each once.

use crate::engine::Engine;
use crate::engine::shared::{Shared, lock};
use crate::engine::stats::Counters;
use crate::exchange::{Principal, Relayed, Requester, Unidentified};
use crate::sync::atomic::Ordering;

/// Sessions for which it is remembered that a warning was logged.
const MAX_WARNED: usize = 1_024;
/// Names of what did not travel that are remembered. Names of headers are the clients' own.
const MAX_DROPPED: usize = 64;

impl Engine {
    /// Whose request it is. If nobody can tell, the host has to refuse the request, and the operator is told.
    ///
    /// # Errors
    /// [`Unidentified`].
    pub fn principal_of(&self, requester: &Requester<'_>) -> Result<Option<Principal>, Unidentified> {
        self.0.principal_of(requester)
    }
}

impl Shared {
    pub(crate) fn principal_of(&self, requester: &Requester<'_>) -> Result<Option<Principal>, Unidentified> {
        requester.principal().inspect_err(|_| {
            if !self.warned_unidentified.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    target: "tailrope",
                    "authentication left a user that nothing tells from another user: its requests are refused. Name the user with \
                     the option `principal`. Logged once"
                );
            }
        })
    }

    /// Warns, once for each session, that a request asked for a session of another user. It may also be the same user,
    /// with another principal.
    pub(crate) fn warn_foreign(&self, session: &str, requester: Option<&Principal>) {
        Counters::add(&self.counters.requests_foreign, 1);
        {
            let mut warned = lock(&self.warned_foreign);
            if warned.iter().any(|known| **known == *session) {
                return;
            }
            warned.push_back(session.into());
            if warned.len() > MAX_WARNED {
                warned.pop_front();
            }
        }
        let nobody = "nothing, so it is nobody's".to_owned();
        let decided_by = requester.map_or(nobody, |principal| principal.rule().to_string());
        tracing::warn!(
            target: "tailrope", session, decided_by,
            "the session was opened by another user than the one who asks for it now: answered as an unknown session. If \
             both are the same user with a new token, the option `principal` can say so. Logged once for each session"
        );
    }

    /// Warns of what handlers cannot read of a request because it is relayed, once for each name.
    pub(crate) fn warn_dropped(&self, relayed: &Relayed) {
        let new: Vec<Box<str>> = {
            let mut warned = lock(&self.warned_dropped);
            let unknown = relayed.dropped().filter(|name| !warned.contains(*name)).take(MAX_DROPPED - warned.len());
            let new: Vec<Box<str>> = unknown.map(Into::into).collect();
            warned.extend(new.iter().cloned());
            new
        };
        if !new.is_empty() {
            let dropped = new.join(", ");
            tracing::warn!(
                target: "tailrope", dropped,
                "a request was relayed to the process that has its session, where handlers cannot read all of it. The options \
                 `relayed_headers` and `relayed_state` say what else travels; credentials and cookies never do \
                 (docs/security.md). Logged once for each name"
            );
        }
    }
}
