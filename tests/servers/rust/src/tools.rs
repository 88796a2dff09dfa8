//! The tools of the test server. `script` runs the steps that a test wrote down; `act` hands its context to the test, which
//! does with it what it likes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, NumberOrString,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::OriginatingRequestId;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::control::Control;
use crate::load;
use crate::marked;
use crate::script::{self, Context, Failed, divided, log_message, pauses};
use crate::stock;
use crate::tasked;

/// What all sessions of the process have in common.
#[derive(Default)]
pub(crate) struct Lab {
    pub(crate) control: Control,
    actors: Mutex<HashMap<String, Arc<Actor>>>,
}

/// A call of `act` that runs.
struct Actor {
    context: Context,
    responds: Notify,
}

#[derive(Clone)]
pub(crate) struct Tools(pub(crate) Arc<Lab>);

fn text_of<'a>(arguments: &'a Value, name: &str) -> Result<&'a str, Failed> {
    arguments[name].as_str().ok_or_else(|| format!("the argument {name} is missing"))
}

fn steps_of(arguments: &Value) -> Vec<String> {
    let steps = arguments["steps"].as_array().into_iter().flatten();
    steps.filter_map(|step| step.as_str().map(str::to_owned)).collect()
}

impl Lab {
    async fn perform(&self, actor: &Actor, step: &str) -> Result<Value, Failed> {
        let (word, rest) = divided(step);
        let context = &actor.context;
        let said =
            |notification| async { context.peer.send_notification(notification).await.map_err(|e| e.to_string()) };
        match word {
            "standalone" => said(log_message(rest)).await?,
            // The request's type and id, then the text: `n:1 hello`.
            "related" => {
                let (name, text) = rest.rsplit_once(' ').unwrap_or((rest, ""));
                let id = match name.split_once(':') {
                    Some(("n", id)) => NumberOrString::Number(id.parse().map_err(|_| "no number".to_owned())?),
                    Some((_, id)) => NumberOrString::String(id.into()),
                    None => return Err(format!("{name:?} names no request")),
                };
                let mut notification = log_message(text);
                rmcp::model::GetExtensions::extensions_mut(&mut notification).insert(OriginatingRequestId(id));
                said(notification).await?;
            }
            "close" => return Ok(json!(stock::close(context, pauses(rest)?).await)),
            "close_standalone" => return Ok(json!(stock::close_standalone(context, pauses(rest)?).await)),
            "respond" => actor.responds.notify_one(),
            _ => return Err(format!("there is no act {word:?}")),
        }
        Ok(Value::Null)
    }

    /// Has the call of `act` by this name do a step: its outcome, or why it was refused.
    pub(crate) async fn order(&self, name: &str, step: &str) -> Value {
        self.control.marked(&format!("acting {name}"), 1).await;
        let actor = self.actors.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let Some(actor) = actor else { return json!({ "raised": "Error: nobody acts by this name" }) };
        match self.perform(&actor, step).await {
            Ok(outcome) => json!({ "outcome": outcome }),
            Err(why) => json!({ "raised": format!("Error: {why}") }),
        }
    }

    /// Does `steps` at once, then what is ordered, until that is `respond` or the gate of its name opens.
    async fn act(&self, name: &str, steps: &[String], context: Context) -> Result<String, Failed> {
        let actor = Arc::new(Actor { context, responds: Notify::new() });
        for step in steps {
            self.perform(&actor, step).await?;
        }
        self.actors.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Arc::clone(&actor));
        self.control.mark(&format!("acting {name}"));
        tokio::select! {
            () = actor.responds.notified() => {}
            gate = self.control.gate(name, &actor.context.ct) => gate.map_err(|_| "cancelled".to_owned())?,
        }
        Ok(name.to_owned())
    }

    async fn call(&self, name: &str, arguments: &Value, context: Context) -> Result<String, Failed> {
        let header = |name: &str| context.extensions.get::<Parts>()?.headers.get(name)?.to_str().ok();
        match name {
            "script" => script::run(&self.control, &context, &steps_of(arguments)).await,
            "echo" => text_of(arguments, "text").map(str::to_owned),
            "act" => self.act(text_of(arguments, "name")?, &steps_of(arguments), context).await,
            "marked" => marked::run(arguments["plan"].clone(), &context).await,
            "emit" => load::emit(arguments, &context).await.map_err(|error| error.to_string()),
            "poll" => load::poll(arguments, &context).await.map_err(|error| error.to_string()),
            "completed" => Ok(load::completed()),
            "header" => Ok(header(text_of(arguments, "name")?).unwrap_or_default().to_owned()),
            "request_id" => Ok(context.id.clone().into_json_value().to_string()),
            "whoami" => Ok(header("x-test-name").unwrap_or("nobody").to_owned()),
            _ => Err(format!("Unknown tool: {name}")),
        }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().enable_logging().build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let names = [
            "script",
            "echo",
            "act",
            "marked",
            "emit",
            "poll",
            "completed",
            "header",
            "request_id",
            "whoami",
            "tasked",
        ];
        let schema = json!({ "type": "object" }).as_object().cloned().unwrap_or_default();
        let tools = names.map(|name| Tool::new(name, "a tool of the tests", schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: rmcp::service::RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name == "tasked" {
            let failed = |why| CallToolResult::error(vec![ContentBlock::text(why)]).into();
            return Ok(tasked::run(&self.0.control, &request, &context).await.unwrap_or_else(failed));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let result = match self.0.call(&request.name, &arguments, context).await {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        };
        Ok(result.into())
    }
}
