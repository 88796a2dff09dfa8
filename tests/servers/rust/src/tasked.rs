//! The tool `tasked` as tests/servers/python/tasked.py describes it, without its `asks`: rmcp gives handlers of 2026-07-28
//! no way to ask while they run.

use std::time::Duration;
use std::{io, iter, process};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
    ProgressNotificationParam,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::control::Control;
use crate::facts::Facts;
use crate::script::{Context, Failed};

#[derive(Deserialize)]
struct Plan {
    token: String,
    facts: String,
    #[serde(default)]
    ms: f64,
    gate: Option<String>,
    #[serde(default)]
    rounds: u64,
    keys: Option<u64>,
    #[serde(default)]
    says: u64,
}

/// What a round leaves for the next one.
#[derive(Default, Deserialize, Serialize)]
struct State {
    round: u64,
    answers: Vec<String>,
}

/// One run of a call. Of one that is cancelled a fact says so.
pub(crate) async fn run(
    control: &Control,
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<CallToolResponse, Failed> {
    let plan = request.arguments.as_ref().and_then(|arguments| arguments.get("plan")).cloned().unwrap_or_default();
    let plan: Plan = serde_json::from_value(plan).map_err(|error| error.to_string())?;
    let facts = Facts::open(&plan.facts).map_err(|error| error.to_string())?;
    tokio::select! {
        biased;
        () = context.ct.cancelled() => {
            facts.tell("cancelled", json!({})).map_err(|error| error.to_string())?;
            Err("cancelled".to_owned())
        }
        outcome = perform(&plan, &facts, control, request, context) => outcome.map_err(|error| error.to_string()),
    }
}

async fn perform(
    plan: &Plan,
    facts: &Facts,
    control: &Control,
    request: &CallToolRequestParams,
    context: &Context,
) -> io::Result<CallToolResponse> {
    let state = request.request_state.as_deref().map(serde_json::from_str).transpose()?;
    let State { round, mut answers } = state.unwrap_or_default();
    facts.tell("begin", json!({ "process": process::id(), "round": round }))?;
    let names = request.input_responses.iter().flatten().map(|(_, response)| &response["content"]["name"]);
    answers.extend(names.filter_map(Value::as_str).map(str::to_owned));
    step(plan, context).await?;
    if round < plan.rounds {
        let state = serde_json::to_string(&State { round: round + 1, answers })?;
        return Ok(CallToolResponse::InputRequired(questions(plan, round, &state)?));
    }
    if let Some(gate) = &plan.gate {
        // Who cancels ends the call.
        let _ = control.gate(gate, &context.ct).await;
    }
    facts.tell("end", json!({}))?;
    let words: Vec<&str> = iter::once(&plan.token).chain(&answers).map(String::as_str).collect();
    Ok(CallToolResult::success(vec![ContentBlock::text(words.join(" "))]).into())
}

async fn step(plan: &Plan, context: &Context) -> io::Result<()> {
    #[allow(clippy::cast_precision_loss, reason = "no call reports so often")]
    let (says, pause) = (plan.says as f64, Duration::from_secs_f64(plan.ms / 1_000.0));
    for number in 1..=plan.says {
        let token = context.meta.get_progress_token().ok_or_else(|| io::Error::other("there is no progress token"))?;
        #[allow(clippy::cast_precision_loss, reason = "no call reports so often")]
        let progress = ProgressNotificationParam::new(token, number as f64).with_total(says);
        let progress = progress.with_message(format!("part {number}"));
        context.peer.notify_progress(progress).await.map_err(io::Error::other)?;
        tokio::time::sleep(pause.div_f64(says)).await;
    }
    if plan.says == 0 {
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// The same keys in each round.
fn questions(plan: &Plan, round: u64, state: &str) -> io::Result<InputRequiredResult> {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let question = |at: u64| {
        let message = format!("{}/{round}/{at}", plan.token);
        let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
        (format!("q{at}"), json!({ "method": "elicitation/create", "params": params }))
    };
    let requests: serde_json::Map<_, _> = (0..plan.keys.unwrap_or(1)).map(question).collect();
    let result = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": state });
    Ok(serde_json::from_value(result)?)
}
