//! The rules of a session's inbox, on the store objects of its owner and of the process that a message came to.

use bytes::Bytes;

use super::BetweenTwo;
use super::caller::{Caller, Log, progress};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{
    Attach, Attached, Epoch, EventStore, Hold, MAX_INBOX_BYTES, MAX_INBOX_MESSAGES, MAX_TAKEN, Message, ReadLimit,
    SessionRecord, StoreError, Usage,
};

pub(super) const RULE_14: &[BetweenTwo] = &[
    rule_14_a_message_waits_until_its_owner_takes_it,
    rule_14_messages_are_taken_in_order_and_told_again_until_they_are_forgotten,
    rule_14_a_message_that_was_withdrawn_does_not_begin,
    rule_14_of_take_and_withdraw_one_wins,
    rule_14_the_next_owner_gets_what_waits_and_nothing_that_was_taken,
    rule_14_only_the_sessions_principal_leaves_messages,
    rule_14_the_inbox_has_bounds,
    rule_14_messages_go_with_their_logs_and_their_session,
];

/// A session with an owner at `a`, and somebody at `b`.
fn two<'a>(a: &'a dyn EventStore, b: &'a dyn EventStore) -> (Caller<'a>, Caller<'a>) {
    let owner = Caller::new(a, Ms(0));
    owner.hold("s", SessionRecord::default());
    (owner, Caller::new(b, Ms(0)))
}

fn message(log: &Log, body: &[u8]) -> Message {
    Message { about: log.about(), body: Bytes::copy_from_slice(body) }
}

/// The streams of what is taken.
fn taken(owner: &Caller<'_>, after: u64) -> Vec<StreamNonce> {
    owner.take("s", after).expect("rule 14: the owner takes").into_iter().map(|mail| mail.nonce).collect()
}

/// The logs without an end that the owner is told of.
fn running(owner: &Caller<'_>) -> Vec<StreamNonce> {
    let stock = Hold { epoch: owner.epoch, seen: Some(owner.epoch), record: None };
    owner.try_hold("s", &stock).expect("it is the owner").into_iter().map(|log| log.nonce).collect()
}

fn rule_14_a_message_waits_until_its_owner_takes_it(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    assert_eq!(owner.take("s", 0), Ok(Vec::new()), "rule 14: nobody wrote yet");
    let body: Vec<u8> = (0..=255).collect();
    let mut log = Log::new("s", 1);
    for (copy, body) in [&body[..], b"another one"].into_iter().enumerate() {
        let posted = other.post(&log, body).expect("rule 14: it waits");
        assert_eq!(posted.session, Some(SessionRecord::default()), "rule 14: the session is told");
        let found = posted.log.expect("rule 14: its answer has a log");
        let (page, readers) = (found.page, 1 + copy as u64);
        assert_eq!((found.about, page.page.head, page.is_finished), (log.about(), 0, false), "rule 14");
        assert_eq!(page.readers, readers, "rule 14: the process that posts reads the answer");
    }
    assert_eq!(running(&owner), [], "rule 14: what waits is not running");
    let mail = owner.take("s", 0).expect("rule 14: the owner takes");
    let [first] = &mail[..] else { panic!("rule 14: one message waits: {mail:?}") };
    assert_eq!((first.nonce, &first.message), (log.key.nonce, &message(&log, &body)), "rule 14: the first copy counts");
    assert_eq!(running(&owner), [log.key.nonce], "rule 14: what was taken is running");
    other.post(&log, b"late").expect("rule 14: a copy that comes late");
    assert_eq!(owner.take("s", first.number), Ok(Vec::new()), "rule 14 (O4): it does not begin again");
    owner.push(&mut log, &[progress("a")]);
    assert_eq!(owner.finish(&log, b"end"), Ok(()));
    log.assert_stored(&other, 0, "rule 14: the answer is a log like any other");
    other.post(&log, b"late").expect("rule 14: a copy that comes late");
    assert_eq!(owner.take("s", 0), Ok(Vec::new()), "rule 14: it does not begin again");
    assert_eq!(other.log(&log).map(|log| log.page.tail), Some(Some(Bytes::from_static(b"end"))), "rule 14");
    assert_eq!(owner.take("t", 0), Err(StoreError::Gone), "rule 14: there is no such session");
    for epoch in [Epoch { number: 2, salt: 7 }, Epoch { number: 1, salt: 8 }] {
        assert_eq!(other.with(epoch).take("s", 0), Err(StoreError::Fenced), "rule 12: only the owner takes");
    }
}

