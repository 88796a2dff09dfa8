//! Hints to and from other store objects.
//!
//! A notification inside the transaction of an append would make all appends of the server wait for each
//! other. So one task says every few milliseconds what was written, on a connection of its own, and
//! another listens. Neither is relied on: watched logs are looked at from time to time, and all the time
//! where notifications do not come through.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64;

use super::lock;
use crate::protocol::StreamNonce;
use crate::store::mailbox::{Ask, Op};
use crate::store::{StreamKey, Watcher, Watchers};

/// Bytes of a notification; the server takes less than 8,000.
const PAYLOAD: usize = 7_900;
/// Notifications that are sent at a time. Beyond that everybody looks at everything.
const AT_ONCE: usize = 8;
/// The number of a store object in hexadecimal digits.
const SENDER: usize = 16;

#[derive(Default)]
struct News {
    items: Vec<String>,
    has_hello: bool,
    is_too_much: bool,
}

/// What the tasks of this module share with those that write, and with callers.
#[derive(Default)]
pub(super) struct Wake {
    news: Mutex<News>,
    pub(super) news_came: Notify,
    pub(super) watchers: Watchers,
    /// Under which names a nonce is watched.
    names: Mutex<HashMap<StreamNonce, Vec<StreamKey>>>,
    pub(super) watched: Notify,
    /// Notifications come through.
    pub(super) is_listening: AtomicBool,
    /// They come later: the connection is busy.
    is_deaf: AtomicBool,
    /// No other store object gave a sign lately.
    is_alone: AtomicBool,
    /// Own notifications that came back.
    pub(super) echoes: AtomicU64,
    pub(super) closed: Notify,
}

impl Wake {
    pub(super) fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        let mut names = lock(&self.names);
        if self.watchers.watch(key, watcher) {
            names.entry(key.nonce).or_default().push(key.clone());
            self.watched.notify_one();
        }
    }

    pub(super) fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        let mut names = lock(&self.names);
        if self.watchers.unwatch(key, watcher)
            && let Some(keys) = names.get_mut(&key.nonce)
        {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                names.remove(&key.nonce);
            }
        }
    }

    pub(super) fn close(&self) {
        self.news_came.notify_one();
        self.watched.notify_one();
        self.closed.notify_one();
    }

    /// The connection that listens is busy with something else, or not any more.
    pub(super) fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::Relaxed);
        self.watched.notify_one();
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::Relaxed)
    }

    /// Notifications come, and at once.
    pub(super) fn hears(&self) -> bool {
        self.is_listening.load(Ordering::Relaxed) && !self.is_deaf()
    }

    /// These are committed.
    pub(super) fn wrote<'a>(&self, writes: impl Iterator<Item = &'a Op>) {
        if self.is_alone.load(Ordering::Relaxed) && self.is_listening.load(Ordering::Relaxed) {
            return;
        }
        let mut news = lock(&self.news);
        for write in writes {
            let item = match &write.ask {
                Ask::Append { append, .. } if append.events.is_empty() && append.end.is_none() => continue,
                Ask::DropSession { .. } => format!("s{:024x}", xxh3_64(write.session.as_bytes())),
                Ask::Append { .. } | Ask::Attach(_) | Ask::DropStream { .. } => {
                    let Some(nonce) = write.ask.nonce() else { continue };
                    format!("n{}", nonce.hex())
                }
                _ => continue,
            };
            if news.items.len() >= AT_ONCE * (PAYLOAD / item.len()) {
                news.items.clear();
                news.is_too_much = true;
            }
            if !news.is_too_much {
                news.items.push(item);
            }
        }
        drop(news);
        self.news_came.notify_one();
    }

    /// A sign of life was given. Everybody who listens hears it as well, this store object included.
    pub(super) fn beat(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::Relaxed);
        if self.is_listening.load(Ordering::Relaxed) {
            self.hello();
        }
    }

    pub(super) fn hello(&self) {
        lock(&self.news).has_hello = true;
        self.news_came.notify_one();
    }

    /// Nobody heard it: everything has to be looked at.
    pub(super) fn unheard(&self) {
        lock(&self.news).is_too_much = true;
        self.news_came.notify_one();
    }

    /// What is to be said, as payloads of notifications; none when there is nothing.
    pub(super) fn take(&self, owner: i64) -> Vec<String> {
        let news = std::mem::take(&mut *lock(&self.news));
        let from = format!("{:016x}", owner.cast_unsigned());
        if news.is_too_much {
            return vec![format!("{from}*")];
        }
        let mut items = news.items;
        items.sort_unstable();
        items.dedup();
        let mut payloads: Vec<String> = Vec::new();
        for item in items {
            match payloads.last_mut() {
                Some(last) if last.len() + item.len() <= PAYLOAD => last.push_str(&item),
                _ => payloads.push(format!("{from}{item}")),
            }
        }
        if payloads.is_empty() && news.has_hello {
            payloads.push(from);
        }
        payloads
    }

    /// A notification came.
    pub(super) fn heard(&self, owner: i64, payload: &str) {
        let Some((from, mut items)) = payload.split_at_checked(SENDER) else { return };
        if u64::from_str_radix(from, 16).ok() == Some(owner.cast_unsigned()) {
            self.echoes.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.is_alone.store(false, Ordering::Relaxed);
        while let Some(what) = items.chars().next() {
            if what == '*' {
                self.watchers.all_changed();
                return;
            }
            let Some((item, rest)) = items.split_at_checked(25) else { return };
            items = rest;
            self.hint(what, &item[1..]);
        }
    }

    fn hint(&self, what: char, digits: &str) {
        let keys: Vec<StreamKey> = match (what, nonce(digits), u64::from_str_radix(digits, 16)) {
            ('n', Some(nonce), _) => lock(&self.names).get(&nonce).cloned().unwrap_or_default(),
            ('s', _, Ok(hash)) => {
                let is_it = |key: &StreamKey| xxh3_64(key.session.as_bytes()) == hash;
                self.watchers.keys().into_iter().filter(is_it).collect()
            }
            _ => return,
        };
        keys.iter().for_each(|key| self.watchers.changed(key));
    }
}

fn nonce(digits: &str) -> Option<StreamNonce> {
    let mut nonce = [0; 12];
    for (at, byte) in nonce.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(StreamNonce(nonce))
}
