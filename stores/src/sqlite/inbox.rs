//! A session's inbox: the messages that wait for its owner, and those that it has and may ask for again.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Result, params};
use tailrope_core::store::parts::log_lost;
use tailrope_core::store::{Epoch, MAX_TAKEN, Mail, Message, StoreError, StreamKey, check_inbox};

use super::batch::{Batch, Reply, Row, position, signed};
use super::{LOG_OVERHEAD, reader};

impl Batch<'_> {
    /// Leaves a message for the session's owner, with the log of its answer, which is not there.
    pub(super) fn post(&mut self, key: &StreamKey, message: &Message) -> Result<Reply<()>> {
        let (db, bytes) = (self.db, signed(message.bytes()));
        let Some(session) = self.session(&key.session)?.map(|session| session.id) else {
            return Ok(Err(StoreError::Gone));
        };
        let (waiting, waiting_bytes) = db
            .prepare_cached("SELECT count(*), coalesce(sum(bytes), 0) FROM message WHERE session = ?1 AND taken = 0")?
            .query_row(params![session], |row| {
                let column = |at| row.get::<_, i64>(at).map(|count| usize::try_from(count).unwrap_or(usize::MAX));
                Ok((column(0)?, column(1)?))
            })?;
        if let Err(error) = check_inbox(waiting, waiting_bytes, message) {
            return Ok(Err(error));
        }
        if !self.make_room(LOG_OVERHEAD + signed(message.about.len()) + bytes)? {
            return Ok(Err(StoreError::Full { max: self.context.limits.max_bytes }));
        }
        let number = db
            .prepare_cached(
                "INSERT INTO message (session, nonce, bytes, body) VALUES (?1, ?2, ?3, ?4) RETURNING number",
            )?
            .query_row(params![session, key.nonce.0, bytes, &*message.body], |row| row.get(0))?;
        self.create(session, key, &message.about, Some(number))?;
        self.count(session, 0, 0, bytes);
        Ok(Ok(()))
    }

    /// Where there is nothing to tell and nothing to forget, nothing is written.
    pub(super) fn take(&mut self, name: &Arc<str>, epoch: Epoch, after: u64) -> Result<Reply<Vec<Mail>>> {
        let db = self.db;
        let session = match self.owned_session(name, epoch)? {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        self.forget_taken(session, position(after))?;
        self.forget_lost(session, name)?;
        db.prepare_cached(
            "UPDATE message SET taken = 1 WHERE number IN (
                 SELECT number FROM message WHERE session = ?1 AND taken = 0 ORDER BY number
                 LIMIT max(0, ?2 - (SELECT count(*) FROM message WHERE session = ?1 AND taken = 1)))",
        )?
        .execute(params![session, signed(MAX_TAKEN)])?;
        let mut select = db.prepare_cached(
            "SELECT number, nonce, body,
                 (SELECT about FROM stream WHERE stream.session = ?1 AND stream.nonce = message.nonce)
             FROM message WHERE session = ?1 AND taken = 1 ORDER BY number",
        )?;
        let mail = select.query_map(params![session], |row| {
            let bytes = |at| row.get::<_, Vec<u8>>(at).map(Bytes::from);
            let Some(nonce) = reader::nonce(row, 1)? else { return Ok(None) };
            let message = Message { about: bytes(3)?, body: bytes(2)? };
            Ok(Some(Mail { number: reader::count(row, 0)?, nonce, message }))
        })?;
        mail.filter_map(Result::transpose).collect::<Result<_>>().map(Ok)
    }

    pub(super) fn withdraw(&mut self, key: &StreamKey, end: &Bytes) -> Result<Reply<bool>> {
        let db = self.db;
        let Some(before) = self.row(key)?.copied() else { return Ok(Err(StoreError::Gone)) };
        if !self.forget_waiting(&before)? {
            let mut select = db.prepare_cached("SELECT withdrawn FROM stream WHERE id = ?1")?;
            return select.query_row(params![before.id], |row| row.get(0)).map(Ok);
        }
        let mut update = db.prepare_cached("UPDATE stream SET withdrawn = 1, tail = ?2 WHERE id = ?1")?;
        update.execute(params![before.id, &**end])?;
        let mut row = before;
        row.kept_until = Some(self.retained_until(&row, None)?);
        row.bytes += signed(end.len());
        self.change(key, &before, row);
        Ok(Ok(true))
    }

    /// Forgets the message that a log is the answer of, if that waits. Whether it did.
    pub(super) fn forget_waiting(&mut self, log: &Row) -> Result<bool> {
        let mut delete = self.db.prepare_cached(
            "DELETE FROM message WHERE number = (SELECT message FROM stream WHERE id = ?1) AND taken = 0 RETURNING bytes",
        )?;
        let freed = delete.query_row(params![log.id], |row| reader::amount(row, 0)).optional()?;
        drop(delete);
        if let Some(freed) = freed {
            self.count(log.session, 0, 0, -freed);
        }
        Ok(freed.is_some())
    }

    /// Forgets the messages up to this number that the session's owner has.
    pub(super) fn forget_taken(&mut self, session: i64, up_to: i64) -> Result<()> {
        let mut delete = self
            .db
            .prepare_cached("DELETE FROM message WHERE session = ?1 AND taken = 1 AND number <= ?2 RETURNING bytes")?;
        let freed = delete.query_map(params![session, up_to], |row| reader::amount(row, 0))?.sum::<Result<i64>>()?;
        if freed > 0 {
            self.count(session, 0, 0, -freed);
        }
        Ok(())
    }

    /// Forgets the messages that no log is the answer of: nobody waits for these, and they would stay before the others.
    fn forget_lost(&mut self, session: i64, name: &str) -> Result<()> {
        let mut delete = self.db.prepare_cached(
            "DELETE FROM message WHERE session = ?1 AND NOT EXISTS (
                 SELECT 1 FROM stream WHERE stream.session = ?1 AND stream.nonce = message.nonce AND length(stream.nonce) = 12)
             RETURNING bytes",
        )?;
        let lost = delete.query_map(params![session], |row| reader::amount(row, 0))?.collect::<Result<Vec<i64>>>()?;
        if !lost.is_empty() {
            log_lost(name, lost.len());
            self.count(session, 0, 0, -lost.iter().sum::<i64>());
        }
        Ok(())
    }

    /// Forgets a message with its log. Returns the bytes that this frees.
    pub(super) fn forget(&self, number: i64) -> Result<i64> {
        let mut delete = self.db.prepare_cached("DELETE FROM message WHERE number = ?1 RETURNING bytes")?;
        Ok(delete.query_row(params![number], |row| reader::amount(row, 0)).optional()?.unwrap_or_default())
    }
}
