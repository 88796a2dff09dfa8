//! A second reader of a call, while the first is there.

use std::time::Duration;

use tokio::time::Instant;

use super::live::begun;
use crate::facts::{Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled, shown_type};
use crate::session::Run;
use crate::wire::Exchange;

/// A reader that another one has replaced may still get what was on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

pub(super) async fn takeover_call(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.long().await?;
    taken(facts, seen, begun(facts).await?).await
}

pub(super) async fn takeover_resumed(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.long().await?;
    let run = begun(facts).await?;
    run.last().cut();
    let first = run.resume().await?;
    first.until(|first| first.is_over() || first.has_event(), ON_ITS_WAY).await;
    taken(facts, seen, run).await
}

/// The newest reader gets what is left, the one before nothing more.
async fn taken(facts: &Facts, seen: &Evidence, run: Run) -> Found<Outcome> {
    let old = run.last();
    if !old.is_stream() {
        seen.note("GET after the first connection was cut", &old);
        settled(&old).await;
        return fault(format!("{} after the first connection was cut", shown_type(&old)));
    }
    if old.is_over() && run.count() > 1 && !old.has_news() {
        return fault("200 and nothing after the first connection was cut");
    }
    if old.is_over() {
        return not_checked("the server closed the first connection by itself");
    }
    let new = run.resume().await?;
    seen.note("GET from the last id, while the first reader is open", &new);
    let since = Instant::now() + ON_ITS_WAY;
    if !new.is_stream() {
        settled(&new).await;
        return fault(format!("{} while the first reader is open, be it dead or not", shown_type(&new)));
    }
    // Either may get it.
    let has_answer = |_: &Exchange| new.is_over() || new.has_response() || old.has_response();
    tokio::select! {
        _ = new.until(has_answer, facts.patience()) => {}
        _ = old.until(has_answer, facts.patience()) => {}
    }
    if new.is_over() && !new.has_news() {
        return fault("200 and nothing; the events go to the first reader");
    }
    if !new.has_response() && old.has_response() {
        settled(&new).await;
    }
    if old.events().iter().any(|event| event.has_data() && event.at > since) {
        return fault(if new.has_response() {
            "both readers get the events"
        } else {
            "the events go to the first reader"
        });
    }
    let ended = run.finish(facts.patience()).await;
    settled(&new).await;
    old.cut();
    new.cut();
    match ended {
        Ok(()) => ok("served at once, and the first gets nothing more"),
        Err(problem) => fault(problem),
    }
}
