//! The headers of a request that decide how it is served.

use std::borrow::Cow;

use http::HeaderMap;
use http::request::Parts;
use tailrope_core::protocol::Head;

use crate::sender::text;

/// The values of these headers. If a header comes twice, the first one counts, except for `accept`.
#[derive(Default)]
pub(crate) struct Headers<'a> {
    /// What the client takes. Several lines are one list (RFC 9110, 5.3).
    pub(crate) accept: Option<Cow<'a, str>>,
    pub(crate) content_type: Option<Cow<'a, str>>,
    pub(crate) protocol_version: Option<Cow<'a, str>>,
    pub(crate) session_id: Option<Cow<'a, str>>,
    pub(crate) last_event_id: Option<Cow<'a, str>>,
}

impl<'a> Headers<'a> {
    /// One pass over the request's headers: looking up each name takes longer.
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            let place = match name.as_str() {
                "accept" => {
                    let before = found.accept.take();
                    found.accept = Some(match before {
                        None => text(value),
                        Some(before) => format!("{before}, {}", text(value)).into(),
                    });
                    continue;
                }
                "content-type" => &mut found.content_type,
                "mcp-protocol-version" => &mut found.protocol_version,
                "mcp-session-id" => &mut found.session_id,
                "last-event-id" => &mut found.last_event_id,
                _ => continue,
            };
            place.get_or_insert_with(|| text(value));
        }
        found
    }

    /// What the engine wants to know of the head of the request that has these headers.
    pub(crate) fn head<'b>(&'b self, parts: &'b Parts) -> Head<'b> {
        Head {
            method: parts.method.as_str(),
            accept: self.accept.as_deref(),
            content_type: self.content_type.as_deref(),
            protocol_version: self.protocol_version.as_deref(),
            session_id: self.session_id.as_deref(),
            last_event_id: self.last_event_id.as_deref(),
        }
    }
}
