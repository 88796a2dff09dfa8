//! Two processes over one store.

use std::path::PathBuf;

use tailrope_server::store::{StoreOptions, open};
use tailrope_server::{Engine, Options, Sessions};

use crate::lab::{Server, counts, result};
use crate::quick;

/// A file that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("tailrope-server-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    fn server(&self) -> Server {
        Server::of(self.sessions().into())
    }

    fn sessions(&self) -> Sessions {
        let address = format!("sqlite:{}", self.0.join("events.db").display());
        let store = open(&address, &StoreOptions::default()).unwrap();
        Sessions::new(Engine::new(Options { store: Some(store), ..quick() }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_a_stream_is_resumed_at_another_process() {
    let place = Place::new("resumed");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    let mut first = peer.call(1, &["emit 2", "gate later", "emit 2"]).await;
    let before = counts(&first.some(2).await);
    let mut second = peer.at(&other).resume(first.last_id()).await;
    owner.gates.open("later");
    let rest = second.rest().await;
    assert_eq!([before, counts(&rest)].concat(), [1, 2, 3, 4]);
    assert_eq!(result(rest.last().unwrap()), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_comes_to_another_process_is_relayed() {
    let place = Place::new("relayed");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    let elsewhere = peer.at(&other);
    let answer = elsewhere.call(1, &["emit 3"]).await.rest().await;
    assert_eq!(counts(&answer), [1, 2, 3]);
    assert_eq!(result(answer.last().unwrap()), "done");
    let ping = serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    assert_eq!(elsewhere.post(ping).await.status(), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o7_servers_of_one_store_find_no_sessions_of_each_other() {
    let place = Place::new("named");
    let named = |name: &str| Server::of(place.sessions().with_server_name(name).into());
    let (public, admin, other) = (named("public"), named("admin"), named("public"));
    let peer = public.open("").await;
    assert_eq!(peer.at(&admin).call(1, &[]).await.status(), 404);
    assert_eq!(peer.at(&admin).listen().await.status(), 404);
    let answer = peer.at(&other).call(1, &["emit 1"]).await.rest().await;
    assert_eq!(result(answer.last().unwrap()), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_has_is_404_everywhere() {
    let place = Place::new("unknown");
    let server = place.server();
    let mut peer = server.open("").await;
    peer.id = "0123456789abcdef".to_owned();
    assert_eq!(peer.call(1, &[]).await.status(), 404);
    assert_eq!(peer.listen().await.status(), 404);
}
