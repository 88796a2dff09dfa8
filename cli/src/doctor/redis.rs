//! A Redis or Valkey server, or those of a cluster.

use tailrope_stores::inspect::Facts;

use super::Findings;
use crate::table::bytes;

pub(super) fn judge(scheme: &str, facts: &Facts, findings: &mut Findings) {
    server(scheme, facts, findings);
    findings.layout(facts, "keys");
    if facts.number("version").is_none() && facts.text("unusable").is_none() {
        findings.ok("layout", "no server has opened the store lately");
    }
    match facts.text("refused_commands") {
        Some("") => findings.ok("rights", "the user may read and write in the namespace"),
        Some(refused) => findings.fault(
            "rights",
            format!("the user may not: {refused}"),
            "the store cannot be opened, or its operations fail",
            "give it the rights that docs/stores/README.md lists (ACL SETUSER)",
        ),
        None => {}
    }
    memory(facts, findings);
    persistence(facts, findings);
    if let (Some(clients), Some(most)) = (facts.number("connected_clients"), facts.number("maxclients")) {
        let what = format!("{clients} of {most} connections are open");
        if clients * 10 > most * 9 {
            findings.warn(
                "connections",
                what,
                "a process that opens the store takes two, and is refused when none is left",
                "raise maxclients, or look for clients that do not close theirs",
            );
        } else {
            findings.ok("connections", what);
        }
    }
    findings.clock(facts);
}

fn server(scheme: &str, facts: &Facts, findings: &mut Findings) {
    let (redis, valkey) = (facts.text("redis_version").unwrap_or_default(), facts.text("valkey_version"));
    let mut parts = redis.split('.').map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let shown = valkey.map_or_else(|| format!("Redis {redis}"), |valkey| format!("Valkey {valkey}"));
    if version < (6, 2) {
        findings.fault("server", shown, "the store needs Redis 6.2 or later, or Valkey", "take a newer server");
    } else {
        let count = facts.number("servers").filter(|count| *count > 1);
        findings.ok("server", count.map_or_else(|| shown.clone(), |count| format!("{shown}, {count} servers")));
    }
    let wrong = match (facts.text("redis_mode"), scheme.ends_with("+cluster")) {
        (Some("cluster"), false) => Some(("the server is one of a cluster", "write redis+cluster:// in the address")),
        (Some("sentinel"), _) => Some(("this is a sentinel", "write redis+sentinel://HOST/SERVICE in the address")),
        (Some("standalone"), true) => Some(("the server is not one of a cluster", "write redis:// in the address")),
        _ => None,
    };
    if let Some((what, advice)) = wrong {
        findings.fault("mode", what, "servers cannot open the store with this address", advice);
    }
    if facts.text("role") == Some("slave") {
        findings.fault(
            "role",
            "the server is a replica",
            "it takes no writes: calls are refused",
            "name the primary, or the sentinels that know it",
        );
    } else if facts.number("connected_slaves").is_some_and(|replicas| replicas > 0) {
        findings.ok("role", "the primary; a failover may lose what was acknowledged last, and clients are told");
    }
}

fn memory(facts: &Facts, findings: &mut Findings) {
    let size = |name| facts.number(name).map_or(0, |number| u64::try_from(number).unwrap_or(0));
    let (used, most, evicted) = (size("used_memory"), size("maxmemory"), size("evicted_keys"));
    let policy = facts.text("maxmemory_policy").unwrap_or("noeviction");
    let evicts = most > 0 && policy != "noeviction";
    if evicts && evicted > 0 {
        findings.fault(
            "eviction",
            format!("the server has evicted {evicted} keys (maxmemory-policy {policy})"),
            "events may have gone before their clients had them: these see a gap or an error",
            "set maxmemory-policy noeviction, and give the server more memory",
        );
    } else if evicts {
        findings.warn(
            "eviction",
            format!("a full server evicts keys (maxmemory-policy {policy})"),
            "events go before their clients have them: these see a gap or an error",
            "set maxmemory-policy noeviction: a full server then refuses new events",
        );
    } else {
        findings.ok("eviction", "no key is evicted");
    }
    match most {
        0 => findings.warn(
            "memory",
            format!("{} in use, without a bound (maxmemory 0)", bytes(used)),
            "max_bytes has no effect on Redis: when the machine has no memory left, its kernel ends the server",
            "set maxmemory below what the machine has",
        ),
        most if used / 9 * 10 >= most => findings.fault(
            "memory",
            format!("{} of {} in use", bytes(used), bytes(most)),
            "a full server refuses events (or evicts them)",
            "raise maxmemory, or lower retention_ms and max_age_ms",
        ),
        most => findings.ok("memory", format!("{} of {} in use", bytes(used), bytes(most))),
    }
}

fn persistence(facts: &Facts, findings: &mut Findings) {
    let failed = |name, good| facts.text(name).is_some_and(|status| status != good);
    if failed("rdb_last_bgsave_status", "ok") || failed("aof_last_write_status", "ok") {
        findings.fault(
            "disk",
            "the server could not write to its disk",
            "it refuses events until it can",
            "look at the server's log, and at its disk",
        );
    }
    match (facts.text("aof_enabled"), facts.text("appendfsync")) {
        (Some("1"), Some("no")) => findings.warn(
            "persistence",
            "an append-only file that the system writes when it likes (appendfsync no)",
            "a power failure loses up to half a minute",
            "set appendfsync everysec",
        ),
        (Some("1"), Some(how)) => findings.ok("persistence", format!("an append-only file, appendfsync {how}")),
        (Some("1"), None) => findings.ok("persistence", "an append-only file"),
        _ => findings.warn(
            "persistence",
            "there is no append-only file",
            "a restart of the server loses what came after its last snapshot: the calls of that time end with an error",
            "set appendonly yes, if sessions are to survive that",
        ),
    }
}
