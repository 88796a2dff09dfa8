//! What is read and written without rmcp's own way is what rmcp has.

#[path = "../../src/rmcp/ids.rs"]
mod ids;
#[path = "../../src/rmcp/lean.rs"]
mod own;

use std::iter;

use rmcp::model::{
    ClientJsonRpcMessage, JsonRpcMessage, ProgressNotification, ProgressNotificationParam, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerNotification,
};
use serde_json::{Value, json};
use tailrope_core::protocol::Envelope;
use tailrope_core::protocol::jsonrpc::{self, Body};

use self::own::{call, envelope, read_progress, write_progress};

fn envelope_of(text: &str) -> Envelope {
    let Body::Single(envelope) = jsonrpc::read(text.as_bytes()).unwrap() else { panic!("{text} is one message") };
    envelope
}

fn read(text: &str) -> Option<ClientJsonRpcMessage> {
    call(&envelope_of(text), text.as_bytes())
}

fn both(body: &Value) -> (Option<Value>, Value) {
    let text = body.to_string();
    let own = read(&text).map(|message| serde_json::to_value(message).unwrap());
    let rmcp: ClientJsonRpcMessage = serde_json::from_str(&text).unwrap();
    (own, serde_json::to_value(rmcp).unwrap())
}

#[test]
fn a_call_is_read_as_rmcp_reads_it() {
    for id in [json!(1), json!("one"), json!(-7)] {
        for params in [
            json!({ "name": "echo" }),
            json!({ "name": "echo", "arguments": { "text": "a\u{2028}\"b", "n": [1, 2.5, null] } }),
            json!({ "name": "echo", "arguments": {}, "_meta": { "progressToken": 5, "x/y": { "z": 1 } } }),
            json!({ "name": "echo", "unknown": 1, "_meta": {} }),
        ] {
            let (own, rmcp) = both(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
            assert_eq!(own.unwrap(), rmcp);
        }
    }
}

#[test]
fn what_is_no_plain_call_is_left_to_rmcp() {
    for body in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "arguments": {} } }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call" }),
        json!({ "jsonrpc": "2.0", "id": u64::MAX, "method": "tools/call", "params": { "name": "echo" } }),
        json!({ "jsonrpc": "2.0", "method": "tools/call", "params": { "name": "echo" } }),
    ] {
        assert!(read(&body.to_string()).is_none(), "{body}");
    }
}

#[test]
fn the_engine_knows_the_same_of_a_call_that_rmcp_has_read() {
    for id in [json!(1), json!("one")] {
        for meta in [json!({}), json!({ "progressToken": 5 }), json!({ "progressToken": "a\"b" })] {
            let params = json!({ "name": "echo", "arguments": {}, "_meta": meta });
            let text = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string();
            let of_engine = Envelope { range: 0..0, params: 0..0, ..envelope_of(&text) };
            assert_eq!(envelope(&serde_json::from_str(&text).unwrap()).unwrap(), of_engine);
            assert_eq!(envelope(&read(&text).unwrap()).unwrap(), of_engine);
        }
    }
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert!(envelope(&serde_json::from_value(list).unwrap()).is_none());
}

#[test]
fn progress_is_written_as_rmcp_writes_it() {
    let token = ProgressToken(RequestId::Number(5));
    let plain = ProgressNotificationParam::new(token.clone(), 1.0);
    let whole = |text: &str| ProgressNotificationParam::new(token.clone(), 2.5).with_total(10.0).with_message(text);
    let texts = ["a\n\"b\"", "\\", "half of it", "50 \u{2014} \u{e9}\u{7f}", ""];
    for params in iter::once(plain).chain(texts.map(whole)) {
        let sent = ProgressNotification::new(params);
        let mut message: ServerJsonRpcMessage =
            JsonRpcMessage::notification(ServerNotification::ProgressNotification(sent));
        let before = serde_json::to_value(&message).unwrap();
        let own: Value = serde_json::from_slice(&write_progress(&mut message).unwrap()).unwrap();
        assert_eq!((own, serde_json::to_value(message).unwrap()), (before.clone(), before));
    }
}

#[test]
fn progress_is_read_as_it_was_written_or_not_at_all() {
    let json = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{{params}}}}}"#);
    for params in [
        r#""progressToken":7,"progress":1.0"#,
        r#""progressToken":"a\u0001","progress":0.25,"total":123456789.012345,"message":"\"half\" \u007f""#,
        r#""progressToken":-1,"progress":-0.0,"message":"""#,
    ] {
        let mut message = read_progress(&json(params)).expect(params);
        let written: Value = serde_json::from_slice(&write_progress(&mut message).unwrap()).unwrap();
        assert_eq!(written, serde_json::from_str::<Value>(&json(params)).unwrap());
    }
    for params in [
        r#""progressToken":7,"progress":1"#,
        r#""progressToken":7,"progress":9007199254740993.0"#,
        r#""progressToken":7,"progress":1.0,"total":2"#,
        r#""progressToken":7,"progress":1.0,"total":1e21"#,
        r#""progressToken":7,"progress":1.0,"_meta":{}"#,
        r#""progressToken":123456789012345678901,"progress":1.0"#,
        r#""progressToken":1.5,"progress":1.0"#,
        r#""progressToken":7"#,
    ] {
        assert!(read_progress(&json(params)).is_none(), "{params}");
    }
    assert!(read_progress(r#"{"jsonrpc":"2.0","method":"ping","id":1}"#).is_none());
}
