//! What a connection's writer is given, and how it is woken.

use crate::Ms;
use crate::exchange::AnswerHead;
use crate::stream::CloseReason;
use crate::sync::Arc;

/// Wakes a waiter in the host's own way. Called, and dropped, without any lock held, from any thread.
pub trait Wake: Send + Sync {
    /// The thing with this key has something to do.
    fn wake(&self, key: u64);
}

/// For hosts that never wait.
#[derive(Clone, Copy, Debug)]
pub struct NoWake;

impl Wake for NoWake {
    fn wake(&self, _key: u64) {}
}

/// Bytes for a connection.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// Stored frames: shared with the store and every other reader.
    Shared(Arc<[u8]>),
    /// Written for this connection.
    Own(Vec<u8>),
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

/// What a connection's writer has to do.
#[derive(Debug)]
pub struct Poll {
    /// How the answer starts; none while the store has not said it.
    pub head: Option<AnswerHead>,
    /// Write these, in order. Then wait for the wake-up, if there is neither more nor an end.
    pub chunks: Vec<Chunk>,
    /// The connection ends after the chunks.
    pub end: Option<CloseReason>,
    /// There is more than fits into one poll: poll again as soon as these are written, and not only when woken.
    pub more: bool,
    /// When the engine's tick will wake this connection at the latest.
    pub wait_until: Ms,
}

impl Poll {
    /// Bytes in all chunks.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.as_ref().len()).sum()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The chunks as text. For tests and examples; a host writes the bytes.
    pub fn text(&self) -> String {
        self.chunks.iter().map(|chunk| String::from_utf8_lossy(chunk.as_ref())).collect()
    }
}
