//! When the PostgreSQL store takes the owner of a session for gone, and when not: what it saw counts, and no clock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check_released};
use tailrope_core::store::{Attach, Epoch, EventStore, Hold, Limits, Message, SessionRecord, StoreError, StoreOptions};

use super::database::{Administrator, Database, Namespaces, at, namespace, told, with_clock};
use super::faults::behind_proxy;
use crate::kit::events::{question, sized, terminal};
use crate::kit::eventually::eventually;

/// The same store without the network that can fail.
fn direct(address: &str) -> String {
    format!("{}?namespace={}", told("TAILROPE_TEST_POSTGRES"), namespace(address))
}

pub(super) fn unseen_ms(caller: &Caller<'_>, log: &Log) -> u64 {
    caller.log(log).and_then(|log| log.page.owner).expect("it is another's").unseen_ms
}

#[test]
fn o14_an_owner_that_did_not_reach_the_server_for_a_minute_ends_its_streams_itself() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let (options, time) = with_clock(Limits::default());
    let often = StoreOptions { owner_lost_ms: 200, ..options.clone() };
    let (owner, other) = (at(&address, &often), at(&direct(&address), &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let mut log = writer.open("s", 1);
    unseen_ms(&reader, &log);
    proxy.set_refuses(true);
    proxy.cut();
    time.fetch_add(60_000, Ordering::SeqCst);
    // As when the server was away for everybody, and others reach it first.
    let unseen = unseen_ms(&reader, &log);
    assert!(unseen < options.owner_lost_ms, "R-S5: {unseen}");
    proxy.set_refuses(false);
    eventually("its beat comes", || unseen_ms(&reader, &log) == 0);
    writer.push(&mut log, &[sized(1), terminal()]);
}

#[test]
fn o18_an_owner_whose_signs_have_no_answer_is_cut_off() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let owner = at(&address, &StoreOptions { owner_lost_ms: 4_000, ..StoreOptions::default() });
    let caller = Caller::new(&owner, Ms(0));
    let mut log = caller.open("s", 1);
    assert!(!owner.is_cut_off(), "its signs have answers");
    proxy.set_refuses(true);
    proxy.cut();
    eventually("nobody answers", || owner.is_cut_off());
    proxy.set_refuses(false);
    caller.push(&mut log, &[sized(1)]);
    assert!(!owner.is_cut_off(), "a server that is back has a sign of life before anything else");
}

#[test]
fn o14_no_owner_counts_as_gone_where_nobody_can_write() {
    const LOST_MS: u64 = 2_000;
    let database = Database::new();
    let options = |owner_lost_ms| StoreOptions { owner_lost_ms, ..StoreOptions::default() };
    let (owner, other) = (at(&database.address(""), &options(300)), at(&database.address(""), &options(LOST_MS)));
    let log = Caller::new(&owner, Ms(0)).open("s", 1);
    let reader = Caller::new(&other, Ms(0));
    eventually("it gives signs", || unseen_ms(&reader, &log) == 0);
    database.administrator.run(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name));
    // A connection that was being made keeps the setting from before, so they are ended until nobody can write.
    eventually("nobody can write", || {
        database.see_connections_end();
        owner.is_cut_off() && other.is_cut_off()
    });
    let (mut looks, looks_until) = (0, Instant::now() + Duration::from_millis(2 * LOST_MS));
    while looks <= 10 || Instant::now() < looks_until {
        // A look may fail as its connection ends.
        let attach = Attach { stream: Some(log.key.nonce), ..Attach::default() };
        let found = reader.try_attach("s", &attach).ok().and_then(|found| found.log?.page.owner);
        let unseen = found.map_or(0, |owner| owner.unseen_ms);
        assert!(unseen < LOST_MS && other.is_cut_off(), "{unseen}");
        looks += u64::from(found.is_some());
        std::thread::sleep(Duration::from_millis(50));
    }
    database.administrator.run(&format!("ALTER DATABASE {} RESET default_transaction_read_only", database.name));
    eventually("its signs are written again", || !owner.is_cut_off() && !other.is_cut_off());
    assert!(unseen_ms(&reader, &log) < LOST_MS);
}

