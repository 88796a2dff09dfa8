//! What is made of a call whose client knows no tasks. (T-01, T-09 to T-14, T-20, T-22, T-26)

use serde_json::{Value, json};
use tailrope_core::client::{Failure, FollowPost, FollowedCall, Next};

const MODERN: Option<&str> = Some("2026-07-28");
const EXTENSION: &str = "io.modelcontextprotocol/tasks";

fn meta(capabilities: &Value) -> Value {
    json!({"progressToken": 7, "io.modelcontextprotocol/clientCapabilities": capabilities, "x": 1})
}

fn call(params: &Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}).to_string().into_bytes()
}

fn followed(more: &Value) -> FollowedCall {
    let mut params = json!({"name": "slow", "_meta": meta(&json!({"elicitation": {}}))});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    FollowedCall::of(MODERN, &call(&params), 1 << 20).expect("a call")
}

fn message(post: &FollowPost) -> Value {
    serde_json::from_str(&post.body).unwrap()
}

fn answer(result: &Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": "x", "result": result}).to_string().into_bytes()
}

/// A call that is a task.
fn tasked() -> FollowedCall {
    let mut call = followed(&json!({}));
    assert!(call.created(&answer(&json!({"resultType": "task", "taskId": "t", "pollIntervalMs": 200}))));
    call
}

