//! A connection, as its writer sees it.

use crate::engine::connections::Poll;
use crate::engine::sessions::cell::Cell;
use crate::stream::ConnectionId;
use crate::sync::Arc;

/// One HTTP answer that carries a stream. Dropping it tells the engine that it is gone.
#[derive(Debug)]
pub struct Connection {
    pub(crate) cell: Arc<Cell>,
    pub(crate) conn: ConnectionId,
}

impl Connection {
    /// What to write next, at most about `max_bytes` (one event may be larger). Everything from the previous call
    /// counts as flushed.
    pub fn poll(&self, max_bytes: usize) -> Poll {
        self.cell.poll(self.conn, max_bytes)
    }

    /// In how many milliseconds at the latest the engine has to be ticked, after this poll.
    pub fn wait_ms(&self, poll: &Poll) -> u64 {
        poll.wait_until.since(self.cell.now()).min(self.cell.shared.max_pause_ms())
    }

    /// The peer is gone. A connection that has ended already ignores it.
    pub fn lost(&self) {
        self.cell.lost(self.conn);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.lost();
    }
}
