//! What one process relays to another: a request whose session the other process has.
//!
//! It carries the body, the principal, and what else handlers may read of the request. It never carries a credential.

use std::error::Error;
use std::fmt;

use bytes::Bytes;

use super::principal::is_secret_header;
use super::secrets::Secrets;
use crate::protocol::Head;

/// The headers that are relayed.
pub const RELAYED_HEADERS: [&str; 9] = [
    "accept",
    "accept-language",
    "mcp-protocol-version",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
    "x-trace-id",
];

/// Headers that are never relayed, besides those that carry a credential.
const KEPT_HEADERS: [&str; 3] = ["cookie", "cookie2", "proxy-authorization"];

/// Headers that are not missed where they are not relayed: they are about the connection, the client's program or the
/// exchange itself.
const UNMISSED_HEADERS: [&str; 24] = [
    "accept-encoding",
    "accept-charset",
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "dnt",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-session-id",
    "origin",
    "pragma",
    "priority",
    "proxy-connection",
    "referer",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// The version of the form that [`Relayed::encode`] writes.
const VERSION: u8 = 1;

/// The method of a request that is relayed. A GET is never relayed: it is served where it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayedMethod {
    /// Messages.
    Post,
    /// The session is to end.
    Delete,
}

impl RelayedMethod {
    /// The method of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Post, Self::Delete].into_iter().find(|method| method.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// A request that came to a process that does not have its session.
#[derive(Clone, PartialEq, Eq)]
pub struct Relayed {
    method: RelayedMethod,
    principal: Option<Box<str>>,
    headers: Vec<(Box<str>, Box<str>)>,
    auth: Option<Box<str>>,
    /// What handlers could have read of the request, and cannot read there. It does not travel.
    dropped: Vec<Box<str>>,
    body: Bytes,
}

/// Headers and payloads must not get into a log.
impl fmt::Debug for Relayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relayed").field("method", &self.method).field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// Why bytes cannot be read as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// A later release wrote them.
    Newer,
    /// They are not in a form that any release has written.
    Malformed,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newer => "a later release wrote what was relayed",
            Self::Malformed => "what was relayed is no request",
        })
    }
}

impl Error for Unreadable {}

impl Relayed {
    /// Takes those of a request's `headers` that may be relayed: [`RELAYED_HEADERS`], and those that `more` names.
    /// `auth` is what the host lets handlers know about the sender, as JSON: what is a credential is removed from it.
    pub fn new<'a>(
        method: RelayedMethod,
        body: Bytes,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        more: &[&str],
        auth: Option<&str>,
    ) -> Self {
        let is_one_of = |names: &[&str], name: &str| names.iter().any(|other| other.eq_ignore_ascii_case(name));
        let is_kept = |name: &str| is_one_of(&KEPT_HEADERS, name) || is_secret_header(name);
        let is_unmissed = |name: &str| is_one_of(&UNMISSED_HEADERS, name) || name.starts_with("sec-");
        let all: Vec<(&str, &str)> = headers.into_iter().collect();
        let auth = auth.and_then(|auth| Secrets::of(all.iter().copied(), Some(auth)).removed_from(auth));
        let (mut headers, mut dropped) = (Vec::new(), Vec::new());
        for (name, value) in all {
            let name: Box<str> = name.to_ascii_lowercase().into();
            if !is_kept(&name) && (is_one_of(&RELAYED_HEADERS, &name) || is_one_of(more, &name)) {
                headers.push((name, value.into()));
            } else if !is_unmissed(&name) {
                dropped.push(format!("header {name}").into());
            }
        }
        dropped.sort_unstable();
        dropped.dedup();
        Self { method, principal: None, headers, auth: auth.map(Into::into), dropped, body }
    }

    /// The same request, of which the host does not relay this either.
    #[must_use]
    pub fn without(mut self, dropped: impl IntoIterator<Item = String>) -> Self {
        self.dropped.extend(dropped.into_iter().map(Into::into));
        self
    }

    /// What handlers could have read of the request here, and cannot read where it is relayed to.
    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.dropped.iter().map(|name| &**name)
    }

    /// The same request, from this principal.
    #[must_use]
    pub fn from_principal(self, principal: Option<&str>) -> Self {
        Self { principal: principal.map(Into::into), ..self }
    }

    /// The method of the request.
    pub fn method(&self) -> RelayedMethod {
        self.method
    }

    /// Whose request it is.
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// The headers that were relayed, in their order, with names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What the host that got the request says about its sender, as JSON.
    pub fn auth(&self) -> Option<&str> {
        self.auth.as_deref()
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The head of the request. The process that got the request has checked that its body is JSON, and which session
    /// it names.
    pub fn head<'a>(&'a self, session_id: &'a str) -> Head<'a> {
        let header = |name: &str| self.headers().find(|(other, _)| *other == name).map(|(_, value)| value);
        Head {
            method: self.method.as_str(),
            accept: header("accept"),
            content_type: Some("application/json"),
            protocol_version: header("mcp-protocol-version"),
            session_id: Some(session_id),
            last_event_id: None,
        }
    }

    /// The bytes to relay, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION, u8::from(self.method == RelayedMethod::Delete)];
        write_text(&mut out, self.principal());
        write_text(&mut out, self.auth());
        write_number(&mut out, self.headers.len());
        for (name, value) in self.headers() {
            write_text(&mut out, Some(name));
            write_text(&mut out, Some(value));
        }
        out.extend_from_slice(&self.body);
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn decode(bytes: &Bytes) -> Result<Self, Unreadable> {
        let (version, mut rest) = bytes.split_first().ok_or(Unreadable::Malformed)?;
        if *version > VERSION {
            return Err(Unreadable::Newer);
        }
        if *version < VERSION {
            return Err(Unreadable::Malformed);
        }
        Self::read(&mut rest)
            .map(|relayed| Self { body: bytes.slice(bytes.len() - rest.len()..), ..relayed })
            .ok_or(Unreadable::Malformed)
    }

    /// Reads everything but the body.
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let (method, behind) = rest.split_first()?;
        *rest = behind;
        let method = match *method {
            0 => RelayedMethod::Post,
            1 => RelayedMethod::Delete,
            _ => return None,
        };
        let (principal, auth) = (read_text(rest)?, read_text(rest)?);
        let mut headers = Vec::new();
        for _ in 0..read_number(rest)? {
            headers.push((read_text(rest)??, read_text(rest)??));
        }
        Some(Self { method, principal, headers, auth, dropped: Vec::new(), body: Bytes::new() })
    }
}

fn write_number(out: &mut Vec<u8>, number: usize) {
    // Nothing is longer: no HTTP server takes such a header.
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

/// The length is written plus one, because 0 stands for no text.
fn write_text(out: &mut Vec<u8>, text: Option<&str>) {
    write_number(out, text.map_or(0, |text| text.len() + 1));
    out.extend_from_slice(text.unwrap_or_default().as_bytes());
}

fn read_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u32::from_be_bytes(*number))
}

/// The outer none is for bytes that cannot be read, the inner one for no text.
#[expect(clippy::option_option, reason = "what cannot be read is not what is not there")]
fn read_text(rest: &mut &[u8]) -> Option<Option<Box<str>>> {
    let Some(length) = read_number(rest)?.checked_sub(1) else { return Some(None) };
    let (text, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(Some(std::str::from_utf8(text).ok()?.into()))
}
