//! A file, and the disk that it is on.

use tailrope_stores::inspect::Facts;

use super::Findings;
use crate::table::bytes;

/// What the write-ahead log alone may take.
const WAL_BYTES: u64 = 64 << 20;
/// Less room than this is soon none.
const LITTLE_BYTES: u64 = 1 << 30;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let size = |name| facts.number(name).map(|number| u64::try_from(number).unwrap_or(0));
    disk(facts, findings);
    if facts.flag("may_write_folder") == Some(false) {
        findings.fault(
            "folder",
            "this user may not write in the file's folder",
            "SQLite makes two files beside it, -wal and -shm: servers of this user cannot open the store",
            "give the servers' user the folder, or run this command as that user",
        );
    }
    if facts.flag("exists") == Some(false) {
        return findings.warn(
            "file",
            "there is no such file",
            "the first server that opens the store makes it",
            "check the path, if servers have it open already",
        );
    }
    findings.ok(
        "file",
        format!("{} with {} of log", bytes(size("file_bytes").unwrap_or(0)), bytes(size("wal_bytes").unwrap_or(0))),
    );
    findings.layout(facts, "tables");
    if facts.flag("is_private") == Some(false) {
        findings.warn(
            "private",
            "other users of this machine may read or write the file",
            "it holds what sessions said, unless it is encrypted",
            "chmod 600 the file, and -wal and -shm beside it",
        );
    }
    match facts.text("journal_mode") {
        Some("wal") | None => {}
        Some(mode) => findings.fault(
            "journal",
            format!("the journal mode is {mode}, not wal"),
            "somebody else has changed it: readers and writers of the store exclude each other",
            "end what else opens the file; the next server that opens the store sets it again",
        ),
    }
    match facts.text("writing") {
        Some("locked") => findings.fault(
            "lock",
            "another process keeps the file locked",
            "no server can write: calls wait, and are refused after some seconds",
            "look for a program that has a transaction open, such as a sqlite3 shell or a backup",
        ),
        Some("refused") => findings.fault(
            "lock",
            "the file cannot be written",
            "no server of this user can write to the store",
            "give the servers' user the file, or run this command as that user",
        ),
        Some(_) => findings.ok("lock", "the file can be written"),
        None => {}
    }
    if size("wal_bytes").is_some_and(|bytes| bytes > WAL_BYTES + WAL_BYTES / 4) {
        findings.warn(
            "log",
            "the write-ahead log has outgrown its bound of 64 MB",
            "a reader has been open for long, and keeps its content from being moved into the file",
            "look for a program that has a transaction open, such as a sqlite3 shell or a backup",
        );
    }
    if let (Some(living), Some(all)) = (facts.number("open_in"), facts.number("owners")) {
        findings.ok("processes", format!("open in {living} store objects of processes; {} are gone", all - living));
    }
    contents(facts, findings);
}

/// What a store says that it holds.
pub(super) fn contents(facts: &Facts, findings: &mut Findings) {
    let number = |name| facts.number(name).map(|number| u64::try_from(number).unwrap_or(0));
    if let (Some(sessions), Some(streams), Some(events), Some(held)) =
        (number("sessions"), number("streams"), number("events"), number("bytes"))
    {
        let held = bytes(held);
        findings.ok("contents", format!("{sessions} sessions, {streams} streams, {events} events, {held}"));
    }
}

fn disk(facts: &Facts, findings: &mut Findings) {
    let kind = facts.text("file_system").unwrap_or_default();
    match facts.text("disk") {
        Some("network") => findings.fault(
            "disk",
            format!("the file is on a network ({kind})"),
            "two machines would damage it: servers refuse to open it",
            "name a file on a local disk, or take Redis or PostgreSQL",
        ),
        Some("doubtful") => findings.warn(
            "disk",
            format!("the disk may be shared with another machine ({kind})"),
            "opened from both, the file is damaged",
            "open it from one machine only, or name a file on a local disk",
        ),
        _ => findings.ok("disk", "local"),
    }
    let free = facts.number("disk_free_bytes").map(|free| u64::try_from(free).unwrap_or(0));
    match free {
        Some(free) if free < WAL_BYTES => findings.fault(
            "room",
            format!("{} are free on the disk", bytes(free)),
            "the write-ahead log alone may take 64 MB: events are refused when nothing is left",
            "make room, or lower max_bytes",
        ),
        Some(free) if free < LITTLE_BYTES => findings.warn(
            "room",
            format!("{} are free on the disk", bytes(free)),
            "the file may take max_bytes (512 MiB), and the write-ahead log 64 MB more",
            "make room, or lower max_bytes",
        ),
        Some(free) => findings.ok("room", format!("{} are free on the disk", bytes(free))),
        None => {}
    }
}
