//! How connections and sessions end, and what was seen of ids on the way.

use std::collections::HashMap;

use crate::facts::{Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled};
use crate::session::Stream;
use crate::wire::{Exchange, State};

/// Of a connection that has brought the response.
pub(super) fn judged_end(exchange: &Exchange) -> Found<Outcome> {
    if exchange.state() == State::End { ok("ends after the response") } else { fault("the connection stays open") }
}

pub(super) async fn unique_ids(facts: &Facts) -> Found<Outcome> {
    facts.resumable().await?;
    let mut owners: HashMap<String, (Stream, String)> = HashMap::new();
    for (stream, exchange) in facts.first().await?.read() {
        for event in exchange.events() {
            let Some(id) = event.id.clone() else { continue };
            let data = event.content();
            let (known_stream, known) = owners.entry(id).or_insert_with(|| (stream, data.clone()));
            if *known_stream != stream {
                return fault("one id on two streams of a session");
            }
            if !data.is_empty() && !known.is_empty() && data != *known {
                return fault("one id on two messages");
            }
        }
    }
    ok("each id belongs to one stream, and to one message at most")
}

pub(super) async fn unknown_session(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let session = facts.first().await?;
    let stranger = facts.stranger(Some(made_up_id()), session.revision());
    let answer = stranger.request(1, "ping").await?;
    seen.note("POST ping with a made-up session id", &answer);
    settled(&answer).await;
    if answer.status == 404 {
        ok("404")
    } else {
        fault(format!("{}, not 404: clients do not begin anew", answer.status))
    }
}

/// In the form of a UUID, which is what most servers give.
fn made_up_id() -> String {
    let mut bytes = [0; 16];
    // A fixed one is as unknown.
    let _ = getrandom::fill(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

pub(super) async fn session_end(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let session = facts.first().await?;
    let answer = session.delete().await?;
    seen.note("DELETE", &answer);
    settled(&answer).await;
    if answer.status == 405 {
        return not_checked("clients may not end sessions");
    }
    if !(200..300).contains(&answer.status) {
        return fault(format!("DELETE is answered {}", answer.status));
    }
    let posted = session.request(facts.next_id(), "ping").await?;
    seen.note("POST ping after it", &posted);
    settled(&posted).await;
    let got = session.get(None, None).await?;
    seen.note("GET after it", &got);
    settled(&got).await;
    for exchange in [posted, got] {
        exchange.cut();
        if exchange.status != 404 {
            return fault(format!("{}, not 404, after the end", exchange.status));
        }
    }
    ok("404 after the end")
}
