//! Somebody who can write to a store, has no key, and is no user of a session: what becomes of sessions, logs and messages.
#![allow(dead_code, reason = "each test target uses a part")]

use std::sync::Arc;

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, progress};
use tailrope_core::store::{
    Attach, Attached, EncryptionKey, Epoch, EventStore, Hold, Mail, Message, ReadLimit, SessionRecord, StoreOptions,
};

/// What such a person does, in the language of a store.
pub(crate) trait Forger {
    /// Makes a session this principal's, or nobody's.
    fn set_principal(&self, session: &str, principal: Option<&str>);
    /// Gives a session everything that is kept of another one, or only its note.
    fn copy_record(&self, from: &str, to: &str, only_note: bool);
    /// Puts this in the place of a session's note.
    fn set_note(&self, session: &str, note: &[u8]);
    /// Gives a waiting message what another one says.
    fn copy_message(&self, from: &Log, to: &Log);
    /// Keeps a copy of a message that waits.
    fn keep_message(&self, log: &Log);
    /// Lets the message of that copy wait once more.
    fn put_back(&self, log: &Log);
    /// Gives the first event of a log the payload of another one's.
    fn copy_event(&self, from: &Log, to: &Log);
    /// Gives a log the end of another one.
    fn copy_end(&self, from: &Log, to: &Log);
    /// Removes a log, and leaves the message that it is the answer of.
    fn lose_log(&self, log: &Log);
    /// Writes into the columns of a session what no release writes there.
    fn spoil_record(&self, session: &str);
    /// Spoils the rows of a log, with one of several damages. False when there are no more.
    fn spoil_log(&self, log: &Log, damage: usize) -> bool;
}

/// Options with a key, or without any.
pub(crate) fn with_keys(has_keys: bool) -> StoreOptions {
    let key = EncryptionKey::from_hex(&"5a".repeat(32)).expect("it is a key");
    StoreOptions { encryption_keys: if has_keys { vec![key] } else { Vec::new() }, ..StoreOptions::default() }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const LIMIT: ReadLimit = ReadLimit { up_to: 9, events: 9, bytes: 1 << 20 };

fn ask(caller: &Caller<'_>, session: &str, principal: Option<&str>, log: Option<&Log>) -> Attached {
    let (principal, stream) = (principal.map(Into::into), log.map(|log| log.key.nonce));
    caller.attach(session, &Attach { stream, principal, limit: LIMIT, ..Attach::default() })
}

fn finds(caller: &Caller<'_>, session: &str, principal: Option<&str>) -> bool {
    ask(caller, session, principal, None).session.is_some()
}

fn post(caller: &Caller<'_>, log: &Log, principal: &str, body: &'static [u8]) {
    let message = Some(Message { about: Bytes::from_static(b"[1]"), body: Bytes::from_static(body) });
    let attach =
        Attach { stream: Some(log.key.nonce), principal: Some(principal.into()), message, ..Attach::default() };
    assert!(caller.attach(&log.key.session, &attach).log.is_some(), "it waits");
}

fn record(principal: &str, note: &'static [u8]) -> SessionRecord {
    SessionRecord { principal: Some(principal.into()), note: Bytes::from_static(note), ..SessionRecord::default() }
}

fn bodies(mail: &[Mail]) -> Vec<&[u8]> {
    mail.iter().map(|mail| &mail.message.body[..]).collect()
}

/// Alice's session, and bob's, each with a log and an end.
fn begin(caller: &Caller<'_>, [alices, bobs]: [&'static str; 2]) -> [Log; 4] {
    for (session, principal, note) in [(alices, "alice", &b"alice told"[..]), (bobs, "bob", b"bob told")] {
        caller.hold(session, record(principal, note));
    }
    [(alices, 1), (alices, 2), (bobs, 1), (bobs, 2)].map(|(session, number)| {
        let mut log = Log::new(session, number);
        caller.open_as(&log);
        caller.push(&mut log, &[progress(&format!("{session} {number}"))]);
        caller.finish(&log, if session == alices { b"alice's end" } else { b"bob's end" }).expect("it ends");
        log
    })
}

