//! What a client gets that was away while the response was made.

use std::rc::Rc;

use crate::facts::{Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled, shown_type, warn};
use crate::session::Run;
use crate::wire::Exchange;

pub(super) async fn resume_finished(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let run = facts.finished().await?;
    let last = run.last();
    seen.note(format!("POST {}, cut after the first id", facts.source().await?), &run.first());
    seen.note("GET from there", &last);
    settled(&last).await;
    if !last.is_stream() {
        return fault(format!("the resume is answered {}", shown_type(&last)));
    }
    if last.has_response() { ok("the response is sent") } else { fault("the response is not sent again") }
}

async fn resumed(facts: &Facts) -> Found<Rc<Run>> {
    let run = facts.finished().await?;
    if !run.last().has_response() {
        return not_checked("no resume brings the response");
    }
    Ok(run)
}

pub(super) async fn resume_ends(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let last = resumed(facts).await?.last();
    last.over(facts.timeout()).await;
    seen.note("GET from the first id", &last);
    last.cut();
    super::ends::judged_end(&last)
}

fn data(exchange: &Exchange) -> Vec<String> {
    exchange.events().iter().filter(|event| event.has_data()).filter_map(|event| event.data.clone()).collect()
}

pub(super) async fn resume_again(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let run = resumed(facts).await?;
    let wanted = data(&run.last());
    let again = run.session.get(run.first_id().as_deref(), run.stream()).await?;
    again.answered(facts.timeout()).await;
    seen.note("GET from the first id, once more", &again);
    settled(&again).await;
    again.cut();
    if data(&again) == wanted {
        ok("the same is sent again")
    } else {
        fault("the second time it does not bring the same")
    }
}

pub(super) async fn resume_at_end(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let run = resumed(facts).await?;
    let Some(cursor) = run.last().response().and_then(|response| response.id.clone()) else {
        return not_checked("the response has no id");
    };
    let exchange = run.session.get(Some(&cursor), run.stream()).await?;
    exchange.over(facts.timeout()).await;
    seen.note("GET with the id of the response", &exchange);
    exchange.cut();
    let is_stream = exchange.is_stream();
    match exchange.status {
        404 => fault("404: clients take their session for lost"),
        _ if is_stream && exchange.events().iter().any(|event| event.has_data()) => {
            fault("a message after the last one")
        }
        _ if !exchange.is_over() => fault("the connection stays open, though nothing can come"),
        _ if is_stream => warn("200 and an end: clients that come back after the response ask again"),
        status @ (204 | 400..500) => ok(status.to_string()),
        _ => fault(format!("answered {}", shown_type(&exchange))),
    }
}
