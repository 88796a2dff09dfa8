//! The mark of the keys' layout: releases that do not understand each other's keys do not share them.
//!
//! Each process keeps the mark there for longer than anything that it wrote. Two releases that follow each other can serve
//! one place as long as each knows the other's layout.

use std::fmt;

use ::redis::{Value, cmd};
use tailrope_core::store::parts::Fault;

use super::nodes::lasting;
use super::slots::slot_of;
use super::worker::Core;

/// What this release writes.
const OURS: Layout = Layout { version: 2, oldest: 2 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    version: u32,
    /// The oldest version whose releases can share keys with it.
    oldest: u32,
}

impl Layout {
    fn parse(text: &[u8]) -> Option<Self> {
        let (version, oldest) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { version: version.parse().ok()?, oldest: oldest.parse().ok()? })
    }

    /// Whether this one is newer than what the place has.
    ///
    /// # Errors
    /// Why they cannot share it.
    fn judge(self, found: Self, namespace: &str) -> Result<bool, String> {
        let Self { version, oldest } = found;
        if self.version < oldest {
            return Err(format!(
                "the namespace {namespace} has version {version} of the keys, for releases that know version {oldest} or \
                 later; this release knows version {}",
                self.version
            ));
        }
        if version < self.oldest {
            return Err(format!(
                "the namespace {namespace} has version {version} of the keys; this release knows version {} and serves \
                 version {} or later",
                self.version, self.oldest
            ));
        }
        Ok(self.version > version)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.version, self.oldest)
    }
}

/// Sets the mark, or keeps it for another while.
///
/// # Errors
/// When this release cannot share what is there, or the server does not do it.
pub(super) async fn keep(core: &Core) -> Result<(), Fault> {
    let key = core.tags.layout();
    let (slot, limit) = (slot_of(&key), core.limit());
    let set = cmd("SET").arg(&key).arg(OURS.to_string()).arg("PX").arg(core.mark_ms()).to_owned();
    let is_new = core.nodes.call(slot, set.clone().arg("NX"), limit).await? != Value::Nil;
    if is_new {
        return Ok(());
    }
    let namespace = &core.nodes.address.namespace;
    let found = match core.nodes.call(slot, cmd("MGET").arg(&key), limit).await? {
        Value::Array(found) => found.into_iter().next(),
        _ => None,
    };
    let is_newer = match found {
        Some(Value::BulkString(text)) => {
            let other = || lasting(of_something_else(namespace));
            OURS.judge(Layout::parse(&text).ok_or_else(other)?, namespace).map_err(lasting)?
        }
        // It went meanwhile.
        _ => true,
    };
    let keep = if is_newer { set } else { cmd("PEXPIRE").arg(&key).arg(core.mark_ms()).to_owned() };
    core.nodes.call(slot, &keep, limit).await.map(drop)
}

/// The version of the layout that a place is marked with.
///
/// # Errors
/// Why this release cannot share it.
pub(super) fn judge(mark: &str, namespace: &str) -> Result<u32, String> {
    let found = Layout::parse(mark.as_bytes()).ok_or_else(|| of_something_else(namespace))?;
    OURS.judge(found, namespace).map(|_| found.version)
}

fn of_something_else(namespace: &str) -> String {
    format!("the namespace {namespace} is of something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_share_keys_where_each_knows_the_others_layout() {
        let layout = |version, oldest| Layout { version, oldest };
        for (ours, found, judged) in [
            (layout(4, 3), layout(4, 3), Ok(false)),
            (layout(4, 3), layout(3, 2), Ok(true)),
            (layout(4, 3), layout(5, 4), Ok(false)),
            (layout(4, 3), layout(5, 5), Err("has version 5 of the keys, for releases that know version 5 or later")),
            (layout(4, 3), layout(2, 1), Err("has version 2 of the keys; this release knows version 4 and serves")),
        ] {
            match (ours.judge(found, "n"), judged) {
                (Err(text), Err(part)) => assert!(text.contains(part) && text.contains("version 4"), "{text}"),
                (got, want) => assert_eq!(got.as_ref().ok(), want.as_ref().ok(), "{ours} at {found}"),
            }
            assert_eq!(Layout::parse(found.to_string().as_bytes()), Some(found));
        }
        assert_eq!([&b""[..], b"4", b"4 ", b"a b", b"\xff 1"].map(Layout::parse), [None; 5]);
    }
}
