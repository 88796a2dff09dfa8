//! Tells watchers what other store objects did. Each store object has a channel of its own, on which it is told what
//! concerns it and nothing else.
//!
//! A message names the logs that changed, and their session. The subscription is made when something is watched for the first
//! time. It begins, and begins again, with a hint to every watcher: what came before is not known.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{AsyncConnectionConfig, PushInfo, PushKind, Value, cmd};
use tailrope_core::store::parts::{Fault, NOT_HEARD};
use tailrope_core::store::{Watcher, Watchers};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::Place;
use super::live::Live;
use super::nodes::{Nodes, passing};
use super::script;
use super::slots::slot_of;

/// Pause between two looks at whether the server is still there.
const PING_PAUSE: Duration = Duration::from_secs(3);
/// Pauses before a subscription is tried again, in milliseconds.
const BACK_OFF: [u64; 5] = [20, 50, 100, 300, 1_000];

#[derive(Default)]
pub(super) struct Hints {
    pub(super) watchers: Watchers,
    /// Something is watched.
    watched: Notify,
}

impl Hints {
    pub(super) fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watchers.watch(session, watcher);
        self.watched.notify_one();
    }

    pub(super) fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watchers.unwatch(session, watcher);
    }

    /// What is published: the logs that changed, and their session. No log stands for the session itself, and `+` for a
    /// message in its inbox.
    fn heard(&self, message: &[u8]) {
        let Some((names, session)) = std::str::from_utf8(message).ok().and_then(|text| text.split_once(':')) else {
            return;
        };
        for name in names.split(',') {
            match script::nonce(name.as_bytes()) {
                Some(nonce) => self.watchers.changed(session, nonce),
                None if name == "+" => self.watchers.posted(session),
                None => self.watchers.session_changed(session),
            }
        }
    }
}

/// A subscription.
struct Line {
    live: Live,
    place: Place,
    broken: Arc<Notify>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.live.cut();
    }
}

/// What the task needs to know.
pub(super) struct Listening {
    pub(super) nodes: Arc<Nodes>,
    pub(super) hints: Arc<Hints>,
    pub(super) me: Arc<str>,
    pub(super) channel: String,
}

/// The task: never ends.
pub(super) async fn run(listening: Listening) {
    listening.hints.watched.notified().await;
    let mut failures = 0;
    loop {
        match listening.subscribe().await {
            Ok(line) => {
                failures = 0;
                listening.hints.watchers.all_changed();
                listening.stay(&line).await;
            }
            Err(fault) => {
                if failures == 0 {
                    tracing::warn!(target: "tailrope", what = fault.what, "{NOT_HEARD}");
                }
                failures += 1;
            }
        }
        listening.nodes.doubt();
        sleep(Duration::from_millis(BACK_OFF[failures.min(BACK_OFF.len() - 1)])).await;
    }
}

impl Listening {
    /// Any server of a cluster hears everything. Store objects spread over them.
    async fn place(&self) -> Result<Place, Fault> {
        self.nodes.locate(slot_of(&self.me)).await
    }

    async fn subscribe(&self) -> Result<Line, Fault> {
        let (hints, broken) = (Arc::clone(&self.hints), Arc::new(Notify::new()));
        let breaks = Arc::clone(&broken);
        let heard = move |push: PushInfo| -> Result<(), redis::aio::SendError> {
            match push.kind {
                PushKind::Message => {
                    if let Some(Value::BulkString(message)) = push.data.last() {
                        hints.heard(message);
                    }
                }
                PushKind::Disconnection => breaks.notify_one(),
                _ => {}
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new().set_push_sender(heard);
        let (address, place) = (&self.nodes.address, self.place().await?);
        let live = self.nodes.connect(&place, &address.login, 0, config, true).await?;
        let line = Line { live, place, broken };
        self.ask(&line, cmd("SUBSCRIBE").arg(&self.channel)).await?;
        Ok(line)
    }

    /// Until the subscription is of no use any more.
    async fn stay(&self, line: &Line) {
        while timeout(PING_PAUSE, line.broken.notified()).await.is_err() {
            let has_moved = self.place().await.is_ok_and(|place| place != line.place);
            if has_moved || self.ask(line, &cmd("PING")).await.is_err() {
                return;
            }
        }
    }

    async fn ask(&self, line: &Line, command: &redis::Cmd) -> Result<(), Fault> {
        let mut connection = line.live.connection.clone();
        let answer = timeout(self.nodes.address.connect_timeout, connection.send_packed_command(command)).await;
        let what = match answer.map(|answer| answer.and_then(Value::extract_error)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => {
                error.code().map_or_else(|| "the connection broke".to_owned(), |code| format!("the server said {code}"))
            }
            Err(_) => "the server does not answer".to_owned(),
        };
        Err(passing(what))
    }
}
