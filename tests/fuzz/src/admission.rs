//! Admission of HTTP requests: whatever comes is admitted for what it is, or refused in words of the SDK.

use serde_json::Value;
use tailrope_core::client::{takes_answer, takes_request};
use tailrope_core::protocol::jsonrpc::{self, Body, Kind};
use tailrope_core::protocol::{Context, Dialect, Head, Operation, Refusal, admit, admit_with_versions, sse};

use crate::reader::Reader;

/// The session that the requests reach.
const CURRENT: &str = "current";

const DIALECTS: [&Dialect; 4] =
    [&Dialect::MCP_PYTHON_1, &Dialect::MCP_PYTHON_2, &Dialect::MCP_TYPESCRIPT_1, &Dialect::NEUTRAL];

/// Which dialect, whether a session is open, whether answers are JSON, and which headers there are; then a line for each
/// of the six, and the body.
pub(crate) fn run(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let (how, present) = (reader.u8(), reader.u8());
    let dialect = DIALECTS[usize::from(how & 3)];
    let context = Context { session_id: if how & 4 == 0 { CURRENT } else { "" }, json_response: how & 8 != 0 };
    let lines: [String; 6] = std::array::from_fn(|_| String::from_utf8_lossy(reader.line()).into_owned());
    let header = |at: usize| (present & 1 << at != 0).then_some(&*lines[at]);
    let head = Head {
        method: &lines[0],
        accept: header(1),
        content_type: header(2),
        protocol_version: header(3),
        session_id: header(4),
        last_event_id: header(5),
    };
    let body = reader.rest();
    let admit = || match how & 16 {
        0 => admit(&head, body, &context, dialect),
        _ => admit_with_versions(&head, body, &context, dialect, &["2025-11-25", "2024-10-07"]),
    };
    let answer = admit();
    assert_eq!(admit(), answer, "it depends on nothing else");
    match &answer {
        Ok(operation) => admitted(operation, &head, body, &context, dialect),
        Err(refusal) => refused(refusal, &head, dialect),
    }
    let _ = takes_request(head.method, head.accept, head.protocol_version);
    let _ = takes_answer(200, head.content_type);
}

fn admitted(operation: &Operation, head: &Head<'_>, body: &[u8], context: &Context<'_>, dialect: &Dialect) {
    let is_of_session = head.session_id == Some(CURRENT) && context.session_id == CURRENT;
    match operation {
        Operation::Post(read) => {
            assert_eq!(head.method, "POST");
            assert_eq!(jsonrpc::read(body).as_ref(), Ok(read), "what is admitted is what was sent");
            assert!(!read.envelopes().is_empty() && (!dialect.batches || read.envelopes().len() <= 100));
            assert!(dialect.batches || matches!(read, Body::Single(_)), "W-014: no batches");
            let opens = read.envelopes().iter().any(jsonrpc::Envelope::is_initialize);
            assert!(is_of_session || opens, "W-083: who has no session opens one");
            assert!(!opens || read.envelopes().len() == 1, "W-090: it comes alone");
            let mut ids: Vec<String> = Vec::new();
            for envelope in read.envelopes().iter().filter(|envelope| envelope.kind == Kind::Request) {
                let id = envelope.id.as_ref().expect("a request has an id").to_json();
                assert!(!ids.contains(&id), "two requests have one id");
                ids.push(id);
            }
        }
        Operation::Listen => assert!(head.method == "GET" && is_of_session),
        Operation::Delete => assert!(head.method == "DELETE" && is_of_session),
        Operation::Resume(id) => {
            assert!(head.method == "GET" && is_of_session);
            assert!(head.last_event_id == Some(id) && sse::is_valid_event_id(id));
        }
    }
}

fn refused(refusal: &Refusal, head: &Head<'_>, dialect: &Dialect) {
    assert!(matches!(refusal.status, 400 | 404 | 405 | 406 | 415), "{refusal:?}");
    assert_eq!(refusal.allow.is_some(), refusal.status == 405);
    assert!(refusal.status != 405 || !matches!(head.method, "GET" | "POST" | "DELETE"));
    let body = refusal.body(dialect);
    let body: Value = serde_json::from_slice(&body).expect("a refusal is JSON");
    assert_eq!(body["error"]["code"], refusal.code);
    assert_eq!(body["error"]["message"], *refusal.message);
    assert!(body["id"].is_null() || body["id"].is_string());
}
