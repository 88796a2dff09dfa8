//! What somebody makes of sessions who can write to the server, and has no key.

use std::sync::Arc;

use tailrope_core::store::contract::Log;
use tailrope_core::store::{EventStore, StoreOptions};
use tailrope_stores::open;

use super::server::{Kind, fresh, place, say};
use crate::kit::forging::{Forger, check_bad_records, check_payloads, check_sessions, hex, with_keys};

/// Bytes go from key to key at the server.
struct Keys {
    place: String,
    namespace: String,
}

/// What each script begins with: the keys of a session, and of a log of it.
const NAMES: &str = "
    local function of(kind, name)
        return redis.call('KEYS', ARGV[1] .. ':*' .. kind .. ':' .. name)[1]
    end
    local function bytes(hex)
        return (string.gsub(hex, '..', function(pair) return string.char(tonumber(pair, 16)) end))
    end
    local call = redis.call
";

impl Keys {
    fn run(&self, script: &str, arguments: &[&str]) {
        let script = format!("{NAMES} {script} return 'done'");
        let words = [&["EVAL", &script, "0", &self.namespace], arguments].concat();
        assert_eq!(say(&self.place, &words), ["done"], "{script}");
    }
}

fn name(log: &Log) -> String {
    format!("{}:{}", hex(&log.key.nonce.0), log.key.session)
}

impl Forger for Keys {
    fn set_principal(&self, session: &str, principal: Option<&str>) {
        let principal = principal.map_or_else(String::new, |principal| format!("={principal}"));
        self.run("call('HSET', of('s', ARGV[2]), 'p', ARGV[3])", &[session, &principal]);
    }

    fn copy_record(&self, from: &str, to: &str, only_note: bool) {
        let fields = if only_note { "m" } else { "vprlsm" };
        let copy = "for field in string.gmatch(ARGV[4], '.') do
            call('HSET', of('s', ARGV[3]), field, call('HGET', of('s', ARGV[2]), field)) end";
        self.run(copy, &[from, to, fields]);
    }

    fn set_note(&self, session: &str, note: &[u8]) {
        self.run("call('HSET', of('s', ARGV[2]), 'm', bytes(ARGV[3]))", &[session, &hex(note)]);
    }

    fn copy_message(&self, from: &Log, to: &Log) {
        let copy = "for _, field in ipairs({'a', 'M'}) do
            call('HSET', of('m', ARGV[3]), field, call('HGET', of('m', ARGV[2]), field)) end";
        self.run(copy, &[&name(from), &name(to)]);
    }

    fn keep_message(&self, log: &Log) {
        self.run("call('SET', ARGV[1] .. ':copy', call('HGET', of('m', ARGV[2]), 'M'))", &[&name(log)]);
    }

    fn put_back(&self, log: &Log) {
        let put = "
            local number = call('HINCRBY', of('s', ARGV[2]), 'n', 1)
            call('HSET', of('m', ARGV[4]), 'i', number, 'M', call('GET', ARGV[1] .. ':copy'))
            local inbox = string.gsub(of('s', ARGV[2]), 's:' .. ARGV[2] .. '$', 'x:' .. ARGV[2])
            call('ZADD', inbox, number, ARGV[3] .. 100)";
        self.run(put, &[&log.key.session, &hex(&log.key.nonce.0), &name(log)]);
    }

    fn copy_event(&self, from: &Log, to: &Log) {
        let copy = "
            local from, to = call('LINDEX', of('e', ARGV[2]), 0), call('LINDEX', of('e', ARGV[3]), 0)
            call('LSET', of('e', ARGV[3]), 0, string.sub(to, 1, 9) .. string.sub(from, 10, -12) .. string.sub(to, -11))";
        self.run(copy, &[&name(from), &name(to)]);
    }

    fn copy_end(&self, from: &Log, to: &Log) {
        let copy = "call('HSET', of('m', ARGV[3]), 'T', call('HGET', of('m', ARGV[2]), 'T'))";
        self.run(copy, &[&name(from), &name(to)]);
    }

    fn lose_log(&self, log: &Log) {
        self.run("call('DEL', of('m', ARGV[2]))", &[&name(log)]);
    }

    fn spoil_record(&self, session: &str) {
        let spoil =
            "call('HSET', of('s', ARGV[2]), 'v', '2099-01-01', 'r', 'x', 'l', '-1', 's', '\\1', 'n', 'x', 'W', '')
            call('HDEL', of('s', ARGV[2]), 'w', 'b')";
        self.run(spoil, &[session]);
    }

    fn spoil_log(&self, log: &Log, damage: usize) -> bool {
        let damages = [
            "call('DEL', key)",
            "call('SET', key, 'text')",
            "call('HDEL', key, 'l', 'k')",
            "call('HSET', key, 'h', 'x')",
            "call('HSET', key, 'h', '-1', 'l', '1e300')",
            "call('HSET', key, 'h', '999999999999999')",
            "call('HSET', key, 't', 'x', 'k', '')",
            "call('HSET', key, 'k', 'xxxxxxxxxxxxxxxx')",
            "call('HSET', key, 'b', 'nan', 'n', 'inf')",
            "call('HSET', key, 'i', 'x', 'f', 'x', 'z', 'x')",
            "call('HDEL', key, 'a', 'M', 'o', 'c')",
            "call('HSET', key, 'a', '\\255', 'M', '\\9', 'r', '\\255')",
            "local events = of('e', ARGV[2]) if events then call('LSET', events, 0, '9') end",
            "local events = of('e', ARGV[2]) if events then call('SET', events, 'text') end",
        ];
        if let Some(what) = damages.get(damage) {
            self.run(&format!("local key = of('m', ARGV[2]) {what}"), &[&name(log)]);
        }
        damage < damages.len()
    }
}

fn with(options: &StoreOptions, check: impl Fn(&Arc<dyn EventStore>, &Keys)) {
    let address = fresh(Kind::Alone);
    let (_, namespace) = address.rsplit_once("namespace=").expect("it has one");
    let keys = Keys { place: place(&address), namespace: namespace.to_owned() };
    check(&open(&address, options).unwrap(), &keys);
}

#[test]
fn o19_what_somebody_without_a_key_writes_is_nobodys_session_event_or_message() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, keys| check_sessions(store, keys, has_keys));
        with(&with_keys(has_keys), |store, keys| check_payloads(store, keys, has_keys));
    }
}

#[test]
fn i9_a_bad_record_harms_itself_alone() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, keys| check_bad_records(store, keys));
    }
}
