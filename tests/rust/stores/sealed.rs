//! Payloads encrypted at rest: the contract holds, and what is stored says nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::engine::lines::{lines_of, tried};
use crate::kit::common::SlowStore;
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::{ListChanged, Revision, StreamNonce};
use tailrope_core::store::contract::{Caller, Log, check, check_retention, check_shared, progress};
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Complete, EncryptionKey, Epoch, EventKind, EventStore, Hold, Limits, LogPage,
    MemoryStore, Message, Operation, Outcome, ReadLimit, RunningLog, SealedStore, Seq, SessionId, SessionRecord,
    StoreError, StoreOptions, StoredEvent, StreamKey, Ticket, Usage, session_name,
};
use tailrope_stores::open;

fn key(digit: char) -> EncryptionKey {
    EncryptionKey::from_hex(&digit.to_string().repeat(64)).expect("64 hexadecimal digits")
}

fn options(keys: &[EncryptionKey]) -> StoreOptions {
    StoreOptions { encryption_keys: keys.to_vec(), ..StoreOptions::default() }
}

#[test]
fn i6_it_keeps_a_log_for_as_long_as_its_pace_says() {
    for address in ["memory:", "test-threaded:?delay_ms=0"] {
        let limits = |retention_ms| Limits { retention_ms, ..Limits::default() };
        let make = |retention_ms| {
            open(address, &StoreOptions { limits: limits(retention_ms), ..options(&[key('1')]) }).unwrap()
        };
        check_retention(&make, &|store, ms| {
            store.sweep(Ms(ms));
        });
    }
}

#[test]
fn it_keeps_the_contract() {
    check(&|| open("memory:", &options(&[key('1')])).unwrap());
}

#[test]
fn it_keeps_the_contract_on_threads() {
    check(&|| open("test-threaded:?delay_ms=0", &options(&[key('1')])).unwrap());
}

#[test]
fn it_keeps_the_contract_between_processes() {
    let folder = Folder::new();
    let files = AtomicU64::new(0);
    check_shared(&|| {
        let path = folder.path(&format!("{}.db", files.fetch_add(1, Ordering::Relaxed)));
        let address = format!("sqlite:{}", path.display());
        (open(&address, &options(&[key('1')])).unwrap(), open(&address, &options(&[key('1')])).unwrap())
    });
}

#[test]
fn nothing_that_was_said_is_readable_in_the_file() {
    let folder = Folder::new();
    let address = format!("sqlite:{}", folder.path("a.db").display());
    let words = [
        "a word in an event",
        "a word in an end",
        "a word in a principal",
        "a word in a message",
        "a word in a withdrawal",
        "a word in a note",
        "about \0 1",
    ];
    {
        let store = open(&address, &options(&[key('1')])).unwrap();
        let caller = Caller::new(&*store, Ms(0));
        let mut log = caller.open("s", 1);
        caller.push(&mut log, &[progress(words[0])]);
        caller.finish(&log, words[1].as_bytes()).expect("it is ended");
        assert_eq!(caller.log(&log).and_then(|log| log.page.tail).as_deref(), Some(words[1].as_bytes()));
        for number in [2, 3] {
            caller.post(&Log::new("s", number), words[3].as_bytes()).expect("it waits");
        }
        assert_eq!(caller.withdraw(&Log::new("s", 3), words[4].as_bytes()), Ok(true));
        caller.hold("s", SessionRecord { note: words[5].into(), ..of(words[2]) });
        assert_eq!(caller.session("s", Some(words[2])).map(|record| record.note), Some(words[5].into()));
    }
    let mut files: Vec<_> = std::fs::read_dir(folder.path("a.db").parent().unwrap()).unwrap().collect();
    let bytes: Vec<u8> = files.drain(..).flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(bytes.len() > 4_096);
    for word in words {
        assert!(!bytes.windows(word.len()).any(|part| part == word.as_bytes()), "{word}");
    }
}

fn of(principal: &str) -> SessionRecord {
    SessionRecord { principal: Some(principal.into()), ..SessionRecord::default() }
}

