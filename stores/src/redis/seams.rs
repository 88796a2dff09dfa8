//! For tests that give this store any bytes: what it makes of them.

use redis::parse_redis_value;
use tailrope_core::store::StoreError;

use super::address::{Address, Place};
use super::script::{self, Words};
use super::slots;
use crate::decoding::RedisResult;

pub(crate) fn read_reply(bytes: &[u8]) -> Option<Vec<Result<RedisResult, StoreError>>> {
    let read = |each: fn(&mut RedisResult, Words)| {
        let results = script::reply(parse_redis_value(bytes).ok()?)?.results.into_iter();
        let read = results.map(|result| {
            let mut read = RedisResult::default();
            result.map(|words| each(&mut read, words))?;
            Ok::<_, StoreError>(read)
        });
        Some(read.collect::<Vec<_>>())
    };
    // Words can be read once, and the question says which of these they are.
    let pages = read(|read, mut words| read.page = words.page(&|_| Some(0)))?;
    let looks = read(|read, mut words| read.attached = words.attached(&|_| Some(0)))?;
    let holds =
        read(|read, mut words| read.running = words.running().map(|logs| logs.into_iter().map(|log| log.0).collect()))?;
    let logs = read(|read, mut words| {
        read.log = words.written().map(|log| (log.events, log.bytes, log.left_ms.is_some()));
        words.nonces();
    })?;
    let mails =
        read(|read, mut words| read.mail = words.mail().map(|mail| mail.into_iter().map(|mail| mail.0).collect()))?;
    let all = pages.into_iter().zip(looks).zip(holds.into_iter().zip(logs)).zip(mails);
    let joined = all.map(|(((page, look), (hold, log)), mail)| {
        let (page, attached, running) = (page?.page, look?.attached, hold?.running);
        Ok(RedisResult { page, attached, running, log: log?.log, mail: mail?.mail })
    });
    Some(joined.collect())
}

pub(crate) fn read_slots(bytes: &[u8], host: &str) -> Vec<(u16, u16, String)> {
    let Ok(value) = parse_redis_value(bytes) else { return Vec::new() };
    let told_by = Place { host: host.to_owned(), port: 1 };
    let slots = slots::parse_slots(&value, &told_by);
    slots.into_iter().map(|(first, last, place)| (first, last, place.to_string())).collect()
}

pub(crate) fn read_address(address: &str) -> Result<String, String> {
    Address::parse(address).map(|address| address.shown())
}
