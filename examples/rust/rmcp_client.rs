//! An rmcp client whose calls survive lost connections, servers that close them, and proxies that cut them off. It
//! takes one more line.
//!
//! `cargo run -p tailrope-client --features rmcp --example rmcp_client -- http://127.0.0.1:8000/mcp` calls the tool `build`.

use std::error::Error;
use std::io::{self, Write as _};

use rmcp::model::{CallToolRequestParams, ProgressNotificationParam};
use rmcp::service::NotificationContext;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use tailrope_client::{Options, Resumable};

struct Watcher<F>(F);

impl<F: Fn(f64) + Send + Sync + 'static> ClientHandler for Watcher<F> {
    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        (self.0)(progress.progress);
    }
}

/// Calls the tool `build`, reports its progress, and returns its text.
pub(crate) async fn build(
    url: &str,
    progress: impl Fn(f64) + Send + Sync + 'static,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    // This is the line. `statuses` tells a refusal from a broken connection in the errors of the HTTP client.
    let http = Resumable::new(reqwest::Client::new(), Options::default())?
        .statuses(|error: &reqwest::Error| error.status().map(|status| status.as_u16()));
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let client = Watcher(progress).serve(StreamableHttpClientTransport::with_client(http, config)).await?;
    let answer = client.call_tool(CallToolRequestParams::new("build")).await?;
    let text = answer.content.first().and_then(|content| content.as_text()).map(|text| text.text.clone());
    client.cancel().await?;
    text.ok_or_else(|| "the tool told nothing".into())
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "a test of this file calls by itself")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).ok_or("which address? For example http://127.0.0.1:8000/mcp")?;
    let told = build(&url, |progress| drop(writeln!(io::stderr(), "progress {progress}"))).await?;
    writeln!(io::stdout(), "{told}")?;
    Ok(())
}
