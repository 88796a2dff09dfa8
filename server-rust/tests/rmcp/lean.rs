//! What is read and written without rmcp's own way is what rmcp has.

#[path = "../../src/rmcp/lean.rs"]
mod own;

use rmcp::model::{
    ClientJsonRpcMessage, JsonRpcMessage, ProgressNotification, ProgressNotificationParam, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerNotification,
};
use serde_json::{Value, json};

use self::own::{call, progress};

fn both(body: &Value) -> (Option<Value>, Value) {
    let text = body.to_string();
    let own = call(text.as_bytes()).map(|message| serde_json::to_value(message).unwrap());
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
        json!({ "jsonrpc": "2.0", "id": 1.5, "method": "tools/call", "params": { "name": "echo" } }),
        json!({ "jsonrpc": "2.0", "method": "tools/call", "params": { "name": "echo" } }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "echo" }, "result": {} }),
        json!([]),
    ] {
        assert!(call(body.to_string().as_bytes()).is_none(), "{body}");
    }
}

#[test]
fn progress_is_written_as_rmcp_writes_it() {
    let token = ProgressToken(RequestId::Number(5));
    let plain = ProgressNotificationParam::new(token.clone(), 1.0);
    let whole = ProgressNotificationParam::new(token, 2.5).with_total(10.0).with_message("a\n\"b\"");
    for params in [plain, whole] {
        let sent = ProgressNotification::new(params);
        let message: ServerJsonRpcMessage =
            JsonRpcMessage::notification(ServerNotification::ProgressNotification(sent));
        let own: Value = serde_json::from_slice(&progress(&message).unwrap()).unwrap();
        assert_eq!(own, serde_json::to_value(message).unwrap());
    }
}
