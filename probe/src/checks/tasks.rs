//! Long calls of 2026-07-28 as tasks: what a client that takes them makes of the answers. Whether and when a call becomes
//! one is left to the server.

use std::time::Duration;

use serde_json::{Value, json};
use tailrope_core::protocol::jsonrpc::{INVALID_PARAMS, MISSING_CLIENT_CAPABILITY};
use tokio::time::{Instant, sleep};

use crate::facts::{EXTENSION, Evidence, Facts, Found, Outcome, fault, not_checked, ok, result_of, warn};
use crate::session::MODERN;
use crate::wire::{Exchange, Message};

/// One that nobody has.
const MADE_UP: &str = "tailrope-probe-made-up";
const LONGEST_TASK: Duration = Duration::from_secs(120);
/// The pauses between two polls, whatever the server says.
const PAUSES_MS: (u64, u64) = (20, 3_000);
const METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

fn error_code(answer: &Exchange) -> Option<i64> {
    answer.json().get("error").and_then(|error| error["code"].as_i64())
}

/// An answer in short, where it should have been another one.
fn in_short(answer: &Exchange) -> String {
    match error_code(answer) {
        Some(code) => format!("{code}"),
        None if result_of(answer).is_some() => "a result".to_owned(),
        None => format!("{} and no answer", answer.status),
    }
}

pub(super) async fn tasks(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let answer = facts.discovered().await?;
    seen.note(format!("POST server/discover, {}, of a client that takes tasks", MODERN.as_str()), &answer);
    let announced = facts.tasks().await?;
    let capabilities = result_of(&answer).unwrap_or_default();
    if capabilities.get("capabilities").is_some_and(|it| it.get("tasks").is_some()) {
        return fault("capabilities.tasks is announced, too: those are tasks of 2025-11-25");
    }
    match announced.as_object() {
        None => fault("the extension is announced with something that is no object"),
        Some(settings) if !settings.is_empty() => {
            warn("the extension is announced with settings: it has none, and clients may refuse them")
        }
        Some(_) => ok("the extension is announced"),
    }
}

pub(super) async fn tasks_refused(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.tasks().await?;
    for method in METHODS {
        let answer = facts.ask_about(method, MADE_UP, false).await?;
        seen.note(format!("POST {method} of a client that takes no tasks"), &answer);
        if error_code(&answer) != Some(i64::from(MISSING_CLIENT_CAPABILITY)) {
            let told = in_short(&answer);
            return fault(format!("{method} of a client that takes no tasks: {told}, not {MISSING_CLIENT_CAPABILITY}"));
        }
        let message = answer.json();
        let required = message.get("error").map(|error| &error["data"]["requiredCapabilities"]["extensions"]);
        if required.is_none_or(|extensions| extensions.get(EXTENSION).is_none()) {
            return fault(format!("{method}: the error does not name the capability that is required"));
        }
    }
    for method in METHODS {
        let answer = facts.ask_about(method, MADE_UP, true).await?;
        seen.note(format!("POST {method} with a made-up id"), &answer);
        if error_code(&answer) != Some(i64::from(INVALID_PARAMS)) {
            let reason = format!("{method} with a made-up id: {}, not {INVALID_PARAMS}", in_short(&answer));
            return if method == "tasks/get" { fault(reason) } else { warn(reason) };
        }
    }
    ok(format!("{MISSING_CLIENT_CAPABILITY} without the capability, {INVALID_PARAMS} for a made-up id"))
}

pub(super) async fn task_created(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let created = facts.task().await?;
    seen.note("POST tools/call of a client that takes tasks", &created.answer);
    if let Some(name) = ["task", "result", "error", "inputRequests", "requestState"]
        .into_iter()
        .find(|name| created.task.contains_key(*name))
    {
        return fault(format!("the answer has {name}, which a task does not have when it is made"));
    }
    judged_fields(&created.task).map_or_else(|| ok("has what clients need"), fault)
}

/// What is wrong with what every answer about a task has.
fn judged_fields(task: &Message) -> Option<String> {
    let id = task.get("taskId").and_then(Value::as_str).unwrap_or_default();
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("taskId is not of visible ASCII: no header can carry it".to_owned());
    }
    if !task.get("status").is_some_and(Value::is_string) {
        return Some("there is no status".to_owned());
    }
    for name in ["createdAt", "lastUpdatedAt"] {
        if !task.get(name).and_then(Value::as_str).is_some_and(is_time) {
            return Some(format!("{name} is no time of ISO 8601"));
        }
    }
    if !task.get("ttlMs").is_some_and(|ttl| ttl.is_null() || ttl.is_u64()) {
        return Some("ttlMs is neither a whole number nor null".to_owned());
    }
    let pause = task.get("pollIntervalMs");
    if pause.is_some_and(|ms| ms.as_u64().unwrap_or_default() == 0) {
        return Some("pollIntervalMs is no whole number above 0".to_owned());
    }
    task.get("statusMessage").is_some_and(|said| !said.is_string()).then(|| "statusMessage is no text".to_owned())
}

