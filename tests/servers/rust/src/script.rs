//! The tool `script`: it runs the steps that a test wrote down, so that a test reads as its own story.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::RoleServer;
use rmcp::model::{
    CustomRequest, LoggingLevel, LoggingMessageNotification, LoggingMessageNotificationParam, NumberOrString,
    ProgressNotificationParam, ProgressToken, ServerNotification, ServerRequest,
};
use rmcp::service::{RequestContext, ServiceError};
use serde_json::{Value, json};
use tailrope_server::{Close, ResumableContext as _};

use crate::control::Control;
use crate::stock;

pub(crate) type Context = RequestContext<RoleServer>;

/// What fails a call: the text of the error.
pub(crate) type Failed = String;

pub(crate) struct Script<'a> {
    pub(crate) control: &'a Control,
    pub(crate) context: &'a Context,
    pub(crate) sent: u64,
    pub(crate) result: Option<String>,
}

/// A step's word and the rest.
pub(crate) fn divided(step: &str) -> (&str, &str) {
    step.split_once(' ').unwrap_or((step, ""))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Failed> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// `retry=MS hold=MS`, each or none.
pub(crate) fn pauses(rest: &str) -> Result<Close, Failed> {
    let mut close = Close::default();
    for (name, value) in rest.split(' ').filter_map(|part| part.split_once('=')) {
        close = match name {
            "retry" => close.retry_ms(number(value)?),
            _ => close.hold_ms(number(value)?),
        };
    }
    Ok(close)
}

fn told(sent: Result<(), ServiceError>) -> Result<(), Failed> {
    sent.map_err(|error| error.to_string())
}

pub(crate) fn log_message(text: &str) -> ServerNotification {
    let params = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text));
    ServerNotification::LoggingMessageNotification(LoggingMessageNotification::new(params))
}

/// One call's steps, and `try` before any of them.
pub(crate) async fn run(control: &Control, context: &Context, steps: &[String]) -> Result<String, Failed> {
    let last = steps.last().map_or("", |step| step);
    let mut script = Script { control, context, sent: 0, result: None };
    let mut outcomes = Vec::new();
    let guard = OnCancel { control, context, last, is_over: false };
    for step in steps {
        match step.strip_prefix("try ") {
            None => script.step(step).await?,
            Some(step) => outcomes.push(match script.step(step).await {
                Ok(()) => "ok".to_owned(),
                Err(why) => format!("raised Error: {why}"),
            }),
        }
    }
    guard.over();
    control.mark(&format!("finished {last}"));
    Ok(match script.result {
        Some(result) => result,
        None if outcomes.is_empty() => "done".to_owned(),
        None => json!(outcomes).to_string(),
    })
}

/// Marks a call that ended because it was cancelled.
struct OnCancel<'a> {
    control: &'a Control,
    context: &'a Context,
    last: &'a str,
    is_over: bool,
}

impl OnCancel<'_> {
    fn over(mut self) {
        self.is_over = true;
    }
}

impl Drop for OnCancel<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.context.ct.is_cancelled() {
            self.control.mark(&format!("cancelled {}", self.last));
        }
    }
}

impl Script<'_> {
    async fn step(&mut self, step: &str) -> Result<(), Failed> {
        let (word, rest) = divided(step);
        let peer = &self.context.peer;
        match word {
            "emit" => {
                let (count, size) = divided(rest);
                for _ in 0..number::<u64>(count)? {
                    self.progress(size).await?;
                }
            }
            // What a killed process wrote to a file is there: what is in it was sent, as far as the tool was told.
            "note" => {
                let (file, size) = divided(rest);
                let mut noted = OpenOptions::new().append(true).create(true).open(file).map_err(|e| e.to_string())?;
                loop {
                    self.progress(size).await?;
                    writeln!(noted, "{}", self.sent).map_err(|error| error.to_string())?;
                }
            }
            // All sends are started before the first may finish, in order.
            "burst" => {
                let count = number::<u64>(rest)?;
                let from = self.sent;
                self.sent += count;
                let sends = (from + 1..=from + count).map(|n| peer.notify_progress(self.progress_of(n, None)));
                join_all(sends).await.into_iter().try_for_each(told)?;
            }
            "until" => {
                while !self.control.is_open(rest) {
                    self.progress("").await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                self.result = Some(self.sent.to_string());
            }
            "gate" => self.control.gate(rest, &self.context.ct).await.map_err(|_| "cancelled".to_owned())?,
            "mark" => self.control.mark(rest),
            "close" => drop(stock::close(self.context, pauses(rest)?).await),
            "close_standalone" => drop(stock::close_standalone(self.context, Close::default()).await),
            "standalone" => told(peer.send_notification(log_message(rest)).await)?,
            "log" => told(peer.send_notification(self.context.related(log_message(rest))).await)?,
            "changed" => peer.notify_tool_list_changed().await.map_err(|error| error.to_string())?,
            "elicit" => {
                let schema =
                    json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
                let params = json!({ "mode": "form", "message": rest, "requestedSchema": schema });
                self.result = Some(self.ask("elicitation/create", params).await?["content"].to_string());
            }
            "sample" => {
                let messages = json!([{ "role": "user", "content": { "type": "text", "text": rest } }]);
                let params = json!({ "messages": messages, "maxTokens": 10 });
                let answer = self.ask("sampling/createMessage", params).await?;
                let content = &answer["content"];
                let content = content.as_array().and_then(|parts| parts.first()).unwrap_or(content);
                self.result = content["text"].as_str().map(str::to_owned);
            }
            "sleep" => tokio::time::sleep(Duration::from_secs_f64(number::<f64>(rest)? / 1_000.0)).await,
            "wait_cancel" => {
                self.control.mark("waiting");
                self.context.ct.cancelled().await;
            }
            "raise" => return Err(rest.to_owned()),
            "big" => self.result = Some("b".repeat(number(rest)?)),
            "return" => self.result = Some(rest.to_owned()),
            _ => return Err(format!("there is no step {word:?}")),
        }
        Ok(())
    }

    fn progress_of(&self, n: u64, message: Option<String>) -> ProgressNotificationParam {
        let token = self.context.meta.get_progress_token();
        let token = token.unwrap_or(ProgressToken(NumberOrString::Number(0)));
        #[allow(clippy::cast_precision_loss, reason = "no test counts so far")]
        let progress = ProgressNotificationParam::new(token, n as f64);
        match message {
            Some(message) => progress.with_message(message),
            None => progress,
        }
    }

    async fn progress(&mut self, size: &str) -> Result<(), Failed> {
        self.sent += 1;
        let message = if size.is_empty() { None } else { Some("x".repeat(number(size)?)) };
        told(self.context.peer.notify_progress(self.progress_of(self.sent, message)).await)
    }

    async fn ask(&self, method: &str, params: Value) -> Result<Value, Failed> {
        let request = ServerRequest::CustomRequest(CustomRequest::new(method, Some(params)));
        let answer = self.context.peer.send_request(request).await.map_err(|error| error.to_string())?;
        serde_json::to_value(answer).map_err(|error| error.to_string())
    }
}