#[test]
fn o1_who_has_a_session_and_a_message_is_on_the_disk_whatever_its_events_are() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (store, administrator) = (at(&address, &StoreOptions::default()), Administrator::new());
    let ns = namespace(&address);
    administrator.run(&format!(
        "CREATE TABLE {ns}.waited (what text, setting text);
         CREATE FUNCTION {ns}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO {ns}.waited VALUES (TG_TABLE_NAME || ' ' || TG_OP, current_setting('synchronous_commit'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {ns}.session EXECUTE FUNCTION {ns}.note();
         CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {ns}.message EXECUTE FUNCTION {ns}.note();
         CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {ns}.stream EXECUTE FUNCTION {ns}.note()"
    ));
    // The store's own work may fall in between, which waits for no disk: so each asks for the change that it is about.
    let check = |what: &str, change: &str, setting: &str| {
        let say = "SELECT coalesce(string_agg(DISTINCT setting, ',' ORDER BY setting), '')";
        let said = administrator.ask(&format!("{say} FROM {ns}.waited WHERE what LIKE '{change}'"));
        administrator.run(&format!("TRUNCATE {ns}.waited"));
        assert_eq!(said.expect("it says something"), setting, "{what}");
    };
    let caller = Caller::new(&store, Ms(0));
    let answered = || assert_eq!(caller.attach("", &Attach::default()).session, None);
    caller.hold("s", SessionRecord::default());
    check("hold", "session INSERT", "on");
    let mut log = Log::new("s", 1);
    caller.push(&mut log, &[sized(1), question()]);
    store.settle(&log.key, caller.epoch, 2);
    answered();
    check("append and settle", "stream %", "off");
    let (message, key) = (Message { about: b"about"[..].into(), body: b"body"[..].into() }, Log::new("s", 2).key);
    caller.attach("s", &Attach { stream: Some(key.nonce), message: Some(message), ..Attach::default() });
    check("attach", "message INSERT", "off");
    assert_eq!(caller.take("s", 0).map(|mail| mail.len()), Ok(1));
    check("take", "message %", "on");
    let waiting = Log::new("s", 3);
    caller.post(&waiting, b"body").expect("it is posted");
    check("attach", "message INSERT", "off");
    assert_eq!(caller.withdraw(&waiting, b"end"), Ok(true));
    check("withdraw", "message %", "on");
    store.release("s", caller.epoch);
    answered();
    check("release", "session UPDATE", "on");
    store.drop_session("s", caller.epoch);
    answered();
    check("drop_session", "session DELETE", "on");
}

#[test]
fn no_clock_and_no_bound_takes_anything_from_an_owner_that_lives() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (options, time) = with_clock(Limits { max_age_ms: 1, ..Limits::default() });
    let [owner, other] = [(); 2].map(|()| at(&address, &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let mut log = writer.open("s", 1);
    writer.push(&mut log, &[sized(1)]);
    let mut finished = writer.open("s", 2);
    writer.push(&mut finished, &[terminal()]);
    time.fetch_add(365 * 86_400_000, Ordering::SeqCst);
    other.sweep(Ms(0));
    eventually("it is swept", || reader.log(&finished).is_none());
    let unseen = unseen_ms(&reader, &log);
    assert!(unseen < options.owner_lost_ms, "R-S4, R-S5: {unseen}");
    writer.push(&mut log, &[sized(1)]);
}

#[test]
fn o14_an_owner_that_the_server_has_no_row_of_is_not_taken_for_gone() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let options = StoreOptions { owner_lost_ms: 1, ..StoreOptions::default() };
    let (owner, hasty) = (at(&address, &StoreOptions::default()), at(&address, &options));
    let reader = Caller::new(&hasty, Ms(0));
    let log = Caller::new(&owner, Ms(0)).open("s", 1);
    let (server, name) = (Administrator::new(), namespace(&address));
    // Whatever beat comes, the row is not there.
    server.run(&format!(
        "CREATE FUNCTION {name}.forget_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF new.id = (SELECT owner FROM {name}.session) THEN RETURN NULL; END IF;
             RETURN new;
         END $$;
         CREATE TRIGGER forget_it BEFORE INSERT ON {name}.owner FOR EACH ROW EXECUTE FUNCTION {name}.forget_it();
         DELETE FROM {name}.owner WHERE id = (SELECT owner FROM {name}.session)"
    ));
    assert_eq!([(); 5].map(|()| unseen_ms(&reader, &log)), [0; 5]);
}

#[test]
fn o16_what_was_let_go_of_and_nobody_takes_over_goes_in_the_end() {
    let namespaces = Namespaces::direct();
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, ..Limits::default() });
    let options = StoreOptions { owner_lost_ms: 2_000, ..options };
    let make = || -> (Arc<dyn EventStore>, Arc<dyn EventStore>) {
        let address = namespaces.address();
        (Arc::new(at(&address, &options)), Arc::new(at(&address, &options)))
    };
    check_released(&make, 60_000, &|ms| _ = time.fetch_add(ms, Ordering::SeqCst));
}

