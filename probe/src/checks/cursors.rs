//! Cursors that name nothing, and cursors of another session, which have to look the same.

use std::rc::Rc;

use tokio::join;

use super::standalone;
use crate::facts::{Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled, shown_type};
use crate::session::{Run, Session};
use crate::wire::{Exchange, is_marked};

const MADE_UP: &str = "tailrope-probe-made-up";
/// 4xx that say that it may be otherwise the next time.
const PASSING: [u16; 4] = [408, 409, 425, 429];
/// Headers whose values are compared. Of others it is compared whether they are there.
const COMPARED: [&str; 5] = ["content-type", "content-length", "cache-control", "www-authenticate", "allow"];
/// Headers that differ from answer to answer, or from host to host of one fleet: they say nothing.
const ANEW: [&str; 8] =
    ["date", "server", "mcp-session-id", "x-request-id", "set-cookie", "cf-ray", "server-timing", "x-response-time"];

/// An id of the same form that was never given: letters and digits of its first half are others.
fn like(cursor: &str) -> String {
    let chars: Vec<char> = cursor.chars().collect();
    if chars.len() < 8 {
        return "9".repeat(9);
    }
    let changed = |(at, char): (usize, &char)| if (1..chars.len() / 2).contains(&at) { other(*char) } else { *char };
    chars.iter().enumerate().map(changed).collect()
}

fn other(char: char) -> char {
    let turned = |first: u8, size: u8| {
        let from_first = u32::from(char) - u32::from(first);
        char::from(first + ((from_first + u32::from(size) / 2) % u32::from(size)) as u8)
    };
    match char {
        'a'..='z' => turned(b'a', 26),
        'A'..='Z' => turned(b'A', 26),
        '0'..='9' => turned(b'0', 10),
        _ => char,
    }
}

/// Whether a client that waits for something sees that nothing will come.
fn judged(exchange: &Exchange) -> Found<Outcome> {
    match exchange.status {
        404 => fault("404: clients take their session for lost"),
        status if PASSING.contains(&status) || status >= 500 => {
            fault(format!("{status}: clients take it for something that passes, and ask again"))
        }
        status @ 400..500 => ok(status.to_string()),
        _ if !exchange.is_stream() => {
            fault(format!("{}: no client takes that for the end of its call", shown_type(exchange)))
        }
        _ if exchange.json().contains_key("result") => ok("200 and a response"),
        _ if exchange.has_response() => ok("200 and a JSON-RPC error"),
        _ if exchange.is_over() => fault("200 and nothing: clients ask for ever"),
        _ if exchange.first_id().is_some() => ok("200 and a stream that goes on"),
        _ => fault("200 and silence: clients wait for ever"),
    }
}

async fn unknown(facts: &Facts, seen: &Evidence, what: &str, cursor: &str) -> Found<Outcome> {
    let exchange = facts.first().await?.get(Some(cursor), None).await?;
    seen.note(what, &exchange);
    settled(&exchange).await;
    exchange.cut();
    judged(&exchange)
}

pub(super) async fn made_up_cursor(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.resumable().await?;
    unknown(facts, seen, &format!("GET, Last-Event-ID: {MADE_UP}"), MADE_UP).await
}

pub(super) async fn lost_cursor(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let cursor = facts.resumable().await?.first_id().unwrap_or_default();
    unknown(facts, seen, "GET with an id of the server's form that it never gave", &like(&cursor)).await
}

/// The same request under the same id in two sessions, both cut, both over, both resumed.
async fn neighbours(facts: &Facts) -> Found<(Rc<Run>, Rc<Run>)> {
    let find = || async {
        facts.resumable().await?;
        let (one, other) = (facts.first().await?, facts.second().await?);
        let id = facts.next_id();
        let runs = (facts.missed(&one, id).await?, facts.missed(&other, id).await?);
        for run in [&runs.0, &runs.1] {
            run.resume().await?.answered(facts.patience()).await;
        }
        // What does not belong there may come after the response.
        let (one, other) = (runs.0.last(), runs.1.last());
        join!(settled(&one), settled(&other));
        one.cut();
        other.cut();
        Ok(runs)
    };
    facts.neighbours.get_or_init(find).await.clone()
}

