//! Ids of tasks.

use std::fmt;

use crate::protocol::{StreamNonce, base64url};

/// Random bytes of an id: nobody guesses one (T-27).
pub const TASK_ID_BYTES: usize = 24;

/// The log of a task, in its session. The session's name cannot be guessed, so that of the log may be known.
pub const TASK_LOG: StreamNonce = StreamNonce(*b"tailropetask");

/// Tells our ids from those of other makers of tasks. An id has no other meaning.
const PREFIX: &str = "tailrope-";

/// The id of a task: characters that every header takes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TaskId(Box<str>);

impl TaskId {
    /// The id of a new task.
    pub fn new(random: &[u8; TASK_ID_BYTES]) -> Self {
        let mut id = PREFIX.to_owned();
        base64url::encode(random, |characters| id.extend(characters.iter().copied().map(char::from)));
        Self(id.into())
    }

    /// Reads an id. None for a text that [`new`](Self::new) never makes: there is no such task.
    pub fn parse(text: &str) -> Option<Self> {
        let mut random = [0; TASK_ID_BYTES];
        let encoded = text.strip_prefix(PREFIX)?;
        let is_whole = base64url::decode(encoded.as_bytes(), &mut random) == Some(TASK_ID_BYTES);
        is_whole.then(|| Self(text.into()))
    }

    /// The id as it is on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the session that the task is. No client can name it, because no header has such a character (I7).
    pub fn session_id(&self) -> String {
        format!("\u{1}{}", self.0)
    }
}

/// Who has the id may ask for the task, so it is for no log.
impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskId(..)")
    }
}
