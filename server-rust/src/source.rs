//! What a connection carries, and how much of it leaves in one write.

use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tailrope_core::engine::Chunk;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::pages::Pages;

/// An event that comes less than this after a write waits until the time is over: a write costs more than the event in
/// it.
const PAUSE: Duration = Duration::from_millis(1);
/// How many polls a connection gives away if it is woken during the pause. So the other tasks run before it looks, and
/// a handler that sends without a pause has sent more by then. It is two because hyper polls twice in a turn of HTTP/1.
const STEPS_BACK: u32 = 2;
/// After this many looks within pauses that have each found events, the next pause is slept through: to be woken for each event
/// costs more than the events. The end waits for that pause, too.
const CROWDED: u32 = 16;
/// A stream is not crowded any more when it had nothing to write for this long.
const QUIET: Duration = Duration::from_millis(5);
/// With this many bytes, nothing waits any longer.
const WRITE_BYTES: usize = 16 << 10;

/// The events of a connection. Events that follow each other closely leave in one write. The end does not wait for the
/// pause.
pub(crate) struct Source {
    pages: Option<Pages>,
    /// To be written with what comes next.
    held: Vec<Chunk>,
    held_bytes: usize,
    /// When something was last given out to be written; none before the first time.
    written: Option<Instant>,
    /// Polls that may still be given away before the next look.
    steps_back: u32,
    /// Looks within pauses that have found events, since the stream was quiet.
    crowd: u32,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Source {
    /// Carries `first`, and then what `pages` has.
    pub(crate) fn new(first: Vec<Chunk>, pages: Option<Pages>) -> Self {
        let held_bytes = bytes_of(&first);
        Self { pages, held: first, held_bytes, written: None, steps_back: 0, crowd: 0, timer: None }
    }

    pub(crate) fn over() -> Self {
        Self::new(Vec::new(), None)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.pages.is_none() && self.held_bytes == 0
    }

    /// The size of what is left, if it is known.
    pub(crate) fn size(&self) -> Option<usize> {
        self.pages.is_none().then_some(self.held_bytes)
    }

    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll(cx).map(|chunks| chunks.map(joined))
    }

    /// What is to be written next, all of it together; none when the connection is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Chunk>>> {
        let pause = self.written.map(|written| written + PAUSE).filter(|due| Instant::now() < *due);
        if self.written.is_some_and(|written| written.elapsed() > QUIET) {
            self.crowd = 0;
        }
        if let Some(due) = pause.filter(|_| self.crowd >= CROWDED && self.held_bytes < WRITE_BYTES) {
            ready!(self.timer_at(due).poll(cx));
        }
        if pause.is_some() && self.steps_back > 0 && self.pages.as_ref().is_some_and(Pages::is_woken) {
            self.steps_back -= 1;
            // The first poll of `yield_now` has this task woken after the others have run.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        while self.held_bytes < WRITE_BYTES
            && let Some(pages) = &mut self.pages
        {
            let Poll::Ready(page) = pages.poll(cx) else {
                self.steps_back = STEPS_BACK;
                break;
            };
            if page.end.is_some() {
                self.pages = None;
            }
            self.crowd = self.crowd.saturating_add(u32::from(pause.is_some() && !page.chunks.is_empty()));
            self.held_bytes += bytes_of(&page.chunks);
            self.held.extend(page.chunks);
        }
        if self.held_bytes == 0 {
            // While there is nothing to write, no timer is kept.
            self.timer = None;
            return if self.pages.is_none() { Poll::Ready(None) } else { Poll::Pending };
        }
        let Some(due) = pause.filter(|_| self.pages.is_some() && self.held_bytes < WRITE_BYTES) else {
            return Poll::Ready(Some(self.take()));
        };
        self.timer_at(due).poll(cx).map(|()| Some(self.take()))
    }

    fn timer_at(&mut self, due: Instant) -> Pin<&mut Sleep> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut()
    }

    fn take(&mut self) -> Vec<Chunk> {
        self.held_bytes = 0;
        self.written = Some(Instant::now());
        mem::take(&mut self.held)
    }
}

fn bytes_of(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.as_ref().len()).sum()
}

fn joined(mut chunks: Vec<Chunk>) -> Bytes {
    if chunks.len() > 1 {
        let mut bytes = Vec::with_capacity(bytes_of(&chunks));
        chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk.as_ref()));
        return bytes.into();
    }
    match chunks.pop() {
        Some(Chunk::Own(bytes)) => bytes.into(),
        Some(Chunk::Shared(bytes)) => Bytes::from_owner(bytes),
        None => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use tailrope_core::engine::{Engine, NoWake, Options, OutgoingMessage, SessionHandle};
    use tailrope_core::protocol::{Dialect, RequestId, Revision};
    use tokio::time::advance;

    use super::*;
    use crate::host::Host;

    fn notify(session: &SessionHandle) {
        let message = br#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
        session.send(OutgoingMessage::notification(Some(&RequestId::integer(1)), message)).unwrap();
    }

    /// How many events would be written now.
    async fn events(source: &mut Source) -> usize {
        match poll_fn(|cx| Poll::Ready(source.poll_bytes(cx))).await {
            Poll::Ready(bytes) => String::from_utf8_lossy(&bytes.unwrap()).matches("notifications/message").count(),
            Poll::Pending => 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_crowded_stream_wake_nobody_until_they_are_written_together() {
        let host = Host::new(Engine::new(Options::default()));
        let session = host.engine.open_session("s", None, &Dialect::NEUTRAL, Arc::new(NoWake), 0).unwrap();
        session.assume_revision(Revision::V2025_11_25);
        let pages = Pages::open(&host, |signal| session.call(&[RequestId::integer(1)], None, signal, 0)).unwrap();
        let mut source = Source::new(Vec::new(), Some(pages));
        notify(&session);
        assert_eq!(events(&mut source).await, 1, "the first is written at once");
        let (mut sent, mut written) = (0, 0);
        // Each step back is a poll that looks at nothing.
        for _ in 0..CROWDED * (STEPS_BACK + 1) {
            notify(&session);
            sent += 1;
            written += events(&mut source).await;
        }
        assert_eq!(written, 0, "they wait for the end of the pause");
        advance(2 * PAUSE).await;
        written += events(&mut source).await;
        assert_eq!(written, sent);
        for _ in 0..3 {
            notify(&session);
            assert_eq!(events(&mut source).await, 0);
            assert!(source.pages.as_ref().is_some_and(Pages::is_woken), "nobody has looked");
            notify(&session);
            advance(2 * PAUSE).await;
            assert_eq!(events(&mut source).await, 2);
        }
        advance(2 * QUIET).await;
        notify(&session);
        assert_eq!(events(&mut source).await, 1, "one that follows nothing is written at once");
        session
            .send(OutgoingMessage::response(&RequestId::integer(1), br#"{"jsonrpc":"2.0","id":1,"result":{}}"#))
            .unwrap();
        let mut is_written = false;
        for _ in 0..=STEPS_BACK {
            is_written |= poll_fn(|cx| Poll::Ready(source.poll_bytes(cx))).await.is_ready();
        }
        assert!(is_written, "nor does an end wait");
    }
}
