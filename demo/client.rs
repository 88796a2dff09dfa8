//! The demo's Rust client: rmcp's, unmodified, with a progress callback, and with Tailrope's line or without it.
//!
//! It reads the URL from its first line of input and reports what its application sees, one line of JSON for each fact.

mod facts;

use std::error::Error;
use std::io;
use std::pin::pin;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, ProgressNotificationParam};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use serde_json::json;
use tailrope_client::{Options, Resumable};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use facts::report;

/// The call fails when nothing has come for so long.
const SILENCE_S: f64 = 10.0;

/// What the user sees. It tells when something came.
struct Shown(watch::Sender<Instant>);

impl ClientHandler for Shown {
    // It is reported before the future is returned: the client runs the futures on tasks of their own.
    fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) -> impl Future<Output = ()> + Send + '_ {
        report("progress", json!({ "number": progress.progress as u64 }));
        self.0.send_replace(Instant::now());
        std::future::ready(())
    }
}

async fn connect(url: &str, has_line: bool, shown: Shown) -> Result<RunningService<RoleClient, Shown>, Box<dyn Error>> {
    if !has_line {
        return Ok(shown.serve(StreamableHttpClientTransport::from_uri(url)).await?);
    }
    let http = Resumable::new(reqwest::Client::new(), Options::default())? // the one line, and what it may know of errors
        .statuses(|error: &reqwest::Error| error.status().map(|status| status.as_u16()));
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    Ok(shown.serve(StreamableHttpClientTransport::with_client(http, config)).await?)
}

async fn call(client: &RunningService<RoleClient, Shown>, came: watch::Receiver<Instant>, silence: Duration) {
    let mut answer = pin!(client.call_tool(CallToolRequestParams::new("index_files")));
    loop {
        let due = *came.borrow() + silence;
        tokio::select! {
            answer = &mut answer => {
                return match answer {
                    Ok(answer) => {
                        let text = answer.content.first().and_then(|content| content.as_text());
                        report("result", json!({ "text": text.map(|text| &text.text) }));
                    }
                    Err(error) => report("failure", json!({ "text": error.to_string() })),
                };
            }
            () = sleep_until(due) => {}
        }
        if *came.borrow() + silence <= Instant::now() {
            return report("failure", json!({ "text": format!("nothing came for {} s", silence.as_secs_f64()) }));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |name: &str| arguments.iter().skip_while(|word| *word != name).nth(1);
    let has_line = arguments.iter().any(|word| word == "--line");
    let silence_s = argument("--silence-s").map_or(Ok(SILENCE_S), |silence_s| silence_s.parse())?;
    let mut url = String::new();
    io::stdin().read_line(&mut url)?;
    let (shown, came) = watch::channel(Instant::now());
    match connect(url.trim(), has_line, Shown(shown)).await {
        Ok(client) => {
            call(&client, came, Duration::from_secs_f64(silence_s)).await;
            client.cancel().await?;
        }
        Err(error) => report("failure", json!({ "text": error.to_string() })),
    }
    Ok(())
}
