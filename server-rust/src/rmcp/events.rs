//! A connection of the engine as the stream that rmcp writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tailrope_core::engine::{self, Chunk};
use tailrope_core::protocol::{Decoder, Item, Refusal, jsonrpc, sse};

use crate::pages::Pages;
use crate::rmcp::messages::opaque;

/// Reads a log as rmcp takes events. Comments are rmcp's own, so the engine's are left out, and so is the word of a gap.
pub(crate) struct EventStream {
    pages: Pages,
    decoder: Decoder,
    retry: Option<Duration>,
    ready: VecDeque<ServerSseMessage>,
    has_ended: bool,
}

impl EventStream {
    pub(crate) fn new(pages: Pages) -> Self {
        Self { pages, decoder: Decoder::new(usize::MAX), retry: None, ready: VecDeque::new(), has_ended: false }
    }

    /// Waits for the first page.
    ///
    /// # Errors
    /// It is no answer but a refusal.
    pub(crate) async fn begun(mut self) -> Result<Self, Refusal> {
        let page = self.pages.next().await;
        if let Some(head) = page.head.filter(|head| head.is_refusal) {
            let why = "the process that has the session did not take the request";
            return Err(Refusal::new(head.status, jsonrpc::INTERNAL_ERROR, why));
        }
        self.take(&page);
        Ok(self)
    }

    fn take(&mut self, page: &engine::Poll) {
        self.has_ended = page.end.is_some();
        for chunk in &page.chunks {
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
        event.message = Some(data).filter(|data| !data.is_empty()).and_then(opaque).map(Arc::new);
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
        while self.ready.is_empty() && !self.has_ended {
            let page = ready!(self.pages.poll(cx));
            self.take(&page);
        }
        Poll::Ready(self.ready.pop_front())
    }
}
