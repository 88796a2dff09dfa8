//! A connection of the engine as the stream that rmcp writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::vec;

use futures_core::Stream;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tailrope_core::engine::Chunk;
use tailrope_core::protocol::{Decoder, Item, Refusal, jsonrpc, sse};

use crate::pages::Pages;
use crate::rmcp::lean;
use crate::rmcp::messages::opaque;
use crate::rmcp::recent::Recent;
use crate::source::Source;

/// Reads a log into the events that rmcp takes. rmcp writes the comments itself, so the engine's comments are left out,
/// also the one that announces a gap.
pub(crate) struct EventStream {
    source: Source,
    /// The message that was sent last, if the session is served in this process.
    recent: Option<Arc<Recent>>,
    /// Chunks that the source has given and that are not read yet.
    chunks: vec::IntoIter<Chunk>,
    decoder: Decoder,
    retry: Option<Duration>,
    ready: VecDeque<ServerSseMessage>,
}

impl EventStream {
    pub(crate) fn new(pages: Pages, recent: Option<Arc<Recent>>) -> Self {
        Self::of(Source::new(Vec::new(), Some(pages)), recent)
    }

    fn of(source: Source, recent: Option<Arc<Recent>>) -> Self {
        let (chunks, decoder) = (Vec::new().into_iter(), Decoder::new(usize::MAX));
        Self { source, recent, chunks, decoder, retry: None, ready: VecDeque::new() }
    }

    /// Waits for the first page.
    ///
    /// # Errors
    /// The answer is a refusal.
    pub(crate) async fn begun(mut pages: Pages) -> Result<Self, Refusal> {
        let page = pages.next().await;
        if let Some(head) = page.head.filter(|head| head.is_refusal) {
            let why = "the process that has the session did not take the request";
            return Err(Refusal::new(head.status, jsonrpc::INTERNAL_ERROR, why));
        }
        Ok(Self::of(Source::new(page.chunks, page.end.is_none().then_some(pages)), None))
    }

    fn read(&mut self, chunk: &Chunk) {
        // Most chunks are one of these two.
        match chunk {
            Chunk::Shared(frame) => {
                if let Some((id, data)) = stored(frame) {
                    return self.push(Some(id.to_owned()), data);
                }
            }
            Chunk::Own(block) => {
                if let Some((id, retry_ms)) = sse::priming_of(block) {
                    self.retry = retry_ms.map(|ms| Duration::from_millis(ms.into())).or(self.retry);
                    return self.push(Some(String::from_utf8_lossy(id).into_owned()), "");
                }
            }
        }
        self.decoder.push(chunk.as_ref());
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
        if !data.is_empty() {
            event.message = self.message(data);
        }
        self.ready.push_back(event);
    }

    fn message(&self, json: &str) -> Option<Arc<ServerJsonRpcMessage>> {
        let recent = self.recent.as_ref().and_then(|recent| recent.take(json));
        recent.or_else(|| lean::read_progress(json).or_else(|| opaque(json)).map(Arc::new))
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
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            if let Some(chunk) = self.chunks.next() {
                self.read(&chunk);
            } else if let Some(retry) = self.retry.take() {
                // A `retry` without an event: the last thing that a connection gets before it is closed.
                return Poll::Ready(Some(ServerSseMessage::retry(retry)));
            } else {
                let Some(chunks) = ready!(self.source.poll(cx)) else { return Poll::Ready(None) };
                self.chunks = chunks.into_iter();
            }
        }
    }
}