pub(super) async fn isolation(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let (one, other) = neighbours(facts).await?;
    let source = facts.source().await?;
    for (run, other) in [(&one, &other), (&other, &one)] {
        let last = run.last();
        seen.note(format!("POST {source} in session {}, cut; GET from its first id", run.session.name), &last);
        let responses = last.events().iter().filter(|event| event.is_response()).count();
        if responses > 1 {
            return fault(format!("{responses} responses to one request: those of another session came too"));
        }
        if has_marked(&last, &other.session) {
            return fault("messages of the other session came too");
        }
    }
    ok("each gets its own")
}

/// Whether there is something in it that belongs to this session.
fn has_marked(exchange: &Exchange, owner: &Session) -> bool {
    exchange.events().iter().any(|event| is_marked(event.data.as_deref().unwrap_or_default(), owner.name))
}

/// What another client could compare: the ids, and what proxies and hosts add, are left out.
fn visible(exchange: &Exchange, cursor: &str) -> [(&'static str, String); 3] {
    let mut headers: Vec<String> =
        exchange.headers().map(|(name, _)| name.to_owned()).filter(|name| !ANEW.contains(&name.as_str())).collect();
    headers.sort_unstable();
    headers.extend(COMPARED.iter().filter_map(|name| exchange.header(name).map(|value| format!("{name}: {value}"))));
    let body = if exchange.is_stream() {
        let line =
            |event: &Rc<crate::wire::Block>| format!("{} {:?} {:?}\n", event.id.is_some(), event.retry_ms, event.data);
        exchange.events().iter().map(line).collect()
    } else {
        exchange.text()
    };
    let body = format!("{:?} {}", exchange.state(), body.replace(cursor, "*"));
    [("status", exchange.status.to_string()), ("headers", headers.join("\n")), ("body", body)]
}

/// A foreign id and one that never was have to look alike.
async fn same(seen: &Evidence, session: &Session, foreign: &str, what: String, owner: &Session) -> Found<Outcome> {
    let unknown = like(foreign);
    let mut answers = Vec::new();
    for (cursor, what) in [(foreign, what), (unknown.as_str(), "GET with an unknown one".to_owned())] {
        let exchange = session.get(Some(cursor), None).await?;
        seen.note(what, &exchange);
        settled(&exchange).await;
        exchange.cut();
        answers.push((visible(&exchange, cursor), exchange));
    }
    let (foreign, unknown) = (&answers[0], &answers[1]);
    let has_result =
        |message: &crate::wire::Block| message.message.as_ref().is_some_and(|it| it.contains_key("result"));
    if foreign.1.events().iter().any(|event| event.is_response() && has_result(event)) {
        return fault("another session's response is sent");
    }
    if has_marked(&foreign.1, owner) {
        return fault("another session's messages are sent");
    }
    for ((name, one), (_, other)) in foreign.0.iter().zip(&unknown.0) {
        if one != other {
            let was = if *name == "status" { format!(": {one}, not {other}") } else { String::new() };
            return fault(format!("a foreign id is told from an unknown one by its {name}{was}"));
        }
    }
    ok(format!("both are answered {}", shown_type(&foreign.1)))
}

fn differing<T>(session: &Session, cursor: &str, then: T) -> Found<T> {
    if session.given_ids().contains(cursor) {
        return not_checked("both sessions were given the same ids");
    }
    Ok(then)
}

pub(super) async fn foreign_cursor(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let (one, other) = neighbours(facts).await?;
    let cursor = one.first_id().unwrap_or_default();
    differing(&other.session, &cursor, ())?;
    let what = "GET in session b with an id of session a".to_owned();
    same(seen, &other.session, &cursor, what, &one.session).await
}

pub(super) async fn foreign_standalone(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let cursor = standalone::cursor(facts).await?;
    let other = facts.second().await?;
    differing(&other, &cursor, ())?;
    let what = "GET in session b with an id of session a's standalone stream".to_owned();
    same(seen, &other, &cursor, what, &*facts.first().await?).await
}

pub(super) async fn foreign_running(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.long().await?;
    let other = facts.second().await?;
    let run = super::live::begun(facts).await?;
    let cursor = run.last_id().unwrap_or_default();
    differing(&other, &cursor, ())?;
    let what = "GET in session b with an id of session a's running call".to_owned();
    let outcome = same(seen, &other, &cursor, what, &run.session).await?;
    let ended = run.finish(facts.patience()).await;
    match ended {
        Err(problem) if outcome.kind == crate::facts::Kind::Ok => fault(format!("the call is disturbed: {problem}")),
        _ => Ok(outcome),
    }
}
