//! What a connection carries, and how much of it leaves in one write.

use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
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
    timer: Option<Pin<Box<Sleep>>>,
}

impl Source {
    /// Carries `first`, and then what `pages` has.
    pub(crate) fn new(first: Vec<Chunk>, pages: Option<Pages>) -> Self {
        let held_bytes = bytes_of(&first);
        Self { pages, held: first, held_bytes, written: None, steps_back: 0, timer: None }
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
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx).map(|()| Some(self.take()))
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