fn rule_14_messages_are_taken_in_order_and_told_again_until_they_are_forgotten(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    let logs: Vec<Log> = (0..).take(MAX_TAKEN + 5).map(|number| Log::new("s", number)).collect();
    for (at, log) in logs.iter().enumerate() {
        let from = if at % 2 == 0 { &other } else { &owner };
        from.post(log, at.to_string().as_bytes()).expect("rule 14: it waits");
    }
    let first = owner.take("s", 0).expect("rule 14: the owner takes");
    let of = |logs: &[Log]| logs.iter().map(|log| log.key.nonce).collect::<Vec<_>>();
    assert_eq!(first.iter().map(|mail| mail.nonce).collect::<Vec<_>>(), of(&logs[..MAX_TAKEN]), "rule 14: in order");
    assert!(first.is_sorted_by_key(|mail| mail.number) && first[0].number > 0, "rule 14: numbers grow");
    assert_eq!(owner.take("s", 0), Ok(first.clone()), "rule 14: an owner that got no answer asks again");
    let done = first[9].number;
    let next = owner.take("s", done).expect("rule 14: the owner takes");
    assert_eq!(next[..MAX_TAKEN - 10], first[10..], "rule 14: what is not forgotten is told again");
    let last = first[MAX_TAKEN - 1].number;
    assert_eq!(taken(&owner, last), of(&logs[MAX_TAKEN..]), "rule 14: the rest");
    assert_eq!(taken(&owner, done), of(&logs[MAX_TAKEN..]), "rule 14: what was forgotten stays so");
    assert_eq!(taken(&owner, u64::from(u32::MAX)), [], "rule 14");
    assert_eq!(taken(&owner, 0), [], "rule 14");
}

fn rule_14_a_message_that_was_withdrawn_does_not_begin(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    let [withdrawn, begun, own, mut written, ended] = [1, 2, 3, 4, 5].map(|number| Log::new("s", number));
    for log in [&withdrawn, &begun] {
        other.post(log, b"message").expect("rule 14: it waits");
    }
    owner.open_as(&own);
    for end in [&b"withdrawn"[..], b"again"] {
        assert_eq!(other.withdraw(&withdrawn, end), Ok(true), "rule 14: it has not begun");
    }
    let page = other.read(&withdrawn, 0, ReadLimit::default()).expect("rule 14: its log is there");
    let end = Some(Bytes::from_static(b"withdrawn"));
    assert_eq!((page.is_finished, page.tail), (true, end), "rule 14: with its end");
    assert_eq!(taken(&owner, 0), [begun.key.nonce], "rule 14: only the other one begins");
    other.post(&withdrawn, b"late").expect("rule 14: a copy that comes late");
    assert_eq!(taken(&owner, u64::from(u32::MAX)), [], "rule 14: it does not begin either");
    for is_finished in [false, true] {
        if is_finished {
            assert_eq!(owner.finish(&begun, b"end"), Ok(()));
        }
        assert_eq!(other.withdraw(&begun, b"late"), Ok(false), "rule 14 (O5): it has begun");
    }
    assert_eq!(other.withdraw(&own, b"late"), Ok(false), "rule 14: it is no answer to a message");
    // As an owner writes them again after the store has forgotten that they were taken.
    for log in [&written, &ended] {
        other.post(log, b"message").expect("rule 14: it waits");
    }
    owner.push(&mut written, &[progress("a")]);
    assert_eq!(owner.finish(&ended, b"end"), Ok(()));
    for log in [&written, &ended] {
        assert_eq!(other.withdraw(log, b"late"), Ok(false), "rule 14: its owner writes its log");
    }
    written.assert_stored(&other, 0, "rule 14: its owner writes its log");
    assert!(running(&owner).contains(&written.key.nonce), "rule 14: it runs");
    assert_eq!(taken(&owner, 0), [], "rule 14: it does not begin again");
    let tail = other.log(&begun).map(|log| log.page.tail);
    assert_eq!(tail, Some(Some(Bytes::from_static(b"end"))), "rule 14: it has the end that its owner gave it");
    assert_eq!(other.withdraw(&Log::new("s", 9), b"end"), Err(StoreError::Gone), "rule 14");
    assert_eq!(other.withdraw(&Log::new("t", 1), b"end"), Err(StoreError::Gone), "rule 14");
}

fn rule_14_of_take_and_withdraw_one_wins(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    for number in 0..20 {
        let log = Log::new("s", number);
        other.post(&log, b"message").expect("rule 14: it waits");
        let (mail, is_withdrawn) = std::thread::scope(|scope| {
            let withdrawal = scope.spawn(|| other.withdraw(&log, b"withdrawn"));
            (owner.take("s", 0).expect("it is the owner"), withdrawal.join().expect("it has an answer"))
        });
        let has_begun = mail.iter().any(|mail| mail.nonce == log.key.nonce);
        assert_eq!(is_withdrawn, Ok(!has_begun), "rule 14: one of them has it");
    }
}

