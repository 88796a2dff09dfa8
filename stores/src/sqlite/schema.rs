//! The file: how it is opened, made and recognised.
//!
//! A session has its streams, a stream its events. A stream that has its end is `kept_until` then. A message that was left for a session's owner is `taken` when the owner
//! has it; the stream of its answer names it, and has the end that it was `withdrawn` with. `ended` has the names of sessions
//! that are gone and had several owners, so that nobody begins them anew for a while. `owner` has a row for every store object that has the file open, in
//! whichever process, with a count of its signs of life: none when it has closed the file. `lost` is when it did so, or
//! was found to give no signs. A session is its owner's, with an epoch, until somebody takes it over; `released` is when
//! the owner let it go. Its `changes` grow when one of its logs does or gets a reader; they begin anywhere, so that a session
//! which is begun anew is not taken for the one before. `total` is one row that counts everything, so that the bounds hold
//! for all processes together, and how often a session got a reader, or an owner, that is not its owner (`by_others`).

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tailrope_core::store::Durability;

use super::checkpoint;
use super::disk::{self, Disk};

use crate::OpenError;

/// Tells our files from those of others: "tail" in ASCII.
const APPLICATION_ID: i32 = 0x7461_696C;
/// The version of the tables below.
const VERSION: i32 = 7;
/// The oldest version that a release has to know to use them: while servers are replaced one by one, two releases share a file.
const SERVES: i32 = 7;
/// Both, as a file has them in `user_version`.
const LAYOUT: i32 = SERVES * 1_000 + VERSION;

