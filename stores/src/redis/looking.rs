//! A look into the keys by an operator. See [`Inspect`].

use std::time::Duration;

use ::redis::{Cmd, Pipeline, Value, cmd};
use tailrope_core::protocol::StreamNonce;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::address::{Address, Place};
use super::layout;
use super::live::Live;
use super::nodes::{Nodes, describe};
use super::opening::field;
use super::slots::slot_of;
use super::tags::Tags;
use super::worker::{CLOSED, GARBLED};
use crate::inspect::{Beat, Facts, Inspect, SessionPage, SessionSeen, StreamSeen, user};

const SCRIPT: &str = include_str!("looking.lua");
/// How long an answer may take. The server does nothing else while it looks at one session.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many logs of one session are looked at to say how many there are.
const MOST_LOGS: usize = 2_000;
/// What a look at one position of all keys goes through.
const STEP: usize = 2_000;
/// What a store asks of a server, as questions that change nothing where the key is not there. `NX` and `XX` exclude each other's
/// cases.
const TRIALS: [&[&str]; 12] = [
    &["SET", "KEY", "1", "XX"],
    &["MGET", "KEY"],
    &["PEXPIRE", "KEY", "1"],
    &["UNLINK", "KEY"],
    &["RPUSHX", "KEY", "1"],
    &["HDEL", "KEY", "1"],
    &["HMGET", "KEY", "1"],
    &["ZREM", "KEY", "1"],
    &["ZADD", "KEY", "XX", "1", "1"],
    &["LTRIM", "KEY", "0", "-1"],
    &["EVALSHA", "SHA", "0"],
    &["PUBLISH", "KEY", ""],
];

pub(crate) struct Looking {
    nodes: Nodes,
    tags: Tags,
    runtime: Runtime,
}

impl Looking {
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let nodes = Nodes::new(Address::parse(address)?)?;
        let tags = Tags::new(&nodes.address.namespace);
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self { nodes, tags, runtime: runtime.map_err(|error| format!("no runtime for it: {error}"))? })
    }

    fn call(&self, tag: &str, question: &Cmd) -> Result<Value, String> {
        let called = self.nodes.call(slot_of(tag), question, self.nodes.address.connect_timeout);
        self.runtime.block_on(called).map_err(|fault| fault.what)
    }

    /// Of the server that has the session.
    fn ask(&self, session: &str, words: &[&str]) -> Result<Value, String> {
        let tag = Tags::of(session);
        self.call(&Tags::text(tag), &question(&self.tags.prefix(tag), session, words))
    }

    /// All servers that have keys.
    fn places(&self) -> Result<Vec<Place>, String> {
        self.runtime.block_on(self.nodes.locate(0)).map_err(|fault| fault.what)?;
        Ok(self.nodes.places())
    }

    fn connection(&self, place: &Place) -> Result<Live, String> {
        self.runtime.block_on(self.nodes.connection(place)).map_err(|fault| fault.what)
    }

    fn ask_at(&self, live: &Live, question: &Cmd) -> Result<Value, String> {
        let mut connection = live.connection.clone();
        let asked = async { timeout(PATIENCE, connection.send_packed_command(question)).await };
        let answer = self.runtime.block_on(asked).map_err(|_| "the server does not answer".to_owned())?;
        answer.and_then(Value::extract_error).map_err(|error| describe(&error))
    }

    fn ask_all_at(&self, live: &Live, questions: &Pipeline, count: usize) -> Result<Vec<Value>, String> {
        let mut connection = live.connection.clone();
        let asked = async { timeout(PATIENCE, connection.send_packed_commands(questions, 0, count)).await };
        let answers = self.runtime.block_on(asked).map_err(|_| "the server does not answer".to_owned())?;
        let answers = answers.map_err(|error| describe(&error))?;
        answers.into_iter().map(|answer| answer.extract_error().map_err(|error| describe(&error))).collect()
    }

    /// What a session's key begins with, and the pattern of all of them.
    fn pattern(&self) -> String {
        let mut escaped = String::new();
        for letter in self.nodes.address.namespace.chars() {
            if "*?[]\\^".contains(letter) {
                escaped.push('\\');
            }
            escaped.push(letter);
        }
        format!("{escaped}:{{*}}:s:*")
    }

    /// The session whose key this is.
    fn name(&self, key: &[u8]) -> Option<String> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.nodes.address.namespace)?.strip_prefix(":{")?;
        let (tag, name) = rest.split_once("}:s:")?;
        (Tags::text(Tags::of(name)) == tag).then(|| name.to_owned())
    }

    fn add_server(&self, place: &Place, facts: &mut Facts) -> Result<(), String> {
        let live = self.connection(place)?;
        match self.ask_at(&live, &cmd("INFO"))? {
            Value::BulkString(text) => add_info(&String::from_utf8_lossy(&text), facts),
            _ => return Err("the server tells nothing of itself (INFO)".to_owned()),
        }
        for (name, setting) in [("appendfsync", "appendfsync"), ("save", "save")] {
            let asked = self.ask_at(&live, cmd("CONFIG").arg("GET").arg(setting));
            if let Ok(Value::Array(pair)) = asked
                && let [_, Value::BulkString(value)] = &pair[..]
            {
                facts.add(name, String::from_utf8_lossy(value).into_owned());
            }
        }
        let key = format!("{}:doctor", self.nodes.address.namespace);
        let mut refused = Vec::new();
        for trial in TRIALS {
            let mut question = cmd(trial[0]);
            for word in &trial[1..] {
                question.arg(match *word {
                    "KEY" => &key,
                    "SHA" => "0000000000000000000000000000000000000000",
                    word => word,
                });
            }
            match self.ask_at(&live, &question) {
                Err(what) if what.contains("NOPERM") => refused.push(trial[0].to_lowercase()),
                // A server of a cluster that has not this key, or a script that it does not know.
                Ok(_) | Err(_) => {}
            }
        }
        facts.add("refused_commands", refused.join(" "));
        Ok(())
    }
}

