//! A server whose events are in a store of your own: `folder_store` keeps them in a folder, and several processes may share it.
//!
//! `cargo run -p tailrope-server --example own_store -- /var/tmp/builds`, then call the tool `build` at
//! <http://127.0.0.1:8000/mcp>. End the server and start it again: what a client has not read yet is still there.

mod folder_store;

use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use tailrope_core::store::{EventStore, Limits, Queued};
use tailrope_server::{Call, Drain, Engine, Handler, Options, RpcError, ServiceConfig, TailropeService};
use tokio::net::TcpListener;

/// An owner that gives no sign of life for this many milliseconds counts as gone.
const OWNER_LOST_MS: u64 = 10_000;
/// For how many milliseconds the store tries an operation that fails.
const TIMEOUT_MS: u64 = 30_000;

struct Builds;

impl Handler for Builds {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "builds", "version": "1" },
            })),
            "tools/call" => Ok(json!({ "content": [{ "type": "text", "text": "built" }] })),
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

/// The store, in this folder.
fn open(folder: &Path) -> io::Result<Arc<dyn EventStore>> {
    let limits = Limits::default();
    let backend = folder_store::Folder::open(folder, limits, OWNER_LOST_MS)?;
    // `Queued` lets operations wait in order and within bounds. Four threads give them to the backend in batches.
    Ok(Arc::new(Queued::start(backend, &limits, 4, TIMEOUT_MS)?))
}

/// Serves the endpoint `/mcp` until `stop` is done, and leaves the sessions to the processes that come after this one.
pub(crate) async fn serve(
    listener: TcpListener,
    folder: &Path,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let engine =
        Engine::new(Options { store: Some(open(folder)?), owner_lost_ms: OWNER_LOST_MS, ..Options::default() });
    let service = TailropeService::json_rpc(Builds, engine, ServiceConfig::default());
    let app = Router::new().route_service("/mcp", service.clone());
    let draining = service.clone();
    let drained = async move {
        stop.await;
        draining.drain(Drain::default()).await;
    };
    axum::serve(listener, app).with_graceful_shutdown(drained).await?;
    // For calls that came at the last moment.
    service.drain(Drain::default()).await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "a test of this file serves by itself")]
async fn main() -> io::Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| io::Error::other("which folder?"))?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    serve(TcpListener::bind("127.0.0.1:8000").await?, folder.as_ref(), stop).await
}