/// What somebody who can write to the store makes of whose a session is.
pub(crate) fn check_sessions(store: &Arc<dyn EventStore>, forger: &dyn Forger, has_keys: bool) {
    let caller = Caller::new(&**store, Ms(0));
    let (alices, bobs) = ("alices", "bobs");
    let [log, ..] = begin(&caller, [alices, bobs]);
    let everybody = || [Some("alice"), Some("bob"), None].map(|who| finds(&caller, alices, who));
    assert_eq!(everybody(), [true, false, false]);
    let again = || caller.hold(alices, record("alice", b"alice told"));

    forger.set_principal(alices, None);
    assert_eq!(everybody(), [false, false, !has_keys], "I7: nobody's");
    let found = ask(&caller, alices, None, Some(&log));
    assert_eq!((found.log.is_some(), found.is_foreign), (!has_keys, false), "I7: what is in it");
    again();
    forger.set_principal(alices, Some("bob"));
    assert_eq!(everybody(), [false, !has_keys, false], "I7: another user's");
    again();
    forger.copy_record(bobs, alices, false);
    assert_eq!(everybody(), [false, !has_keys, false], "I7: all that is kept of another session");
    again();
    forger.copy_record(bobs, alices, true);
    assert_eq!(everybody(), [!has_keys, false, false], "what another session's client told");
    again();
    for note in [&b""[..], b"\x01", b"\x09 a later release", &[7; 100]] {
        forger.set_note(alices, note);
        assert_eq!(everybody(), [!has_keys, false, false], "nothing is sealed: {note:?}");
        forger.set_principal(alices, None);
        assert_eq!(everybody(), [false, false, !has_keys], "I7: nothing is sealed: {note:?}");
        again();
    }
    // An earlier record of the same session is not told from the last one: it is of the same user.
    caller.hold("before", record("alice", b"an earlier note"));
    if !has_keys {
        forger.copy_record("before", alices, true);
        assert_eq!(&*ask(&caller, alices, Some("alice"), None).session.expect("it is hers").note, b"an earlier note");
        again();
    }
    forger.spoil_record(alices);
    let found = ask(&caller, alices, Some("alice"), None).session.expect("it is hers");
    assert_eq!(found.note, "alice told", "what no release has written says nothing");
    assert!(finds(&caller, bobs, Some("bob")), "other sessions go on");
}

/// What such a person makes of logs and messages.
pub(crate) fn check_payloads(store: &Arc<dyn EventStore>, forger: &dyn Forger, has_keys: bool) {
    let caller = Caller::new(&**store, Ms(0));
    let (alices, bobs) = ("alices", "bobs");
    let [first, second, other, last] = begin(&caller, [alices, bobs]);
    for (from, to) in [(&first, &second), (&first, &other)] {
        forger.copy_event(from, to);
        let page = caller.read(to, 0, LIMIT);
        assert_eq!(page.is_err(), has_keys, "an event of another log");
        assert!(page.is_err() || page.unwrap().page.events[0].frame == first.events[0].1.as_ref().into());
    }
    forger.copy_end(&first, &last);
    let page = caller.read(&last, 0, LIMIT);
    assert_eq!(page.is_err(), has_keys, "an end of another log");
    assert_eq!(caller.read(&first, 0, LIMIT).expect("other logs go on").tail, Some("alice's end".into()));

    let logs = [(alices, 11), (alices, 12), (bobs, 11), (bobs, 12)].map(|(session, number)| Log::new(session, number));
    let [first_message, second_message, moved, own] = &logs;
    post(&caller, first_message, "alice", b"of alice");
    post(&caller, second_message, "alice", b"also of alice");
    post(&caller, moved, "bob", b"of bob");
    post(&caller, own, "bob", b"also of bob");
    forger.copy_message(first_message, moved);
    let taken = caller.take(bobs, 0).expect("the inbox goes on");
    let moved = if has_keys { &b""[..] } else { b"of alice" };
    assert_eq!(bodies(&taken), [moved, b"also of bob"], "O19: a message of another session");
    let taken = caller.take(alices, 0).expect("it is the owner");
    assert_eq!(bodies(&taken), [&b"of alice"[..], b"also of alice"]);
    assert_eq!(caller.take(alices, taken[1].number), Ok(Vec::new()));
    // docs/security.md says so: what the store had before can be put back, with keys and without.
    let log = Log::new(alices, 13);
    post(&caller, &log, "alice", b"a third one");
    forger.keep_message(&log);
    let taken = caller.take(alices, 0).expect("it is the owner");
    assert_eq!((bodies(&taken), caller.take(alices, taken[0].number)), (vec![&b"a third one"[..]], Ok(Vec::new())));
    forger.put_back(&log);
    assert_eq!(bodies(&caller.take(alices, taken[0].number).expect("it is the owner")), [b"a third one"]);
}

