//! All clients lose their connections in the middle of a call, and all come back at once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::check::{self, Call};
use crate::http::{Connection, Result};
use crate::measure::{Settings, percentile};
use crate::process::Meter;
use crate::session::{CALL_TIMEOUT, End, Session, next_id, read};
use crate::sse::Events;

/// How long each call takes: longer than it takes to begin them all.
const CALL_S: f64 = 8.0;
/// Calls that are begun at a time, so that the server's backlog is not what is measured.
const ABREAST: usize = 64;

/// A client that has read the first event of its call.
struct Away {
    session: Session,
    call: Call,
    before: Events,
}

/// What became of one client: how long it took from the loss to its first event, and whether it got all.
struct Back {
    took: Duration,
    verdict: Result<()>,
}

async fn begin(mut session: Session) -> Result<(Away, Connection)> {
    let call = Call { id: next_id(), total: 1, message_bytes: None, text: "done".into() };
    let mut connection = session.start(call.id, "wait", json!({"seconds": CALL_S})).await?;
    let mut before = Events::default();
    // The priming event, and the one that the call reports at once.
    while before.events.len() < 2 {
        if !connection.read_body(&mut before.text).await? || before.advance()? {
            return Err("herd: the call ended before its clients left".into());
        }
    }
    Ok((Away { session, call, before }, connection))
}

/// Comes back, and reads to the end of the call, however often its server ends a connection.
async fn come_back(away: Away, lost: Instant) -> Back {
    let Away { mut session, call, before } = away;
    let mut parts = vec![before];
    let mut took = None;
    let reading = async {
        loop {
            let cursor = parts.iter().rev().find_map(Events::last_id).ok_or("herd: no id to resume from")?.to_vec();
            let mut connection = session.get(Some(&cursor)).await?;
            let mut events = Events::default();
            let is_open = connection.read_body(&mut events.text).await?;
            took.get_or_insert_with(|| lost.elapsed());
            let end = if events.advance()? {
                End::Response
            } else if is_open {
                read(&mut connection, &mut events).await?
            } else {
                End::Closed
            };
            let retry_ms = events.retry_ms.unwrap_or(1_000);
            parts.push(events);
            if end == End::Response {
                return check::check(&call, &parts.iter().collect::<Vec<_>>());
            }
            sleep(Duration::from_millis(retry_ms)).await;
        }
    };
    let verdict = timeout(CALL_TIMEOUT, reading).await.unwrap_or_else(|_| Err("herd: a call without an end".into()));
    Back { took: took.unwrap_or_else(|| lost.elapsed()), verdict }
}

/// Begins a call in each of so many sessions, cuts all connections, and has all clients come back at once. No event may be
/// missing, and none may come twice.
pub(crate) async fn herd(set: Settings, sessions: usize) -> Result<Value> {
    let mut first = Session::open(set.port).await?;
    let mut opened = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        opened.push(first.open_beside().await?);
    }
    let start = Instant::now();
    let mut away = Vec::with_capacity(sessions);
    let mut opened = opened.into_iter();
    loop {
        let beginning: Vec<_> = opened.by_ref().take(ABREAST).map(|session| tokio::spawn(begin(session))).collect();
        if beginning.is_empty() {
            break;
        }
        for each in beginning {
            away.push(each.await??);
        }
    }
    let begun_s = start.elapsed().as_secs_f64();
    if begun_s > CALL_S {
        return Err(format!("herd: it took {begun_s:.1} s to begin the calls").into());
    }
    let mut meter = Meter::new(set.pid);
    let used = meter.start()?;
    let lost = Instant::now();
    // Every connection is gone before the first client comes back.
    let (clients, connections): (Vec<_>, Vec<_>) = away.into_iter().unzip();
    drop(connections);
    let clients: Vec<_> = clients.into_iter().map(|away| tokio::spawn(come_back(away, lost))).collect();
    let mut took = Vec::with_capacity(sessions);
    let (mut faults, mut first_fault) = (0, None);
    for client in clients {
        let back = client.await?;
        took.push(back.took);
        if let Err(fault) = back.verdict {
            faults += 1;
            first_fault.get_or_insert_with(|| fault.to_string());
        }
    }
    meter.stop(used)?;
    took.sort();
    let last = took.last().copied().unwrap_or_default();
    Ok(json!({"measure": "herd", "sessions": sessions, "count": took.len() - faults, "begun_s": begun_s,
        "p50_ms": percentile(&took, 50), "p99_ms": percentile(&took, 99), "last_ms": last.as_secs_f64() * 1e3,
        "cpu_us": meter.us_each(took.len()), "faults": faults, "first_fault": first_fault}))
}
