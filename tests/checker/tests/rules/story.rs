//! Histories in few words.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use serde_json::json;
use tailrope_checker::{By, Checker, FENCE_MS, Fact, N, Open, Probe, Report, Timed, Why};

pub(crate) const END: u64 = u64::MAX;

/// A history of session `s`. The ids of events are `STREAM-N`, those of priming events are given.
pub(crate) struct Story {
    pub(crate) facts: Vec<Timed>,
    at: Option<u64>,
}

fn n(n: u64) -> N {
    if n == END { N::End } else { N::Event(n) }
}

pub(crate) fn mark(stream: &str, n: u64) -> String {
    if n == END { format!("[[s/{stream}/end]]") } else { format!("[[s/{stream}/{n}]]") }
}

impl Story {
    pub(crate) fn new() -> Self {
        Self { facts: Vec::new(), at: None }
    }

    /// A story with one request `a`, whose POST `post` was primed with the id `p0`.
    pub(crate) fn call() -> Self {
        Self::new().stream("a").open("post", "a", None).prime("post", "p0")
    }

    pub(crate) fn tell(mut self, fact: Fact) -> Self {
        self.facts.push(Timed { at: self.at, fact });
        self
    }

    /// From now on it is this time.
    pub(crate) fn at(mut self, ms: u64) -> Self {
        self.at = Some(ms);
        self
    }

    pub(crate) fn stream(self, stream: &str) -> Self {
        self.stream_of(stream, "2025-11-25")
    }

    pub(crate) fn stream_of(self, stream: &str, revision: &str) -> Self {
        let request = (stream != "standalone").then(|| json!(format!("id of {stream}")));
        let revision = Some(revision.to_owned());
        self.tell(Fact::Stream { session: "s".into(), stream: stream.into(), request, revision })
    }