/// Bad records harm themselves alone.
pub(crate) fn check_bad_records(store: &Arc<dyn EventStore>, forger: &dyn Forger) {
    /// More than one take tells.
    const LOST: u64 = 80;
    let caller = Caller::new(&**store, Ms(0));
    let session = "s";
    caller.hold(session, record("alice", b"a note"));
    for number in 0..=LOST {
        post(&caller, &Log::new(session, number), "alice", b"a message");
    }
    (0..LOST).for_each(|number| forger.lose_log(&Log::new(session, number)));
    let mail = caller.take(session, 0).expect("I9: messages without a log are skipped");
    assert_eq!(mail.iter().map(|mail| mail.nonce).collect::<Vec<_>>(), [Log::new(session, LOST).key.nonce]);
    assert_eq!(caller.take(session, mail[0].number), Ok(Vec::new()));
    let mut epoch = caller.epoch;
    for damage in 0.. {
        let number = 1_000 + 10 * damage as u64;
        let [mut bad, mut good] = [1, 2].map(|more| Log::new(session, number + more));
        let owner = caller.with(epoch);
        for log in [&mut bad, &mut good] {
            owner.open_as(log);
            owner.push(log, &[progress("an event")]);
        }
        let waiting = [3, 4].map(|more| Log::new(session, number + more));
        waiting.iter().for_each(|log| post(&owner, log, "alice", b"a message"));
        if !forger.spoil_log(&bad, damage) {
            break;
        }
        forger.spoil_log(&waiting[0], damage);
        let mail = owner.take(session, 0).unwrap_or_else(|error| panic!("I9: damage {damage}: {error}"));
        assert!(mail.iter().any(|mail| mail.nonce == waiting[1].key.nonce), "I9: damage {damage}: {mail:?}");
        // Whatever it says, it says so of this log.
        let _ = owner.read(&bad, 0, LIMIT);
        let _ = owner.append(&bad, 2, &[progress("another one")]);
        owner.push(&mut good, &[progress("another one")]);
        let hold = Hold { epoch: Epoch { number: epoch.number + 1, salt: 9 }, seen: Some(epoch), record: None };
        let heir = caller.with(hold.epoch);
        let running = heir.try_hold(session, &hold).unwrap_or_else(|error| panic!("I9: damage {damage}: {error}"));
        assert!(running.iter().any(|log| log.nonce == good.key.nonce), "damage {damage}: {running:?}");
        heir.push(&mut good, &[progress("a third one")]);
        good.assert_stored(&heir, 0, "I9: another log");
        heir.finish(&good, b"end").expect("it ends");
        store.drop_stream(&bad.key, heir.epoch);
        (epoch.number, epoch.salt) = (hold.epoch.number, hold.epoch.salt);
    }
    let owner = caller.with(epoch);
    assert!(finds(&owner, session, Some("alice")), "the session goes on");
}
