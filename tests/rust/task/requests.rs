//! Runs `tests/vectors/task_requests.json`: which requests about tasks are taken.

use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_core::protocol::{Dialect, Head, RequestId};
use tailrope_core::task::{Ask, TASK_ID_BYTES, TaskHead, TaskId, not_taken, read_request, unknown_task};

use crate::kit::vectors::vectors;

const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
const DIALECTS: [Dialect; 3] = [Dialect::NEUTRAL, Dialect::MCP_PYTHON_2, Dialect::MCP_TYPESCRIPT_2];

fn task() -> TaskId {
    TaskId::new(&[7; TASK_ID_BYTES])
}

/// `$TASK` stands for the id of the task, and `$META` for a declaration.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    http: String,
    accept: Option<String>,
    content_type: String,
    version: Option<String>,
    has_two_versions: bool,
    methods: Vec<String>,
    names: Vec<String>,
    json: bool,
    body: String,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            http: "POST".to_owned(),
            accept: Some("application/json, text/event-stream".to_owned()),
            content_type: "application/json".to_owned(),
            version: Some("2026-07-28".to_owned()),
            has_two_versions: false,
            methods: vec!["tasks/get".to_owned()],
            names: vec!["$TASK".to_owned()],
            json: false,
            body: r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"$TASK","_meta":$META}}"#
                .to_owned(),
        }
    }
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Refused {
    status: u16,
    code: i32,
    /// The id of the error.
    id: Value,
    data: Option<Value>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Want {
    Taken { id: String, ask: Value },
    Refused(Refused),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    #[serde(default)]
    given: Given,
    want: Want,
}

fn asked(given: &Given, dialect: &Dialect) -> Want {
    let filled = |text: &str| text.replace("$TASK", task().as_str()).replace("$META", META);
    let (methods, names): (Vec<String>, Vec<String>) =
        (given.methods.clone(), given.names.iter().map(|name| filled(name)).collect());
    let (methods, names): (Vec<&str>, Vec<&str>) =
        (methods.iter().map(|text| &**text).collect(), names.iter().map(|text| &**text).collect());
    let head = TaskHead {
        head: Head {
            method: &given.http,
            accept: given.accept.as_deref(),
            content_type: Some(&given.content_type),
            protocol_version: given.version.as_deref(),
            ..Head::default()
        },
        methods: &methods,
        names: &names,
        has_two_versions: given.has_two_versions,
    };
    match read_request(&head, filled(&given.body).as_bytes(), given.json, dialect) {
        Ok(read) => {
            assert_eq!(read.task, task());
            let ask = match read.ask {
                Ask::Get => json!("get"),
                Ask::Cancel => json!("cancel"),
                Ask::Update(responses) => {
                    let member = |response: &tailrope_core::task::Response| {
                        (response.key.to_string(), serde_json::from_slice(&response.value).unwrap())
                    };
                    json!({ "update": responses.iter().map(member).collect::<serde_json::Map<String, Value>>() })
                }
            };
            Want::Taken { id: read.request.to_json(), ask }
        }
        Err(refusal) => {
            let body: Value = serde_json::from_slice(&refusal.body(dialect)).unwrap();
            let data = body["error"].get("data").cloned();
            Want::Refused(Refused { status: refusal.status, code: refusal.code, id: body["id"].clone(), data })
        }
    }
}

#[test]
fn t_05_t_19_t_25_t_26_requests_about_tasks() {
    for (name, Vector { given, want }) in vectors::<Vector>(include_str!("../../vectors/task_requests.json")) {
        for dialect in &DIALECTS {
            assert_eq!(asked(&given, dialect), want, "{name}, {dialect:?}");
        }
    }
}

/// A way to spoil a request, and the code that it is refused with.
type Fault = (&'static str, fn(&mut Given), i32);

/// In the order in which they are looked for. Of the faults of one line a request can have only one.
const FAULTS: [&[Fault]; 9] = [
    &[("another HTTP method", |given| given.http = "GET".to_owned(), 405)],
    &[
        ("no Accept", |given| given.accept = None, 406),
        ("half an Accept", |given| given.accept = Some("application/json".to_owned()), 406),
    ],
    &[("no JSON", |given| given.content_type = "text/plain".to_owned(), 415)],
    &[("no envelope", |given| given.body = given.body.replace(r#""_meta""#, r#""meta""#), -32602)],
    &[
        ("no version", |given| given.version = None, -32020),
        ("another version", |given| given.version = Some("2025-11-25".to_owned()), -32020),
        ("two versions", |given| given.has_two_versions = true, -32020),
    ],
    &[
        ("no Mcp-Method", |given| given.methods.clear(), -32020),
        ("another Mcp-Method", |given| given.methods = vec!["tools/call".to_owned()], -32020),
        ("two of Mcp-Method", |given| given.methods.push("tasks/get".to_owned()), -32020),
    ],
    &[
        ("another Mcp-Name", |given| given.names = vec!["other".to_owned()], -32020),
        ("two of Mcp-Name", |given| given.names.push("$TASK".to_owned()), -32020),
        ("a broken Mcp-Name", |given| given.names = vec!["=?base64?x?=".to_owned()], -32020),
    ],
    &[("undeclared", |given| given.body = given.body.replace("$META", UNDECLARED), -32021)],
    &[("no task id", |given| given.body = given.body.replace(r#""$TASK""#, "7"), -32602)],
];
const UNDECLARED: &str =
    r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

fn refused(faults: &[&Fault], dialect: &Dialect) -> (u16, i32) {
    let mut given = Given::default();
    faults.iter().for_each(|(_, spoil, _)| spoil(&mut given));
    match asked(&given, dialect) {
        Want::Refused(refused) => (refused.status, refused.code),
        taken @ Want::Taken { .. } => panic!("{taken:?}"),
    }
}

#[test]
fn t_05_t_19_t_25_the_first_of_two_faults_is_answered() {
    for dialect in &DIALECTS {
        for (line, faults) in FAULTS.iter().enumerate() {
            for first in *faults {
                let alone = refused(&[first], dialect);
                let (status, code) = alone;
                assert!(first.2 == i32::from(status) || (status, code) == (400, first.2), "{}: {alone:?}", first.0);
                for second in FAULTS[line + 1..].iter().flat_map(|faults| faults.iter()) {
                    // A name cannot differ from an id that is no text.
                    let said = refused(&[first, second], dialect);
                    let is_same = said == alone || (line == 6 && second.0 == "no task id");
                    assert!(is_same, "{} and {}: {said:?}", first.0, second.0);
                }
            }
        }
    }
}

#[test]
fn t_19_t_27_an_unknown_task_and_one_of_somebody_else_have_one_answer() {
    let request = RequestId::integer(1);
    for dialect in &DIALECTS {
        let unknown = unknown_task(&request).body(dialect);
        for id in ["x", "", "tailrope-", "tailrope-BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc_", "$TASK "] {
            let given = Given { names: vec![], ..Given::default() };
            let given = Given { body: given.body.replace("$TASK", id), ..given };
            let head = Head {
                method: "POST",
                accept: given.accept.as_deref(),
                content_type: Some("application/json"),
                protocol_version: given.version.as_deref(),
                ..Head::default()
            };
            let head = TaskHead { head, methods: &["tasks/get"], ..TaskHead::default() };
            let body = given.body.replace("$META", META).replace("$TASK", task().as_str());
            match read_request(&head, body.as_bytes(), false, dialect) {
                // The last of them is spelled as ours are, and the store knows none of that name.
                Ok(read) => assert_eq!(read.request, request),
                Err(refusal) => {
                    assert_eq!((refusal.status, refusal.body(dialect)), (400, unknown.clone()), "{id}");
                }
            }
        }
    }
    assert_eq!(not_taken(&request).status, 503);
}

#[test]
fn t_27_ids_are_unguessable_and_made_of_what_headers_take() {
    let ids = [0, 1, 255].map(|byte| TaskId::new(&[byte; TASK_ID_BYTES]));
    for id in &ids {
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{}", id.as_str());
        assert_eq!(id.as_str().len(), "tailrope-".len() + 32);
        assert_eq!(TaskId::parse(id.as_str()).as_ref(), Some(id));
        assert!(id.session_id().ends_with(id.as_str()) && id.session_id() != id.as_str());
        assert!(!format!("{id:?}").contains(id.as_str()), "it is for no log");
    }
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[0].as_str(), "tailrope-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
}
