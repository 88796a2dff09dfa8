//! The live page: what operators see of an engine while it works. No payload and no credential is in it.
//!
//! An engine remembers what happens to its streams only while somebody looks at the page: from the first snapshot on, and until
//! nobody has asked for one for [`WATCH_MS`]. Otherwise a change of a session costs one look at a number.

mod answer;
mod rows;
mod snapshot;
mod trails;

pub use answer::{LiveAnswer, live_answer};

use crate::Ms;
use crate::engine::sessions::cell::User;
use crate::engine::sessions::change::Change;
use crate::engine::shared::lock;
use crate::protocol::StreamNonce;
use crate::session::Record;
use crate::sync::Arc;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use trails::{Ended, Trails};

/// For how long after a snapshot an engine goes on remembering, in milliseconds. Browsers ask once a minute from a page that
/// nobody sees.
const WATCH_MS: u64 = 150_000;

/// What an engine remembers for the page.
#[derive(Default)]
pub(crate) struct Live {
    /// Until when somebody looks; 0 while nobody does, and nothing is remembered.
    until: AtomicU64,
    trails: Mutex<Trails>,
}

/// Something that happened to a stream.
pub(crate) enum Note {
    /// It has a new connection.
    Opened { conn: u64, is_resume: bool },
    /// A connection is over; `lost`, or why it was closed.
    Closed { conn: u64, why: &'static str },
    /// A client was told that events are missing.
    Gap { count: u64 },
}

impl Live {
    /// Whether somebody looks.
    pub(crate) fn is_watched(&self, now: Ms) -> bool {
        now.0 < self.until.load(Ordering::Relaxed)
    }

    /// Takes note of the end of a call, if somebody looks.
    pub(crate) fn note_ended(&self, now: Ms, session: &Arc<str>, user: Option<Box<str>>, record: &Record) {
        if self.is_watched(now) {
            let ended = Ended { at: now, session: Arc::clone(session), user, record: record.clone() };
            lock(&self.trails).ended(ended);
        }
    }

    /// Forgets everything when nobody has looked for a while.
    pub(crate) fn rest(&self, now: Ms) {
        if self.until.load(Ordering::Relaxed) != 0 && !self.is_watched(now) {
            self.until.store(0, Ordering::Relaxed);
            *lock(&self.trails) = Trails::default();
        }
    }
}

impl Change<'_> {
    /// Takes note of what happens to a stream, if somebody looks.
    pub(crate) fn note_live(&self, nonce: StreamNonce, note: Note) {
        let live = &self.cell.shared.live;
        if live.is_watched(self.now) {
            lock(&live.trails).note(self.now, nonce, note);
        }
    }

    /// Takes note of the end of a call, if somebody looks.
    pub(crate) fn note_ended(&self, record: &Record) {
        let user = self.state.user.as_ref().and_then(User::shown);
        self.cell.shared.live.note_ended(self.now, &self.cell.name, user, record);
    }
}
