//! The bounds (I11): what goes when a stream, a session or the file is over them, and what is over.

use rusqlite::{OptionalExtension, Result, params};

use super::batch::{Batch, Row, cost, signed};
use super::reader;

/// Streams, or sessions, that one transaction of retention removes at most: others want to write, too.
const SWEEP: usize = 256;

impl Batch<'_> {
    /// Brings everything that this transaction wrote to back into its bounds, and the tables up to date.
    pub(super) fn close(&mut self) -> Result<()> {
        self.trim_streams()?;
        let written = std::mem::take(&mut self.written);
        let mut sessions: Vec<i64> = written.iter().map(|(_, session)| *session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        for session in sessions {
            self.trim_session(session, &written)?;
        }
        self.trim_to(signed(self.context.limits.max_bytes), &written)?;
        self.write_back()
    }

    /// Brings every stream that was written to back into its own bounds, and the tables up to date.
    pub(super) fn trim_streams(&mut self) -> Result<()> {
        for row in self.grown_rows() {
            self.written.push((row.id, row.session));
            self.trim_stream(row)?;
        }
        self.write_back()
    }

    fn trim_stream(&mut self, mut row: Row) -> Result<()> {
        let limits = self.context.limits;
        let (max_events, max_bytes) = (signed(limits.max_events_per_stream), signed(limits.max_bytes_per_stream));
        let oldest = self.now.saturating_sub(limits.max_age_ms.try_into().unwrap_or(i64::MAX));
        let is_over = move |row: &Row| {
            row.events > max_events || row.bytes > max_bytes || (row.low < row.head && row.low_at < oldest)
        };
        if is_over(&row) {
            self.shrink(&mut row, is_over)?;
            self.replace_row(row);
        }
        Ok(())
    }

    /// Moves `low` on while a stream is over; then events that outlived the prefix go, oldest first. The
    /// newest event always stays.
    fn shrink(&mut self, row: &mut Row, is_over: impl Fn(&Row) -> bool) -> Result<()> {
        let (before, from) = ((row.events, row.bytes), row.low);
        {
            let mut select = self.db.prepare_cached(
                "SELECT seq, pinned, tag, at, length(frame) FROM event WHERE stream = ?1 AND seq >= ?2 ORDER BY seq",
            )?;
            let mut events = select.query(params![row.id, from])?;
            while let Some(event) = events.next()? {
                let seq = reader::amount(event, 0)?;
                row.low_at = reader::amount(event, 3)?;
                if seq >= row.head || !is_over(row) {
                    break;
                }
                self.totals.trimmed += 1;
                row.low = seq + 1;
                row.low_tag = reader::low_bits(event, 2)?;
                if !event.get::<_, bool>(1)? {
                    row.events -= 1;
                    row.bytes -= cost(event.get(4)?);
                }
            }
        }
        if row.low > from {
            self.db
                .prepare_cached("DELETE FROM event WHERE stream = ?1 AND seq >= ?2 AND seq < ?3 AND pinned = 0")?
                .execute(params![row.id, from, row.low])?;
        }
        while is_over(row) && row.low == row.head {
            let mut delete = self.db.prepare_cached(
                "DELETE FROM event WHERE stream = ?1 AND seq = (SELECT min(seq) FROM event WHERE stream = ?1 AND seq < ?2)
                 RETURNING length(frame)",
            )?;
            let mut freed = delete.query(params![row.id, row.low])?;
            let Some(event) = freed.next()? else { break };
            row.events -= 1;
            row.bytes -= cost(event.get(0)?);
        }
        self.count(row.session, 0, row.events - before.0, row.bytes - before.1);
        Ok(())
    }

    /// The session's finished streams whose retention ends first go first, then the oldest events of its largest.
    fn trim_session(&mut self, session: i64, written: &[(i64, i64)]) -> Result<()> {
        let max = signed(self.context.limits.max_bytes_per_session);
        let held = |batch: &Self| {
            let mut select = batch.db.prepare_cached("SELECT bytes FROM session WHERE id = ?1")?;
            select.query_row(params![session], |row| row.get::<_, i64>(0))
        };
        // The session may have been dropped.
        if held(self).optional()?.is_none_or(|bytes| bytes <= max) {
            return Ok(());
        }
        let finished = self.finished("session = ?1 AND", session)?;
        // An eighth more than needed, so that the next events do not look through all streams again.
        let mut over = held(self)? - (max - max / 8);
        for (id, of, events, bytes) in finished.into_iter().filter(|stream| !is_one_of(stream.0, written)) {
            if over <= 0 {
                break;
            }
            self.remove_stream(id, of, events, bytes)?;
            over -= bytes;
        }
        self.write_back()?;
        while held(self)? > max && self.shrink_largest("session = ?1 AND", session)? {}
        Ok(())
    }

    /// Whether so many bytes more find room in the file, which may cost others theirs.
    pub(super) fn make_room(&mut self, bytes: i64) -> Result<bool> {
        let max = signed(self.context.limits.max_bytes).saturating_sub(bytes);
        self.trim_streams()?;
        let written = self.written.clone();
        Ok(max >= 0 && self.trim_to(max, &written)?)
    }

    /// The same for the file, over all processes. Whether it holds no more than that.
    fn trim_to(&mut self, max: i64, written: &[(i64, i64)]) -> Result<bool> {
        let before: i64 = self.db.prepare_cached("SELECT bytes FROM total")?.query_row([], |row| row.get(0))?;
        if before + self.totals.bytes <= max {
            return Ok(true);
        }
        for (id, of, events, bytes) in self.finished("?1 = 0 AND", 0)? {
            if before + self.totals.bytes <= max - max / 64 {
                break;
            }
            if !is_one_of(id, written) {
                self.remove_stream(id, of, events, bytes)?;
            }
        }
        self.write_back()?;
        while before + self.totals.bytes > max && self.shrink_largest("?1 = 0 AND", 0)? {}
        Ok(before + self.totals.bytes <= max)
    }

    /// Finished streams, in the order in which their retention ends: id, session, events, bytes.
    fn finished(&self, which: &str, value: i64) -> Result<Vec<(i64, i64, i64, i64)>> {
        let mut select = self.db.prepare_cached(&format!(
            "SELECT id, session, events, bytes FROM stream WHERE {which} kept_until IS NOT NULL ORDER BY kept_until, id
             LIMIT 1024"
        ))?;
        let rows = select.query_map(params![value], |row| {
            Ok((row.get(0)?, row.get(1)?, reader::amount(row, 2)?, reader::amount(row, 3)?))
        })?;
        rows.collect()
    }

    /// Frees a quarter of the largest stream; false when nothing may go.
    fn shrink_largest(&mut self, which: &str, value: i64) -> Result<bool> {
        let columns = Row::COLUMNS;
        let largest = self
            .db
            .prepare_cached(&format!(
                "SELECT {columns} FROM stream WHERE {which} events > 1 ORDER BY bytes DESC LIMIT 1"
            ))?
            .query_row(params![value], Row::read)
            .optional()?;
        let Some(mut row) = largest else { return Ok(false) };
        let (goal, held) = (row.bytes - row.bytes / 4, row.bytes);
        self.shrink(&mut row, |row| row.bytes > goal || row.bytes == held)?;
        let freed = row.bytes < held;
        self.db
            .prepare_cached(
                "UPDATE stream SET low = ?2, low_tag = ?3, low_at = ?4, events = ?5, bytes = ?6 WHERE id = ?1",
            )?
            .execute(params![row.id, row.low, row.low_tag, row.low_at, row.events, row.bytes])?;
        self.write_back()?;
        Ok(freed)
    }

    /// Removes what is over: finished streams after their retention, and sessions that have no owner any more, when
    /// even their events would be too old. Whether there may be more.
    pub(super) fn sweep(&mut self) -> Result<bool> {
        self.trim_streams()?;
        let max_age_ms = i64::try_from(self.context.limits.max_age_ms).unwrap_or(i64::MAX);
        let lost = self.now.saturating_sub(max_age_ms);
        let over = self.finished("kept_until <= ?1 AND", self.now)?;
        self.is_more_over |= over.len() > SWEEP;
        for (id, session, events, bytes) in over.into_iter().take(SWEEP) {
            self.remove_stream(id, session, events, bytes)?;
        }
        self.write_back()?;
        let mut delete = self.db.prepare_cached(&format!(
            "DELETE FROM ended WHERE name IN (SELECT name FROM ended WHERE at < ?1 LIMIT {SWEEP})"
        ))?;
        self.is_more_over |= delete.execute(params![lost])? == SWEEP;
        self.remove_sessions("released < ?1", lost)?;
        for owner in self.lost_owners(lost)? {
            self.remove_sessions("owner = ?1", owner)?;
            if self.is_more_over {
                break;
            }
            self.db.prepare_cached("DELETE FROM owner WHERE id = ?1")?.execute(params![owner])?;
        }
        Ok(self.is_more_over)
    }

    fn remove_sessions(&mut self, which: &str, value: i64) -> Result<()> {
        let mut select = self.db.prepare_cached(&format!("SELECT id FROM session WHERE {which} LIMIT {SWEEP}"))?;
        let over: Vec<i64> = select.query_map(params![value], |row| row.get(0))?.collect::<Result<_>>()?;
        self.is_more_over |= over.len() == SWEEP;
        over.into_iter().try_for_each(|session| self.remove_session(session))
    }

    /// Owners that are lost, and were found so by then. What is lost now gets the time.
    fn lost_owners(&self, by: i64) -> Result<Vec<i64>> {
        let mut select = self.db.prepare_cached("SELECT id, beat, lost FROM owner WHERE id <> ?1")?;
        let rows = select.query_map(params![self.context.owner], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut over = Vec::new();
        for (owner, count, lost) in rows.collect::<Result<Vec<(i64, Option<i64>, Option<i64>)>>>()? {
            match lost {
                // A time alone says nothing of an owner: clocks are set, and computers are suspended.
                _ if self.context.others.unseen_ms(owner, count) < self.context.owner_lost_ms => {}
                Some(lost) if lost < by => over.push(owner),
                Some(_) => {}
                None => {
                    let mut update = self.db.prepare_cached("UPDATE owner SET lost = ?2 WHERE id = ?1")?;
                    update.execute(params![owner, self.now])?;
                }
            }
        }
        Ok(over)
    }
}

fn is_one_of(id: i64, written: &[(i64, i64)]) -> bool {
    written.iter().any(|(stream, _)| *stream == id)
}
