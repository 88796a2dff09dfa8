//! Answers in short.

use crate::wire::{Block, Exchange, State};

pub(crate) fn shown_type(exchange: &Exchange) -> String {
    format!("{} {}", exchange.status, exchange.content_type()).trim_end().to_owned()
}

/// Comments come when they come, so they are left out.
pub(crate) fn shown(exchange: &Exchange) -> String {
    let mut words = vec![shown_type(exchange)];
    if !exchange.is_stream() {
        let message = exchange.json();
        words.extend(message.get("error").and_then(|error| error.get("code")).map(|code| format!("error {code}")));
        return words.join(", ");
    }
    let events = exchange.events();
    let mut described: Vec<String> = events.iter().map(|event| in_short(event)).collect();
    described.dedup();
    words.extend(described);
    words.push(ending(exchange.state()).to_owned());
    words.join(", ")
}

fn ending(state: State) -> &'static str {
    match state {
        State::Open => "stays open",
        State::End => "end",
        State::Broken => "broken off",
        State::Cut => "cut",
    }
}

fn in_short(event: &Block) -> String {
    let Some(data) = &event.data else {
        return if event.id.is_some() { "a lone id" } else { "a lone retry" }.to_owned();
    };
    if data.is_empty() {
        let priming = if event.retry_ms.is_some() { "priming" } else { "priming without retry" };
        return if event.id.is_some() { priming } else { "an empty event" }.to_owned();
    }
    let what = match &event.message {
        None => "something else".to_owned(),
        Some(message) => match (message.get("method"), message.get("error").and_then(|error| error.get("code"))) {
            (Some(method), _) => method.as_str().unwrap_or("something else").to_owned(),
            (None, Some(code)) => format!("error {code}"),
            (None, None) => "response".to_owned(),
        },
    };
    if event.id.is_some() { what } else { format!("{what} without id") }
}
