//! An MCP server on hyper alone, without an SDK and without a framework, whose calls outlive their connections.
//!
//! `cargo run -p tailrope-server --example hyper_json_rpc`, then call the tool `build` at <http://127.0.0.1:8000/mcp>.

use std::io;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tailrope_server::{Call, Close, Engine, Handler, Options, RpcError, ServiceConfig, TailropeService};
use tokio::net::TcpListener;

struct Builds;

impl Handler for Builds {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "builds", "version": "1" },
            })),
            "ping" => Ok(json!({})),
            "tools/list" => Ok(json!({ "tools": [{
                "name": "build",
                "description": "Builds everything, which takes a while.",
                "inputSchema": { "type": "object" },
            }] })),
            "tools/call" => build(&call).await,
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

async fn build(call: &Call) -> Result<Value, RpcError> {
    // No connection is kept for the call: its client asks again every 50 ms.
    call.close_sse_stream(Close::default().retry_ms(50).hold_ms(0));
    for step in 1..=5 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        if let Some(token) = call.progress_token() {
            let progress = json!({ "progressToken": token, "progress": step, "total": 5 });
            // The progress is stored, whether the client is connected or not.
            call.notify("notifications/progress", progress).await?;
        }
    }
    Ok(json!({ "content": [{ "type": "text", "text": "built" }] }))
}

/// Serves the endpoint, at any path.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    let service = TailropeService::json_rpc(Builds, Engine::new(Options::default()), ServiceConfig::default());
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        // Nothing is lost when a connection ends: its client comes back on another one.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "a test of this file serves by itself")]
async fn main() -> io::Result<()> {
    serve(TcpListener::bind("127.0.0.1:8000").await?).await
}
