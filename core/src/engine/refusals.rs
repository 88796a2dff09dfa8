//! The line of a request that is refused before a call of it could begin. A call that is refused has a [record](super::records).

use crate::engine::Engine;
use crate::engine::lines::{Later, shown};
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::User;
use crate::engine::shared::{Shared, lock};
use crate::exchange::Request;
use crate::protocol::{Dialect, Kind, Reason, Refusal, RequestId, jsonrpc};
use crate::repeats::{BURST, Bounded};
use crate::session::Asked;
use crate::store::{SessionId, session_name};
use crate::sync::Arc;

/// A body that is longer is not read for the line.
const MAX_READ_BYTES: usize = 64 << 10;

/// What is known of a request that is refused.
#[derive(Default)]
struct Of {
    session: Option<Arc<str>>,
    sdk: Option<&'static str>,
    user: Option<Box<str>>,
    http: Option<&'static str>,
    asked: Option<(RequestId, Asked)>,
}

impl Of {
    fn request(request: &Request<'_>) -> Self {
        let http = ["GET", "POST", "DELETE"].into_iter().find(|method| *method == request.head.method);
        let is_read = http == Some("POST") && request.body.len() <= MAX_READ_BYTES;
        let envelopes = if is_read { jsonrpc::read_leniently(request.body) } else { Vec::new() };
        let first = envelopes.into_iter().find(|envelope| envelope.kind == Kind::Request);
        Self {
            user: User::of(&request.requester).map(|user| user.name),
            http: http.or(Some("other")),
            asked: first.and_then(|envelope| Some((envelope.id.clone()?, Asked::of(&envelope)))),
            ..Self::default()
        }
    }
}

impl Engine {
    /// A request names a session that there is not, as far as the host could find: the refusal, which is counted and has a line.
    pub fn unknown_session(&self, id: SessionId<'_>, request: &Request<'_>, dialect: &'static Dialect) -> Refusal {
        let (refusal, shared) = (dialect.wording.session_unknown(), &self.0);
        if !shared.is_forked() {
            let (session, sdk) = (Some(session_name(id)), Some(dialect.sdk));
            shared.log_refusal(&refusal, Of { session, sdk, ..Of::request(request) });
        }
        shared.counters.counted(refusal)
    }
}

impl SessionHandle {
    /// A request does not enter the session: it is counted, and has a line.
    pub(crate) fn not_admitted(&self, refusal: Refusal, request: &Request<'_>) -> Refusal {
        self.refused(refusal, || Of::request(request))
    }

    /// A GET does not get the stream that it asks for: it is counted, and has a line.
    pub(crate) fn not_opened(&self, refusal: Refusal) -> Refusal {
        self.refused(refusal, || Of {
            user: lock(&self.cell.state).user.as_ref().map(|user| user.name.clone()),
            http: Some("GET"),
            ..Of::default()
        })
    }

    /// Nobody can tell whose the session would be: that is counted, and has a line.
    pub(crate) fn not_claimed(&self, refusal: Refusal) -> Refusal {
        self.refused(refusal, Of::default)
    }

    fn refused(&self, refusal: Refusal, of: impl FnOnce() -> Of) -> Refusal {
        let (session, sdk) = (Some(Arc::clone(&self.cell.name)), Some(self.cell.dialect.sdk));
        let shared = &self.cell.shared;
        if !shared.is_forked() {
            shared.log_refusal(&refusal, Of { session, sdk, ..of() });
        }
        shared.counters.counted(refusal)
    }
}

impl Shared {
    /// A host answers with this refusal that no session has made: it is counted, and has a line.
    pub(crate) fn refused_outside(&self, refusal: &Refusal) {
        self.counters.refused(refusal.reason);
        if !self.is_forked() {
            self.log_refusal(refusal, Of::default());
        }
    }

    fn log_refusal(&self, refusal: &Refusal, of: Of) {
        let (reason, status) = (refusal.reason, refusal.status);
        // Clients may name any number of sessions that there are not.
        let whose = of.user.as_deref().map(Arc::from);
        let whose = whose.or_else(|| of.session.clone().filter(|_| reason != Reason::UnknownSession));
        let (kind, burst) = (reason.as_str(), BURST);
        macro_rules! line {
            ($level:ident) => {
                Box::new(move |repeated: Option<u64>| {
                    let (request, asked) = of.asked.as_ref().map(|(id, asked)| (id.to_json(), asked)).unzip();
                    tracing::event!(
                        target: "tailrope", tracing::Level::$level,
                        session = of.session.as_deref(),
                        request = request.as_deref().map(shown),
                        http = of.http,
                        method = asked.map(|asked| asked.method),
                        tool = asked.and_then(|asked| asked.tool.as_deref()).map(shown),
                        user = of.user.as_deref(),
                        sdk = of.sdk,
                        outcome = "refused",
                        reason = reason.as_str(),
                        status,
                        cause = reason.cause(),
                        repeated,
                        "request refused"
                    );
                })
            };
        }
        let line: crate::repeats::Line = if reason.is_ours() { line!(WARN) } else { line!(INFO) };
        self.write_lines(vec![Later::Bounded(Bounded { kind, whose, burst, line })]);
    }
}
