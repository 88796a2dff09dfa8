//! A look into the file by an operator. See [`Inspect`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tailrope_core::protocol::{StreamNonce, hex};

use super::disk::{self, Disk};
use super::reader::{count, nonce, text};
use super::{schema, unix_ms};
use crate::inspect::{Beat, Facts, Inspect, SessionPage, SessionSeen, StreamSeen, user};

/// How long the lock of a writer is waited for, to say that there is one.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is told of a session; `?1` is the log that is looked for.
const SESSION: &str = "SELECT s.id, s.name, s.owner, s.released IS NOT NULL, s.epoch, s.salt, s.revision, s.principal, \
     length(s.note) > 0, s.bytes, \
     (SELECT count(*) FROM stream WHERE session = s.id), \
     (SELECT count(*) FROM stream WHERE session = s.id AND kept_until IS NULL), \
     (SELECT count(*) FROM message WHERE session = s.id AND taken = 0), \
     (SELECT min(low_at) FROM stream WHERE session = s.id), \
     (SELECT max(low_at) FROM stream WHERE session = s.id), \
     EXISTS (SELECT 1 FROM stream WHERE session = s.id AND nonce = ?1) \
     FROM session AS s";
const STREAMS: &str = "SELECT st.nonce, st.nonce IS s.standalone, st.about, st.head, st.low, st.events, st.bytes, st.readers, \
     st.low_at, (SELECT at FROM event WHERE stream = st.id AND seq = st.head), st.kept_until, length(st.tail), \
     EXISTS (SELECT 1 FROM message WHERE number = st.message AND taken = 0), st.withdrawn <> 0 \
     FROM session AS s JOIN stream AS st ON st.session = s.id WHERE s.name = ?1 ORDER BY st.id LIMIT ?2";

pub(crate) struct Looking {
    path: PathBuf,
    db: Option<Connection>,
}

impl Looking {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), db: None }
    }

    /// The file, once it is known to be ours.
    fn db(&mut self) -> std::result::Result<&Connection, String> {
        if self.db.is_none() {
            let db = self.connect()?;
            schema::check_layout(&db)?;
            self.db = Some(db);
        }
        self.db.as_ref().ok_or_else(String::new)
    }

    fn connect(&self) -> std::result::Result<Connection, String> {
        if !self.path.exists() {
            return Err("there is no such file".to_owned());
        }
        schema::open_reader(&self.path).map_err(|error| schema::said(&error))
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
    }

    fn add_place(&self, facts: &mut Facts) {
        let (kind, disk) = match disk::of(self.folder()) {
            Disk::Local => ("local", None),
            Disk::Doubtful(disk) => ("doubtful", Some(disk)),
            Disk::Network(disk) => ("network", Some(disk)),
        };
        facts.add("disk", kind);
        facts.add_known("file_system", disk);
        let bytes = |path: &Path| std::fs::metadata(path).ok().and_then(|file| i64::try_from(file.len()).ok());
        facts.add_known("file_bytes", bytes(&self.path));
        facts.add_known("wal_bytes", bytes(&sibling(&self.path, "-wal")));
        let free = disk::free_bytes(self.folder()).and_then(|bytes| i64::try_from(bytes).ok());
        facts.add_known("disk_free_bytes", free);
        #[cfg(unix)]
        {
            let mode = std::fs::metadata(&self.path).map(|file| std::os::unix::fs::MetadataExt::mode(&file));
            facts.add_known("is_private", mode.ok().map(|mode| mode & 0o077 == 0));
            // SQLite makes files beside it.
            let writes = rustix::fs::access(self.folder(), rustix::fs::Access::WRITE_OK).is_ok();
            facts.add("may_write_folder", writes);
        }
    }
}

/// The file next to this one whose name ends so.
fn sibling(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn add_contents(db: &Connection, facts: &mut Facts) -> Result<()> {
    let number = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    facts.add("journal_mode", db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))?);
    facts.add("sqlite_version", rusqlite::version());
    facts.add("free_bytes", number("freelist_count")? * number("page_size")?);
    let (living, all) = db.query_row("SELECT count(beat), count(*) FROM owner", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    })?;
    facts.add("open_in", living);
    facts.add("owners", all);
    db.query_row("SELECT sessions, streams, events, bytes FROM total", [], |row| {
        for (at, name) in ["sessions", "streams", "events", "bytes"].into_iter().enumerate() {
            facts.add(name, row.get::<_, i64>(at)?);
        }
        Ok(())
    })
}

/// Whether somebody who writes would have the file's lock in time. Nothing is written, and the lock is let go at once.
fn writing(db: &Connection) -> &'static str {
    let _ = db.busy_timeout(PATIENCE);
    match db.execute_batch("PRAGMA query_only = 0; BEGIN IMMEDIATE; ROLLBACK") {
        Ok(()) => "possible",
        Err(error) if schema::is_busy(&error) => "locked",
        Err(_) => "refused",
    }
}

fn session(row: &Row<'_>) -> Result<(i64, SessionSeen)> {
    let revision = text(row, 6)?.map(String::from);
    let seen = SessionSeen {
        name: text(row, 1)?.unwrap_or_default().into(),
        owner: if row.get(3)? { None } else { Some(shown(row.get(2)?)) },
        epoch: row.get::<_, i64>(4)?.cast_unsigned(),
        salt: row.get::<_, i64>(5)?.cast_unsigned(),
        is_sealed: revision.is_none() && row.get(8)?,
        revision,
        user: text(row, 7)?.map(|principal| user(principal.as_bytes())),
        bytes: count(row, 9)?,
        streams: count(row, 10)?,
        running: count(row, 11)?,
        waiting: count(row, 12)?,
        oldest_at: present(row, 13)?,
        newest_at: present(row, 14)?,
        has_log: row.get(15)?,
    };
    Ok((row.get(0)?, seen))
}