/// A date and a time with its zone: 2026-11-28T02:17:58.048Z.
fn is_time(text: &str) -> bool {
    let form =
        |text: &str| -> String { text.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect() };
    let Some((moment, rest)) = text.split_at_checked("2026-11-28T02:17:58".len()) else { return false };
    let zone = rest.strip_prefix('.').map_or(rest, |rest| rest.trim_start_matches(|char: char| char.is_ascii_digit()));
    let is_fraction = !rest.starts_with('.') || rest.len() > zone.len() + 1;
    form(moment) == "0000-00-00T00:00:00"
        && is_fraction
        && (zone == "Z" || form(zone) == "+00:00" || form(zone) == "-00:00")
}

pub(super) async fn task_polled(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let created = facts.task().await?;
    let Some(id) = created.id() else { return not_checked("the task has no id") };
    let end = Instant::now() + LONGEST_TASK;
    for number in 1.. {
        let answer = facts.ask_about("tasks/get", id, true).await?;
        let Some(state) = result_of(&answer) else {
            seen.note("POST tasks/get", &answer);
            let which = if number == 1 { "the first poll" } else { "a poll" };
            return fault(format!("{which} is answered {}", in_short(&answer)));
        };
        let wrong = judged_state(&state, id);
        let status = state.get("status").and_then(Value::as_str).unwrap_or_default();
        let is_over = !matches!(status, "working" | "input_required");
        if wrong.is_some() || is_over {
            seen.note(format!("POST tasks/get, {status}"), &answer);
        }
        if let Some(wrong) = wrong {
            return fault(wrong);
        }
        if is_over {
            return judged_end(facts, seen, id, status).await;
        }
        if status == "input_required" {
            return not_checked("the task asks its client: name a tool that does not with --tool");
        }
        if Instant::now() > end {
            return fault(format!("the task is not over after {} s", LONGEST_TASK.as_secs()));
        }
        let ms = state.get("pollIntervalMs").and_then(Value::as_u64).unwrap_or_default();
        sleep(Duration::from_millis(ms.clamp(PAUSES_MS.0, PAUSES_MS.1))).await;
    }
    not_checked("it was never polled")
}

/// What is wrong with the answer to a poll.
fn judged_state(state: &Message, id: &str) -> Option<String> {
    if state.get("resultType") != Some(&json!("complete")) {
        return Some("resultType is not complete: clients do not take it for an answer".to_owned());
    }
    if state.get("taskId") != Some(&json!(id)) {
        return Some("the answer is about another task".to_owned());
    }
    let has = |name: &str| state.get(name).is_some_and(Value::is_object);
    let status = state.get("status").and_then(Value::as_str).unwrap_or_default();
    let needed = match status {
        "working" | "cancelled" => None,
        "input_required" => Some("inputRequests"),
        "completed" => Some("result"),
        "failed" => Some("error"),
        _ => return Some("the status is none that clients know".to_owned()),
    };
    if let Some(name) = needed.filter(|name| !has(name)) {
        return Some(format!("{status}, without {name}"));
    }
    judged_fields(state)
}

/// A task that is over stays so.
async fn judged_end(facts: &Facts, seen: &Evidence, id: &str, status: &str) -> Found<Outcome> {
    let again = facts.ask_about("tasks/get", id, true).await?;
    seen.note("POST tasks/get, once more", &again);
    match result_of(&again) {
        Some(state) if state.get("status") == Some(&json!(status)) => ok(format!("{status}, and stays so")),
        Some(_) => fault(format!("{status}, and then something else")),
        None => fault(format!("{status}, and then {}", in_short(&again))),
    }
}

pub(super) async fn task_cancelled(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.task().await?;
    let created = facts.created().await?;
    let Some(id) = created.id() else { return not_checked("the task has no id") };
    for what in ["POST tasks/cancel", "POST tasks/cancel, once more"] {
        let answer = facts.ask_about("tasks/cancel", id, true).await?;
        seen.note(what, &answer);
        let Some(acknowledged) = result_of(&answer) else {
            return fault(format!("a cancellation is answered {}", in_short(&answer)));
        };
        if acknowledged.get("resultType") != Some(&json!("complete")) {
            return fault("the acknowledgement's resultType is not complete");
        }
    }
    let answer = facts.ask_about("tasks/get", id, true).await?;
    seen.note("POST tasks/get", &answer);
    match result_of(&answer).as_ref().and_then(|state| state.get("status")?.as_str()) {
        Some(status) => ok(format!("acknowledged, each time; then {status}")),
        None => fault(format!("a task that was cancelled is not there any more: {}", in_short(&answer))),
    }
}