    pub(crate) fn emit(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Emit { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    pub(crate) fn kept(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Kept { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    pub(crate) fn dropped(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Dropped { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    pub(crate) fn ack(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Ack { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    pub(crate) fn refused(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Refused { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    pub(crate) fn unsure(self, stream: &str, number: u64) -> Self {
        self.tell(Fact::Unsure { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    /// Events that are emitted, and that the server goes on behind.
    pub(crate) fn taken(self, stream: &str, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().fold(self, |story, number| {
            let taken = Fact::Taken { session: "s".into(), stream: stream.into(), n: n(number) };
            story.emit(stream, number).tell(taken)
        })
    }

    /// An event that is emitted and stored, and whose sender hears that one before is not.
    pub(crate) fn failed(self, stream: &str, number: u64) -> Self {
        self.emit(stream, number).tell(Fact::Failed { session: "s".into(), stream: stream.into(), n: n(number) })
    }

    /// Events that are emitted and stored.
    pub(crate) fn stored(self, stream: &str, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().fold(self, |story, n| story.emit(stream, n).ack(stream, n))
    }

    pub(crate) fn open(self, connection: &str, stream: &str, cursor: Option<&str>) -> Self {
        self.open_as(connection, stream, cursor, |_| {})
    }

    pub(crate) fn open_as(
        self,
        connection: &str,
        stream: &str,
        cursor: Option<&str>,
        with: impl FnOnce(&mut Open),
    ) -> Self {
        let mut open = Open {
            connection: connection.into(),
            session: "s".into(),
            stream: Some(stream.into()),
            cursor: cursor.map(Into::into),
            method: if cursor.is_some() || stream == "standalone" { "GET" } else { "POST" }.into(),
            ..Open::default()
        };
        with(&mut open);
        self.tell(Fact::Open(open)).head(connection, 200, "text/event-stream")
    }

    pub(crate) fn probe(self, connection: &str, probe: Probe, cursor: &str, status: u16) -> Self {
        let open = Open {
            connection: connection.into(),
            session: "s".into(),
            cursor: Some(cursor.into()),
            method: "GET".into(),
            probe,
            ..Open::default()
        };
        self.tell(Fact::Open(open)).head(connection, status, "text/event-stream")
    }

    pub(crate) fn head(self, connection: &str, status: u16, content_type: &str) -> Self {
        let headers = BTreeMap::from([("Content-Type".to_owned(), content_type.to_owned())]);
        self.tell(Fact::Head { connection: connection.into(), status, headers })
    }

    pub(crate) fn text(self, connection: &str, text: &str) -> Self {
        self.tell(Fact::Bytes { connection: connection.into(), text: Some(text.into()), data: None })
    }

    pub(crate) fn prime(self, connection: &str, id: &str) -> Self {
        self.text(connection, &format!("id: {id}\nretry: 3000\ndata: \n\n"))
    }

    /// Events come on a connection.
    pub(crate) fn comes(self, connection: &str, stream: &str, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().fold(self, |story, n| {
            let id = if n == END { "end".to_owned() } else { n.to_string() };
            let payload = format!("{{\"jsonrpc\":\"2.0\",\"text\":\"{}\"}}", mark(stream, n));
            story.text(connection, &format!("id: {stream}-{id}\ndata: {payload}\n\n"))
        })
    }

    pub(crate) fn error(self, connection: &str, stream: &str) -> Self {
        let payload =
            json!({"jsonrpc": "2.0", "id": format!("id of {stream}"), "error": {"code": -32603, "message": ""}});
        self.text(connection, &format!("id: z{stream}\ndata: {payload}\n\n"))
    }

    pub(crate) fn gap(self, connection: &str, first: u64, count: u64) -> Self {
        self.text(connection, &format!(": gap {first} {count}\n\n"))
    }

    pub(crate) fn closed(self, connection: &str) -> Self {
        self.ended(connection, By::Server, true)
    }

    pub(crate) fn lost(self, connection: &str) -> Self {
        self.ended(connection, By::Fault, false)
    }

    pub(crate) fn ended(self, connection: &str, by: By, clean: bool) -> Self {
        self.tell(Fact::Closed { connection: connection.into(), by, clean })
    }

    pub(crate) fn gone(self, stream: &str, why: Why) -> Self {
        self.tell(Fact::Gone { session: "s".into(), stream: Some(stream.into()), why })
    }

    pub(crate) fn restored(self, stream: &str) -> Self {
        self.tell(Fact::Restored { session: "s".into(), stream: stream.into() })
    }

    pub(crate) fn dump(self, stream: &str, numbers: impl IntoIterator<Item = u64>) -> Self {
        let ns = numbers.into_iter().map(n).collect();
        self.tell(Fact::Stored { session: "s".into(), stream: stream.into(), ns })
    }

    pub(crate) fn done(self, stream: &str) -> Self {
        self.tell(Fact::Done { session: "s".into(), stream: stream.into() })
    }

    pub(crate) fn report(&self) -> Report {
        let mut checker = Checker::new(FENCE_MS);
        for fact in &self.facts {
            checker.push(fact).unwrap_or_else(|error| panic!("{error}: {fact:?}"));
        }
        checker.finish()
    }

    pub(crate) fn is_good(&self) {
        let report = self.report();
        assert!(report.is_clean(), "{:#?}", report.violations);
    }

    /// Exactly this is wrong, and the text of the violation has these words.
    pub(crate) fn breaks(&self, invariant: &str, says: &str) {
        let violations = self.report().violations;
        let found: Vec<(&str, &str)> = violations.iter().map(|v| (v.invariant.as_str(), v.says.as_str())).collect();
        assert!(
            matches!(found[..], [(of, text)] if of == invariant && text.contains(says)),
            "{invariant} {says:?} is not {found:?}"
        );
    }
}

impl Story {
    /// This is wrong, among other things that follow from it.
    pub(crate) fn report_has(&self, invariant: &str, says: &str) {
        let violations = self.report().violations;
        assert!(violations.iter().any(|v| v.invariant == invariant && v.says.contains(says)), "{violations:?}");
    }
}
