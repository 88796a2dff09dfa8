//! What an application writes to follow a task: rmcp has the requests, and leaves their order to it.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, GetTaskParams, Implementation,
    UpdateTaskParams,
};
use rmcp::service::Peer;
use serde_json::{Value, json};

use crate::show;

/// A client that takes tasks, and answers questions.
pub(crate) fn config() -> ClientConfig {
    let capabilities = json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let capabilities: ClientCapabilities = serde_json::from_value(capabilities).expect("the capabilities of a client");
    ClientConfig::new(capabilities, Implementation::new("interop", "1"))
}

/// Calls a tool and gives its result, in JSON.
pub(crate) async fn call(client: &Peer<RoleClient>, order: &Value) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let tool = order["tool"].as_str().unwrap_or_default().to_owned();
    let arguments = order["arguments"].as_object().cloned().unwrap_or_default();
    let created = match client.call_tool_once(CallToolRequestParams::new(tool).with_arguments(arguments)).await? {
        CallToolResponse::Task(created) => created.task,
        CallToolResponse::Complete(result) => return Ok(serde_json::to_value(result)?),
        other => return Err(format!("neither a task nor a result: {other:?}").into()),
    };
    loop {
        tokio::time::sleep(Duration::from_millis(created.poll_interval_ms.unwrap_or(1_000))).await;
        let told = serde_json::to_value(client.get_task(GetTaskParams::new(&created.task_id)).await?)?;
        if let Some(said) = told.get("statusMessage") {
            show(&json!({"said": said}));
        }
        match told["status"].as_str() {
            Some("working") => {}
            Some("input_required") => {
                let asked = told["inputRequests"].as_object().cloned().unwrap_or_default();
                let answers: BTreeMap<String, Value> =
                    asked.into_iter().map(|(key, question)| (key, answer(&question["params"]["message"]))).collect();
                client.update_task(UpdateTaskParams::new(&created.task_id, answers)).await?;
            }
            Some("completed") => return Ok(told["result"].clone()),
            _ => return Err(told.to_string().into()),
        }
    }
}

fn answer(message: &Value) -> Value {
    show(&json!({"asked": message}));
    json!({"action": "accept", "content": {"name": format!("re: {}", message.as_str().unwrap_or_default())}})
}
