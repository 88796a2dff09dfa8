//! The demo's Rust server: an ordinary server of rmcp's with one slow tool. The lines that matter are in `main`.

mod facts;

use std::error::Error;
use std::time::Duration;

use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tailrope_server::{Close, Engine, Options, ResumableContext as _, ServiceConfig, TailropeService};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use facts::report;

const FILES: u32 = 1_000;
const RUN: Duration = Duration::from_secs(10);
const CLOSE_AT_S: [u64; 5] = [1, 3, 5, 7, 9];
const RETRY_MS: u32 = 1_400;

struct Demo;

impl ServerHandler for Demo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = serde_json::Map::from_iter([("type".to_owned(), "object".into())]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new("index_files", "Indexes a thousand files.", schema)]))
    }

    /// Indexes a thousand files, reports each, and drops the connection every two seconds.
    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        report("start", json!({ "total": FILES, "run_s": RUN.as_secs() }));
        let token = context.meta.get_progress_token();
        let (began, mut closes) = (Instant::now(), CLOSE_AT_S.map(Duration::from_secs).into_iter().peekable());
        for number in 1..=FILES {
            // On a busy machine the next file may already be due.
            sleep_until(began + RUN * number / FILES).await;
            if let Some(token) = &token {
                let progress = ProgressNotificationParam::new(token.clone(), f64::from(number));
                let progress = progress.with_total(f64::from(FILES)).with_message(format!("file {number}"));
                context.peer.notify_progress(progress).await.map_err(|error| {
                    ErrorData::internal_error(format!("the progress was not stored: {error}"), None)
                })?;
            }
            report("emit", json!({ "number": number }));
            if closes.next_if(|at| began.elapsed() >= *at).is_some() {
                report("close", json!({}));
                context.close_sse_stream(Close::default());
            }
        }
        let result = format!("{FILES} files indexed");
        report("finish", json!({ "result": result }));
        Ok(CallToolResult::success(vec![ContentBlock::text(result)]).into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |name: &str| arguments.iter().skip_while(|word| *word != name).nth(1);
    let port: u16 = argument("--port").ok_or("--port is missing")?.parse()?;
    if argument("--transport").is_some_and(|transport| transport == "stock") {
        return Err(
            "rmcp's own transport gives a tool no way to close its connection, so there is nothing to see".into()
        );
    }
    // Its option is for the show: a short pause.
    let mut options = Options::default();
    options.pacing.retry_ms = RETRY_MS;
    // In the place of rmcp's `StreamableHttpService`.
    let service = TailropeService::new(|| Ok(Demo), Engine::new(options), ServiceConfig::default());
    let listener = axum::serve::ListenerExt::tap_io(TcpListener::bind(("127.0.0.1", port)).await?, |socket| {
        // Otherwise an event would wait for the acknowledgement of the one before.
        let _ = socket.set_nodelay(true);
    });
    axum::serve(listener, Router::new().route_service("/mcp", service)).await?;
    Ok(())
}