fn rule_14_the_next_owner_gets_what_waits_and_nothing_that_was_taken(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    let [begun, waits] = [1, 2].map(|number| Log::new("s", number));
    other.post(&begun, b"begun").expect("rule 14: it waits");
    assert_eq!(taken(&owner, 0), [begun.key.nonce]);
    other.post(&waits, b"waits").expect("rule 14: it waits");
    let heir = other.with(Epoch { number: 2, salt: 9 });
    let hold = Hold { epoch: heir.epoch, seen: Some(owner.epoch), record: None };
    for _ in 0..2 {
        let told = heir.try_hold("s", &hold).expect("rule 12: it is taken over");
        let told: Vec<_> = told.into_iter().map(|log| (log.nonce, log.about)).collect();
        assert_eq!(told, [(begun.key.nonce, begun.about())], "rule 14: what had begun is to be ended");
    }
    assert_eq!(owner.take("s", 0), Err(StoreError::Fenced), "rule 12: who was replaced takes nothing");
    for _ in 0..2 {
        assert_eq!(taken(&heir, 0), [waits.key.nonce], "rule 14: what had not begun begins");
    }
    assert_eq!(heir.withdraw(&begun, b"end"), Ok(false), "rule 14: it has begun, elsewhere");
}

fn rule_14_only_the_sessions_principal_leaves_messages(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    owner.hold("s", SessionRecord { principal: Some("alice".into()), ..SessionRecord::default() });
    let log = Log::new("s", 1);
    let post = |principal: Option<&str>, aliases: &[&str]| {
        let (principal, aliases) = (principal.map(Into::into), aliases.iter().map(|alias| (*alias).into()).collect());
        let (stream, message) = (Some(log.key.nonce), Some(message(&log, b"message")));
        other.attach("s", &Attach { stream, principal, aliases, message, counts: true, ..Attach::default() })
    };
    for (principal, aliases) in [(None, &[][..]), (Some("bob"), &["carol"])] {
        assert_eq!(post(principal, aliases), Attached { is_foreign: true, ..Attached::default() }, "I7 (O19)");
    }
    assert_eq!(taken(&owner, 0), [], "I7 (O19): it does not wait");
    assert!(post(Some("bob"), &["alice"]).log.is_some(), "I7: she is found by another name");
    assert_eq!(taken(&owner, 0), [log.key.nonce], "I7");
    assert_eq!(other.post(&Log::new("t", 1), b"message"), Ok(Attached::default()), "rule 14: nobody has this session");
}

fn rule_14_the_inbox_has_bounds(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    let mut numbers = 0..;
    let mut post = |session: &str, body: &[u8]| {
        let log = Log::new(session, numbers.next().expect("there are more"));
        other.post(&log, body).map(|posted| posted.log.is_some())
    };
    let large = vec![b'x'; MAX_INBOX_BYTES / 2 + 1];
    assert_eq!(post("s", &large), Ok(true), "rule 14");
    assert_eq!(post("s", &large), Err(StoreError::InboxFull { max: MAX_INBOX_BYTES }), "rule 14");
    assert_eq!(post("s", b"small"), Ok(true), "rule 14: a smaller one fits");
    assert_eq!(taken(&owner, 0).len(), 2, "rule 14: what was refused does not wait");
    assert_eq!(post("s", &large), Ok(true), "rule 14: what was taken does not count");
    assert_eq!(taken(&owner, u64::from(u32::MAX)).len(), 1);
    assert_eq!(taken(&owner, u64::from(u32::MAX)), []);
    let many: Vec<Log> = (1_000..).take(MAX_INBOX_MESSAGES).map(|number| Log::new("s", number)).collect();
    for posted in other.post_all(&many, b"") {
        assert_eq!(posted.map(|posted| posted.log.is_some()), Ok(true), "rule 14");
    }
    assert_eq!(post("s", b""), Err(StoreError::InboxFull { max: MAX_INBOX_MESSAGES }), "rule 14");
    owner.hold("t", SessionRecord::default());
    assert_eq!(post("t", b""), Ok(true), "rule 14: another session has its own");
}

fn rule_14_messages_go_with_their_logs_and_their_session(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = two(a, b);
    let logs: Vec<Log> = (0..4).map(|number| Log::new("s", number)).collect();
    for log in &logs[..2] {
        other.post(log, b"message").expect("rule 14: it waits");
    }
    assert_eq!(taken(&owner, 0).len(), 2);
    for log in &logs[2..] {
        other.post(log, b"message").expect("rule 14: it waits");
    }
    a.drop_stream(&logs[2].key, owner.epoch);
    assert_eq!(taken(&owner, u64::from(u32::MAX)), [logs[3].key.nonce], "rule 14: it went with its log");
    a.drop_session("s", owner.epoch);
    owner.assert_usage("rule 8", |usage| *usage == Usage { trimmed: usage.trimmed, ..Usage::default() });
    assert_eq!(owner.take("s", 0), Err(StoreError::Gone), "rule 8");
    owner.hold("s", SessionRecord::default());
    assert_eq!(owner.take("s", 0), Ok(Vec::new()), "rule 8: nothing of it is left");
}
