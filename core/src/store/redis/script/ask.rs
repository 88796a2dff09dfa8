//! What is asked of the server: the arguments of the script.

use ::redis::Cmd;

use super::{chain_text, hex};
use crate::store::mailbox::{Ask, Op};
use crate::store::{Attach, Epoch, ReadLimit};
use crate::stream::{Chain, Seq};

/// Adds an operation to the script's arguments.
pub(in crate::store::redis) fn add(cmd: &mut Cmd, op: &Op) {
    match &op.ask {
        Ask::Hold(hold) => {
            let count = if hold.record.is_some() { 7 } else { 2 };
            cmd.arg("H").arg(count).arg(epoch_text(hold.epoch)).arg(hold.seen.map(epoch_text).unwrap_or_default());
            let Some(record) = &hold.record else { return };
            let lists = record.list_changed;
            let lists = u8::from(lists.tools) | u8::from(lists.prompts) << 1 | u8::from(lists.resources) << 2;
            cmd.arg(record.revision.map_or("", |revision| revision.as_str())).arg(named(record.principal.as_deref()));
            cmd.arg(record.retry_ms).arg(lists).arg(record.standalone.as_ref().map(hex).unwrap_or_default());
        }
        Ask::Append { nonce, epoch, append } => {
            let text = |value: Option<String>| value.unwrap_or_default();
            let mut value = Vec::new();
            cmd.arg("A").arg(9 + append.events.len()).arg(epoch_text(*epoch)).arg(hex(nonce)).arg(append.first);
            cmd.arg(chain_text(append.chain_before)).arg(chain_text(append.chain));
            cmd.arg(text(append.retry_ms.map(|retry_ms| retry_ms.to_string())));
            // An end may be empty, and is another one than none then.
            if let Some(end) = &append.end {
                value.push(b'=');
                value.extend_from_slice(end);
            }
            cmd.arg(&value[..]);
            let start = (append.first == 1).then(|| chain_text(Chain::start(&nonce.0).0));
            cmd.arg(&append.about[..]).arg(text(start));
            for event in &append.events {
                value.clear();
                value.extend_from_slice(format!("{}{:08x}", event.kind as u8, event.tag).as_bytes());
                value.extend_from_slice(&event.frame);
                cmd.arg(&value[..]);
            }
        }
        Ask::Attach(Attach { stream, principal, aliases, after, tag, counts, limit }) => {
            cmd.arg("L").arg(9 + aliases.len()).arg(1 + aliases.len()).arg(named(principal.as_deref()));
            for alias in aliases {
                cmd.arg(named(Some(alias)));
            }
            cmd.arg(stream.as_ref().map(hex).unwrap_or_default()).arg(u8::from(*counts));
            cmd.arg(tag.map(|tag| format!("{tag:08x}")).unwrap_or_default());
            add_bounds(cmd, *after, limit);
        }
        Ask::Read { nonce, after, limit } => {
            cmd.arg("G").arg(5).arg(hex(nonce));
            add_bounds(cmd, *after, limit);
        }
        Ask::Release { epoch } => {
            cmd.arg("R").arg(1).arg(epoch_text(*epoch));
        }
        Ask::Settle { nonce, epoch, seq } => {
            cmd.arg("S").arg(3).arg(epoch_text(*epoch)).arg(hex(nonce)).arg(*seq);
        }
        Ask::DropStream { nonce, epoch } => {
            cmd.arg("D").arg(2).arg(epoch_text(*epoch)).arg(hex(nonce));
        }
        Ask::DropSession { epoch } => {
            cmd.arg("X").arg(1).arg(epoch_text(*epoch));
        }
        Ask::Keep { nonces } => {
            cmd.arg("T").arg(nonces.len());
            for nonce in nonces {
                cmd.arg(hex(nonce));
            }
        }
    }
}

/// What a page is of.
fn add_bounds(cmd: &mut Cmd, after: Seq, limit: &ReadLimit) {
    // Doubles again; positions have 40 bits.
    let bound = |value: u64| value.min(1 << 50);
    cmd.arg(bound(after)).arg(bound(limit.up_to)).arg(bound(limit.events as u64)).arg(bound(limit.bytes as u64));
}

/// A principal may be empty, and is another one than none then.
fn named(principal: Option<&str>) -> String {
    principal.map_or_else(String::new, |principal| format!("={principal}"))
}

fn epoch_text(epoch: Epoch) -> String {
    chain_text(epoch.number) + &chain_text(epoch.salt)
}
