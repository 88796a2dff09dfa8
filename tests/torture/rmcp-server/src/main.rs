//! A server of the official Rust SDK as it is published, on a port of its own: prints `READY PORT`. Nothing is
//! configured: sessions, caches, priming and retry are what `Default` gives.

// Logging left the newest revision; standalone messages have no other plain carrier.
#![allow(deprecated)]

mod marked;

use std::io::Write;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio::net::TcpListener;

struct Lab;

impl ServerHandler for Lab {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_logging().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let invalid = |why: String| ErrorData::invalid_params(why, None);
        let plan = request.arguments.and_then(|mut arguments| arguments.remove("plan")).unwrap_or(Value::Null);
        let plan = serde_json::from_value(plan).map_err(|error| invalid(error.to_string()))?;
        let text = marked::run(&plan, &context).await.map_err(|error| invalid(error.to_string()))?;
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

async fn serve() -> std::io::Result<()> {
    let service = StreamableHttpService::new(
        || Ok(Lab),
        LocalSessionManager::default().into(),
        StreamableHttpServerConfig::default(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut out = std::io::stdout();
    writeln!(out, "READY {}", listener.local_addr()?.port())?;
    out.flush()?;
    loop {
        let (socket, _) = listener.accept().await?;
        // Otherwise each small event would wait for the acknowledgement of the one before.
        socket.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            // A connection that breaks off is what the torture is about.
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            let _ = connection.await;
        });
    }
}

fn main() -> std::io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve())
}
