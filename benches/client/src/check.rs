//! What a call must have received, judged over all the connections it took.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;

use crate::http::Result;
use crate::sse::Events;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    id: Option<u64>,
    #[serde(borrow)]
    params: Option<Progress<'a>>,
    #[serde(borrow)]
    result: Option<CallResult<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress<'a> {
    progress_token: u64,
    progress: f64,
    total: Option<f64>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallResult<'a> {
    #[serde(borrow)]
    content: Vec<Content<'a>>,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// One tool call as it should come back: `total` progress events counting from 1, then the text.
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) total: usize,
    pub(crate) message_bytes: Option<usize>,
    pub(crate) text: String,
}

/// Check the connections of one call, in their order. Every event has an id, none repeats, nothing is missing.
pub(crate) fn check(call: &Call, connections: &[&Events]) -> Result<()> {
    let mut seen: HashSet<&[u8]> = HashSet::with_capacity(call.total + 8);
    let mut progress = 0;
    let mut finished = false;
    for events in connections {
        for event in &events.events {
            let id = events.id(event);
            if id.is_empty() {
                return Err(format!("call {}: an event without an id", call.id).into());
            }
            if !seen.insert(id) {
                return Err(format!("call {}: id {} came twice", call.id, String::from_utf8_lossy(id)).into());
            }
            let data = events.data(event);
            if data.is_empty() {
                continue; // a priming event
            }
            if finished {
                return Err(format!("call {}: an event after the response", call.id).into());
            }
            let message: Message<'_> = serde_json::from_slice(data)
                .map_err(|e| format!("call {}: {e}: {}", call.id, String::from_utf8_lossy(data)))?;
            if message.method.is_some() {
                progress += 1;
                check_progress(call, &message, progress)?;
            } else {
                check_result(call, &message)?;
                finished = true;
            }
        }
    }
    if !finished {
        return Err(format!("call {}: no response after {progress} progress events", call.id).into());
    }
    if progress != call.total {
        return Err(format!("call {}: {progress} of {} progress events", call.id, call.total).into());
    }
    Ok(())
}

fn check_progress(call: &Call, message: &Message<'_>, expected: usize) -> Result<()> {
    let right = message.method.as_deref() == Some("notifications/progress")
        && message.params.as_ref().is_some_and(|params| {
            params.progress_token == call.id
                && params.progress == expected as f64
                && params.total == Some(call.total as f64)
                && call.message_bytes.is_none_or(|bytes| {
                    params.message.as_ref().is_some_and(|m| m.len() == bytes && m.bytes().all(|b| b == b'x'))
                })
        });
    if right { Ok(()) } else { Err(format!("call {}: progress {expected} is missing or wrong", call.id).into()) }
}

fn check_result(call: &Call, message: &Message<'_>) -> Result<()> {
    let right = message.id == Some(call.id)
        && message.result.as_ref().is_some_and(|result| {
            !result.is_error && result.content.len() == 1 && result.content[0].text == call.text.as_str()
        });
    if right { Ok(()) } else { Err(format!("call {}: the response is wrong", call.id).into()) }
}

/// The text of a response whose value is not known beforehand (`completed`).
pub(crate) fn result_text(events: &Events) -> Result<String> {
    let event = events.events.last().ok_or("no event")?;
    let message: Message<'_> = serde_json::from_slice(events.data(event))?;
    let content = message.result.ok_or("no result")?.content;
    Ok(content.into_iter().next().ok_or("no content")?.text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(wire: &str) -> Events {
        let mut events = Events::default();
        events.text.extend_from_slice(wire.as_bytes());
        events.advance().unwrap();
        events
    }

    fn progress(id: u32, n: u32) -> String {
        format!(
            "id: {id}\ndata: {{\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":7,\"progress\":{n},\"total\":2}}}}\n\n"
        )
    }

    const DONE: &str = "id: 9\ndata: {\"id\":7,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\n";

    fn verdict(parts: &[String]) -> Option<String> {
        let call = Call { id: 7, total: 2, message_bytes: None, text: "done".into() };
        let connections: Vec<Events> = parts.iter().map(|p| events(p)).collect();
        check(&call, &connections.iter().collect::<Vec<_>>()).err().map(|e| e.to_string())
    }

    #[test]
    fn a_call_over_two_connections_is_right() {
        assert_eq!(verdict(&[progress(1, 1), "id: 2\ndata: \n\n".to_owned() + &progress(3, 2) + DONE]), None);
    }

    #[test]
    fn loss_repeats_and_silence_are_found() {
        assert!(verdict(&[progress(1, 1), DONE.into()]).unwrap().contains("1 of 2"));
        assert!(verdict(&[progress(1, 2), DONE.into()]).unwrap().contains("missing or wrong"));
        assert!(verdict(&[progress(1, 1), progress(1, 1)]).unwrap().contains("twice"));
        assert!(verdict(&[progress(1, 1), progress(3, 2)]).unwrap().contains("no response"));
        assert!(verdict(&[progress(1, 1), progress(3, 2), DONE.replace("done", "gone")]).is_some());
        assert!(verdict(&[DONE.into(), progress(1, 1)]).unwrap().contains("after the response"));
    }
}
