//! The protocol revisions and what each allows. No other module compares revision strings.

/// The extension of 2026-07-28 for long calls (SEP-2663).
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The member of `_meta` in which a request of 2026-07-28 says what its client can do.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A released protocol revision, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "named like the revisions")]
#[non_exhaustive]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

/// What a revision allows on Streamable HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Every SSE answer starts with an event that has an id and empty data (W-040). Clients of
    /// earlier revisions parse that data as JSON and fail.
    pub priming: bool,
    /// The server may end a connection before the terminal (W-041). Before, it should not (W-022).
    pub early_close: bool,
    /// A body may be an array of messages (W-013).
    pub batches: bool,
    /// `initialize` opens a session that has an id (W-080, W-088).
    pub sessions: bool,
    /// `Last-Event-ID` is honoured (W-063, W-064, W-069). Not limited to the revisions with
    /// priming: earlier clients may resume after a broken connection.
    pub resumable: bool,
    /// The end of a connection cancels its request (W-024, W-026).
    pub disconnect_cancels: bool,
}

const BATCHING: Rules = Rules {
    priming: false,
    early_close: false,
    batches: true,
    sessions: true,
    resumable: true,
    disconnect_cancels: false,
};
const SINGLE: Rules = Rules { batches: false, ..BATCHING };
const POLLING: Rules = Rules { priming: true, early_close: true, ..SINGLE };
const MODERN: Rules = Rules {
    priming: false,
    early_close: false,
    batches: false,
    sessions: false,
    resumable: false,
    disconnect_cancels: true,
};

impl Revision {
    /// Every revision, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];

    /// Those that have sessions, and so can be resumed, oldest first.
    pub const WITH_SESSIONS: &'static [Self] =
        &[Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];

    /// Taken when a request does not tell and nothing else is known (W-093).
    pub const ASSUMED: Self = Self::V2025_03_26;

    /// The revision of this exact name; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text)
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// What the revision allows. 2024-11-05 has no Streamable HTTP, but SDKs still negotiate it over
    /// this transport; it then behaves as the first revision that has it.
    pub const fn rules(self) -> &'static Rules {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 => &BATCHING,
            Self::V2025_06_18 => &SINGLE,
            Self::V2025_11_25 => &POLLING,
            Self::V2026_07_28 => &MODERN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_nothing_else_is_a_revision() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        for text in ["", "2025-11-25 ", "2025-12-01", "zzz", "DRAFT-2026-v1"] {
            assert_eq!(Revision::parse(text), None);
        }
    }

    #[test]
    fn priming_and_early_close_come_together_and_only_where_a_client_can_resume() {
        for revision in Revision::ALL {
            let rules = revision.rules();
            assert_eq!(rules.priming, revision == Revision::V2025_11_25);
            assert_eq!(rules.early_close, rules.priming);
            assert_eq!(rules.resumable, rules.sessions);
            assert_eq!(rules.sessions, Revision::WITH_SESSIONS.contains(&revision));
            assert_eq!(rules.disconnect_cancels, !rules.resumable);
        }
    }
}
