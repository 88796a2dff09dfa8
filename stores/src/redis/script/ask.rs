//! What is asked of the server: the arguments of the script.

use ::redis::Cmd;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::parts::{Ask, Op};
use tailrope_core::store::{Attach, Chain, Epoch, Message, Paced, ReadLimit, Seq};

use super::{LONGEST_MS, chain_text, hex};

/// Adds an operation to the script's arguments.
pub(in crate::redis) fn add(cmd: &mut Cmd, op: &Op) {
    match &op.ask {
        Ask::Hold(hold) => {
            let count = if hold.record.is_some() { 8 } else { 2 };
            cmd.arg("H").arg(count).arg(epoch_text(hold.epoch)).arg(hold.seen.map(epoch_text).unwrap_or_default());
            let Some(record) = &hold.record else { return };
            cmd.arg(record.revision.map_or("", |revision| revision.as_str())).arg(named(record.principal.as_deref()));
            cmd.arg(record.retry_ms)
                .arg(record.list_changed.bits())
                .arg(record.standalone.as_ref().map(hex).unwrap_or_default());
            cmd.arg(&record.note[..]);
        }
        Ask::Append { nonce, epoch, append } => {
            let mut value = Vec::new();
            cmd.arg("A").arg(10 + append.events.len()).arg(epoch_text(*epoch)).arg(hex(nonce)).arg(append.first);
            cmd.arg(chain_text(append.chain_before)).arg(chain_text(append.chain));
            cmd.arg(append.paced.map_or_else(Vec::new, Paced::to_bytes));
            let kept_ms = append.paced.and_then(|paced| paced.retention_ms);
            cmd.arg(kept_ms.map_or_else(String::new, |kept_ms| kept_ms.min(LONGEST_MS).to_string()));
            // An end may be empty, and is another one than none then.
            if let Some(end) = &append.end {
                value.push(b'=');
                value.extend_from_slice(end);
            }
            cmd.arg(&value[..]);
            let start = if append.first == 1 { start_text(nonce) } else { String::new() };
            cmd.arg(&append.about[..]).arg(start);
            for event in &append.events {
                value.clear();
                value.extend_from_slice(format!("{}{:08x}", event.kind as u8, event.tag).as_bytes());
                value.extend_from_slice(&event.frame);
                cmd.arg(&value[..]);
            }
        }
        Ask::Attach(Attach { stream, principal, aliases, after, tag, counts, limit, message }) => {
            let post = stream.as_ref().zip(message.as_ref());
            let count = 10 + aliases.len() + if post.is_some() { 3 } else { 0 };
            cmd.arg("L").arg(count).arg(1 + aliases.len()).arg(named(principal.as_deref()));
            for alias in aliases {
                cmd.arg(named(Some(alias)));
            }
            cmd.arg(stream.as_ref().map(hex).unwrap_or_default()).arg(u8::from(*counts));
            cmd.arg(tag.map(|tag| format!("{tag:08x}")).unwrap_or_default()).arg(u8::from(post.is_some()));
            if let Some((nonce, Message { about, body })) = post {
                cmd.arg(&about[..]).arg(start_text(nonce)).arg(&body[..]);
            }
            add_bounds(cmd, *after, limit);
        }
        Ask::Read { nonce, after, limit } => {
            cmd.arg("G").arg(5).arg(hex(nonce));
            add_bounds(cmd, *after, limit);
        }
        Ask::Take { epoch, after } => {
            cmd.arg("I").arg(2).arg(epoch_text(*epoch)).arg(bound(*after));
        }
        Ask::Withdraw { nonce, end } => {
            cmd.arg("W").arg(2).arg(hex(nonce)).arg(&end[..]);
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
    cmd.arg(bound(after)).arg(bound(limit.up_to)).arg(bound(limit.events as u64)).arg(bound(limit.bytes as u64));
}

/// Doubles again; positions have 40 bits.
fn bound(value: u64) -> u64 {
    value.min(1 << 50)
}

/// The running hash of a log without events.
fn start_text(nonce: &StreamNonce) -> String {
    chain_text(Chain::start(&nonce.0).0)
}

/// A principal may be empty, and is another one than none then.
fn named(principal: Option<&str>) -> String {
    principal.map_or_else(String::new, |principal| format!("={principal}"))
}

fn epoch_text(epoch: Epoch) -> String {
    chain_text(epoch.number) + &chain_text(epoch.salt)
}
