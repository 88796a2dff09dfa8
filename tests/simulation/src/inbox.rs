//! The inboxes of sessions (rule 14), in the simulated store.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailrope_checker::Why;
use tailrope_core::Ms;
use tailrope_core::protocol::{RequestId, StreamNonce};
use tailrope_core::store::{Epoch, MAX_TAKEN, Mail, Message, StoreError, StreamKey, check_inbox};

use crate::log::{Log, Version};
use crate::sea::{MESSAGE, News, Sea};

type Nonce = [u8; 12];

/// A message, and what became of it when.
struct Post {
    nonce: Nonce,
    message: Message,
    at: Ms,
    taken: Option<Ms>,
    withdrawn: Option<Ms>,
    /// The owner has begun it and does not ask for it any more, or another one came.
    forgotten: Option<Ms>,
    /// It went with its log.
    is_gone: bool,
}

impl Post {
    fn waits(&self) -> bool {
        !self.is_gone && self.taken.is_none() && self.withdrawn.is_none()
    }

    fn is_told(&self) -> bool {
        !self.is_gone && self.taken.is_some() && self.forgotten.is_none()
    }
}

/// Every message that ever came: its number is its place, from 1 on.
#[derive(Default)]
pub(crate) struct Inbox(Vec<Post>);

impl Inbox {
    /// Of the message that this is the answer of.
    fn post(&self, nonce: &Nonce) -> Option<&Post> {
        self.0.iter().find(|post| post.nonce == *nonce && !post.is_gone)
    }

    pub(crate) fn has_waiting(&self, nonce: &Nonce) -> bool {
        self.post(nonce).is_some_and(Post::waits)
    }

    pub(crate) fn is_withdrawn(&self, nonce: &Nonce) -> bool {
        self.post(nonce).is_some_and(|post| post.withdrawn.is_some())
    }

    /// The owner writes the answer of a message: it has it, should the store have forgotten that.
    pub(crate) fn answered(&mut self, nonce: &Nonce, now: Ms) {
        for post in self.0.iter_mut().filter(|post| post.nonce == *nonce && post.waits()) {
            (post.taken, post.forgotten) = (Some(now), Some(now));
        }
    }

    pub(crate) fn has_new_owner(&mut self, now: Ms) {
        self.0.iter_mut().filter(|post| post.is_told()).for_each(|post| post.forgotten = Some(now));
    }

    pub(crate) fn forget(&mut self, nonce: &Nonce) {
        self.0.iter_mut().filter(|post| post.nonce == *nonce).for_each(|post| post.is_gone = true);
    }

    /// The store loses what was done after this time. The numbers after it are given again. Returns what waits again.
    pub(crate) fn set_back_to(&mut self, time: Ms) -> Vec<Nonce> {
        self.0.retain(|post| post.at <= time);
        let again = self.0.iter().filter(|post| [post.taken, post.withdrawn].iter().flatten().any(|at| *at > time));
        let again = again.map(|post| post.nonce).collect();
        for post in &mut self.0 {
            for done in [&mut post.taken, &mut post.withdrawn, &mut post.forgotten] {
                *done = done.filter(|at| *at <= time);
            }
        }
        again
    }

    /// Messages whose log the store has lost are lost.
    pub(crate) fn retain(&mut self, logs: &BTreeMap<Nonce, Log>) {
        self.0.iter_mut().for_each(|post| post.is_gone |= !logs.contains_key(&post.nonce));
    }
}

impl Sea {
    /// A message that came to `by` waits for the session's owner, unless it came before.
    pub(crate) fn post(&mut self, by: usize, key: &StreamKey, message: &Message) -> Result<(), StoreError> {
        let (now, max) = (self.now, self.max_inbox);
        let known = self.sessions.get_mut(&key.session).ok_or(StoreError::Gone)?;
        if known.logs.contains_key(&key.nonce.0) {
            self.count("messages that came before");
            return Ok(());
        }
        let waiting = known.inbox.0.iter().filter(|post| post.waits());
        let (count, bytes) = waiting.fold((0, 0), |(count, bytes), post| (count + 1, bytes + post.message.bytes()));
        if count >= max {
            self.count("inboxes that were full");
            return Err(StoreError::InboxFull { max });
        }
        check_inbox(count, bytes, message)?;
        let mut log = Log::new(key, &message.about, now);
        if RequestId::decode_all(&message.about).is_none_or(|requests| requests.is_empty()) {
            MESSAGE.clone_into(&mut log.name);
        }
        known.logs.insert(key.nonce.0, log);
        let (taken, withdrawn, forgotten, is_gone) = (None, None, None, false);
        let (nonce, message) = (key.nonce.0, message.clone());
        known.inbox.0.push(Post { nonce, message, at: now, taken, withdrawn, forgotten, is_gone });
        let concerns = known.owner().into_iter().collect();
        self.count("messages posted");
        self.changed(by, &News::Posted(key.session.clone()), &concerns);
        Ok(())
    }

    pub(crate) fn take(&mut self, session: &str, epoch: Epoch, after: u64) -> Result<Vec<Mail>, StoreError> {
        let now = self.now;
        let known = self.sessions.get_mut(session).ok_or(StoreError::Gone)?;
        if known.held.epoch != epoch {
            self.count("takes fenced");
            return Err(StoreError::Fenced);
        }
        assert!(!known.is_written_by_two(), "two owners with one number write");
        let posts = &mut known.inbox.0;
        for (post, _) in posts.iter_mut().zip(1..=after).filter(|(post, _)| post.is_told()) {
            post.forgotten = Some(now);
        }
        let again = posts.iter().filter(|post| post.is_told()).count();
        let waiting = posts.iter_mut().filter(|post| post.waits()).take(MAX_TAKEN.saturating_sub(again));
        let new = waiting.map(|post| post.taken = Some(now)).count();
        let told = (1..).zip(posts.iter()).filter(|(_, post)| post.is_told());
        let mail = told.map(|(number, post)| {
            let (nonce, message) = (StreamNonce(post.nonce), post.message.clone());
            Mail { number, nonce, message }
        });
        let mail = mail.collect();
        *self.coverage.entry("messages taken").or_default() += new as u64;
        *self.coverage.entry("messages told again").or_default() += again as u64;
        Ok(mail)
    }

    pub(crate) fn withdraw(&mut self, by: usize, key: &StreamKey, end: &Bytes) -> Result<bool, StoreError> {
        let (now, wall) = (self.now, self.wall(by));
        let known = self.sessions.get_mut(&key.session).ok_or(StoreError::Gone)?;
        let log = known.logs.get_mut(&key.nonce.0).ok_or(StoreError::Gone)?;
        let post = known.inbox.0.iter_mut().find(|post| post.nonce == key.nonce.0 && !post.is_gone);
        let Some(post) = post.filter(|post| post.taken.is_none()) else {
            self.count("messages withdrawn too late");
            return Ok(false);
        };
        if post.withdrawn.is_none() {
            post.withdrawn = Some(now);
            let (finished, tail) = (Some(wall), Some(end.clone()));
            log.add(&[], Version { at: now, finished, tail, ..log.now().clone() });
            let (name, followers) = (log.name.clone(), log.followers.clone());
            self.count("messages withdrawn");
            self.gone(&key.session, Some(name), Why::Cancelled);
            self.changed(by, &News::Log(key.clone()), &followers);
        }
        Ok(true)
    }
}
