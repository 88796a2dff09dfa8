//! For tests that give this store any bytes: what it makes of them.

use redis::parse_redis_value;

use super::address::{Address, Place};
use super::nodes;
use super::script::{self, Refusal, Words};
use crate::store::StoreError;
use crate::store::decoding::RedisResult;

pub(in crate::store) fn read_reply(bytes: &[u8]) -> Option<Vec<Result<RedisResult, StoreError>>> {
    let read = |each: fn(&mut RedisResult, Words)| {
        let results = script::reply(parse_redis_value(bytes).ok()?)?.results.into_iter();
        let read = results.map(|result| {
            let mut read = RedisResult::default();
            result.map(|words| each(&mut read, words)).map_err(Refusal::error)?;
            Ok::<_, StoreError>(read)
        });
        Some(read.collect::<Vec<_>>())
    };
    // Words are used up by whoever reads them, and which of these they are is for the question to say.
    let pages = read(|read, mut words| read.page = words.page())?;
    let records = read(|read, mut words| read.record = words.record().map(|(record, _)| record))?;
    let sessions = read(|read, mut words| read.session = words.session().map(|(record, _)| record))?;
    let logs = read(|read, mut words| {
        read.log = words.written().map(|log| (log.events, log.bytes, log.is_finished));
        words.nonces();
    })?;
    let all = pages.into_iter().zip(records).zip(sessions.into_iter().zip(logs));
    let joined = all.map(|((page, record), (session, log))| {
        Ok(RedisResult { page: page?.page, record: record?.record, session: session?.session, log: log?.log })
    });
    Some(joined.collect())
}

pub(in crate::store) fn read_slots(bytes: &[u8], host: &str) -> Vec<(u16, u16, String)> {
    let Ok(value) = parse_redis_value(bytes) else { return Vec::new() };
    let told_by = Place { host: host.to_owned(), port: 1 };
    let slots = nodes::parse_slots(&value, &told_by);
    slots.into_iter().map(|(first, last, place)| (first, last, place.to_string())).collect()
}

pub(in crate::store) fn read_address(address: &str) -> Result<String, String> {
    Address::parse(address).map(|address| address.shown())
}
