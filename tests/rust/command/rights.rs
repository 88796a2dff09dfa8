//! The rights that docs/operate/command.md says a user needs who looks into a store.

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, progress};
use tailrope_core::store::{StoreOptions, session_name};
use tailrope_stores::open;

use super::running::{fresh, json};
use super::server::Server;
use crate::kit::common::documented;

/// A session in the store of one user, seen by another one.
fn looks(address: &str, reader: &str) {
    let store = open(address, &StoreOptions { owner_lost_ms: 400, ..StoreOptions::default() }).expect("it opens");
    let caller = Caller::new(&*store, Ms(0));
    let name = session_name("s");
    let mut log = caller.open(&name, 1);
    caller.push(&mut log, &[progress("a")]);
    assert_eq!(json(&["sessions", reader])["items"][0]["name"], *name);
    assert_eq!(json(&["show", reader, &name])["session"]["name"], *name);
    assert_eq!(json(&["tasks", reader])["total"], 0);
}

#[test]
fn the_documented_rights_in_redis_are_enough() {
    let server = Server::start(&[]);
    let rights = documented("stores/README.md", "ACL SETUSER") + &documented("operate/command.md", "+scan");
    let line = rights.split_whitespace().collect::<Vec<_>>().join(" ").replace(">PASSWORD", ">throw-away");
    assert_eq!(server.say(&line), "+OK", "{line}");
    looks(&server.address(""), &server.address("tailrope:throw-away@"));
    assert_eq!(json(&["doctor", &server.address("tailrope:throw-away@")])["facts"]["refused_commands"], "");
}

#[test]
fn the_documented_rights_in_postgres_are_enough() {
    let address = fresh("TAILROPE_TEST_POSTGRES");
    let (place, namespace) = address.split_once("?namespace=").expect("it has one");
    drop(open(&address, &StoreOptions::default()).expect("it makes the tables"));
    let grants =
        documented("operate/command.md", "GRANT USAGE").replace("SCHEMA tailrope", &format!("SCHEMA {namespace}"));
    let role = format!("reader_{namespace}");
    let grants = grants.replace("TO reader", &format!("TO {role}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(place, tokio_postgres::NoTls).await.expect("it is there");
        let connection = tokio::spawn(connection);
        client
            .batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'throw-away'; {grants}"))
            .await
            .expect("rights");
        drop(client);
        let _ = connection.await;
    });
    let (_, rest) = address.rsplit_once('@').expect("it has a user");
    looks(&address, &format!("postgres://{role}:throw-away@{rest}"));
}
