//! A connection of the engine as the stream that rmcp writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tailrope_core::engine::Chunk;
use tailrope_core::protocol::{Decoder, Item, Refusal, jsonrpc, sse};

use crate::pages::Pages;
use crate::rmcp::lean;
use crate::rmcp::messages::opaque;
use crate::source::Source;

/// Reads a log as rmcp takes events. Comments are rmcp's own, so the engine's are left out, and so is the word of a gap.
pub(crate) struct EventStream {
    source: Source,
    decoder: Decoder,
    retry: Option<Duration>,
    ready: VecDeque<ServerSseMessage>,
}

impl EventStream {
    pub(crate) fn new(pages: Pages) -> Self {
        Self::of(Source::new(Vec::new(), Some(pages)))
    }

    fn of(source: Source) -> Self {
        Self { source, decoder: Decoder::new(usize::MAX), retry: None, ready: VecDeque::new() }
    }

    /// Waits for the first page.
    ///
    /// # Errors
    /// It is no answer but a refusal.
    pub(crate) async fn begun(mut pages: Pages) -> Result<Self, Refusal> {
        let page = pages.next().await;
        if let Some(head) = page.head.filter(|head| head.is_refusal) {
            let why = "the process that has the session did not take the request";
            return Err(Refusal::new(head.status, jsonrpc::INTERNAL_ERROR, why));
        }
        Ok(Self::of(Source::new(page.chunks, page.end.is_none().then_some(pages))))
    }

    fn take(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            let stored = if let Chunk::Shared(frame) = chunk { stored(frame) } else { None };
            if let Some((id, data)) = stored {
                self.push(Some(id.to_owned()), data);
            } else {
                self.decoder.push(chunk.as_ref());
                self.read();
            }
        }
        // A block that tells nothing else, as the last word of a connection that is closed.
        self.ready.extend(self.retry.take().map(ServerSseMessage::retry));
    }

    fn read(&mut self) {
        // The engine wrote it, so nothing is too large.
        while let Ok(Some(item)) = self.decoder.next() {
            let (id, data) = match item {
                Item::Comment(_) => continue,
                Item::Retry(ms) => {
                    self.retry = Some(Duration::from_millis(ms));
                    continue;
                }
                Item::Cursor(id) => (Some(id), String::new()),
                Item::Event(event) => (event.id, event.data),
            };
            self.push(id, &data);
        }
    }

    fn push(&mut self, id: Option<String>, data: &str) {
        let mut event = ServerSseMessage::default();
        (event.event_id, event.retry) = (id, self.retry.take());
        // A cursor alone has no message.
        let message = Some(data).filter(|data| !data.is_empty());
        event.message = message.and_then(|json| lean::read_progress(json).or_else(|| opaque(json))).map(Arc::new);
        self.ready.push_back(event);
    }
}

/// The id and the data of an event of the log.
fn stored(frame: &[u8]) -> Option<(&str, &str)> {
    let (id, data) = sse::message_of(frame)?;
    Some((str::from_utf8(id).ok()?, str::from_utf8(data).ok()?))
}

impl Stream for EventStream {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerSseMessage>> {
        while self.ready.is_empty() {
            let Some(chunks) = ready!(self.source.poll(cx)) else { return Poll::Ready(None) };
            self.take(&chunks);
        }
        Poll::Ready(self.ready.pop_front())
    }
}
