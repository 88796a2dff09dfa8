//! A server on axum and rmcp, as its user writes it.

use std::time::Duration;

use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tailrope_server::{Close, Engine, Options, ResumableContext as _, ServiceConfig, TailropeService};

#[derive(Clone)]
struct Work;

async fn report(context: &RequestContext<RoleServer>, step: u8) {
    if let Some(token) = context.meta.get_progress_token() {
        let _ = context.peer.notify_progress(ProgressNotificationParam::new(token, f64::from(step)).with_total(4.0)).await;
    }
}

impl ServerHandler for Work {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = serde_json::Map::from_iter([("type".to_owned(), "object".into())]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new("work", "Works.", schema)]))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        report(&context, 1).await;
        report(&context, 2).await;
        context.close_sse_stream(Close::default().retry_ms(100));
        tokio::time::sleep(Duration::from_millis(300)).await;
        report(&context, 3).await;
        report(&context, 4).await;
        Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
    }
}

#[tokio::main]
async fn main() {
    let engine = Engine::new(Options { task_after_ms: 0, ..Options::default() });
    let service = TailropeService::new(|| Ok(Work), engine, ServiceConfig::default());
    let port = std::env::var("PORT").expect("a port");
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("a free port");
    axum::serve(listener, Router::new().route_service("/mcp", service)).await.expect("a server");
}
