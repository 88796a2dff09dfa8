//! The stream of a session at large: its beginning, its readers, and a connection on which nothing happens.

use std::time::Duration;

use tokio::time::Instant;

use crate::facts::{Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled, shown_type, warn};
use crate::session::{NEWEST, Stream};

/// A comment that only makes the head leave is not one that keeps a connection alive.
const HEAD: Duration = Duration::from_millis(200);

pub(super) async fn standalone(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.resumable().await?;
    let session = facts.first().await?;
    let exchange = facts.standalone().await?;
    seen.note("GET", &exchange);
    if !exchange.is_stream() {
        return fault(format!("GET is answered {}: neither a stream nor 405", shown_type(&exchange)));
    }
    if !session.is_of(NEWEST) {
        return not_checked(format!("revision {} has no priming", session.shown_revision()));
    }
    if !exchange.events().first().is_some_and(|first| first.is_priming()) {
        return fault("it does not start with an id: what comes while it is broken cannot be asked for");
    }
    ok("an id and empty data come first")
}

pub(super) async fn cursor(facts: &Facts) -> Found<String> {
    facts.resumable().await?;
    match facts.standalone().await?.first_id() {
        Some(cursor) => Ok(cursor),
        None => not_checked("the standalone stream has no id"),
    }
}

pub(super) async fn takeover_standalone(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let session = facts.first().await?;
    let first = facts.standalone().await?;
    if !first.is_stream() || first.is_over() {
        return not_checked("the standalone stream does not stay open");
    }
    let second = session.get(None, Some(Stream::Standalone)).await?;
    seen.note("GET, while the first is open", &second);
    settled(&second).await;
    second.cut();
    if !second.is_stream() {
        return fault(format!("{} while the first reader is open, be it dead or not", second.status));
    }
    if second.is_over() && !second.has_event() {
        return fault("200 and nothing");
    }
    ok("served while the first is open")
}

/// On the standalone stream, which is quiet; on a call where that has no id.
pub(super) async fn resume_empty(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.resumable().await?;
    let session = facts.first().await?;
    let first = facts.standalone().await?;
    let exchange = if let Some(cursor) = first.first_id() {
        first.cut();
        let exchange = session.get(Some(&cursor), Some(Stream::Standalone)).await?;
        exchange.until(|exchange| exchange.is_over() || exchange.has_event(), facts.timeout()).await;
        seen.note("GET of the standalone stream from its first id", &exchange);
        exchange
    } else {
        facts.long().await?;
        let run = super::live::begun(facts).await?;
        run.last().cut();
        let exchange = run.resume().await?;
        settled(&exchange).await;
        seen.note("GET of the call from its first id", &exchange);
        if exchange.events().first().is_some_and(|first| first.has_data()) {
            exchange.cut();
            return not_checked("no resume is empty: the call sends at once, and the standalone stream has no id");
        }
        exchange
    };
    exchange.cut();
    if !exchange.is_stream() {
        return fault(format!("the resume is answered {}", shown_type(&exchange)));
    }
    if exchange.first_id().is_none() {
        return fault("no id: some clients forget where they were");
    }
    ok("an id comes first")
}

pub(super) async fn keep_alive(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.first().await?;
    let session = facts.idle().await?;
    let exchange = session.get(None, Some(Stream::Standalone)).await?;
    if !exchange.is_stream() {
        return not_checked(format!("GET is answered {}", shown_type(&exchange)));
    }
    let since = Instant::now() + HEAD;
    let idle = facts.options.idle;
    let is_kept = |exchange: &crate::wire::Exchange| exchange.blocks().iter().any(|block| block.at > since);
    exchange.until(|exchange| exchange.is_over() || is_kept(exchange), idle).await;
    let within = format!("within {} ms", idle.as_millis());
    let kept = exchange.blocks().iter().find(|block| block.at > since).cloned();
    seen.note(format!("GET, and nothing for {} ms", idle.as_millis()), &exchange);
    exchange.cut();
    match kept {
        None => {
            let what = if exchange.is_over() { "it ends" } else { "no byte" };
            warn(format!("{what} {within}: proxies cut silent connections"))
        }
        Some(kept) if !kept.is_event() => ok(format!("a comment comes {within}")),
        Some(kept) if kept.id.is_none() && !kept.has_data() => {
            warn("an event without id and data keeps it alive: clients may fail on it")
        }
        Some(_) => ok(format!("an event comes {within}")),
    }
}