/// Strict: what is in a column has its type, also where somebody else wrote it.
const TABLES: &str = "
CREATE TABLE owner (
    id INTEGER PRIMARY KEY,
    beat INTEGER,
    lost INTEGER
) STRICT;
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    owner INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    salt INTEGER NOT NULL,
    released INTEGER,
    bytes INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT (random() >> 1),
    revision TEXT,
    principal TEXT,
    retry_ms INTEGER NOT NULL DEFAULT 0,
    list_changed INTEGER NOT NULL DEFAULT 0,
    standalone BLOB,
    note BLOB NOT NULL DEFAULT x''
) STRICT;
CREATE INDEX session_owner ON session (owner);
CREATE INDEX session_released ON session (released) WHERE released IS NOT NULL;
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    head INTEGER NOT NULL,
    low INTEGER NOT NULL,
    low_tag INTEGER NOT NULL,
    low_at INTEGER NOT NULL,
    chain INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    kept_until INTEGER,
    tail BLOB,
    about BLOB NOT NULL,
    readers INTEGER NOT NULL DEFAULT 0,
    paced BLOB,
    message INTEGER,
    withdrawn INTEGER NOT NULL DEFAULT 0,
    UNIQUE (session, nonce)
) STRICT;
CREATE INDEX stream_kept_until ON stream (kept_until) WHERE kept_until IS NOT NULL;
CREATE TABLE event (
    stream INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    at INTEGER NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (stream, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX message_session ON message (session, taken, number, bytes);
CREATE TABLE ended (
    name TEXT PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ended_at ON ended (at);
CREATE TABLE total (
    sessions INTEGER NOT NULL DEFAULT 0,
    streams INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    by_others INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO total DEFAULT VALUES;
";

/// How long another process may hold the file before an operation fails.
pub(super) const BUSY: Duration = Duration::from_secs(5);

pub(super) const DISK_FULL: &str = "the disk is full";

/// Pause before another try.
const NAP: Duration = Duration::from_micros(500);

/// Opens the file for writing and brings it to the present form.
pub(super) fn open_writer(path: &Path, durability: Durability, shown: &str) -> Result<Connection, OpenError> {
    if path.is_dir() {
        return Err(OpenError::new(shown, "it is a directory"));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(OpenError::new(shown, "its directory does not exist"));
    }
    check_disk(disk::of(parent.unwrap_or_else(|| Path::new("."))), shown)?;
    create_private(path);
    let begun = Instant::now();
    loop {
        let mut db = connect(path, OpenFlags::SQLITE_OPEN_CREATE).map_err(|error| refusal(shown, &error))?;
        match prepare(&mut db, durability, shown) {
            Ok(()) => return Ok(db),
            // Where two processes switch a new file to its log at once, SQLite asks no busy handler.
            Err(Unusable::Sql(error)) if is_busy(&error) && begun.elapsed() < BUSY => std::thread::sleep(NAP),
            Err(Unusable::Sql(error)) => return Err(refusal(shown, &error)),
            Err(Unusable::Open(error)) => return Err(error),
        }
    }
}

fn check_disk(disk: Disk, shown: &str) -> Result<(), OpenError> {
    match disk {
        Disk::Local => {}
        Disk::Network(kind) => {
            let what = format!(
                "its disk is on a network ({kind}), where two machines would damage it: name a file on a local disk, or \
                 take Redis or PostgreSQL"
            );
            return Err(OpenError::new(shown, what));
        }
        Disk::Doubtful(kind) => tracing::warn!(
            target: "tailrope",
            kind,
            "the event store's file is on a disk that may be shared with another machine: opened from there, too, it is \
             damaged"
        ),
    }
    Ok(())
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether there may have been no room for it: on the disk, within a quota, or within what the process may write.
pub(super) fn may_lack_room(error: &rusqlite::Error) -> bool {
    let written = error.sqlite_error().map(|error| error.extended_code);
    error.sqlite_error_code() == Some(ErrorCode::DiskFull) || written == Some(rusqlite::ffi::SQLITE_IOERR_WRITE)
}

/// Opens a file for writing that [`open_writer`] has brought to the present form.
pub(super) fn open_writer_again(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let db = connect(path, OpenFlags::empty())?;
    tune(&db, durability)?;
    Ok(db)
}

/// Opens a file for reading that [`open_writer`] has brought to the present form.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // Readers of a write-ahead log write its index.
    let db = connect(path, OpenFlags::empty())?;
    db.pragma_update(None, "query_only", true)?;
    Ok(db)
}

fn connect(path: &Path, more: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_handler(Some(wait_for_others))?;
    Ok(db)
}

/// What a connection that writes does not find in the file.
fn tune(db: &Connection, durability: Durability) -> rusqlite::Result<()> {
    db.set_prepared_statement_cache_capacity(64);
    wait_for_disk(db, durability == Durability::Power)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    // It has its own thread.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    checkpoint::count(db);
    Ok(())
}

/// Whether commits wait for the disk from now on.
pub(super) fn wait_for_disk(db: &Connection, waits: bool) -> rusqlite::Result<()> {
    db.pragma_update(None, "synchronous", if waits { "FULL" } else { "NORMAL" })
}

enum Unusable {
    Sql(rusqlite::Error),
    Open(OpenError),
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

fn prepare(db: &mut Connection, durability: Durability, shown: &str) -> Result<(), Unusable> {
    // Another process may be making the tables: the number and the tables are looked at as of one moment.
    check(&*db.transaction()?, shown)?;
    // Only before there are tables: freed pages can be given back to the file system later.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Unusable::Open(OpenError::new(shown, "its file system has no write-ahead log for SQLite")));
    }
    tune(db, durability)?;
    let create = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have made the tables meanwhile.
    if check(&create, shown)? {
        create.execute_batch(TABLES)?;
        create.pragma_update(None, "application_id", APPLICATION_ID)?;
        create.pragma_update(None, "user_version", LAYOUT)?;
    }
    create.commit()?;
    Ok(())
}

/// The version of the tables in a file that this release can use.
///
/// # Errors
/// It is none, or has no tables yet.
pub(super) fn check_layout(db: &Connection) -> Result<i32, String> {
    match check(db, "") {
        Ok(false) => db
            .pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0))
            .map(|layout| layout % 1_000)
            .map_err(|error| said(&error)),
        Ok(true) => Err("the file is empty: no store has made its tables".to_owned()),
        Err(Unusable::Open(error)) => Err(error.what().to_owned()),
        Err(Unusable::Sql(error)) => Err(said(&error)),
    }
}

/// Whether the file is empty. A file that is not ours, or of a version that this release does not know, is refused. To be
/// called in a transaction.
fn check(db: &Connection, shown: &str) -> Result<bool, Unusable> {
    let number = |name| db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (id, layout) = (number("application_id")?, number("user_version")?);
    if id == APPLICATION_ID {
        let (serves, version) = (layout / 1_000, layout % 1_000);
        if version >= VERSION && serves <= VERSION {
            return Ok(false);
        }
        let what = format!("it has version {version} of the tables; this release knows version {VERSION}");
        return Err(Unusable::Open(OpenError::new(shown, what)));
    }
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 || id != 0 {
        return Err(Unusable::Open(OpenError::new(shown, "it is a database of something else")));
    }
    Ok(true)
}

/// A new file is for its user only: it will hold what sessions said.
fn create_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Whatever is wrong with it, opening it tells better.
    let _ = options.open(path);
}

/// Waits for another process that writes. Short naps: its transactions take about a millisecond, and
/// the pauses that SQLite itself makes grow to a hundred.
fn wait_for_others(tries: i32) -> bool {
    std::thread::sleep(NAP);
    u128::from(tries.unsigned_abs()) < BUSY.as_micros() / NAP.as_micros()
}

/// Why the file cannot be used.
pub(super) fn refusal(shown: &str, error: &rusqlite::Error) -> OpenError {
    OpenError::new(shown, said(error))
}

/// An error in words that do not name the file, as those of SQLite may.
pub(super) fn said(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "it is no SQLite database".to_owned(),
        Some(ErrorCode::DatabaseCorrupt) => "the database is damaged".to_owned(),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => "it cannot be written".to_owned(),
        Some(ErrorCode::CannotOpen) => "it cannot be opened or created; check its directory's permissions".to_owned(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process keeps it locked".to_owned(),
        Some(ErrorCode::DiskFull) => DISK_FULL.to_owned(),
        Some(code) => format!("SQLite said {code:?}: {error}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    use super::*;

    #[test]
    fn a_file_on_a_disk_of_a_network_is_refused() {
        let refused = check_disk(Disk::Network("nfs4".to_owned()), "sqlite:a.db").unwrap_err().to_string();
        assert!(refused.contains("sqlite:a.db") && refused.contains("(nfs4)") && refused.contains("local disk"));
        assert!(check_disk(Disk::Local, "").is_ok() && check_disk(Disk::Doubtful("9p".to_owned()), "").is_ok());
    }

    #[test]
    fn a_file_that_another_process_makes_meanwhile_is_not_taken_for_somebody_elses() {
        let folder = std::env::temp_dir().join(format!("tailrope-meanwhile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for mode in ["DELETE", "WAL"] {
            let path = folder.join(format!("{mode}.db"));
            let mut db = connect(&path, OpenFlags::SQLITE_OPEN_CREATE).unwrap();
            let other = Connection::open(&path).unwrap();
            other.busy_timeout(Duration::ZERO).unwrap();
            let _: String = other.pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0)).unwrap();
            let make = format!(
                "BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT}; COMMIT"
            );
            let (tell, tries) = std::sync::mpsc::channel();
            let makes = move |look: AuthContext<'_>| {
                // Behind the look at the numbers, and before that at the tables. Whether it may, SQLite decides.
                if matches!(look.action, AuthAction::Read { table_name: "sqlite_schema", .. }) {
                    let is_made = other.execute_batch(&make).is_ok();
                    if !is_made {
                        let _ = other.execute_batch("ROLLBACK");
                    }
                    tell.send(is_made).unwrap();
                }
                Authorization::Allow
            };
            db.authorizer(Some(makes)).unwrap();
            assert!(prepare(&mut db, Durability::Process, "").is_ok(), "{mode}");
            assert!(tries.try_recv().is_ok(), "{mode}: the other one tried meanwhile");
            assert!(matches!(check(&db, ""), Ok(false)), "{mode}: it has its tables");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