#[test]
fn a_session_is_found_by_its_principal_with_the_key_it_began_with_and_the_store_does_not_know_whose_it_is() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let with = |keys: &[EncryptionKey]| SealedStore::new(Arc::clone(&memory), keys).expect("there is a key");
    let old = with(&[key('1')]);
    let log = Caller::new(&old, Ms(0)).open("s", 1);
    for session in ["s", "t"] {
        Caller::new(&old, Ms(0)).hold(session, of("alice"));
    }
    let look = |store: &dyn EventStore, session, principal: Option<&str>| {
        let principal = principal.map(Into::into);
        let attach = Attach { stream: Some(log.key.nonce), principal, counts: true, ..Attach::default() };
        Caller::new(store, Ms(0)).attach(session, &attach)
    };
    let new = with(&[key('2'), key('3'), key('1')]);
    let [kept, other] =
        ["s", "t"].map(|session| look(&new, session, Some("alice")).session.expect("it is hers").principal);
    assert!(kept.is_some() && kept != other, "one principal is not seen to have two sessions");
    // Nobody reads it, not even whoever has the keys.
    assert!(!kept.expect("it has one").contains("alice"));
    let strangers = [with(&[key('2'), key('3')]), with(&[key('4')])];
    let strangers = strangers.iter().map(|store| store as &dyn EventStore).chain([&*memory]);
    for (store, principal) in
        strangers.map(|store| (store, Some("alice"))).chain([(&new as _, Some("bob")), (&new as _, None)])
    {
        let found = look(store, "s", principal);
        assert!(found.is_foreign && found.session.is_none() && found.log.is_none(), "{principal:?}: {found:?}");
    }
    let found = look(&new, "s", Some("alice")).log.expect("it is there");
    assert_eq!((found.page.readers, &*found.about), (2, &b"about \0 1"[..]), "only she counted");
    // What is kept from now on is under the new key.
    Caller::new(&new, Ms(0)).hold("s", of("alice"));
    let found = |keys: &[EncryptionKey]| !look(&with(keys), "s", Some("alice")).is_foreign;
    assert_eq!((found(&[key('2'), key('1')]), found(&[key('3'), key('1')])), (true, false));
}

#[test]
fn keys_can_be_changed_and_a_wrong_one_reads_nothing() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let with = |keys: &[EncryptionKey]| SealedStore::new(Arc::clone(&memory), keys).expect("there is a key");
    let old = with(&[key('1')]);
    let mut log: Log;
    {
        let caller = Caller::new(&old, Ms(0));
        log = caller.open("s", 1);
        caller.push(&mut log, &[progress("a")]);
    }
    let both = with(&[key('2'), key('1')]);
    let caller = Caller::new(&both, Ms(0));
    caller.push(&mut log, &[progress("b")]);
    log.assert_stored(&caller, 0, "both keys are read");
    let limit = ReadLimit { up_to: 9, events: 9, bytes: 1 << 20 };
    let stranger = with(&[key('3')]);
    let refused = Caller::new(&stranger, Ms(0)).read(&log, 0, limit);
    let Err(StoreError::Failed(text)) = refused else { panic!("another key reads nothing: {refused:?}") };
    assert!(text.contains("any of the keys"), "{text}");
    let new = with(&[key('2')]);
    let caller = Caller::new(&new, Ms(0));
    assert!(caller.read(&log, 0, limit).is_err() && caller.read(&log, 1, limit).is_ok());
}

#[test]
fn what_cannot_be_read_of_one_log_keeps_nobody_from_taking_its_session_over() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let with = |digit| SealedStore::new(Arc::clone(&memory), &[key(digit)]).expect("there is a key");
    let (old, new) = (with('1'), with('2'));
    let unreadable = Caller::new(&old, Ms(0)).open("s", 1);
    let readable = Caller::new(&new, Ms(0)).open("s", 2);
    let heir = Caller::new(&new, Ms(0)).with(Epoch { number: 2, salt: 9 });
    let hold = Hold { epoch: heir.epoch, seen: Some(Epoch { number: 1, salt: 7 }), record: None };
    let mut running = heir.try_hold("s", &hold).expect("I9: it is taken over");
    running.sort_by_key(|log| log.nonce.0);
    let told: Vec<_> = running.iter().map(|log| (log.nonce, &*log.about)).collect();
    assert_eq!(told, [(unreadable.key.nonce, &b""[..]), (readable.key.nonce, b"about \0 2")]);
}

