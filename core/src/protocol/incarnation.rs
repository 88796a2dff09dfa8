//! Ids of the server's own requests, in a session that has had several server objects.
//!
//! Server objects number their requests from 0 each. The user's answer to request 0 of the last server object must not be taken
//! for the answer to request 0 of this one. So the second server object and those after it have their requests told with ids of
//! their own, and what the client says of these ids is translated back (O6).

use bytes::Bytes;
use serde_json::value::RawValue;

use super::fields::{Members, members, pick, place};
use super::jsonrpc::CANCELLED;
use super::request_id::RequestId;

const PROGRESS: &str = "notifications/progress";

/// Which server object of a session it is, by the number of its owner's epoch: the first has 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation(pub u64);

/// A message of the client, for a server object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// As it came.
    Same,
    /// With the server object's own ids.
    Renamed(Bytes),
    /// It is about a request that this server object has not made.
    Foreign,
}

impl Incarnation {
    /// Whether the client knows the ids of this server object by other names.
    pub fn renames(self) -> bool {
        self.0 > 1
    }

    /// What the client sees in the place of an id.
    pub fn rename(self, own: &RequestId) -> RequestId {
        if self.renames() { RequestId::Text(format!("{}:{}", self.0, own.to_json()).into()) } else { own.clone() }
    }

    /// The server object's own id. None where it has made no request of that name.
    pub fn own(self, renamed: &RequestId) -> Option<RequestId> {
        if !self.renames() {
            return Some(renamed.clone());
        }
        let RequestId::Text(text) = renamed else { return None };
        let (number, own) = text.split_once(':')?;
        if number.parse() == Ok(self.0) { RequestId::from_json(own) } else { None }
    }

    /// A message of the server object, as the client is told it. None where that is the same.
    pub fn outgoing(self, message: &[u8]) -> Option<Bytes> {
        if !self.renames() {
            return None;
        }
        let text = std::str::from_utf8(message).ok()?;
        let Members { id, method, params, .. } = members(text).ok()?;
        let is_cancellation = is_text(method?, CANCELLED);
        let params = params.map_or("{}", RawValue::get);
        let [request_id, meta] = pick(params, &["requestId", "_meta"]).ok()?.values;
        let token = match meta {
            Some(meta) if meta.get().starts_with('{') => pick(meta.get(), &["progressToken"]).ok()?.values[0],
            _ => None,
        };
        let own = if id.is_some() { [id, token] } else { [request_id.filter(|_| is_cancellation), None] };
        let told =
            own.into_iter().flatten().filter_map(|raw| Some((raw, self.rename(&RequestId::from_json(raw.get())?))));
        replaced(text, told)
    }

    /// A message of the client, as the server object knows it.
    pub fn incoming(self, message: &[u8]) -> Incoming {
        if !self.renames() {
            return Incoming::Same;
        }
        let Ok(text) = std::str::from_utf8(message) else { return Incoming::Same };
        let Ok(Members { id, method, params, .. }) = members(text) else { return Incoming::Same };
        let told = match method {
            // Null answers nothing that could be named.
            None => id.filter(|id| id.get() != "null"),
            Some(method) if id.is_none() && is_text(method, PROGRESS) => {
                params.and_then(|params| pick(params.get(), &["progressToken"]).ok()?.values[0])
            }
            Some(_) => None,
        };
        let Some(told) = told else { return Incoming::Same };
        let own = RequestId::from_json(told.get()).and_then(|id| self.own(&id));
        let Some(own) = own else { return Incoming::Foreign };
        replaced(text, [(told, own)].into_iter()).map_or(Incoming::Same, Incoming::Renamed)
    }
}

fn is_text(raw: &RawValue, text: &str) -> bool {
    serde_json::from_str::<String>(raw.get()).is_ok_and(|value| value == text)
}

/// The text with these of its values replaced. None where there are none.
fn replaced<'a>(text: &str, values: impl Iterator<Item = (&'a RawValue, RequestId)>) -> Option<Bytes> {
    let mut values: Vec<_> = values.map(|(raw, id)| (place(text, raw), id)).collect();
    values.sort_by_key(|(place, _)| place.start);
    let mut out = Vec::with_capacity(text.len() + 16 * values.len());
    let mut end = 0;
    for (place, id) in &values {
        out.extend_from_slice(&text.as_bytes()[end..place.start]);
        id.write_json(&mut out);
        end = place.end;
    }
    out.extend_from_slice(&text.as_bytes()[end..]);
    (!values.is_empty()).then(|| out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Incarnation = Incarnation(2);

    fn outgoing(message: &str) -> Option<String> {
        SECOND.outgoing(message.as_bytes()).map(|message| String::from_utf8(message.into()).unwrap())
    }

    fn heard(message: &str) -> Incoming {
        SECOND.incoming(message.as_bytes())
    }

    fn renamed(message: &'static str) -> Incoming {
        Incoming::Renamed(Bytes::from_static(message.as_bytes()))
    }

    #[test]
    fn o6_requests_of_the_first_server_object_keep_their_ids() {
        let request = br#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#;
        assert_eq!(Incarnation(1).outgoing(request), None);
        assert_eq!(Incarnation(1).incoming(br#"{"jsonrpc":"2.0","id":0,"result":{}}"#), Incoming::Same);
    }

    #[test]
    fn o6_a_request_and_its_progress_token_are_told_by_other_names() {
        let request = r#"{"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"_meta": {"progressToken": 0}, "requestId": 0}}"#;
        let want = r#"{"jsonrpc": "2.0", "id": "2:0", "method": "elicitation/create", "params": {"_meta": {"progressToken": "2:0"}, "requestId": 0}}"#;
        assert_eq!(outgoing(request).as_deref(), Some(want));
        assert_eq!(
            outgoing(r#"{"jsonrpc":"2.0","method":"roots/list","id":"a\"b"}"#).as_deref(),
            Some(r#"{"jsonrpc":"2.0","method":"roots/list","id":"2:\"a\\\"b\""}"#)
        );
        assert_eq!(
            outgoing(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#).as_deref(),
            Some(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"2:7"}}"#)
        );
    }

    #[test]
    fn o6_what_is_not_the_servers_own_keeps_its_name() {
        for message in [
            r#"{"jsonrpc":"2.0","id":0,"result":{"id":0}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"requestId":0}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
            "not JSON",
        ] {
            assert_eq!(outgoing(message), None, "{message}");
        }
        for message in [
            r#"{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"progressToken":0}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"a"}}"#,
            "not JSON",
        ] {
            assert_eq!(heard(message), Incoming::Same, "{message}");
        }
    }

    #[test]
    fn o6_an_answer_finds_its_own_request_and_no_other() {
        assert_eq!(
            heard(r#"{"jsonrpc":"2.0","id":"2:0","result":{}}"#),
            renamed(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#)
        );
        assert_eq!(
            heard(r#"{"jsonrpc":"2.0","id":"2:\"a\\\"b\"","error":{}}"#),
            renamed(r#"{"jsonrpc":"2.0","id":"a\"b","error":{}}"#)
        );
        assert_eq!(
            heard(
                r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"2:0","progress":1}}"#
            ),
            renamed(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":1}}"#)
        );
        for foreign in ["0", r#""0""#, r#""1:0""#, r#""3:0""#, r#""2:""#, r#""2:null""#, r#""x:0""#] {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{foreign},"result":{{}}}}"#);
            assert_eq!(heard(&answer), Incoming::Foreign, "{answer}");
        }
    }
}
