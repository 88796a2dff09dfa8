//! Which HTTP exchanges are streams, for hosts that sit below a client and see all that it sends.

use super::failure::Failure;
use super::stream::{Message, is_event_stream};
use crate::protocol::jsonrpc::{self, Kind};
use crate::protocol::{RequestId, Revision, sse};

/// Whether the answer to a request may be a stream that can be resumed. All other requests pass untouched.
///
/// It may for a POST, and for a GET that accepts an event stream, unless the header `MCP-Protocol-Version` names a
/// revision without resumption (W-069) or one that is not known. A request without that header is taken: revisions
/// that have no resumption require it.
pub fn takes_request(method: &str, accept: Option<&str>, protocol_version: Option<&str>) -> bool {
    let accepts_events = || accept.is_some_and(|accept| accept.split(',').any(is_event_stream));
    let is_stream = method == "POST" || method == "GET" && accepts_events();
    let is_resumable =
        || protocol_version.is_none_or(|text| Revision::parse(text).is_some_and(|known| known.rules().resumable));
    is_stream && is_resumable()
}

/// Whether the answer to a POST with requests is the beginning of a stream.
pub fn takes_answer(status: u16, content_type: Option<&str>) -> bool {
    status == 200 && content_type.is_some_and(is_event_stream)
}

/// What a refused POST means for its caller.
pub fn refused(status: u16) -> Failure {
    match status {
        404 => Failure::SessionLost,
        405 => Failure::NoStream,
        401 | 403 => Failure::Unauthorized { status },
        _ => Failure::Unexpected { status },
    }
}

/// What the body of a POST means for streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// The requests that want an answer, in order.
    pub requests: Vec<RequestId>,
    /// The requests that nobody waits for any more (W-025).
    pub cancelled: Vec<RequestId>,
}

impl Posted {
    /// Reads a body. One that is no message means nothing; the server will say so.
    pub fn read(body: &[u8]) -> Self {
        let mut posted = Self::default();
        let Ok(body) = jsonrpc::read(body) else { return posted };
        for envelope in body.envelopes() {
            match envelope.kind {
                Kind::Request => posted.requests.extend(envelope.id.clone()),
                Kind::Notification if envelope.method.as_deref() == Some("notifications/cancelled") => {
                    posted.cancelled.extend(envelope.fields.cancelled_request.clone());
                }
                Kind::Notification | Kind::Response | Kind::ErrorResponse => {}
            }
        }
        posted
    }
}

impl Message {
    /// Appends the event as a client reads it, without an id: its cursor stays where it is.
    pub fn write_frame(&self, out: &mut Vec<u8>) {
        match &self.event {
            None => sse::write_anonymous(out, self.data.as_bytes()),
            Some(event) => sse::write_typed(out, event, &self.data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_and_event_streams_of_resumable_revisions_are_taken() {
        for version in [None, Some("2025-03-26"), Some("2025-06-18"), Some("2025-11-25")] {
            assert!(takes_request("POST", None, version), "{version:?}");
            assert!(takes_request("GET", Some("application/json, Text/Event-Stream;q=0.9"), version), "{version:?}");
            assert!(!takes_request("GET", Some("application/json"), version), "{version:?}");
            assert!(!takes_request("GET", None, version), "{version:?}");
            assert!(!takes_request("DELETE", Some("text/event-stream"), version), "{version:?}");
        }
        for version in ["2026-07-28", "2027-01-01", ""] {
            assert!(!takes_request("POST", None, Some(version)), "{version}");
            assert!(!takes_request("GET", Some("text/event-stream"), Some(version)), "{version}");
        }
    }

    #[test]
    fn only_an_event_stream_with_200_begins_a_stream() {
        assert!(takes_answer(200, Some("text/event-stream; charset=utf-8")));
        for (status, content_type) in [(200, Some("application/json")), (200, None), (202, Some("text/event-stream"))] {
            assert!(!takes_answer(status, content_type), "{status} {content_type:?}");
        }
    }

    #[test]
    fn bodies_are_read_for_requests_and_cancellations() {
        let one = |text: &str| RequestId::from_json(text).unwrap();
        let read = |text: &str| Posted::read(text.as_bytes());
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#).requests, [one("7")]);
        let batch = r#"[{"jsonrpc":"2.0","id":"7","method":"m"},{"jsonrpc":"2.0","id":1,"result":{}},
            {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}},
            {"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}]"#;
        assert_eq!(read(batch), Posted { requests: vec![one("\"7\"")], cancelled: vec![one("3")] });
        let other = r#"{"jsonrpc":"2.0","method":"notifications/other","params":{"requestId":3}}"#;
        for text in ["", "{", "[]", "null", r#"{"id":1}"#, other] {
            assert_eq!(read(text), Posted::default(), "{text}");
        }
    }

    #[test]
    fn a_refused_post_fails_with_its_code() {
        let codes = [400, 401, 403, 404, 405, 500].map(|status| refused(status).code().as_str());
        let unexpected = "unexpected_answer";
        assert_eq!(codes, [unexpected, "unauthorized", "unauthorized", "session_lost", "no_stream", unexpected]);
    }

    #[test]
    fn frames_carry_no_id_and_lose_nothing() {
        let frame = |event: Option<&str>, data: &str| {
            let mut out = Vec::new();
            Message { event: event.map(str::to_owned), data: data.to_owned() }.write_frame(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(frame(None, "{\n\"a\":1}"), "data: {\"a\":1}\n\n");
        assert_eq!(frame(Some("other"), "a\n\u{2028}b"), "event: other\ndata: a\ndata: \u{2028}b\n\n");
    }
}
