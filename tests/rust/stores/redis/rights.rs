//! The rights that docs/stores/README.md says a user of the store needs.

use tailrope_core::store::StoreOptions;
use tailrope_core::store::contract::{check, check_shared};

use super::server::{Kind, Server, address, at, fresh, say};
use crate::kit::common::documented;

const USER: &str = "tailrope";

/// The command of the documents as words, with names of this test. `prefix` is what keys begin with.
fn set_user(heading: &str, prefix: &str) -> Vec<String> {
    let text = documented("stores/README.md", heading).replace("tailrope:*", &format!("{prefix}*"));
    text.replace(">PASSWORD", ">throw-away").split_whitespace().map(str::to_owned).collect()
}

/// Everything that the store can be asked, by a user who may do no more than that.
fn works_at(address: &str) {
    let of_user = address.replacen("://", &format!("://{USER}:throw-away@"), 1);
    let place = || {
        let of_test = fresh(Kind::Alone);
        let (_, number) = of_test.rsplit_once("test-").expect("it has a namespace");
        format!("{of_user}?namespace=rights-{number}")
    };
    let open = |place: &str| at(place, &StoreOptions::default());
    check(&|| open(&place()));
    check_shared(&|| {
        let place = place();
        (open(&place), open(&place))
    });
}

#[test]
fn the_documented_rights_are_enough() {
    let server = Server::start(&[]);
    let words = set_user("ACL SETUSER", "rights-");
    assert_eq!(server.say(&words.iter().map(String::as_str).collect::<Vec<_>>()), ["OK"], "{words:?}");
    works_at(&server.address(""));
}

#[test]
fn the_documented_rights_are_enough_in_a_cluster() {
    let address = address(Kind::Cluster);
    let (one, more) = (set_user("ACL SETUSER", "rights-"), set_user("+cluster|slots", "rights-"));
    let words: Vec<&str> = one.iter().chain(&more).map(String::as_str).collect();
    let (_, places) = address.split_once("://").expect("it is an address");
    for place in places.split(',') {
        assert_eq!(say(place, &words), ["OK"], "{words:?}");
    }
    works_at(&address);
}
