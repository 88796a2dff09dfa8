//! How a session begins, and what the answer to one request looks like.

use serde_json::json;

use crate::facts::{Evidence, Facts, Found, Opening, Outcome, fault, not_checked, ok, settled, shown_type, warn};
use crate::session::{MODERN, NEWEST, OLDER};

pub(super) async fn initialize(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let Opening { session, initialize, initialized } = facts.opening().await?;
    seen.note(format!("POST initialize, {}", NEWEST.as_str()), &initialize);
    settled(&initialize).await;
    seen.note("POST notifications/initialized", &initialized);
    let (id, newest) = (session.id(), NEWEST.as_str());
    if id.as_deref().is_some_and(|id| !id.bytes().all(|byte| byte.is_ascii_graphic())) {
        return fault("the session id has characters outside of visible ASCII");
    }
    if initialized.status != 202 {
        return fault(format!("notifications/initialized is answered {}, not 202", initialized.status));
    }
    if !session.is_of(NEWEST) {
        return warn(format!("{}: not the revision that this checks", session.shown_revision()));
    }
    if id.is_none() {
        return warn(format!("{newest}, without a session id: nothing can be resumed"));
    }
    ok(newest)
}

pub(super) async fn newer_revision(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.opening().await?;
    let modern = MODERN.as_str();
    let exchange = facts.ask("server/discover", json!({}), false).await?;
    seen.note(format!("POST server/discover, {modern}"), &exchange);
    if exchange.json().contains_key("result") {
        return warn(format!("{modern} is served too: clients that prefer it lose their calls with their connections"));
    }
    ok(format!("{modern} is not served"))
}

pub(super) async fn ping(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let exchange = facts.ping().await?;
    seen.note("POST ping", &exchange);
    if exchange.json().contains_key("result") { ok(shown_type(&exchange)) } else { fault("no result") }
}

pub(super) async fn priming(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let run = facts.short().await?;
    seen.note(format!("POST {}", facts.source().await?), &run.last());
    if !run.session.is_of(NEWEST) {
        return not_checked(format!("revision {} has no priming", run.session.shown_revision()));
    }
    let events = run.events();
    if events.iter().any(|event| event.id.is_some() && event.data.is_none()) {
        return fault("an id comes without a data line: clients do not count such an event");
    }
    if run.first_id().is_none() {
        return warn("no event has an id: nothing can be resumed");
    }
    let Some(first) = events.first().filter(|first| first.is_priming()) else {
        return fault(
            "the stream does not start with an id and empty data: what is lost before the first message is lost",
        );
    };
    if first.retry_ms.is_none() {
        return warn("no retry: clients do not know how long to wait");
    }
    ok("an id, a retry and empty data come first")
}

pub(super) async fn priming_older(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.short().await?;
    let session = facts.older(OLDER).await?;
    if session.is_of(NEWEST) {
        return not_checked(format!("{} is answered with {}", OLDER.as_str(), NEWEST.as_str()));
    }
    let exchange = facts.begin(&session, 1).await?.last();
    seen.note(format!("POST {}, {}", facts.source().await?, session.shown_revision()), &exchange);
    exchange.answered(facts.patience()).await;
    settled(&exchange).await;
    if exchange.events().iter().any(|event| event.data.as_deref() == Some("")) {
        return fault("an event with empty data: clients of that revision cannot parse it");
    }
    ok("no event with empty data")
}

pub(super) async fn answer_ends(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let run = facts.short().await?;
    seen.note(format!("POST {}", facts.source().await?), &run.last());
    if run.response().is_none() {
        return fault("no response");
    }
    super::ends::judged_end(&run.last())
}
