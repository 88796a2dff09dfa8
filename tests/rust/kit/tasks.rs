//! Alice's long call at a process of a fleet, and requests about its task at others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::engine::{CallOptions, CallStep, Context, TaskAnswer, TaskCall, TaskQuery};
use tailrope_core::exchange::{Relayed, RelayedMethod, Requester};
use tailrope_core::protocol::Dialect;
use tailrope_core::task::{Ask, CallHeaders, Input, Reply, TaskRequest, reread_request};

use crate::kit::common::{Bell, Bench};
use crate::kit::eventually::eventually;
use crate::kit::relaying::ALICE;

pub(crate) const SERVER: &str = "/mcp";
/// When calls become tasks by default, in milliseconds.
pub(crate) const AFTER_MS: u64 = 1_000;

/// A call, what its host was told to do, and whether it was woken for that.
pub(crate) struct Caller {
    pub(crate) call: TaskCall,
    bell: Arc<Bell>,
}

pub(crate) fn open(bench: &Bench) -> Caller {
    open_as(bench, ALICE)
}

pub(crate) fn open_as(bench: &Bench, requester: Requester<'_>) -> Caller {
    let body = br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}}}}}"#;
    let headers = CallHeaders::of([("X-Trace", "first"), ("Mcp-Param-Color", "red")]);
    let options =
        CallOptions { server: SERVER, tool: Some("slow"), takes_streams: true, headers, requester, sdk: "rust" };
    let bell = Arc::new(Bell::default());
    let call = bench.engine.open_call(body, &options, Arc::clone(&bell) as _, 0);
    Caller { call: call.unwrap().expect("it is a request"), bell }
}

impl Caller {
    /// All that there is to do now. The host was woken if there is anything.
    pub(crate) fn steps(&self) -> Vec<CallStep> {
        let mut all = Vec::new();
        loop {
            let steps = self.call.take_steps();
            if steps.is_empty() {
                break;
            }
            all.extend(steps);
        }
        if !all.is_empty() {
            was_woken(&self.bell);
        }
        all
    }

    /// The SDK answers the run with this result.
    pub(crate) fn answer(&self, run: u32, result: &Value) {
        let message = json!({"jsonrpc": "2.0", "id": 2, "result": result}).to_string().into();
        self.call.input(Input::Message { run, message, is_body: true });
        self.call.input(Input::RunEnded { run });
    }

    /// The call becomes a task, whose id the client gets.
    pub(crate) fn become_task(&self, bench: &Bench) -> String {
        bench.advance(AFTER_MS);
        self.created()
    }

    pub(crate) fn created(&self) -> String {
        Self::task_of(&self.steps())
    }

    /// The task that its client gets with these steps.
    pub(crate) fn task_of(steps: &[CallStep]) -> String {
        assert_eq!(steps[0], CallStep::Unlink, "{steps:?}");
        let CallStep::Reply(Reply::Body { status: 200, body }) = &steps[1] else { panic!("{steps:?}") };
        let answer: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(answer["result"]["resultType"], "task");
        answer["result"]["taskId"].as_str().unwrap().to_owned()
    }

    /// The round that is started, with its context.
    pub(crate) fn started(&self) -> (u32, Context, Value) {
        let mut steps = self.steps();
        match (steps.len(), steps.pop()) {
            (1, Some(CallStep::Start { run, context, call, headers })) => {
                let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
                let type_of = ("content-type", "application/json");
                let named = [("mcp-method", "tools/call"), ("mcp-name", "slow"), ("mcp-param-color", "red")];
                assert_eq!(
                    (headers[0], &headers[1..]),
                    (type_of, &named[..]),
                    "what belongs to the message comes with it"
                );
                (run, context, serde_json::from_slice(&call).unwrap())
            }
            (_, last) => panic!("{steps:?} {last:?}"),
        }
    }
}

/// A host is woken for what there is: by another thread perhaps a moment later.
fn was_woken(bell: &Bell) {
    eventually("the host is woken", || bell.0.load(Ordering::SeqCst) > 0);
    bell.0.store(0, Ordering::SeqCst);
}

