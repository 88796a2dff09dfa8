//! Hints to and from other store objects.
//!
//! A notification inside the transaction of an append would make all appends of the server wait for each other. So the
//! transaction tells which store objects have a reader of the log, and one task notifies these every few milliseconds, each
//! by a channel of its own. An heir notifies the owner that it replaces in its transaction.
//!
//! Notifications are not relied on: where they do not come through, watched sessions are looked at all the time. Where they
//! do, those that are written elsewhere and read here are looked at from time to time, and with each sign of life the inboxes
//! of own sessions, as a process may end before it has told what it wrote.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::parts::Op;
use tailrope_core::store::{Watcher, Watchers, session_name};
use tokio::sync::Notify;

use super::lock;

/// Bytes of a notification; the server takes less than 8,000.
const PAYLOAD: usize = 7_900;
/// What waits for one store object at most. Beyond that it looks at everything.
const WAITING: usize = 2_000;
/// What tells a store object to look at everything.
const EVERYTHING: &str = "*";
/// Digits of a session's hash.
const HASH: usize = 32;
/// What follows the hash where a message waits for the session's owner.
const POSTED: &str = "+";

/// What each store object is to be told: of a session, which its hash names, and where it is about one log its nonce, or
/// that a message waits.
pub(super) type News = HashMap<i64, BTreeSet<String>>;

/// What the tasks that hint share with those that write, and with callers.
#[derive(Default)]
pub(super) struct Wake {
    news: Mutex<News>,
    pub(super) news_came: Notify,
    pub(super) watchers: Watchers,
    /// The watched sessions by their hashes.
    names: Mutex<HashMap<Arc<str>, Arc<str>>>,
    /// Logs of other owners to which a reader came, since the last look.
    followed: Mutex<Vec<(Arc<str>, StreamNonce)>>,
    /// There may be something to look at.
    pub(super) watched: Notify,
    /// Notifications come through.
    is_listening: AtomicBool,
    /// They come later: the connection is busy.
    is_deaf: AtomicBool,
    /// Own notifications that came back.
    pub(super) echoes: AtomicU64,
    pub(super) closed: Notify,
}

impl Wake {
    pub(super) fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        let mut names = lock(&self.names);
        if self.watchers.watch(session, watcher) {
            names.insert(session_name(session), Arc::clone(session));
            if !self.hears() {
                self.watched.notify_one();
            }
        }
    }

    pub(super) fn unwatch(&self, session: &str, watcher: &Watcher) {
        let mut names = lock(&self.names);
        if self.watchers.unwatch(session, watcher) {
            names.remove(&session_name(session));
        }
    }

    /// A reader came here to a log of another owner.
    pub(super) fn follow(&self, session: &Arc<str>, nonce: StreamNonce) {
        lock(&self.followed).push((Arc::clone(session), nonce));
    }

    pub(super) fn take_followed(&self) -> Vec<(Arc<str>, StreamNonce)> {
        std::mem::take(&mut lock(&self.followed))
    }

    pub(super) fn close(&self) {
        self.news_came.notify_one();
        self.watched.notify_one();
        self.closed.notify_one();
    }

    /// Notifications come through from now on, or not any more.
    pub(super) fn listen(&self, is_listening: bool) {
        self.is_listening.store(is_listening, Ordering::SeqCst);
        self.watched.notify_one();
    }

    /// The connection that listens is busy with something else, or not any more.
    pub(super) fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::SeqCst);
        self.watched.notify_one();
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::SeqCst)
    }

    /// Every notification comes, be it late.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::SeqCst)
    }

    /// Notifications come, and at once.
    pub(super) fn hears(&self) -> bool {
        self.is_listening() && !self.is_deaf()
    }

    /// These are committed, and each is to be told to this store object: that a message waits, if that is true.
    pub(super) fn wrote<'a>(&self, writes: impl Iterator<Item = (i64, &'a Op, bool)>) {
        let mut news = lock(&self.news);
        for (hearer, write, is_posted) in writes {
            let nonce = write.ask.nonce().map(|nonce| nonce.hex());
            let what = if is_posted { POSTED.to_owned() } else { nonce.unwrap_or_default() };
            add(&mut news, hearer, session_name(&write.session).to_string() + &what);
        }
        if !news.is_empty() {
            self.news_came.notify_one();
        }
    }

    /// Whether notifications come through is to be seen by an empty one to `me`, this store object.
    pub(super) fn check(&self, me: i64) {
        add(&mut lock(&self.news), me, String::new());
        self.news_came.notify_one();
    }

    /// What is to be told.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *lock(&self.news))
    }

    /// It was not told.
    pub(super) fn give_back(&self, told: News) {
        let mut news = lock(&self.news);
        for (hearer, items) in told {
            items.into_iter().for_each(|item| add(&mut news, hearer, item));
        }
        self.news_came.notify_one();
    }

    /// A notification came.
    pub(super) fn heard(&self, payload: &str) {
        if payload.is_empty() {
            self.echoes.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for item in payload.split(' ') {
            if item == EVERYTHING {
                self.watchers.all_changed();
                continue;
            }
            let Some((hash, digits)) = item.split_at_checked(HASH) else { continue };
            let Some(session) = lock(&self.names).get(hash).cloned() else { continue };
            match (digits, nonce(digits)) {
                (POSTED, _) => self.watchers.posted(&session),
                (_, Some(nonce)) => self.watchers.changed(&session, nonce),
                (_, None) => self.watchers.session_changed(&session),
            }
        }
    }
}

/// The receivers of notifications, and what they are told.
pub(super) fn notifications(news: &News) -> (Vec<i64>, Vec<String>) {
    let mut all = Vec::new();
    for (hearer, items) in news {
        let mut payload = String::new();
        for item in items {
            if payload.len() + 1 + item.len() > PAYLOAD {
                all.push((*hearer, std::mem::take(&mut payload)));
            }
            payload += if payload.is_empty() { "" } else { " " };
            payload += item;
        }
        all.push((*hearer, payload));
    }
    all.into_iter().unzip()
}

fn add(news: &mut News, hearer: i64, item: String) {
    let items = news.entry(hearer).or_default();
    if items.contains(EVERYTHING) {
        return;
    }
    if items.len() >= WAITING {
        items.clear();
        items.insert(EVERYTHING.to_owned());
        return;
    }
    items.insert(item);
}

fn nonce(digits: &str) -> Option<StreamNonce> {
    let mut nonce = [0; 12];
    for (at, byte) in nonce.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(StreamNonce(nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_as_large_as_the_server_takes_and_bounded() {
        let wake = Wake::default();
        let item = |number: usize| format!("{number:056}");
        let told = |count: usize| News::from([(7, (0..count).map(item).collect())]);
        wake.give_back(told(1_000));
        wake.give_back(told(WAITING));
        let (hearers, payloads) = notifications(&wake.take());
        assert!(hearers.len() > 1 && hearers.iter().all(|hearer| *hearer == 7));
        assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD));
        let all: Vec<&str> = payloads.iter().flat_map(|payload| payload.split(' ')).collect();
        assert_eq!(all, (0..WAITING).map(item).collect::<Vec<_>>());
        wake.give_back(told(WAITING + 1));
        wake.give_back(told(1));
        assert_eq!(notifications(&wake.take()), (vec![7], vec![EVERYTHING.to_owned()]));
    }
}