fn question(prefix: &str, session: &str, words: &[&str]) -> Cmd {
    cmd("EVAL").arg(SCRIPT).arg(1).arg(format!("{prefix}s:{session}")).arg(prefix).arg(words).to_owned()
}

fn add_info(info: &str, facts: &mut Facts) {
    for name in ["redis_version", "valkey_version", "redis_mode", "role", "maxmemory_policy", "aof_enabled"] {
        facts.add_known(name, field(info, name));
    }
    for name in ["rdb_last_bgsave_status", "aof_last_write_status", "master_link_status"] {
        facts.add_known(name, field(info, name));
    }
    for name in ["used_memory", "maxmemory", "evicted_keys", "connected_clients", "maxclients", "connected_slaves"] {
        facts.add_known(name, field(info, name).and_then(|number| number.parse::<i64>().ok()));
    }
}

fn text(value: &Value) -> Option<String> {
    if let Value::BulkString(text) = value { Some(String::from_utf8_lossy(text).into_owned()) } else { None }
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

fn count(value: &Value) -> Option<u64> {
    number(value).map(crate::inspect::count)
}

/// What is -1 where there is none.
#[expect(clippy::option_option, reason = "what cannot be read is not what is not there")]
fn present(value: &Value) -> Option<Option<u64>> {
    number(value).map(|number| u64::try_from(number).ok())
}

fn flag(value: &Value) -> Option<bool> {
    number(value).map(|number| number == 1)
}

fn session(name: String, value: &Value) -> Option<SessionSeen> {
    let Value::Array(words) = value else { return None };
    let [epoch, owner, revision, principal, bytes, waiting, is_sealed, streams, running, oldest, newest, has_log] =
        &words[..]
    else {
        return None;
    };
    let epoch = text(epoch)?;
    let (number, salt) = epoch.split_at_checked(16)?;
    let half = |half: &str| u64::from_str_radix(half, 16).ok();
    Some(SessionSeen {
        name,
        owner: text(owner).filter(|owner| !owner.is_empty()),
        epoch: half(number)?,
        salt: half(salt)?,
        revision: text(revision).filter(|revision| !revision.is_empty()),
        is_sealed: flag(is_sealed)?,
        user: text(principal)?.strip_prefix('=').map(|principal| user(principal.as_bytes())),
        bytes: count(bytes)?,
        streams: count(streams)?,
        running: count(running)?,
        waiting: count(waiting)?,
        oldest_at: present(oldest)?,
        newest_at: present(newest)?,
        has_log: flag(has_log)?,
    })
}

fn stream(value: &Value) -> Option<StreamSeen> {
    let Value::Array(words) = value else { return None };
    let [nonce, is_standalone, about, numbers @ ..] = &words[..] else { return None };
    let [head, low, events, bytes, readers, began, last, kept, tail, waits, is_withdrawn] = numbers else {
        return None;
    };
    Some(StreamSeen {
        nonce: text(nonce)?,
        is_standalone: flag(is_standalone)?,
        about: if let Value::BulkString(about) = about { about.clone() } else { Vec::new() },
        head: count(head)?,
        low: count(low)?,
        events: count(events)?,
        bytes: count(bytes)?,
        readers: count(readers)?,
        began_at: count(began)?,
        last_at: present(last)?,
        kept_until: present(kept)?,
        tail: present(tail)?,
        waits: flag(waits)?,
        is_withdrawn: flag(is_withdrawn)?,
    })
}

impl Inspect for Looking {
    fn facts(&mut self) -> Result<Facts, String> {
        let mut facts = Facts::default();
        let places = self.places()?;
        facts.add("servers", i64::try_from(places.len()).unwrap_or(i64::MAX));
        // Those of a cluster are to be alike. What is wrong with one is asked of that one.
        for place in places.iter().rev() {
            self.add_server(place, &mut facts)?;
        }
        let key = self.tags.layout();
        let mark = match self.call(&key, cmd("MGET").arg(&key))? {
            Value::Array(marks) => marks.first().and_then(text),
            _ => None,
        };
        if let Some(mark) = mark {
            match layout::judge(&mark, &self.nodes.address.namespace) {
                Ok(version) => facts.add("version", i64::from(version)),
                Err(what) => facts.add("unusable", what),
            }
        }
        facts.add("now_ms", i64::try_from(self.now_ms()?).unwrap_or(i64::MAX));
        Ok(facts)
    }

    fn sessions(&mut self, after: Option<&str>, _at_most: usize, log: &StreamNonce) -> Result<SessionPage, String> {
        let (at, cursor) = after.and_then(|after| after.split_once(':')).unwrap_or(("0", "0"));
        let at: usize = at.parse().unwrap_or(0);
        let places = self.places()?;
        let Some(place) = places.get(at) else { return Ok(SessionPage::default()) };
        let live = self.connection(place)?;
        let scan = cmd("SCAN").arg(cursor).arg("MATCH").arg(self.pattern()).arg("COUNT").arg(STEP).to_owned();
        let Value::Array(scanned) = self.ask_at(&live, &scan)? else { return Err(GARBLED.to_owned()) };
        let [Value::BulkString(cursor), Value::Array(keys)] = &scanned[..] else { return Err(GARBLED.to_owned()) };
        let found = |key: &Value| if let Value::BulkString(key) = key { self.name(key) } else { None };
        let names: Vec<String> = keys.iter().filter_map(found).collect();
        let (most, log) = (MOST_LOGS.to_string(), log.hex());
        let mut questions = Pipeline::new();
        for name in &names {
            questions.add_command(question(&self.tags.prefix(Tags::of(name)), name, &["session", &most, &log]));
        }
        let answers = if names.is_empty() { Vec::new() } else { self.ask_all_at(&live, &questions, names.len())? };
        let sessions = names.into_iter().zip(&answers).filter_map(|(name, answer)| session(name, answer)).collect();
        let next = match &cursor[..] {
            b"0" => Some(format!("{}:0", at + 1)).filter(|_| at + 1 < places.len()),
            cursor => Some(format!("{at}:{}", String::from_utf8_lossy(cursor))),
        };
        Ok(SessionPage { sessions, next })
    }

    fn session(&mut self, name: &str, log: &StreamNonce) -> Result<Option<SessionSeen>, String> {
        let answer = self.ask(name, &["session", &MOST_LOGS.to_string(), &log.hex()])?;
        Ok(session(name.to_owned(), &answer))
    }

    fn streams(&mut self, session: &str, at_most: usize) -> Result<Vec<StreamSeen>, String> {
        match self.ask(session, &["streams", &at_most.to_string()])? {
            Value::Array(streams) => Ok(streams.iter().filter_map(stream).collect()),
            _ => Err(GARBLED.to_owned()),
        }
    }

    fn frames(&mut self, session: &str, log: &StreamNonce, max_bytes: u64) -> Result<Option<Vec<Vec<u8>>>, String> {
        let frame = |value: Value| if let Value::BulkString(frame) = value { Some(frame) } else { None };
        match self.ask(session, &["frames", &log.hex(), &max_bytes.to_string()])? {
            Value::Array(frames) => Ok(Some(frames.into_iter().filter_map(frame).collect())),
            _ => Ok(None),
        }
    }

    fn beats(&mut self, owners: &[&str]) -> Result<Vec<Beat>, String> {
        let beat = |owner: &&str| {
            let Value::Array(signs) = self.call(owner, cmd("MGET").arg(self.tags.owner(owner)))? else {
                return Err(GARBLED.to_owned());
            };
            let sign = signs.first().and_then(text);
            Ok(match sign.as_deref() {
                Some(CLOSED) => Beat::Closed,
                Some(count) => count.parse().map_or(Beat::Unknown, Beat::Count),
                None => Beat::Unknown,
            })
        };
        owners.iter().map(beat).collect()
    }

    fn now_ms(&mut self) -> Result<u64, String> {
        let Value::Array(clock) = self.call("", &cmd("TIME"))? else { return Err(GARBLED.to_owned()) };
        let part = |at: usize| clock.get(at).and_then(text).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Ok(part(0) * 1_000 + part(1) / 1_000)
    }
}