#[test]
fn o16_an_owner_that_stood_still_leaves_nothing_in_the_end_and_may_come_back() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, ..Limits::default() });
    let options = StoreOptions { owner_lost_ms: 100, ..options };
    let (owner, other) = (at(&address, &options), at(&direct(&address), &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let log = writer.open("s", 1);
    proxy.set_refuses(true);
    proxy.cut();
    let (server, owners) = (Administrator::new(), format!("{}.owner", namespace(&address)));
    let count = |which: &str| server.number(&format!("SELECT count(*) FROM {owners} WHERE {which}"));
    eventually("it is seen to stand still", || count("gone IS NOT NULL") == 1);
    time.fetch_add(60_000, Ordering::SeqCst);
    // It sweeps with each sign of life.
    let beat = || server.number(&format!("SELECT max(beat) FROM {owners} WHERE gone IS NULL"));
    let before = beat();
    eventually("it is swept", || beat() > before + 1);
    assert!(reader.log(&log).is_some(), "its sessions are kept for a while");
    time.fetch_add(1, Ordering::SeqCst);
    eventually("they go", || reader.session("s", None).is_none() && count("true") == 1);
    reader.assert_usage("F-54", |usage| usage.streams == 0 && usage.sessions == 0 && usage.bytes == 0);
    proxy.set_refuses(false);
    eventually("R-S4: its beat writes its row again", || count("true") == 2);
    unseen_ms(&reader, &writer.open("t", 2));
}

#[test]
fn o2_whoever_waited_for_a_session_decides_by_what_it_is_then() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (store, name) = (at(&address, &StoreOptions::default()), namespace(&address));
    let caller = Caller::new(&store, Ms(0));
    let (somebody, server) = (Administrator::new(), Administrator::new());
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1)]);
    let after = |change: &str, what: &(dyn Fn(&Caller<'_>) + Sync)| {
        somebody.run(&format!("BEGIN; UPDATE {name}.session SET {change}"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| what(&Caller::new(&store, Ms(0))));
            server.see_waiting(name);
            somebody.run("COMMIT");
            waiting.join().unwrap();
        });
    };
    let counts = Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() };
    after("principal = 'bob'", &|caller| assert!(caller.attach("s", &counts).is_foreign, "O2"));
    server.run(&format!("UPDATE {name}.session SET principal = NULL"));
    let hold = Hold { epoch: Epoch { number: 3, salt: 9 }, seen: Some(caller.epoch), record: None };
    after("epoch = 2", &|caller| assert_eq!(caller.append(&log, 2, &[sized(1)]), Err(StoreError::Fenced), "O2"));
    server.run(&format!("UPDATE {name}.session SET epoch = 1"));
    after("epoch = 2", &|caller| assert_eq!(caller.try_hold("s", &hold), Err(StoreError::Fenced), "O2"));
    server.run(&format!("UPDATE {name}.session SET epoch = 1"));
    // What came to somebody else's inbox.
    let [refused, taken] = [2, 3].map(|number| Log::new("s", number));
    after("principal = 'bob'", &|caller| assert!(caller.post(&refused, b"message").unwrap().is_foreign, "O2"));
    server.run(&format!("UPDATE {name}.session SET principal = NULL"));
    caller.post(&taken, b"message").expect("it waits");
    after("epoch = 2", &|caller| assert_eq!(caller.take("s", 0), Err(StoreError::Fenced), "O2"));
    server.run(&format!("UPDATE {name}.session SET epoch = 1"));
    after(&format!("epoch = 1; UPDATE {name}.message SET is_taken = true"), &|caller| {
        assert_eq!(caller.withdraw(&taken, b"end"), Ok(false), "O2");
    });
    log.assert_stored(&caller, 0, "O2");
    assert_eq!(caller.log(&refused), None, "O2");
    assert_eq!(caller.log(&log).map(|log| log.page.readers), Some(0), "O2");
}
