//! The parts of an answer that the HTTP server was handed and has not written yet.
//!
//! While an HTTP server has enough to write, it asks the body for nothing. So the body could not end a connection whose
//! reader takes nothing. If connections have a maximum age, the body therefore hands out less than would be enough, in
//! parts. Then the server goes on asking, and it drops each part when the part is written.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

/// The size of a part, in bytes.
const PART_BYTES: usize = 64 << 10;
/// Parts that may be handed out and not written. hyper stops asking at 16 parts, or at 400 KiB.
const MAX_PARTS: usize = 4;

/// The reader has taken nothing for too long.
pub(super) struct TooLong;

/// The parts of one answer.
pub(super) struct Unwritten {
    /// Parts that have yet to be handed out.
    left: VecDeque<Bytes>,
    handed: Arc<Handed>,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

#[derive(Default)]
struct Handed(Mutex<State>);

#[derive(Default)]
struct State {
    parts: usize,
    /// Since when the reader has taken nothing: it last took a part then, or got the first part after it had taken all
    /// others.
    taken: Option<Instant>,
    waits: Option<Waker>,
}

impl Handed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part. It notes when the server is done with it and drops it.
struct Part {
    bytes: Bytes,
    handed: Arc<Handed>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let waits = {
            let mut state = self.handed.state();
            state.parts -= 1;
            state.taken = Some(Instant::now());
            state.waits.take()
        };
        if let Some(waits) = waits {
            waits.wake();
        }
    }
}

impl Unwritten {
    pub(super) fn new(patience: Duration) -> Self {
        let timer = Box::pin(sleep_until(Instant::now()));
        Self { left: VecDeque::new(), handed: Arc::default(), patience, timer }
    }

    /// Takes what is to be written next.
    pub(super) fn push(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let part = bytes.split_to(bytes.len().min(PART_BYTES));
            self.left.push_back(part);
        }
    }

    /// The next part; none if more has to be [pushed](Self::push) first.
    pub(super) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, TooLong>> {
        let mut state = self.handed.state();
        if let (Some(taken), true) = (state.taken, state.parts > 0) {
            state.waits = Some(cx.waker().clone());
            let is_full = state.parts >= MAX_PARTS;
            drop(state);
            self.timer.as_mut().reset(taken + self.patience);
            if self.timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(TooLong));
            }
            if is_full {
                return Poll::Pending;
            }
            state = self.handed.state();
        }
        let part = self.left.pop_front().map(|bytes| {
            if state.parts == 0 {
                state.taken = Some(Instant::now());
            }
            state.parts += 1;
            Bytes::from_owner(Part { bytes, handed: Arc::clone(&self.handed) })
        });
        Poll::Ready(Ok(part))
    }

    /// Whether the reader has taken everything that was pushed.
    pub(super) fn is_taken(&self) -> bool {
        self.left.is_empty() && self.handed.state().parts == 0
    }
}
