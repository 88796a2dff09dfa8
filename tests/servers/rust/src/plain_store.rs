//! The simplest event store that rmcp's own session manager accepts: a list for each stream, and a look-up by id. One object for all
//! sessions, as a database would be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::store::{EventId, EventStore, EventStoreError, EventStream};

#[derive(Default)]
pub(crate) struct PlainStore {
    /// Events that a stream keeps; all where there is none.
    cap: Option<usize>,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    /// The events of each stream, with their numbers.
    streams: HashMap<Arc<str>, Vec<(usize, ServerSseMessage)>>,
    /// The stream of each event, by its number.
    stream_of: Vec<Arc<str>>,
}

impl PlainStore {
    pub(crate) fn new(cap: Option<usize>) -> Self {
        Self { cap, ..Self::default() }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many events it has.
    pub(crate) fn count(&self) -> usize {
        self.rows().streams.values().map(Vec::len).sum()
    }

    /// Loses everything.
    pub(crate) fn forget(&self) {
        self.rows().streams.clear();
    }
}

#[async_trait::async_trait]
impl EventStore for PlainStore {
    async fn store_event(&self, stream_id: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let rows = &mut *self.rows();
        let name = rows.streams.get_key_value(stream_id).map_or_else(|| stream_id.into(), |(name, _)| Arc::clone(name));
        let stream = rows.streams.entry(Arc::clone(&name)).or_default();
        let number = rows.stream_of.len();
        stream.push((number, event.clone()));
        if self.cap.is_some_and(|cap| stream.len() > cap) {
            stream.remove(0);
        }
        rows.stream_of.push(name);
        Ok(number.to_string())
    }

    async fn replay_events_after(&self, last_event_id: &str) -> Result<EventStream, EventStoreError> {
        let rows = self.rows();
        let last: usize = last_event_id.parse()?;
        let kept = rows.stream_of.get(last).and_then(|name| rows.streams.get(name)).ok_or("no such event")?;
        let from = kept.partition_point(|(number, _)| *number <= last);
        let numbered = |(number, event): &(usize, _)| {
            let mut event: ServerSseMessage = Clone::clone(event);
            event.event_id = Some(number.to_string());
            event
        };
        let events: Vec<_> = kept[from..].iter().map(numbered).collect();
        Ok(Box::pin(stream::iter(events)))
    }
}