/// A request about a task, and how its host is told of its answers.
pub(crate) struct Asking {
    query: TaskQuery,
    bell: Arc<Bell>,
}

pub(crate) fn request(task: &str, method: &str, params: &Value) -> (Bytes, TaskRequest) {
    let mut params = params.clone();
    params["taskId"] = task.into();
    let body: Bytes = json!({"jsonrpc": "2.0", "id": "q", "method": method, "params": params}).to_string().into();
    let request = reread_request(&body).expect("it is a request about a task");
    (body, request)
}

pub(crate) fn ask_as(bench: &Bench, requester: Requester<'_>, task: &str, method: &str, params: &Value) -> Asking {
    let (body, request) = request(task, method, params);
    let relayed =
        (request.ask != Ask::Get).then(|| Relayed::new(RelayedMethod::Post, body, [("x-request-id", "r7")], &[], None));
    let (principal, bell) = (requester.principal().unwrap(), Arc::new(Bell::default()));
    let query = bench.engine.ask_task(SERVER, request, principal.as_ref(), relayed, Arc::clone(&bell) as _, 77);
    Asking { query, bell }
}

pub(crate) fn ask(bench: &Bench, task: &str, method: &str, params: &Value) -> Asking {
    ask_as(bench, ALICE, task, method, params)
}

pub(crate) fn cancel(bench: &Bench, task: &str) -> Asking {
    ask(bench, task, "tasks/cancel", &json!({}))
}

/// The answer to the question with this key.
pub(crate) fn update(bench: &Bench, task: &str, key: &str) -> Asking {
    ask(bench, task, "tasks/update", &json!({"inputResponses": {key: {"action": "accept"}}}))
}

impl Asking {
    /// The next answer, if there is one: its status and body.
    pub(crate) fn take(&self) -> Option<(u16, Value)> {
        match self.take_any()? {
            TaskAnswer::Body(body) => Some((200, serde_json::from_slice(&body).unwrap())),
            TaskAnswer::Refused(refusal) => {
                Some((refusal.status, serde_json::from_slice(&refusal.body(&Dialect::MCP_PYTHON_2)).unwrap()))
            }
            TaskAnswer::Serve(call) => panic!("{call:?}"),
        }
    }

    fn take_any(&self) -> Option<TaskAnswer> {
        let answer = self.query.take()?;
        was_woken(&self.bell);
        Some(answer)
    }

    /// The task that this process serves from now on.
    pub(crate) fn serves(&self) -> Caller {
        self.next().flatten().expect("the task goes on here")
    }

    /// The next answer, if there is one: a task that this process serves from now on, or else the last.
    pub(crate) fn next(&self) -> Option<Option<Caller>> {
        Some(match self.take_any()? {
            // The host of the call is that of the request, and so is its wake.
            TaskAnswer::Serve(call) => Some(Caller { call, bell: Arc::new(Bell(1.into())) }),
            _ => None,
        })
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        match self.take() {
            Some((200, answer)) => {
                assert_eq!(answer["result"], json!({"resultType": "complete"}));
                true
            }
            Some(other) => panic!("{other:?}"),
            None => false,
        }
    }
}

/// How the task stands, as this process tells it at once.
pub(crate) fn get(bench: &Bench, task: &str) -> Value {
    let (status, answer) = ask(bench, task, "tasks/get", &json!({})).take().expect("it is told at once");
    assert_eq!(status, 200, "{answer}");
    answer["result"].clone()
}

pub(crate) fn status(bench: &Bench, task: &str) -> String {
    get(bench, task)["status"].as_str().unwrap().to_owned()
}

/// The keys of the questions that are asked.
pub(crate) fn keys(bench: &Bench, task: &str) -> Vec<String> {
    let shown = get(bench, task);
    shown["inputRequests"].as_object().map(|asked| asked.keys().cloned().collect()).unwrap_or_default()
}
