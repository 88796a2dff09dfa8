//! The mark of the keys' layout in the Redis store: which releases share a namespace.

use tailrope_core::Ms;
use tailrope_core::store::StoreOptions;
use tailrope_core::store::contract::Caller;

use super::server::{Server, at, refusal};
use crate::kit::events::sized;
use crate::kit::eventually::eventually;

const MARK: &str = "tailrope:layout";

#[test]
fn keys_of_a_release_that_does_not_know_ours_are_refused_and_left_alone() {
    let server = Server::start(&[]);
    for (mark, parts) in [
        ("9 8", ["has version 9 of the keys, for releases that know version 8 or later", "knows version 2"]),
        ("0 0", ["has version 0 of the keys", "knows version 2 and serves version 2 or later"]),
        ("something", ["the namespace tailrope", "is of something else"]),
    ] {
        server.say(&["SET", MARK, mark]);
        let error = refusal(&server.address(""));
        assert!(parts.iter().all(|part| error.contains(part)), "{mark}: {error}");
        assert_eq!(server.say(&["KEYS", "*"]), [MARK], "nothing is written");
        assert_eq!(server.say(&["GET", MARK]), [mark]);
    }
}

#[test]
fn a_later_release_that_knows_ours_shares_its_keys_and_its_mark_stays() {
    let server = Server::start(&[]);
    server.say(&["SET", MARK, "3 2", "PX", "100000"]);
    let store = at(&server.address(""), &StoreOptions::default());
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    log.assert_stored(&caller, 0, "rule 2");
    assert_eq!(server.say(&["GET", MARK]), ["3 2"]);
    let left: u64 = server.say(&["PTTL", MARK])[0].parse().expect("it goes some time");
    assert!(left > 100_000, "and is kept for us: {left}");
}

#[test]
fn a_mark_that_the_server_lost_comes_again_and_goes_after_everything_else() {
    let mut server = Server::start(&[]);
    let store = at(&server.address(""), &StoreOptions::default());
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let is_there = || server.say(&["GET", MARK]) == ["2 2"];
    assert!(is_there());
    for key in server.say(&["KEYS", "*"]).iter().filter(|key| *key != MARK) {
        let [of_key, of_mark] = [key, MARK].map(|key| server.say(&["PTTL", key])[0].parse::<i64>().expect("a number"));
        assert!(0 < of_key && of_key < of_mark, "{key}: {of_key} of {of_mark}");
    }
    server.kill();
    server.again();
    eventually("it is there again", || server.say(&["GET", MARK]) == ["2 2"]);
}