fn present(row: &Row<'_>, at: usize) -> Result<Option<u64>> {
    if row.get_ref(at)?.data_type() == Type::Null { Ok(None) } else { count(row, at).map(Some) }
}

fn stream(row: &Row<'_>) -> Result<StreamSeen> {
    Ok(StreamSeen {
        nonce: nonce(row, 0)?.map(|nonce| hex(&nonce.0)).unwrap_or_default(),
        is_standalone: row.get(1)?,
        about: row.get(2)?,
        head: count(row, 3)?,
        low: count(row, 4)?,
        events: count(row, 5)?,
        bytes: count(row, 6)?,
        readers: count(row, 7)?,
        began_at: count(row, 8)?,
        last_at: present(row, 9)?,
        kept_until: present(row, 10)?,
        tail: present(row, 11)?,
        waits: row.get(12)?,
        is_withdrawn: row.get(13)?,
    })
}

fn shown(owner: i64) -> String {
    format!("{owner:016x}")
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn failed(error: rusqlite::Error) -> String {
    schema::said(&error)
}

impl Inspect for Looking {
    fn facts(&mut self) -> std::result::Result<Facts, String> {
        let mut facts = Facts::default();
        facts.add("exists", self.path.exists());
        self.add_place(&mut facts);
        if self.path.exists() {
            let db = self.connect()?;
            match schema::check_layout(&db) {
                Ok(version) => {
                    facts.add("version", i64::from(version));
                    add_contents(&db, &mut facts).map_err(failed)?;
                    facts.add("writing", writing(&db));
                }
                Err(what) => facts.add("unusable", what),
            }
        }
        Ok(facts)
    }

    fn sessions(
        &mut self,
        after: Option<&str>,
        at_most: usize,
        log: &StreamNonce,
    ) -> std::result::Result<SessionPage, String> {
        let after: i64 = after.and_then(|after| after.parse().ok()).unwrap_or(i64::MIN);
        let db = self.db()?;
        let page = || {
            let mut select = db.prepare_cached(&format!("{SESSION} WHERE s.id > ?2 ORDER BY s.id LIMIT ?3"))?;
            let rows = select.query_map(params![log.0, after, signed(at_most)], session)?;
            rows.collect::<Result<Vec<_>>>()
        };
        let page = page().map_err(failed)?;
        let next = page.last().filter(|_| page.len() == at_most).map(|(id, _)| id.to_string());
        Ok(SessionPage { sessions: page.into_iter().map(|(_, session)| session).collect(), next })
    }

    fn session(&mut self, name: &str, log: &StreamNonce) -> std::result::Result<Option<SessionSeen>, String> {
        let select = format!("{SESSION} WHERE s.name = ?2");
        let found = self.db()?.query_row(&select, params![log.0, name], session).optional();
        found.map(|found| found.map(|(_, session)| session)).map_err(failed)
    }

    fn streams(&mut self, session: &str, at_most: usize) -> std::result::Result<Vec<StreamSeen>, String> {
        let db = self.db()?;
        let read = || db.prepare(STREAMS)?.query_map(params![session, signed(at_most)], stream)?.collect::<Result<_>>();
        read().map_err(failed)
    }

    fn frames(
        &mut self,
        session: &str,
        log: &StreamNonce,
        max_bytes: u64,
    ) -> std::result::Result<Option<Vec<Vec<u8>>>, String> {
        let db = self.db()?;
        let read = || {
            let row = db.query_row(
                "SELECT st.id, st.bytes FROM session AS s JOIN stream AS st ON st.session = s.id
                 WHERE s.name = ?1 AND st.nonce = ?2",
                params![session, log.0],
                |row| Ok((row.get::<_, i64>(0)?, count(row, 1)?)),
            );
            let Some((id, _)) = row.optional()?.filter(|(_, bytes)| *bytes <= max_bytes) else { return Ok(None) };
            let mut select = db.prepare_cached("SELECT frame FROM event WHERE stream = ?1 ORDER BY seq")?;
            select.query_map(params![id], |row| row.get(0))?.collect::<Result<_>>().map(Some)
        };
        read().map_err(failed)
    }

    fn beats(&mut self, owners: &[&str]) -> std::result::Result<Vec<Beat>, String> {
        let db = self.db()?;
        let beat = |owner: &&str| {
            let id = u64::from_str_radix(owner, 16).unwrap_or_default().cast_signed();
            let mut select = db.prepare_cached("SELECT beat FROM owner WHERE id = ?1")?;
            let row = select.query_row(params![id], |row| row.get::<_, Option<i64>>(0)).optional()?;
            Ok(match row {
                None => Beat::Unknown,
                Some(None) => Beat::Closed,
                Some(Some(count)) => Beat::Count(count.cast_unsigned()),
            })
        };
        owners.iter().map(beat).collect::<Result<_>>().map_err(failed)
    }

    fn now_ms(&mut self) -> std::result::Result<u64, String> {
        Ok(unix_ms())
    }
}
