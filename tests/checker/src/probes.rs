//! Answers to cursors that are not the session's (I7).

use std::collections::BTreeMap;

use crate::connection::Connection;
use crate::fact::{By, Probe};

/// An answer without what may differ.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: Option<u16>,
    headers: Vec<String>,
    body: String,
}

fn answer(connection: &Connection) -> Answer {
    let names = connection.headers.keys().map(|name| name.to_ascii_lowercase());
    let headers = names.filter(|name| name != "date" && name != "content-length").collect();
    let body = String::from_utf8_lossy(&connection.body);
    let blank = |line: &str| if line.starts_with("id:") { "id: *".to_owned() } else { line.to_owned() };
    let body = body.lines().map(blank).collect::<Vec<_>>().join("\n");
    Answer { status: connection.status, headers, body }
}

/// The first probe of each pair whose answer differs from that of the first probe before it.
pub(crate) fn differing(connections: &[Connection]) -> Vec<(usize, String)> {
    let mut first: BTreeMap<(usize, &str, &str), (usize, Answer)> = BTreeMap::new();
    let mut found = Vec::new();
    for (at, connection) in connections.iter().enumerate() {
        // One that broke tells nothing, and no server that has a fault.
        let is_broken = connection.closed.is_none_or(|(by, _)| by == By::Fault);
        if connection.open.probe == Probe::Own || is_broken || connection.status.is_some_and(|status| status >= 500) {
            continue;
        }
        let pair = connection.open.pair.as_deref().unwrap_or_default();
        let key = (connection.session, pair, connection.open.method.as_str());
        let this = answer(connection);
        match first.get(&key) {
            None => {
                first.insert(key, (at, this));
            }
            Some((before, answer)) if *answer != this => {
                let other = &connections[*before].open.connection;
                let what = if answer.status != this.status {
                    format!("status {:?} instead of {:?}", this.status, answer.status)
                } else if answer.headers != this.headers {
                    format!("headers {:?} instead of {:?}", this.headers, answer.headers)
                } else {
                    "another body".to_owned()
                };
                found.push((at, format!("answered differently from {other}: {what}")));
            }
            Some(_) => {}
        }
    }
    found
}
