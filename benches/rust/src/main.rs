//! The Rust servers of the benchmarks: `tailrope-bench-server --flavor tower|json|rmcp|stock|bare --port N`.
//!
//! `tower` is our service with tools of rmcp, `json` the same with tools that have no SDK, `rmcp` rmcp's service with our session
//! manager, `stock` the same with its own and an event store in memory, and `bare` hyper with nothing behind it. One thread serves all of
//! them, and prints `READY` when it listens.

mod bare;
mod json;
#[path = "../../../tests/servers/rust/src/load.rs"]
mod load;
#[path = "../../../tests/servers/rust/src/plain_store.rs"]
#[allow(dead_code, reason = "tests look into it, too")]
mod plain_store;
#[path = "../../../tests/servers/rust/src/stock.rs"]
#[allow(dead_code, reason = "tests close the standalone stream, too")]
mod stock;
mod tools;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tailrope_server::{Engine, Options, ServiceConfig, Sessions, TailropeService};
use tokio::net::TcpSocket;

use crate::plain_store::PlainStore;
use crate::stock::Stock;
use crate::tools::Tools;

type Fault = Box<dyn Error + Send + Sync>;

const RETRY_MS: u32 = 10;
/// Ten thousand clients that connect at once.
const BACKLOG: u32 = 4_096;

/// With room for every run, far above what it needs, as on the other servers.
fn engine() -> Engine {
    let mut options = Options::default();
    options.pacing.retry_ms = RETRY_MS;
    options.max_sessions = 50_000;
    options.limits.max_events_per_stream = 50_000;
    options.limits.max_bytes_per_stream = 64 << 20;
    options.limits.max_bytes_per_session = 1 << 30;
    options.limits.max_bytes = 4 << 30;
    Engine::new(options)
}

async fn listen<S, B>(port: u16, service: S) -> Result<(), Fault>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Fault>,
{
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    let listener = socket.listen(BACKLOG)?;
    let mut out = std::io::stdout();
    writeln!(out, "READY")?;
    out.flush()?;
    loop {
        let (socket, _) = listener.accept().await?;
        // Otherwise each small event would wait for the acknowledgement of the one before.
        socket.set_nodelay(true)?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service.clone());
        // One that breaks off is its client's affair.
        tokio::spawn(async move { drop(connection.await) });
    }
}

async fn serve(flavor: &str, port: u16) -> Result<(), Fault> {
    let retry = Duration::from_millis(RETRY_MS.into());
    let config = StreamableHttpServerConfig::default().disable_allowed_hosts();
    match flavor {
        "tower" => {
            let service = TailropeService::new(|| Ok(Tools), engine(), ServiceConfig::default());
            listen(port, TowerToHyperService::new(service)).await
        }
        "json" => {
            let service = TailropeService::json_rpc(json::Tools, engine(), ServiceConfig::default());
            listen(port, TowerToHyperService::new(service)).await
        }
        "rmcp" => {
            // Its events would come before ours.
            let config = config.with_sse_retry(None);
            let service = StreamableHttpService::new(|| Ok(Tools), Arc::new(Sessions::new(engine())), config);
            listen(port, TowerToHyperService::new(service)).await
        }
        "stock" => {
            let stock = Stock::new(Some(Arc::<PlainStore>::default()), retry, None);
            let config = config.with_sse_retry(Some(retry));
            let service = StreamableHttpService::new(|| Ok(Tools), Arc::new(stock), config);
            listen(port, TowerToHyperService::new(service)).await
        }
        "bare" => listen(port, service_fn(bare::answer)).await,
        _ => Err(format!("there is no flavour {flavor:?}").into()),
    }
}

fn main() -> Result<(), Fault> {
    let mut arguments = HashMap::new();
    let mut words = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        arguments.insert(name.trim_start_matches('-').to_owned(), value);
    }
    let argument = |name: &str, default: &'static str| arguments.get(name).map_or(default, |value| value);
    let port = argument("port", "0").parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    // The main thread would be a second one.
    let serving = runtime.spawn({
        let flavor = argument("flavor", "tower").to_owned();
        async move { serve(&flavor, port).await }
    });
    runtime.block_on(serving)?
}
