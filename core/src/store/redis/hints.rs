//! Tells watchers what other store objects did: one subscription for each server that has watched logs.
//!
//! A message names the logs that changed, and who changed them. A subscription begins, and begins again,
//! with a hint to every watcher that it is for: what came before is not known.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{AsyncConnectionConfig, PushInfo, PushKind, Value, cmd};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::address::Place;
use super::live::Live;
use super::nodes::{Nodes, passing, slot_of};
use super::script;
use super::tags::Tags;
use crate::protocol::StreamNonce;
use crate::store::mailbox::Fault;
use crate::store::{StreamKey, Watcher, Watchers};

/// Pause between two looks at whether the servers are still there.
const PING_PAUSE: Duration = Duration::from_secs(3);
/// Pauses before a subscription is tried again, in milliseconds.
const BACK_OFF: [u64; 5] = [20, 50, 100, 300, 1_000];

#[derive(Default)]
pub(super) struct Hints {
    watchers: Watchers,
    /// The watched logs by the name that messages have for them.
    named: Mutex<HashMap<StreamNonce, Vec<StreamKey>>>,
    /// What is watched, or a subscription, has changed.
    changed: Notify,
}

impl Hints {
    pub(super) fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        // Locked first, so that the names have what the watchers have.
        let mut named = self.lock();
        if self.watchers.watch(key, watcher) {
            let keys = named.entry(key.nonce).or_default();
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        drop(named);
        self.changed.notify_one();
    }

    pub(super) fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        let mut named = self.lock();
        if self.watchers.unwatch(key, watcher)
            && let Some(keys) = named.get_mut(&key.nonce)
        {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                named.remove(&key.nonce);
            }
        }
    }

    /// A message: who sent it, and the logs that changed.
    fn heard(&self, me: &str, message: &[u8]) {
        let Some((sender, names)) = message.split_at_checked(me.len()) else { return };
        if sender == me.as_bytes() {
            return;
        }
        for nonce in names.chunks_exact(24).filter_map(script::nonce) {
            let keys = self.lock().get(&nonce).cloned().unwrap_or_default();
            keys.iter().for_each(|key| self.watchers.changed(key));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamNonce, Vec<StreamKey>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription.
struct Line {
    live: Live,
    is_broken: Arc<AtomicBool>,
    tags: HashSet<u16>,
    /// When the server last showed that it is there.
    heard: Instant,
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
    pub(super) tags: Tags,
    pub(super) me: Arc<str>,
    /// The cluster has channels that belong to slots.
    pub(super) is_sharded: bool,
}

/// The task: never ends.
pub(super) async fn run(listening: Listening) {
    let mut lines: HashMap<Place, Line> = HashMap::new();
    let mut failures = 0;
    loop {
        let wait = match listening.follow(&mut lines).await {
            Ok(()) => {
                failures = 0;
                PING_PAUSE
            }
            Err(fault) => {
                if failures == 0 {
                    tracing::warn!(target: "tailrope", what = fault.what, "event store hears nothing of others");
                }
                failures += 1;
                Duration::from_millis(BACK_OFF[(failures - 1).min(BACK_OFF.len() - 1)])
            }
        };
        let _ = timeout(wait, listening.hints.changed.notified()).await;
    }
}

impl Listening {
    /// Makes the subscriptions what the watched logs ask for.
    async fn follow(&self, lines: &mut HashMap<Place, Line>) -> Result<(), Fault> {
        let mut keys: HashMap<u16, Vec<StreamKey>> = HashMap::new();
        for key in self.hints.watchers.keys() {
            keys.entry(Tags::of(&key.session)).or_default().push(key);
        }
        lines.retain(|_, line| !line.is_broken.load(Ordering::Relaxed));
        if keys.is_empty() {
            lines.clear();
            return Ok(());
        }
        let mut wanted: HashMap<Place, HashSet<u16>> = HashMap::new();
        for tag in keys.keys() {
            // Without channels of their own any server hears everything.
            let slot = if self.is_sharded { slot_of(&Tags::text(*tag)) } else { 0 };
            wanted.entry(self.nodes.locate(slot).await?).or_default().insert(*tag);
        }
        lines.retain(|place, _| wanted.contains_key(place));
        let mut result = Ok(());
        for (place, tags) in wanted {
            if let Err(fault) = self.follow_at(lines, &place, &tags, &keys).await {
                lines.remove(&place);
                self.nodes.doubt();
                result = Err(fault);
            }
        }
        result
    }

    async fn follow_at(
        &self,
        lines: &mut HashMap<Place, Line>,
        place: &Place,
        tags: &HashSet<u16>,
        keys: &HashMap<u16, Vec<StreamKey>>,
    ) -> Result<(), Fault> {
        if !lines.contains_key(place) {
            lines.insert(place.clone(), self.subscribe(place).await?);
        }
        let Some(line) = lines.get_mut(place) else { return Ok(()) };
        let (subscribe, unsubscribe) =
            if self.is_sharded { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
        let mut new = Vec::new();
        for tag in tags.difference(&line.tags).copied().collect::<Vec<_>>() {
            self.say(&line.live, subscribe, tag).await?;
            line.tags.insert(tag);
            new.push(tag);
        }
        for tag in line.tags.difference(tags).copied().collect::<Vec<_>>() {
            self.say(&line.live, unsubscribe, tag).await?;
            line.tags.remove(&tag);
        }
        for key in new.iter().filter_map(|tag| keys.get(tag)).flatten() {
            self.hints.watchers.changed(key);
        }
        if line.heard.elapsed() >= PING_PAUSE {
            self.ask(&line.live, &cmd("PING")).await?;
            line.heard = Instant::now();
        }
        Ok(())
    }

    async fn subscribe(&self, place: &Place) -> Result<Line, Fault> {
        let (hints, me) = (Arc::clone(&self.hints), Arc::clone(&self.me));
        let is_broken = Arc::new(AtomicBool::new(false));
        let breaks = Arc::clone(&is_broken);
        let heard = move |push: PushInfo| -> Result<(), redis::aio::SendError> {
            match push.kind {
                PushKind::Message | PushKind::SMessage => {
                    if let Some(Value::BulkString(message)) = push.data.last() {
                        hints.heard(&me, message);
                    }
                }
                PushKind::Disconnection => {
                    breaks.store(true, Ordering::Relaxed);
                    hints.changed.notify_one();
                }
                _ => {}
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new().set_push_sender(heard);
        let address = &self.nodes.address;
        let live = self.nodes.connect(place, &address.login, 0, config, true).await?;
        Ok(Line { live, is_broken, tags: HashSet::new(), heard: Instant::now() })
    }

    async fn say(&self, live: &Live, word: &str, tag: u16) -> Result<(), Fault> {
        self.ask(live, cmd(word).arg(self.tags.channel(tag))).await
    }

    async fn ask(&self, live: &Live, command: &redis::Cmd) -> Result<(), Fault> {
        let mut connection = live.connection.clone();
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
