//! The sessions that were handed over, and which requests are plain ones of theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, UPGRADE,
};
use http::request::Parts;
use http::{Method, Uri};
use tailrope_core::engine::{SessionHandle, WeakSession};
use tailrope_core::exchange::Terms;

use super::options::FrontTerms;
use crate::sender::text;
use crate::service::SESSION_ID;

/// With fewer sessions, nobody looks for ended ones.
const FEW: usize = 64;

/// Headers of which a second one makes servers disagree.
const SINGLE: [HeaderName; 7] = [
    SESSION_ID,
    HOST,
    ORIGIN,
    ACCEPT,
    CONTENT_TYPE,
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("last-event-id"),
];

/// A session that was handed over.
pub(super) struct Served {
    session: WeakSession,
    terms: FrontTerms,
}

/// The sessions that were handed over, by the id that clients know. They are not held: their host and the engine do that.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_id: HashMap<Arc<str>, Arc<Served>, RandomState>,
    /// How many of them were left when the ended ones were last taken out.
    left: usize,
}

impl Served {
    /// Calls `with` with what the engine has to know of the terms.
    pub(super) fn on_terms<T>(&self, with: impl FnOnce(&Terms<'_>) -> T) -> T {
        let versions: Option<Vec<&str>> =
            self.terms.versions.as_ref().map(|versions| versions.iter().map(|version| &**version).collect());
        let session_id = self.terms.session_id.as_deref();
        with(&Terms { session_id, json_response: self.terms.json_response, versions: versions.as_deref() })
    }

    pub(super) fn json_response(&self) -> bool {
        self.terms.json_response
    }

    pub(super) fn max_body_bytes(&self) -> usize {
        self.terms.max_body_bytes
    }

    fn is_open(&self) -> bool {
        self.session.upgrade().is_some_and(|session| !session.has_ended())
    }

    /// Whether every server would take the request for one that comes to this session as its terms say.
    fn serves(&self, parts: &Parts) -> bool {
        let (headers, terms) = (&parts.headers, &self.terms);
        let is_here = is_origin_form(&parts.uri) && parts.uri.path() == terms.path;
        let is_plain = matches!(parts.method, Method::GET | Method::POST)
            && SINGLE.iter().all(|name| headers.get_all(name).iter().nth(1).is_none())
            && [CONTENT_ENCODING, UPGRADE].iter().all(|name| !headers.contains_key(name));
        let allows = |allowed: &Option<Vec<String>>, value: &HeaderValue| {
            allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| is_allowed(allowed, &text(value))))
        };
        let is_host_allowed = match headers.get(HOST) {
            Some(host) => allows(&terms.allowed_hosts, host),
            None => terms.allowed_hosts.is_none(),
        };
        is_here
            && is_plain
            && is_host_allowed
            && headers.get(ORIGIN).is_none_or(|origin| allows(&terms.allowed_origins, origin))
            && length(headers).is_none_or(|length| length <= terms.max_body_bytes as u64)
    }
}

impl Sessions {
    pub(super) fn insert(&self, session: &SessionHandle, terms: FrontTerms) {
        let id: Arc<str> = terms.session_id.as_deref().unwrap_or_else(|| session.id()).into();
        let served = Arc::new(Served { session: session.downgrade(), terms });
        let mut known = self.known();
        known.by_id.insert(id, served);
        if known.by_id.len() > known.left.max(FEW) * 2 {
            known.by_id.retain(|_, served| served.is_open());
            known.left = known.by_id.len();
        }
    }

    /// The session that a request is for, if it was handed over and the request is a plain one.
    pub(super) fn find(&self, parts: &Parts) -> Option<(Arc<Served>, SessionHandle)> {
        let id = text(parts.headers.get(SESSION_ID)?);
        let served = self.known().by_id.get(&*id).cloned()?;
        let session = served.session.upgrade().filter(|session| !session.has_ended());
        if session.is_none() {
            let mut known = self.known();
            // It may have been handed over again since.
            if known.by_id.get(&*id).is_some_and(|now| Arc::ptr_eq(now, &served)) {
                known.by_id.remove(&*id);
            }
        }
        session.filter(|_| served.serves(parts)).map(|session| (served, session))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_origin_form(uri: &Uri) -> bool {
    uri.scheme().is_none() && uri.authority().is_none()
}

fn is_allowed(allowed: &str, value: &str) -> bool {
    match allowed.strip_suffix(":*") {
        Some(name) => value.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')),
        None => allowed == value,
    }
}

/// The length that the head of a request gives its body. One that cannot be read is larger than any bound.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).map(|value| text(value).parse().unwrap_or(u64::MAX))
}