/// The messages of what the client reads.
fn read(frames: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(frames).unwrap();
    text.split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

fn told(call: &mut FollowedCall, result: &Value) -> (Vec<Value>, Next) {
    let (frames, next) = call.answered(200, &answer(result));
    (read(&frames), next)
}

#[test]
fn t_01_the_call_declares_the_extension_and_is_else_as_its_client_wrote_it() {
    for capabilities in ["{}", r#"{"a":{}}"#, r#"{"extensions":{}}"#, r#"{"extensions":{"other":{}}, "a":1}"#] {
        let written = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{{"n":1.0,"b":12345678901234567890123}},"_meta":{{"io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}}}"#
        );
        let call = FollowedCall::of(MODERN, written.as_bytes(), 100).expect("a call");
        let first = call.first();
        assert!(first.body.contains(r#"{"n":1.0,"b":12345678901234567890123}"#), "{}", first.body);
        let declared = &message(first)["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(declared["extensions"][EXTENSION], json!({}), "{}", first.body);
        assert_eq!((first.method, &first.name, call.has_task()), ("tools/call", &None, false));
    }
}

#[test]
fn a_call_that_is_not_ours_is_left_to_its_client() {
    let is_left = |version, body: &[u8]| FollowedCall::of(version, body, 100).is_none();
    let plain = call(&json!({"name": "slow", "_meta": meta(&json!({}))}));
    assert!(!is_left(MODERN, &plain));
    assert!(is_left(Some("2025-11-25"), &plain) && is_left(None, &plain));
    for extensions in [json!({EXTENSION: {}}), json!({EXTENSION: null}), json!([]), json!(null)] {
        let declares = call(&json!({"_meta": meta(&json!({"extensions": extensions}))}));
        assert!(is_left(MODERN, &declares), "{extensions}");
    }
    for params in [json!({}), json!({"_meta": {}}), json!({"_meta": meta(&json!([]))})] {
        assert!(is_left(MODERN, &call(&params)), "{params}");
    }
    assert!(is_left(MODERN, br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#) && is_left(MODERN, b"{"));
}

#[test]
fn only_a_task_is_followed() {
    let mut call = followed(&json!({}));
    for result in [json!({"resultType": "complete"}), json!({"content": []}), json!({"resultType": "task"})] {
        assert!(!call.created(&answer(&result)), "{result}");
    }
    assert!(!call.created(br#"{"jsonrpc":"2.0","id":"c","error":{"code":1,"message":"m"}}"#) && !call.has_task());
    assert_eq!(call.cancel(), None);
}

#[test]
fn a_task_is_polled_and_its_result_is_that_of_the_call() {
    let mut call = tasked();
    assert_eq!(call.pause(), Next::Poll { after_ms: 200 });
    let poll = call.poll();
    assert_eq!((poll.method, poll.name.as_deref()), ("tasks/get", Some("t")));
    let params = &message(&poll)["params"];
    assert_eq!(params["taskId"], "t");
    let declared = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
    let expected = json!({"io.modelcontextprotocol/clientCapabilities": declared, "x": 1});
    assert_eq!(params["_meta"], expected);
    let working = json!({"status": "working", "statusMessage": "half", "pollIntervalMs": 90_000});
    let progress = json!({"progressToken": 7, "progress": 1, "message": "half"});
    let (messages, next) = told(&mut call, &working);
    assert_eq!(messages, [json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})]);
    assert_eq!(next, Next::Poll { after_ms: 30_000 });
    // It says that once.
    assert_eq!(told(&mut call, &working).0, Vec::<Value>::new());
    let (messages, next) = told(&mut call, &json!({"status": "completed", "result": {"content": [], "isError": true}}));
    assert_eq!(messages, [json!({"jsonrpc": "2.0", "id": "c", "result": {"content": [], "isError": true}})]);
    assert_eq!((next, call.is_over(), call.cancel()), (Next::Over, true, None));
}

#[test]
fn t_20_what_a_task_asks_is_asked_of_the_client_and_its_answers_come_back_to_the_task() {
    let mut call = tasked();
    let asked = json!({"1.0.q": {"method": "elicitation/create", "params": {}}});
    // Nothing to ask is no state to show.
    let nothing = told(&mut call, &json!({"status": "input_required", "inputRequests": {}}));
    assert_eq!(nothing, (Vec::new(), Next::Poll { after_ms: 200 }));
    let (messages, next) = told(&mut call, &json!({"status": "input_required", "inputRequests": asked}));
    assert_eq!((messages[0]["id"].as_str(), next), (Some("c"), Next::Over));
    let result = &messages[0]["result"];
    assert_eq!((&result["resultType"], &result["inputRequests"]), (&json!("input_required"), &asked));
    let answers = json!({"1.0.q": {"action": "accept", "content": {}}});
    let mut again = followed(&json!({"requestState": result["requestState"], "inputResponses": answers}));
    let update = again.first().clone();
    assert_eq!((update.method, update.name.as_deref(), again.has_task()), ("tasks/update", Some("t"), true));
    assert_eq!(message(&update)["params"]["inputResponses"], answers);
    assert_eq!(told(&mut again, &json!({"resultType": "complete"})), (Vec::new(), Next::Poll { after_ms: 0 }));
    assert_eq!(message(&again.poll())["params"]["taskId"], "t");
    // A state of the server's own is the server's.
    let theirs = followed(&json!({"requestState": "theirs"}));
    assert_eq!(theirs.first().method, "tools/call");
}

#[test]
fn a_stream_before_the_task_is_read_by_the_client_and_progress_rises() {
    let mut call = followed(&json!({}));
    let notification = r#"data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":3}}"#;
    let created = r#"data: {"jsonrpc":"2.0","id":"c","result":{"resultType":"task","taskId":"t"}}"#;
    let text = format!(": ping\n\n{notification}\n\n{created}\n\n");
    let frames = text.as_bytes().chunks(7).flat_map(|chunk| call.bytes(chunk).unwrap()).collect::<Vec<_>>();
    assert_eq!(String::from_utf8(frames).unwrap(), format!("{notification}\n\n"));
    assert!(call.has_task());
    let (messages, _) = told(&mut call, &json!({"status": "working", "statusMessage": "m"}));
    assert_eq!(messages[0]["params"]["progress"], 4.0);
    // An answer to a poll may be a stream, too.
    let completed =
        format!("{notification}\n\ndata: {}\n\n", json!({"result": {"status": "completed", "result": {"a": 1}}}));
    let (frames, _) = call.answered(200, completed.as_bytes());
    assert_eq!(read(&frames)[0]["result"], json!({"a": 1}));
}

#[test]
fn a_call_whose_task_has_no_result_fails() {
    let failed = json!({"status": "failed", "error": {"code": -5, "message": "m", "data": 1}});
    assert_eq!(told(&mut tasked(), &failed).0[0]["error"], failed["error"]);
    for result in [json!({"status": "cancelled"}), json!({"status": "failed"})] {
        assert_eq!(told(&mut tasked(), &result).0[0]["error"]["code"], -32603);
    }
    let unknown = br#"{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"Task not found"}}"#;
    assert_eq!(read(&tasked().answered(400, unknown).0)[0]["error"]["code"], -32602);
    for (status, code) in [(401, "unauthorized"), (302, "unexpected_answer"), (503, "unexpected_answer")] {
        let (frames, next) = tasked().answered(status, b"<html>");
        assert_eq!((&read(&frames)[0]["error"]["data"]["tailrope"], next), (&json!(code), Next::Over));
    }
    let (frames, _) = tasked().failed(&Failure::GaveUp { attempts: 3, for_ms: 9 });
    assert_eq!(read(&frames)[0]["error"]["data"]["tailrope"], "gave_up");
}

#[test]
fn t_22_a_client_that_waits_no_more_cancels_its_task() {
    let cancel = tasked().cancel().expect("there is a task");
    assert_eq!((cancel.method, cancel.name.as_deref()), ("tasks/cancel", Some("t")));
}
