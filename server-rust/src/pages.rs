//! What the engine has for a connection, page by page.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tailrope_core::engine::{self, Connection};
use tailrope_core::protocol::Refusal;

use crate::host::Host;
use crate::signal::Signal;

/// Bytes that are taken from the engine at once. A stalled reader holds no more than that (I10).
const PAGE_BYTES: usize = 64 << 10;

/// A connection, as a host polls it. Dropping it tells the engine that it is gone.
#[derive(Debug)]
pub(crate) struct Pages {
    connection: Connection,
    signal: Arc<Signal>,
    host: Arc<Host>,
    /// The last look found nothing: the engine wakes the connection when there is something.
    waits: bool,
}

impl Pages {
    /// Opens a connection. `open` gets the signal that the connection is to wake.
    pub(crate) fn open(
        host: &Arc<Host>,
        open: impl FnOnce(Arc<Signal>) -> Result<Connection, Refusal>,
    ) -> Result<Self, Refusal> {
        let signal = Signal::new();
        let connection = open(Arc::clone(&signal))?;
        Ok(Self { connection, signal, host: Arc::clone(host), waits: false })
    }

    /// The next page: something to write, or the end. What the page before had counts as written.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<engine::Poll> {
        loop {
            if self.waits {
                ready!(self.signal.poll_woken(cx));
            }
            self.signal.clear();
            let page = self.connection.poll(PAGE_BYTES);
            self.waits = page.is_empty() && page.end.is_none();
            if !self.waits {
                return Poll::Ready(page);
            }
            self.host.arm(self.connection.wait_ms(&page));
        }
    }

    /// Whether the engine has woken it since the last look.
    pub(crate) fn is_woken(&self) -> bool {
        self.signal.is_woken()
    }

    /// How long a reader may take nothing. None if there is no bound.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.host.patience()
    }

    pub(crate) async fn next(&mut self) -> engine::Poll {
        poll_fn(|cx| self.poll(cx)).await
    }
}
