//! A database of a PostgreSQL server.

use tailrope_stores::inspect::Facts;

use super::Findings;
use super::sqlite::contents;
use crate::table::duration;

/// What is dead behind a transaction that has been open for so long is not reused.
const LONG_MS: i64 = 10 * 60_000;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let version = facts.text("server_version").unwrap_or_default();
    if facts.number("server_version_num").is_some_and(|number| number < 130_000) {
        findings.fault(
            "server",
            format!("PostgreSQL {version}"),
            "the store needs PostgreSQL 13 or later",
            "take a newer server",
        );
    } else {
        findings.ok("server", format!("PostgreSQL {version}"));
    }
    if facts.flag("is_standby") == Some(true) {
        findings.fault(
            "role",
            "the server is a standby",
            "it takes no writes: servers cannot open the store",
            "name the primary, or several hosts: the one that accepts writes is taken",
        );
    } else if facts.text("default_transaction_read_only") == Some("on") {
        findings.fault(
            "role",
            "transactions are read-only by default (default_transaction_read_only)",
            "the store cannot write",
            "ALTER ROLE ... SET default_transaction_read_only = off",
        );
    }
    rights(facts, findings);
    findings.layout(facts, "tables");
    contents(facts, findings);
    connections(facts, findings);
    settings(facts, findings);
    findings.clock(facts);
}

fn rights(facts: &Facts, findings: &mut Findings) {
    let flag = |name| facts.flag(name);
    let has_tables = facts.number("version").is_some();
    match (flag("has_schema"), flag("may_create")) {
        (Some(false), Some(true)) => findings.warn(
            "schema",
            "there is no schema of this name",
            "the first server that opens the store makes it",
            "check the database and the namespace, if servers use the store already",
        ),
        (Some(false), _) => findings.fault(
            "schema",
            "there is no schema of this name, and the role may make none",
            "servers cannot open the store",
            "make the schema for the role, as docs/stores/README.md says",
        ),
        (Some(true), _) if flag("may_use") == Some(false) => findings.fault(
            "rights",
            "the role may not use the schema",
            "servers cannot open the store",
            "give the role its schema, as docs/stores/README.md says",
        ),
        (Some(true), Some(false)) if !has_tables => findings.fault(
            "rights",
            "the schema has no tables, and the role may make none",
            "servers cannot open the store",
            "give the role its schema, as docs/stores/README.md says",
        ),
        _ if flag("may_write") == Some(false) => findings.fault(
            "rights",
            "the role may not write to the tables",
            "servers of this role cannot use the store",
            "use the role that made the tables, or give this one their rights",
        ),
        _ if has_tables => findings.ok("rights", "the role may read and write"),
        _ => {}
    }
}

fn connections(facts: &Facts, findings: &mut Findings) {
    let number = |name| facts.number(name);
    let (Some(most), Some(open), Some(each)) =
        (number("max_connections"), number("connections"), number("connections_of_process"))
    else {
        return;
    };
    let left = most - number("superuser_reserved_connections").unwrap_or(0) - open;
    let processes = number("open_in").unwrap_or(0);
    let what = format!("{open} of {most} are open; {processes} store objects take {each} each");
    let advice = "raise max_connections, put PgBouncer in front, or lower connections in the address";
    if left < each {
        let means = "one more process that opens the store is refused, and so is one whose connections broke";
        findings.fault("connections", what, means, advice);
    } else if left < 2 * each {
        findings.warn("connections", what, "two more processes that open the store are refused", advice);
    } else {
        findings.ok("connections", what);
    }
}

fn settings(facts: &Facts, findings: &mut Findings) {
    if facts.text("fsync") == Some("off") {
        findings.warn(
            "fsync",
            "fsync is off",
            "a crash of the server's machine may damage the whole database",
            "set fsync on",
        );
    }
    if let Some(commit) = facts.text("synchronous_commit") {
        let means = "events are committed without waiting for the disk, unless durability is power";
        findings.ok("commit", format!("synchronous_commit is {commit}: {means}"));
    }
    if facts.text("autovacuum") == Some("off") || facts.text("track_counts") == Some("off") {
        findings.warn(
            "vacuum",
            "autovacuum or track_counts is off",
            "tables grow: the store frees the room of deleted rows only for what it writes next, and only where they are counted",
            "set both on",
        );
    }
    if let Some(ms) = facts.number("oldest_transaction_ms").filter(|ms| *ms > LONG_MS) {
        findings.warn(
            "transaction",
            format!("a transaction has been open for {}", duration(u64::try_from(ms).unwrap_or(0))),
            "rows that were deleted meanwhile keep their room: tables grow",
            "look for it in pg_stat_activity (xact_start), and end it",
        );
    }
    if facts.number("statement_timeout_ms").is_some_and(|ms| (1..5_000).contains(&ms)) {
        findings.warn(
            "timeout",
            "statement_timeout is shorter than the store's own (timeout_ms, 5 s)",
            "operations fail that would have been done in time",
            "ALTER ROLE ... SET statement_timeout = 0",
        );
    }
}
