//! An MCP server on axum and rmcp whose calls outlive their connections.
//!
//! `cargo run -p tailrope-server --features rmcp --example axum_rmcp`, then call the tool `build` at
//! <http://127.0.0.1:8000/mcp>. Its connection is closed at once; a client that resumes gets everything.

use std::io;
use std::time::Duration;

use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tailrope_server::{Close, Engine, Options, ResumableContext as _, ServiceConfig, TailropeService};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Builds;

impl ServerHandler for Builds {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = serde_json::Map::from_iter([("type".to_owned(), "object".into())]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new("build", "Builds everything, which takes a while.", schema)]))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // No connection is kept for the call: its client asks again every 50 ms.
        context.close_sse_stream(Close::default().retry_ms(50).hold_ms(0));
        for step in 1..=5 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if let Some(token) = context.meta.get_progress_token() {
                let progress = ProgressNotificationParam::new(token, f64::from(step)).with_total(5.0);
                // The progress is stored, whether the client is connected or not.
                let _ = context.peer.notify_progress(progress).await;
            }
        }
        Ok(CallToolResult::success(vec![ContentBlock::text("built")]).into())
    }
}

/// Serves the endpoint `/mcp`.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    let engine = Engine::new(Options::default());
    // In a server on rmcp alone, this is `StreamableHttpService::new(|| Ok(Builds), LocalSessionManager::default().into(), config)`.
    let service = TailropeService::new(|| Ok(Builds), engine, ServiceConfig::default());
    let app = Router::new().route_service("/mcp", service);
    axum::serve(listener, app).await
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "a test of this file serves by itself")]
async fn main() -> io::Result<()> {
    serve(TcpListener::bind("127.0.0.1:8000").await?).await
}
