//! Revision 2026-07-28 as a client has it that takes tasks: what the server announces, and a call that became one.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tailrope_core::protocol::CLIENT_CAPABILITIES;

use super::{Facts, Found, not_checked, settled, shown_type};
use crate::session::{CLIENT, MODERN, Session};
use crate::wire::{Exchange, Message};

pub(crate) use tailrope_core::protocol::TASKS_EXTENSION as EXTENSION;

/// The server decides when, and may wait as long as this.
const LONGEST_DECISION: Duration = Duration::from_secs(60);

/// A call that was answered with a task.
#[derive(Clone)]
pub(crate) struct Created {
    pub(crate) answer: Rc<Exchange>,
    pub(crate) task: Message,
}

impl Created {
    pub(crate) fn id(&self) -> Option<&str> {
        self.task.get("taskId").and_then(Value::as_str)
    }
}

/// The result that an answer has.
pub(crate) fn result_of(answer: &Exchange) -> Option<Message> {
    answer.json().get("result").and_then(Value::as_object).cloned()
}

/// What each request of this revision says of its client.
fn said(takes_tasks: bool) -> Value {
    let capabilities = if takes_tasks { json!({"extensions": {EXTENSION: {}}}) } else { json!({}) };
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN.as_str(),
        CLIENT_CAPABILITIES: capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": CLIENT, "version": "1"},
    })
}

impl Facts {
    /// There are no sessions: each request is one of a client that nobody knows.
    fn modern(&self) -> Rc<Session> {
        self.stranger(None, Some(MODERN.as_str().to_owned()))
    }

    /// A request of 2026-07-28, answered.
    pub(crate) async fn ask(&self, method: &str, params: Value, takes_tasks: bool) -> Found<Rc<Exchange>> {
        let mut params = params;
        params["_meta"] = said(takes_tasks);
        let message = json!({"jsonrpc": "2.0", "id": self.next_id(), "method": method, "params": params});
        let is_call = method == "tools/call";
        let within = if is_call { LONGEST_DECISION } else { self.timeout() };
        let exchange = self.modern().post(message, within).await?;
        exchange.answered(within).await;
        settled(&exchange).await;
        Ok(exchange)
    }

    pub(crate) async fn ask_about(&self, method: &str, id: &str, takes_tasks: bool) -> Found<Rc<Exchange>> {
        let params = match method {
            "tasks/update" => json!({"taskId": id, "inputResponses": {}}),
            _ => json!({"taskId": id}),
        };
        self.ask(method, params, takes_tasks).await
    }

    /// What a client that takes tasks is told of the server.
    pub(crate) async fn discovered(&self) -> Found<Rc<Exchange>> {
        let find = || self.ask("server/discover", json!({}), true);
        self.discovered.get_or_init(find).await.clone()
    }

    /// Whether the server makes tasks at all: what it says of that.
    pub(crate) async fn tasks(&self) -> Found<Value> {
        let result = result_of(&*self.discovered().await?).unwrap_or_default();
        match result.get("capabilities").and_then(|it| it["extensions"].get(EXTENSION)) {
            Some(announced) => Ok(announced.clone()),
            None => not_checked("the server announces no tasks"),
        }
    }

    /// The tool's call as a task, not yet polled.
    pub(crate) async fn created(&self) -> Found<Created> {
        self.tasks().await?;
        let tool = self.tool().await?;
        self.calls.set(self.calls.get() + 1);
        let answer = self.ask("tools/call", json!({"name": tool.name, "arguments": tool.arguments}), true).await?;
        let name = &tool.name;
        match result_of(&answer) {
            Some(task) if task.get("resultType") == Some(&Value::from("task")) => Ok(Created { answer, task }),
            Some(_) => not_checked(format!(
                "the call of {name} is over before it becomes a task: name a tool that runs long with --tool"
            )),
            None => not_checked(format!("tools/call {name} is answered {}", shown_type(&answer))),
        }
    }

    /// The first of them.
    pub(crate) async fn task(&self) -> Found<Created> {
        self.task.get_or_init(|| self.created()).await.clone()
    }
}
