//! Runs `tests/vectors/task_calls.json`: what happens to calls that may become tasks, step by step.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tailrope_core::Ms;
use tailrope_core::task::{
    Call, CallHeaders, Change, End, Ending, Input, Machine, Now, Output, Reply, Response, Settings, TASK_ID_BYTES,
    Task, TaskId, What,
};

use crate::kit::vectors::vectors;

const UNIX_MS: u64 = 1_795_832_278_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    #[serde(default)]
    settings: SettingsSpec,
    /// `params._meta` of the call.
    meta: Option<Value>,
    /// What the call's text is then.
    body: Option<String>,
    steps: Vec<StepSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SettingsSpec {
    after_ms: u64,
    limit_ms: Option<u64>,
    max_record_bytes: usize,
    takes_streams: bool,
}

impl Default for SettingsSpec {
    fn default() -> Self {
        Self { after_ms: 1_000, limit_ms: None, max_record_bytes: 1 << 20, takes_streams: true }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepSpec {
    at: u64,
    /// The run that it comes of.
    #[serde(default)]
    run: u32,
    #[serde(rename = "in")]
    input: InputSpec,
    out: Vec<Value>,
    #[serde(default, deserialize_with = "said")]
    deadline: Option<Option<u64>>,
    status: Option<String>,
    message: Option<String>,
    /// The questions that a client is shown.
    keys: Option<Vec<String>>,
    /// How the call ended, for the operator.
    ended: Option<String>,
}

fn said<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum InputSpec {
    /// An answer that is no stream.
    Body(Value),
    Text(String),
    /// Parameters of a notification of progress, under our token unless they name another.
    Progress(Map<String, Value>),
    Log(String),
    Result(Value),
    Error(Value),
    /// Questions of a round by the SDK's keys, and its state.
    Wants(Value, Value),
    NotJsonRpc(u16),
    RunEnded,
    Question(u64, Value),
    Withdrawn(u64),
    ClientGone,
    Update(u64, Map<String, Value>),
    Cancel(u64),
    Stored(u64),
    Unstored(u64),
    Fenced,
    Tick,
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

fn input(spec: &InputSpec, run: u32) -> Input {
    let message = |value: Value| Input::Message { run, message: bytes(&value), is_body: false };
    let response = |name: &str, value: &Value| message(json!({"jsonrpc": "2.0", "id": 2, name: value}));
    let notification =
        |method: &str, params: Value| message(json!({"jsonrpc": "2.0", "method": method, "params": params}));
    match spec {
        InputSpec::Body(value) => Input::Message { run, message: bytes(value), is_body: true },
        InputSpec::Text(text) => Input::Message { run, message: text.clone().into(), is_body: false },
        InputSpec::Progress(params) => {
            let mut params = params.clone();
            params.entry("progressToken").or_insert("tailrope-progress".into());
            notification("notifications/progress", params.into())
        }
        InputSpec::Log(text) => notification("notifications/message", json!({ "data": text })),
        InputSpec::Result(result) => response("result", result),
        InputSpec::Error(error) => response("error", error),
        InputSpec::Wants(asked, state) => {
            let result = json!({"resultType": "input_required", "inputRequests": asked, "requestState": state});
            response("result", &result)
        }
        InputSpec::NotJsonRpc(status) => Input::NotJsonRpc { run, status: *status },
        InputSpec::RunEnded => Input::RunEnded { run },
        InputSpec::Question(ask, request) => Input::Question { ask: *ask, request: bytes(request) },
        InputSpec::Withdrawn(ask) => Input::Withdrawn { ask: *ask },
        InputSpec::ClientGone => Input::ClientGone,
        InputSpec::Update(from, responses) => {
            let response = |(key, value): (&String, &Value)| Response { key: (&**key).into(), value: bytes(value) };
            Input::Update { from: *from, responses: responses.iter().map(response).collect() }
        }
        InputSpec::Cancel(from) => Input::Cancel { from: *from },
        InputSpec::Stored(number) => Input::Stored { number: *number },
        InputSpec::Unstored(number) => Input::Unstored { number: *number },
        InputSpec::Fenced => Input::Fenced,
        InputSpec::Tick => Input::Tick,
    }
}

fn read(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

/// A message without what is the same in all of them. The handle of the task is a word.
fn shown(message: &[u8]) -> Value {
    let mut message = read(message);
    let members = message.as_object_mut().unwrap();
    assert_eq!(members.remove("jsonrpc"), Some("2.0".into()));
    if !members.contains_key("method") {
        assert_eq!(members.remove("id"), Some(2.into()), "it answers the call");
    }
    if members.get("result").is_some_and(|result| result["resultType"] == "task") { "task".into() } else { message }
}

fn ended(ending: &Ending) -> String {
    match ending {
        Ending::Answered(_) => "Answered".to_owned(),
        other => format!("{other:?}"),
    }
}

fn changed(what: &What) -> Value {
    let pairs = |pairs: &[(Box<str>, Bytes)]| -> Map<String, Value> {
        pairs.iter().map(|(key, request)| (key.to_string(), read(request))).collect()
    };
    match what {
        What::Created { .. } => json!("created"),
        What::Message(message) => json!({ "message": message }),
        What::Round { asked, state } => {
            json!({"asked": pairs(asked), "state": state.as_ref().map(|state| read(state))})
        }
        What::Asked { ask, request } => json!({"handler": ask, "request": read(request)}),
        What::Withdrawn { ask } => json!({ "withdrawn": ask }),
        What::Answered(responses) => {
            let value = |value: &Bytes| if value.is_empty() { Value::Null } else { read(value) };
            let member = |response: &Response| (response.key.to_string(), value(&response.value));
            json!({ "answered": responses.iter().map(member).collect::<Map<String, Value>>() })
        }
        What::Ended(End::Completed(result), _) => json!({ "completed": read(result) }),
        What::Ended(End::Failed(error), _) => json!({ "failed": read(error) }),
        What::Ended(End::Cancelled, _) => json!("cancelled"),
    }
}

fn written(output: &Output) -> Value {
    match output {
        Output::Store { number, change } => json!({ "store": [number, changed(&change.what)] }),
        Output::Changed => json!("changed"),
        Output::Reply(Reply::Body { status, body }) => json!({ "body": [status, shown(body)] }),
        Output::Reply(Reply::Begin) => json!("begin"),
        Output::Reply(Reply::Event(message)) => json!({ "event": shown(message) }),
        Output::Reply(Reply::Comment) => json!("comment"),
        Output::Reply(Reply::End) => json!("end"),
        Output::PassOn => json!("pass_on"),
        Output::Unlink => json!("unlink"),
        Output::Disconnect { run } => json!({ "disconnect": run }),
        Output::Kill { run } => json!({ "kill": run }),
        Output::Start { run, from, call, .. } => {
            let call = read(call);
            assert_eq!(call["id"], *run, "another id than that of the call");
            let params = &call["params"];
            assert_eq!((&call["method"], &params["name"]), (&json!("tools/call"), &json!("slow")));
            json!({ "start": [run, from, params["inputResponses"], params["requestState"]] })
        }
        Output::Answer { ask, result } => json!({ "answer": [ask, read(result)] }),
        Output::Refuse { ask } => json!({ "refuse": ask }),
        Output::Acknowledge { from } => json!({ "acknowledge": from }),
        Output::NotTaken { from } => json!({ "not_taken": from }),
        Output::TooLarge { from } => json!({ "too_large": from }),
    }
}

fn settings() -> Settings {
    Settings {
        after_ms: 1_000,
        limit_ms: None,
        retention_ms: 60_000,
        max_record_bytes: 1 << 20,
        max_records: 1_000,
        max_log_bytes: 4 << 20,
        takes_streams: false,
    }
}

fn check(vector: &Vector) -> Result<(), String> {
    let SettingsSpec { after_ms, limit_ms, max_record_bytes, takes_streams } = vector.settings;
    let settings = Settings { after_ms, limit_ms, max_record_bytes, takes_streams, ..settings() };
    let every = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    let declared = || json!({"io.modelcontextprotocol/clientCapabilities": every});
    let meta = vector.meta.clone().unwrap_or_else(declared);
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow", "_meta": meta}});
    let call = Call::read(call.to_string().as_bytes()).unwrap();
    if let Some(body) = &vector.body {
        assert_eq!(std::str::from_utf8(call.body()).unwrap(), body);
    }
    let now = |at| Now { at: Ms(at), unix_ms: UNIX_MS + at };
    let mut machine = Machine::new(now(0), settings, TaskId::new(&[0; TASK_ID_BYTES]), call);
    let mut changes: Vec<Change> = Vec::new();
    for (at, step) in vector.steps.iter().enumerate() {
        let mut out = Vec::new();
        machine.handle(now(step.at), input(&step.input, step.run), &mut out);
        let ended = machine.take_ending().map(|ending| ended(&ending));
        if step.ended != ended {
            return Err(format!("step {at}: for the operator it ended {ended:?}"));
        }
        let said: Vec<Value> = out.iter().map(written).collect();
        if said != step.out {
            return Err(format!("step {at}: {}", Value::from(said)));
        }
        for output in out {
            if let Output::Store { number, change } = output {
                changes.truncate(usize::try_from(number).unwrap());
                changes.push(change);
            }
        }
        if let Some(task) = machine.task().filter(|task| task.end().is_none()) {
            assert_eq!(Task::fold(&changes).unwrap().as_ref(), Some(task), "step {at}");
        }
        let deadline = Some(machine.deadline()).filter(|deadline| *deadline != Ms::NEVER).map(|deadline| deadline.0);
        if step.deadline.is_some_and(|want| want != deadline) {
            return Err(format!("step {at}: the deadline is {deadline:?}"));
        }
        let stored = machine.stored();
        let status = stored.map(|task| task.status().as_str());
        if step.status.is_some() && step.status.as_deref() != status {
            return Err(format!("step {at}: the status is {status:?}"));
        }
        let message = stored.and_then(Task::message);
        if step.message.is_some() && step.message.as_deref() != message {
            return Err(format!("step {at}: it says {message:?}"));
        }
        let keys: Vec<&str> =
            stored.iter().flat_map(|task| task.questions().shown()).map(|question| &*question.key).collect();
        if step.keys.as_ref().is_some_and(|want| *want != keys) {
            return Err(format!("step {at}: the keys are {keys:?}"));
        }
    }
    Ok(())
}

#[test]
fn t_03_t_09_to_t_24_calls() {
    let failed: Vec<String> = vectors::<Vector>(include_str!("../../vectors/task_calls.json"))
        .iter()
        .filter_map(|(name, vector)| check(vector).err().map(|error| format!("{name}: {error}")))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn t_20_a_call_that_asks_without_end_has_64_rounds() {
    let now = |at| Now { at: Ms(at), unix_ms: UNIX_MS + at };
    let settings = Settings { after_ms: 0, retention_ms: 0, ..settings() };
    let call = br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{}}}"#;
    let mut machine = Machine::new(now(0), settings, TaskId::new(&[0; TASK_ID_BYTES]), Call::read(call).unwrap());
    let wants = br#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"input_required","requestState":1}}"#;
    let (mut at, mut starts, mut out) = (0, 0, Vec::new());
    let mut run = 0;
    while !machine.is_over() {
        at += 1_000;
        machine.handle(now(at), Input::Message { run, message: Bytes::from_static(wants), is_body: true }, &mut out);
        machine.handle(now(at), Input::Tick, &mut out);
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Store { number, .. } => machine.handle(now(at), Input::Stored { number }, &mut out),
                    Output::Start { run: next, .. } => (run, starts) = (next, starts + 1),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(starts, 64);
    assert!(matches!(machine.stored().unwrap().end(), Some(End::Failed(_))));
}

#[test]
fn t_16_another_process_goes_on_with_a_task_that_waits_for_its_client() {
    let now = |at| Now { at: Ms(at), unix_ms: UNIX_MS + at };
    let settings = Settings { after_ms: 0, retention_ms: 0, takes_streams: true, ..settings() };
    let call = Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}"#);
    let headers = CallHeaders::default();
    let asked = vec![("q".into(), Bytes::from_static(br#"{"method":"roots/list"}"#))];
    let log = [
        Change { at: UNIX_MS, what: What::Created { limit_ms: Some(9_000), retention_ms: 0, call, headers } },
        Change { at: UNIX_MS + 1, what: What::Round { asked, state: None } },
    ];
    let task = Task::fold(&log).unwrap().unwrap();
    assert_eq!(task.owner_lost(UNIX_MS + 2), None);
    let id = TaskId::new(&[0; TASK_ID_BYTES]);
    let mut machine = Machine::adopt(now(5_000), settings, id, task, 2).unwrap();
    assert_eq!(machine.deadline(), Ms(9_000), "its limit goes on");
    let mut out = Vec::new();
    let response = Response { key: "1.0.q".into(), value: Bytes::from_static(b"{}") };
    machine.handle(now(6_000), Input::Update { from: 1, responses: vec![response] }, &mut out);
    machine.handle(now(6_001), Input::Stored { number: 2 }, &mut out);
    let said: Vec<Value> = out.iter().map(written).collect();
    let answered = json!({"store": [2, {"answered": {"1.0.q": {}}}]});
    assert_eq!(
        said,
        [answered, json!({"start": [1, 1, {"q": {}}, null]}), json!({"acknowledge": 1}), json!("changed")]
    );
    out.clear();
    machine.handle(now(6_002), input(&InputSpec::ClientGone, 0), &mut out);
    machine.handle(now(6_003), input(&InputSpec::Log("x".to_owned()), 1), &mut out);
    assert_eq!(out, [], "the client of the call is not here");
    machine.handle(now(6_004), input(&InputSpec::Result(json!({})), 1), &mut out);
    assert_eq!(out.iter().map(written).collect::<Vec<_>>(), [json!({"store": [3, {"completed": {}}]})]);
}

#[test]
fn t_16_a_task_whose_log_would_be_trimmed_fails_before_that() {
    const STEP: usize = 100_000;
    let now = |at| Now { at: Ms(at), unix_ms: UNIX_MS + at };
    let call = br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{}}}"#;
    let of_bytes = Settings { max_log_bytes: 8 * STEP, ..settings() };
    let of_records = Settings { max_records: 16, ..settings() };
    for (limit, size, most) in [(of_bytes, STEP, 5), (of_records, 1, 6)] {
        let limit = Settings { after_ms: 0, ..limit };
        let mut machine = Machine::new(now(0), limit, TaskId::new(&[0; TASK_ID_BYTES]), Call::read(call).unwrap());
        let (mut run, mut rounds) = (0, 0);
        let end = loop {
            let asked = json!({"q": {"method": "elicitation/create", "params": {"message": "x".repeat(size)}}});
            let wants = InputSpec::Wants(asked, json!("state"));
            let mut out = Vec::new();
            machine.handle(now(1), input(&wants, run), &mut out);
            while let Some(Output::Store { number, .. }) = out.pop() {
                let mut then = Vec::new();
                machine.handle(now(1), Input::Stored { number }, &mut then);
                out.extend(then);
            }
            if let Some(end) = machine.take_ending() {
                break end;
            }
            // A client can always answer what it was asked.
            let key = machine.task().unwrap().questions().shown()[0].key.to_string();
            let responses = vec![Response { key: key.into(), value: "{}".into() }];
            out.clear();
            machine.handle(now(1), Input::Update { from: 1, responses }, &mut out);
            let [Output::Store { number, .. }] = out[..] else { panic!("{out:?}") };
            out.clear();
            machine.handle(now(1), Input::Stored { number }, &mut out);
            run =
                out.iter().find_map(|out| if let Output::Start { run, .. } = out { Some(*run) } else { None }).unwrap();
            rounds += 1;
        };
        assert_eq!((ended(&end).as_str(), rounds), ("TooLarge", most));
    }
}