#[test]
fn o19_a_record_is_bound_to_its_session_and_without_one_there_is_no_session() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let with = |keys: &[EncryptionKey]| SealedStore::new(Arc::clone(&memory), keys).expect("there is a key");
    let (sealed, stranger) = (with(&[key('1')]), with(&[key('2')]));
    let record = |store: &dyn EventStore, session| Caller::new(store, Ms(0)).session(session, None);
    let known = SessionRecord {
        revision: Some(Revision::V2025_11_25),
        retry_ms: 9,
        list_changed: ListChanged { tools: true, ..ListChanged::default() },
        standalone: Some(StreamNonce([1; 12])),
        note: "a note".into(),
        principal: None,
    };
    let (caller, within) = (Caller::new(&sealed, Ms(0)), Caller::new(&*memory, Ms(0)));
    caller.hold("s", known.clone());
    caller.hold("t", SessionRecord::default());
    assert_eq!((record(&sealed, "s"), record(&sealed, "t")), (Some(known.clone()), Some(SessionRecord::default())));
    let kept = record(&*memory, "s").expect("it is there");
    let only_note = SessionRecord { note: kept.note.clone(), ..SessionRecord::default() };
    assert_eq!(kept, only_note, "nothing else says anything");
    assert!(!kept.note.windows(6).any(|part| part == b"a note"));
    assert_eq!(record(&stranger, "s"), None, "the keys are others");
    // With the old key behind the new one it is read, and is written with the new one.
    let both = with(&[key('2'), key('1')]);
    assert_eq!(record(&both, "s"), Some(known.clone()));
    Caller::new(&both, Ms(0)).hold("s", known.clone());
    assert_eq!((record(&stranger, "s"), record(&sealed, "s")), (Some(known.clone()), None));
    caller.hold("s", known);
    for forged in [kept, SessionRecord::default()] {
        within.hold("t", forged);
        assert_eq!(record(&sealed, "t"), None, "O19");
    }
}

/// How many lines there are of look-ups of two sessions whose records are not theirs.
fn lines_of_forged_records() -> usize {
    let slow = SlowStore::new(Limits::default());
    let store = SealedStore::new(Arc::clone(&slow) as _, &[key('1')]).expect("there is a key");
    let requester = Arc::new(Asker::default());
    let to: Arc<dyn Complete> = Arc::clone(&requester) as _;
    for session in ["s", "t"] {
        Caller::new(&*slow, Ms(0)).hold(session, SessionRecord::default());
    }
    Caller::new(&store, Ms(0)).hold("u", SessionRecord::default());
    slow.set(true, false);
    let lines = lines_of(
        |_| {},
        || {
            for (number, session) in (0..).zip(["s", "t", "u", "s", "t", "u", "v"]) {
                let nonce = StreamNonce([0; 12]);
                let ticket = Ticket { to: Arc::downgrade(&to), nonce, operation: Operation::Attach(0), number };
                assert!(matches!(store.attach(session, &Attach::default(), &ticket), Answer::Later));
            }
            slow.answer_all();
        },
    );
    let found = |outcome: &Outcome| matches!(outcome, Outcome::Attached(Ok(attached)) if attached.session.is_some());
    let told = requester.0.lock().unwrap();
    assert_eq!((told.len(), told.iter().filter(|outcome| found(outcome)).count()), (7, 2));
    lines
}

#[test]
fn a_record_that_is_not_its_sessions_is_told_of_once() {
    assert_eq!(tried(lines_of_forged_records, 2), Some(2));
}

/// A store of a namespace.
struct Place {
    inner: Arc<dyn EventStore>,
    namespace: &'static str,
}

impl EventStore for Place {
    passes_on!(hold append attach read take withdraw release settle drop_stream drop_session sweep usage);

    fn namespace(&self) -> &str {
        self.namespace
    }
}

#[test]
fn o19_what_is_encrypted_is_of_one_namespace() {
    let inner: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let [here, again, there] = ["a", "a", "b"].map(|namespace| {
        let place = Arc::new(Place { inner: Arc::clone(&inner), namespace });
        SealedStore::new(place, &[key('1')]).expect("there is a key")
    });
    let caller = Caller::new(&here, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a")]);
    let limit = ReadLimit { up_to: 9, events: 9, bytes: 1 << 20 };
    let read = |store: &dyn EventStore| {
        let caller = Caller::new(store, Ms(0));
        (caller.session("s", None).is_some(), caller.read(&log, 0, limit).is_ok())
    };
    assert_eq!((read(&again), read(&there)), ((true, true), (false, false)));
}

#[test]
fn an_event_is_of_its_kind() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let sealed = SealedStore::new(Arc::clone(&memory), &[key('1')]).expect("there is a key");
    let mut log = Caller::new(&sealed, Ms(0)).open("s", 1);
    Caller::new(&sealed, Ms(0)).push(&mut log, &[progress("a")]);
    let limit = ReadLimit { up_to: 9, events: 9, bytes: 1 << 20 };
    let kept = Caller::new(&*memory, Ms(0)).read(&log, 0, limit).expect("it is there").page.events;
    for (kind, is_read) in [(EventKind::Progress, true), (EventKind::Terminal, false)] {
        let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
        let caller = Caller::new(&*memory, Ms(0));
        caller.open("s", 1);
        let forged = Append { events: vec![StoredEvent { kind, ..kept[0].clone() }], ..log.append(1, &log.events) };
        caller.write(&log, &forged).expect("it is taken");
        let sealed = SealedStore::new(memory, &[key('1')]).expect("there is a key");
        let read = Caller::new(&sealed, Ms(0)).read(&log, 0, limit);
        assert_eq!(read.is_ok(), is_read, "{kind:?}");
    }
}

