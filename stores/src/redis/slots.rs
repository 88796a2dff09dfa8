//! The slots of a cluster: which one a key has, and which server has it.

use ::redis::Value;

use super::address::Place;

pub(super) const SLOTS: u16 = 16_384;

/// A place as servers of a cluster write it.
pub(super) fn parse_node(text: &str, told_by: &Place) -> Option<Place> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { &told_by.host } else { host.trim_matches(['[', ']']) };
    Some(Place { host: host.to_owned(), port: port.parse().ok()? })
}

pub(super) fn parse_slots(value: &Value, told_by: &Place) -> Vec<(u16, u16, Place)> {
    let Value::Array(ranges) = value else { return Vec::new() };
    let parse = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else { return None };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            _ => "",
        };
        // A server that does not know its own name is the one that was asked.
        let host = if host.is_empty() || host == "?" { &told_by.host } else { host };
        let place = Place { host: host.to_owned(), port: (*port).try_into().ok()? };
        Some(((*first).try_into().ok()?, (*last).try_into().ok()?, place))
    };
    ranges.iter().filter_map(parse).collect()
}

/// The slot of a hash tag.
pub(super) fn slot_of(tag: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!((slot_of("123456789"), slot_of("foo"), slot_of("")), (12_739, 12_182, 0));
    }
}
