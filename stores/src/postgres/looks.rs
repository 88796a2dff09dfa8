//! One of the tasks of [`Wake`](super::wake::Wake): it looks at the logs of watched sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::protocol::StreamNonce;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::Context;
use super::hints::{AGAIN, GAP};
use super::link::SharedLink;
use super::wake::Wake;

/// Pause between two looks where notifications come through. Each store object has one of its own, up to a quarter
/// shorter, so that they do not look together.
const RARELY: Duration = Duration::from_secs(5);
/// The same where they do not.
const OFTEN: Duration = Duration::from_millis(12);
/// Sessions that one look asks for.
const AT_A_TIME: usize = 512;
/// Who came as a reader watches the session by then, or never.
const COMING: Duration = Duration::from_secs(60);

/// Looks until the store is closed.
pub(super) async fn run(link: SharedLink, context: Arc<Context>) {
    let wake = &context.wake;
    let rarely = RARELY - RARELY / 4 * u32::from(context.owner as u8) / u32::from(u8::MAX);
    let mut known = Known::default();
    while !context.mailbox.is_closed() {
        // What changes from now on is notified, so it need not be told.
        let (is_listening, hears) = (wake.is_listening(), wake.hears());
        known.prepare(wake, hears);
        let sessions = known.watched(wake);
        let asked = Instant::now();
        let pause = if sessions.is_empty() {
            rarely
        } else {
            match link.ask(context.timeout, async |client| look(&client, &context, &sessions).await).await {
                Ok(found) => {
                    for (session, found) in sessions.iter().zip(found) {
                        known.compare(wake, session, found, is_listening);
                    }
                    if hears { rarely } else { OFTEN.max(4 * asked.elapsed()) }
                }
                Err(_) => AGAIN,
            }
        };
        // Who begins to watch is told soon, but not each in a look of its own.
        if tokio::time::timeout(pause, wake.watched.notified()).await.is_ok() {
            tokio::time::sleep(GAP).await;
        }
    }
}

/// What a watcher wants to know of a log: head, whether it is finished, readers. What this store object writes itself
/// does not count.
type Seen = (i64, bool, i64);

/// What a look found of a session. By itself it is not there.
#[derive(Default)]
struct Look {
    is_mine: bool,
    /// The number of the last message that waits.
    waiting: Option<i64>,
    logs: HashMap<StreamNonce, Seen>,
}

/// A session as it was seen last.
#[derive(Default)]
struct Session {
    is_mine: bool,
    waiting: Option<i64>,
    /// When a reader came to it that was last to come. None where nobody reads here what another one writes.
    followed: Option<Instant>,
    /// None of a log to which a reader came, and which was not looked at since.
    logs: HashMap<StreamNonce, Option<Seen>>,
}

#[derive(Default)]
struct Known(HashMap<Arc<str>, Session>);

impl Known {
    /// Takes up what is to be looked at, and leaves what is not.
    fn prepare(&mut self, wake: &Wake, hears: bool) {
        for (session, nonce) in wake.take_followed() {
            let session = self.0.entry(session).or_default();
            session.followed = Some(Instant::now());
            session.logs.entry(nonce).or_insert(None);
        }
        if !hears {
            for session in wake.watchers.sessions() {
                self.0.entry(session).or_default();
            }
        }
        self.0.retain(|name, session| match session.followed {
            Some(since) => wake.watchers.has(name) || since.elapsed() < COMING,
            None => !hears && wake.watchers.has(name),
        });
    }

    fn watched(&self, wake: &Wake) -> Vec<Arc<str>> {
        self.0.keys().filter(|name| wake.watchers.has(name)).cloned().collect()
    }

    /// Tells what is not as it was. Of what was not seen before only who gets no notifications is told.
    fn compare(&mut self, wake: &Wake, name: &Arc<str>, found: Look, is_listening: bool) {
        let Some(session) = self.0.get_mut(name) else { return };
        if session.is_mine && !found.is_mine {
            wake.watchers.session_changed(name);
        }
        if found.is_mine && found.waiting > session.waiting {
            wake.watchers.posted(name);
        }
        for (nonce, seen) in &found.logs {
            let is_new = match session.logs.get(nonce) {
                Some(Some(before)) => before != seen,
                Some(None) | None => !is_listening,
            };
            if is_new {
                wake.watchers.changed(name, *nonce);
            }
        }
        let gone = session.logs.keys().filter(|nonce| !found.logs.contains_key(nonce));
        gone.for_each(|nonce| wake.watchers.changed(name, *nonce));
        (session.is_mine, session.waiting) = (found.is_mine, found.waiting);
        if found.is_mine || found.logs.is_empty() {
            session.followed = None;
        }
        session.logs = found.logs.into_iter().map(|(nonce, seen)| (nonce, Some(seen))).collect();
    }
}

/// What there is of these sessions, in their order.
async fn look(client: &Client, context: &Context, sessions: &[Arc<str>]) -> Result<Vec<Look>, Error> {
    let mut all = Vec::with_capacity(sessions.len());
    for sessions in sessions.chunks(AT_A_TIME) {
        let names: Vec<&[u8]> = sessions.iter().map(|name| name.as_bytes()).collect();
        let asked = [(&context.owner as _, Type::INT8), (&names as _, Type::BYTEA_ARRAY)];
        let rows = client.query_typed(&context.statements.heads, &asked).await?;
        let first = all.len();
        all.resize_with(first + sessions.len(), Look::default);
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
            let Some(found) = all.get_mut(first.saturating_add(at)) else { continue };
            (found.is_mine, found.waiting) = (row.get(1), row.get(6));
            let nonce: Option<[u8; 12]> = row.get::<_, Option<&[u8]>>(2).and_then(|nonce| nonce.try_into().ok());
            if let Some(nonce) = nonce {
                let (head, is_finished, readers) = (row.get(3), row.get(4), row.get(5));
                let seen = if found.is_mine { (-1, false, readers) } else { (head, is_finished, readers) };
                found.logs.insert(StreamNonce(nonce), seen);
            }
        }
    }
    Ok(all)
}