#[test]
fn o19_a_message_is_bound_to_its_server_its_session_and_its_stream_and_harms_no_other() {
    let memory: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let sealed = SealedStore::new(Arc::clone(&memory), &[key('1')]).expect("there is a key");
    let (caller, within) = (Caller::new(&sealed, Ms(0)), Caller::new(&*memory, Ms(0)));
    let [s, of_another_server] = ["/a", "/b"].map(|server| session_name(SessionId::new(server, "s")));
    let (s, of_another_server) = (&*s, &*of_another_server);
    for session in [s, of_another_server] {
        caller.hold(session, SessionRecord::default());
    }
    let logs = [1, 2].map(|number| Log::new(s, number));
    for log in &logs {
        caller.post(log, b"a message").expect("it waits");
    }
    let [kept, told] = [&within, &caller].map(|owner| owner.take(s, 0).expect("it is the owner"));
    let [first, second] = &kept[..] else { panic!("two messages wait: {kept:?}") };
    for (kept, told) in kept.iter().zip(&told) {
        let (Message { about, body }, told) = (&kept.message, &told.message);
        assert!(&*told.body == b"a message" && *body != told.body && *about != told.about, "{kept:?}");
    }
    for log in &logs {
        sealed.drop_stream(&log.key, caller.epoch);
    }
    let put = |session: &str, number, message: &Message| {
        let (stream, message) = (Some(Log::new(session, number).key.nonce), Some(message.clone()));
        within.attach(session, &Attach { stream, message, ..Attach::default() });
    };
    let Message { about, body } = second.message.clone();
    put(s, 3, &first.message);
    put(s, 2, &Message { about: body.clone(), body: about.clone() });
    put(s, 4, &Message { about, body: body.slice(1..) });
    put(s, 1, &first.message);
    put(of_another_server, 1, &first.message);
    let taken = |session| {
        let mail = caller.take(session, second.number).expect("I9: it is taken");
        mail.into_iter().map(|mail| (mail.nonce, mail.message)).collect::<Vec<_>>()
    };
    let nonce = |number| Log::new(s, number).key.nonce;
    let moved = [3, 2, 4].map(|number| (nonce(number), Message::default()));
    assert_eq!(
        taken(s),
        [&moved[..], &[(nonce(1), told[0].message.clone())]].concat(),
        "O19: only its own place reads it"
    );
    let there = [(nonce(1), Message::default())];
    assert_eq!(taken(of_another_server), there, "O19: nor does another session, of the same id at another server");
}

#[test]
fn a_key_is_64_hexadecimal_digits_and_is_not_shown() {
    for wrong in ["", "1", &"g".repeat(64), &"1".repeat(63), &"1".repeat(65), &"\u{e9}".repeat(32)] {
        assert!(EncryptionKey::from_hex(wrong).is_none(), "{wrong}");
    }
    assert_eq!(format!("{:?}", key('1')), "EncryptionKey(...)");
    assert!(!format!("{:?}", options(&[key('1')])).contains("11111"));
}

/// Takes answers.
#[derive(Default)]
struct Asker(Mutex<Vec<Outcome>>);

impl Complete for Asker {
    fn complete(&self, _: &Ticket, outcome: Outcome) {
        self.0.lock().unwrap().push(outcome);
    }
}

#[test]
fn a_question_that_is_called_off_is_called_off_within_and_nobody_elses_is() {
    const MANY: u64 = 50_000;
    let slow = SlowStore::new(Limits::default());
    let store = SealedStore::new(Arc::clone(&slow) as _, &[key('1')]).expect("there is a key");
    let log = Caller::new(&store, Ms(0)).open("s", 1);
    slow.set(true, false);
    // Two engines count their operations alike.
    let askers = [Arc::new(Asker::default()), Arc::new(Asker::default())];
    let ticket = |asker: usize, number| {
        let to: Arc<dyn Complete> = Arc::clone(&askers[asker]) as _;
        Ticket { to: Arc::downgrade(&to), nonce: log.key.nonce, operation: Operation::Look(0), number }
    };
    for number in 0..MANY {
        for asker in 0..2 {
            assert!(matches!(store.read(&log.key, 0, ReadLimit::default(), &ticket(asker, number)), Answer::Later));
        }
    }
    for number in 0..MANY {
        store.abandon(&log.key, &ticket(0, number));
    }
    assert_eq!(slow.abandoned() as u64, MANY, "by the numbers that are known within");
    slow.answer_all();
    assert_eq!(askers.map(|asker| asker.0.lock().unwrap().len() as u64), [0, MANY], "those of the other are answered");
}
