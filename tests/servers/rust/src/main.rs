//! Starts one test server: `tailrope-test-server --flavor rmcp --transport tailrope [--port 0] [--options JSON]`.
//!
//! A flavour is `tower`, which is our service, `tower-front`, which is our service behind a front, or `rmcp`, which is rmcp's service with our session manager; the transport `stock` is rmcp's
//! service with its own, over a plain event store, and without any as the flavour `rmcp-cache`; `hyper` has nothing behind
//! it. Prints `READY PORT` when it listens. The options are those of the Python servers (tests/servers/python), as far as options.rs has them.

// Logging left the newest revision; standalone messages have no other plain carrier.
#![allow(deprecated)]

mod alone;
mod control;
mod ctl;
mod facts;
mod load;
mod marked;
mod options;
mod plain_store;
mod script;
mod serving;
mod stock;
mod tasked;
mod tools;

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::any;
use serde_json::Value;
use tailrope_core::log_lines::{Line, LineSink, send_lines};
use tailrope_server::Metrics;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::ctl::Ctl;
use crate::options::Options;
use crate::serving::Serving;
use crate::tools::Lab;

/// How long the front may still write what a drain has closed.
const FRONT_END_MS: u64 = 5_000;

/// The engine's lines, on standard error.
struct Lines(Level);

impl LineSink for Lines {
    fn wants(&self, level: Level) -> bool {
        level <= self.0
    }

    fn take(&self, level: Level, line: Line) {
        let line = line.text;
        let _ = writeln!(io::stderr(), "{} {line}", level.as_str().to_ascii_lowercase());
    }
}

fn ready(port: u16) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "READY {port}").and_then(|()| out.flush())
}

/// Waits for the signal to end.
async fn stopped() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Serves on a Unix socket, with a front on the port.
async fn serve_behind(
    app: Router,
    listener: TcpListener,
    port: u16,
    serving: &Serving,
    options: &Options,
) -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("tailrope-front-{}", std::process::id()));
    // A process of the same id that was killed has left it.
    let _ = fs::remove_dir_all(&folder);
    DirBuilder::new().mode(0o700).create(&folder)?;
    let socket = folder.join("app");
    let behind = UnixListener::bind(&socket)?;
    let front = serving.front(listener.into_std()?, &socket, options).map_err(io::Error::other)?;
    ready(port)?;
    let (draining, stopping) = (serving.clone(), Arc::clone(&front));
    let stopped = async move {
        stopped().await;
        stopping.stop();
        draining.drain(&Value::Null).await;
    };
    let served = axum::serve(behind, app).with_graceful_shutdown(stopped).await;
    serving.drain(&Value::Null).await;
    let _ = tokio::task::spawn_blocking(move || front.close(FRONT_END_MS)).await;
    fs::remove_dir_all(&folder)?;
    served
}

async fn serve(arguments: &HashMap<String, String>) -> Result<(), String> {
    let argument = |name: &str, default: &'static str| arguments.get(name).map_or(default, |value| value);
    let options: Options = serde_json::from_str(argument("options", "{}")).map_err(|error| error.to_string())?;
    send_lines(Lines(options.log.parse().map_err(|_| format!("{:?} is no level", options.log))?));
    let flavor = argument("flavor", "rmcp");
    let engine = if argument("transport", "tailrope") == "stock" { None } else { Some(options.engine()?) };
    let lab = Arc::<Lab>::default();
    let port = argument("port", "0");
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await.map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    if flavor == "hyper" {
        ready(port).map_err(|error| error.to_string())?;
        return alone::serve(listener).await.map_err(|error| error.to_string());
    }
    let (serving, mcp) = Serving::new(flavor, port, &options, engine.as_ref(), &lab)?;
    let counted = {
        let lab = Arc::clone(&lab);
        middleware::from_fn(move |request: Request, next: Next| {
            let lab = Arc::clone(&lab);
            async move {
                let gate = {
                    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
                    lab.control.count(request.method().as_str(), header("mcp-session-id"));
                    header("x-slow-auth").map(str::to_owned)
                };
                if let Some(gate) = gate {
                    let _ = lab.control.gate(&gate, &CancellationToken::new()).await;
                }
                next.run(request).await
            }
        })
    };
    // As docs/start/rmcp.md has it: rmcp's service writes its answers itself.
    let patience_ms = engine
        .as_ref()
        .filter(|_| flavor == "rmcp")
        .and_then(|engine| engine.options().patience_ms())
        .unwrap_or_default();
    let metrics = Metrics::of(engine.clone());
    let ctl = Arc::new(Ctl { lab, engine, serving: serving.clone() });
    let app = mcp
        .layer(counted)
        .route("/ctl/{*path}", any(ctl::answer).with_state(ctl))
        .route_service("/ctl/metrics", metrics);
    if flavor == "tower-front" {
        return serve_behind(app, listener, port, &serving, &options).await.map_err(|error| error.to_string());
    }
    let listener = axum::serve::ListenerExt::tap_io(listener, move |socket| {
        // Otherwise each small event would wait for the acknowledgement of the one before.
        let _ = socket.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&*socket, u32::try_from(patience_ms).unwrap_or(u32::MAX));
    });
    ready(port).map_err(|error| error.to_string())?;
    let draining = serving.clone();
    let stopping = async move {
        stopped().await;
        draining.drain(&Value::Null).await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stopping).await.map_err(|error| error.to_string())?;
    // Calls that came at the last moment.
    serving.drain(&Value::Null).await;
    Ok(())
}

fn main() -> Result<(), String> {
    let mut arguments = HashMap::new();
    let mut words = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        arguments.insert(name.trim_start_matches('-').to_owned(), value);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(serve(&arguments))
}
