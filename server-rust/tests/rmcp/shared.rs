//! Two processes over one store.

use std::path::PathBuf;
use std::sync::Arc;

use tailrope_server::store::{StoreOptions, open};
use tailrope_server::{Drain, Engine, Identity, Options, Sessions};

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
async fn a_session_whose_process_is_gone_goes_on_at_another() {
    let place = Place::new("adopted");
    let sessions = Arc::new(place.sessions());
    let (owner, adopting) = (Server::of(Arc::clone(&sessions)), place.sessions());
    let engine = adopting.engine().clone();
    let heir = Server::heir(adopting);
    let peer = owner.open("").await;
    let mut before = peer.call(1, &["emit 2"]).await;
    assert_eq!(counts(&before.rest().await), [1, 2]);
    assert!(sessions.drain(Drain::default()).await, "nothing runs any more");
    let there = peer.at(&heir);
    let answer = there.call(2, &["emit 3", "close"]).await.rest().await;
    // The new handler knows which revision was negotiated: the connection was closed.
    assert_eq!((counts(&answer), engine.stats().sessions_adopted), (vec![1, 2, 3], 1));
    assert_eq!(result(there.call(3, &[]).await.rest().await.last().unwrap()), "done");
    assert_eq!(
        counts(&there.resume(&before.ids[0]).await.rest().await),
        [1, 2],
        "what was there before stays readable"
    );
    assert_eq!(there.delete().await.status(), 202);
    assert_eq!(there.call(4, &[]).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_deleted_from_another_process() {
    let place = Place::new("deleted");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    assert_eq!(peer.at(&other).delete().await.status(), 202);
    assert_eq!(peer.call(1, &[]).await.status(), 404);
    assert_eq!(peer.at(&other).delete().await.status(), 202, "rmcp's word for any session");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o7_servers_of_one_store_find_no_sessions_of_each_other() {
    let place = Place::new("named");
    let named = |name: &str| {
        let identity = Identity::default().server_name(name);
        Server::of(place.sessions().with_identity(identity).into())
    };
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
