//! `tailrope demo`: a long call over connections that keep ending. Server and client are in this process, with real sockets between them.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tailrope_client::{Event, HttpClient, Posted};
use tailrope_server::{Call, Close, Engine, Handler, Options, RpcError, ServiceConfig, TailropeService};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::arguments::{Given, Takes};
use crate::terminal::Terminal;
use crate::{AMISS, FINE};

const REVISION: &str = "2025-11-25";
const FILES: u32 = 200;
const RUN: Duration = Duration::from_secs(6);
/// After so many files the tool closes its connection.
const CLOSES_AT: [u32; 3] = [30, 80, 170];
/// When so many files came to the client, the network cuts the connection.
const CUT_AT: u32 = 120;
const RETRY_MS: u32 = 600;
/// How wide the server's side is.
const WIDTH: usize = 44;

/// What happens, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Connected,
    Emitted(u32),
    Closed,
    Ended,
    Received(u32),
    Cut,
    Answered,
}

type Facts = UnboundedSender<(Instant, Fact)>;

pub(crate) fn run(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    if let Some(word) = Given::read(words, &Takes { flags: &[], values: &[] })?.rest.first() {
        return Err(format!("it takes no {word}"));
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the system refuses what connections need: {error}"))?;
    let (facts, told) = unbounded_channel();
    let began = Instant::now();
    let (made, counts) = runtime.block_on(async { tokio::join!(call(facts), draw(told, began, terminal)) });
    runtime.shutdown_background();
    if let Err(error) = made {
        terminal.complain(&format!("tailrope: the call was not made: {error}"));
    }
    Ok(if counts.are_whole() { FINE } else { AMISS })
}

struct Tool(Facts);

impl Handler for Tool {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(json!({
                "protocolVersion": REVISION,
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "demo", "version": env!("CARGO_PKG_VERSION") },
            })),
            "tools/call" => self.index_files(&call).await,
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

impl Tool {
    async fn index_files(&self, call: &Call) -> Result<Value, RpcError> {
        let began = Instant::now();
        for number in 1..=FILES {
            // On a busy machine the next file may already be due.
            sleep_until(began + RUN * number / FILES).await;
            if let Some(token) = call.progress_token() {
                let progress = json!({ "progressToken": token, "progress": number, "total": FILES });
                call.notify("notifications/progress", progress).await?;
            }
            tell(&self.0, Fact::Emitted(number));
            if CLOSES_AT.contains(&number) {
                tell(&self.0, Fact::Closed);
                call.close_sse_stream(Close::default().retry_ms(RETRY_MS.into()));
            }
        }
        tell(&self.0, Fact::Ended);
        Ok(json!({ "content": [{ "type": "text", "text": format!("{FILES} files indexed") }] }))
    }
}

fn tell(facts: &Facts, fact: Fact) {
    // Nobody listens only where the command ends.
    let _ = facts.send((Instant::now(), fact));
}

/// Serves until it is dropped. What comes in `cut` ends the connections there are, as a network does.
async fn serve(listener: TcpListener, facts: Facts, mut cut: UnboundedReceiver<()>) {
    let mut options = Options::default();
    options.pacing.retry_ms = RETRY_MS;
    let service = TailropeService::json_rpc(Tool(facts.clone()), Engine::new(options), ServiceConfig::default());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                let _ = socket.set_nodelay(true);
                tell(&facts, Fact::Connected);
                let service = TowerToHyperService::new(service.clone());
                connections.spawn(http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(socket), service));
            }
            Some(()) = cut.recv() => connections.abort_all(),
        }
    }
}

/// The client's side: one call.
async fn call(facts: Facts) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let uri = format!("http://{}/mcp", listener.local_addr()?).parse()?;
    let (cut, cuts) = unbounded_channel();
    let client = HttpClient::http(uri, tailrope_client::Options::default())?;
    tokio::select! {
        () = serve(listener, facts.clone(), cuts) => Ok(()),
        made = make(&client, &facts, &cut) => made,
    }
}

async fn make(client: &HttpClient, facts: &Facts, cut: &UnboundedSender<()>) -> Result<(), Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    let about = json!({ "name": "demo", "version": "1" });
    let params = json!({ "protocolVersion": REVISION, "capabilities": {}, "clientInfo": about });
    if let Posted::Events(answer) = client.post(&headers, request(0, "initialize", &params)).await? {
        headers.extend(
            answer
                .headers()
                .get("mcp-session-id")
                .map(|id| (http::HeaderName::from_static("mcp-session-id"), id.clone())),
        );
        answer.into_body().next().await;
    }
    headers.insert("mcp-protocol-version", HeaderValue::from_static(REVISION));
    client
        .post(&headers, json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string().into())
        .await?;
    let params = json!({ "name": "index_files", "arguments": {}, "_meta": { "progressToken": "files" } });
    let Posted::Events(answer) = client.post(&headers, request(1, "tools/call", &params)).await? else {
        return Err("the answer is no stream".into());
    };
    let mut events = answer.into_body();
    while let Some(event) = events.next().await {
        match event {
            Event::Message { data, .. } => {
                let message: Value = serde_json::from_str(&data)?;
                match message["params"]["progress"].as_u64().and_then(|number| number.try_into().ok()) {
                    Some(number) => {
                        tell(facts, Fact::Received(number));
                        if number == CUT_AT {
                            tell(facts, Fact::Cut);
                            let _ = cut.send(());
                        }
                    }
                    None if message.get("result").is_some() => tell(facts, Fact::Answered),
                    None => return Err(data.into()),
                }
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}

fn request(id: u64, method: &str, params: &Value) -> bytes::Bytes {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string().into()
}

/// What came of it.
#[derive(Debug, Default)]
struct Counts {
    emitted: Vec<u32>,
    received: Vec<u32>,
    closes: u64,
    cuts: u64,
    resumes: u64,
    results: u64,
}

impl Counts {
    fn are_whole(&self) -> bool {
        self.emitted.len() == FILES as usize && self.received == self.emitted && self.results == 1
    }

    fn summary(&self) -> String {
        let lost = self.emitted.iter().filter(|number| !self.received.contains(number)).count();
        let mut once = self.received.clone();
        once.sort_unstable();
        once.dedup();
        let Self { emitted, received, closes, cuts, resumes, results } = self;
        let (emitted, repeated) = (emitted.len(), received.len() - once.len());
        let connections = 1 + resumes;
        format!(
            "{emitted} events and {results} result over {connections} connections: {lost} lost, {repeated} repeated\n\
             the server closed {closes} of them, the network {cuts}"
        )
    }
}

/// Draws what happens as it happens: on the left the server, on the right the client.
async fn draw(mut told: UnboundedReceiver<(Instant, Fact)>, began: Instant, terminal: &mut Terminal) -> Counts {
    let mut counts = Counts::default();
    // Files that are not drawn yet: a line has many of them.
    let (mut emitted, mut received) = (Files::default(), Files::default());
    let mut flushed = began;
    terminal.print(&format!("{:>8}    {:<WIDTH$}{}", "", "the server", "the client"));
    while let Some((at, fact)) = told.recv().await {
        match fact {
            Fact::Emitted(number) => {
                counts.emitted.push(number);
                emitted.take(number);
            }
            Fact::Received(number) => {
                counts.received.push(number);
                received.take(number);
            }
            // Of the session, before the call.
            Fact::Connected if counts.emitted.is_empty() => continue,
            _ => {}
        }
        let is_file = matches!(fact, Fact::Emitted(_) | Fact::Received(_));
        if is_file && at.saturating_duration_since(flushed) < Duration::from_millis(500) {
            continue;
        }
        flushed = at;
        let (left, right) = (emitted.said("emits"), received.said("receives"));
        if !left.is_empty() || !right.is_empty() {
            terminal.print(&row(at - began, &left, &right));
        }
        let said = match fact {
            Fact::Emitted(_) | Fact::Received(_) => None,
            // The connections before the call make the session.
            Fact::Connected => (counts.closes + counts.cuts > 0).then(|| {
                counts.resumes += 1;
                ("", "comes back for the rest")
            }),
            Fact::Closed => {
                counts.closes += 1;
                Some(("closes the connection, and works on", ""))
            }
            Fact::Cut => {
                counts.cuts += 1;
                Some(("", "x the network cuts the connection"))
            }
            Fact::Ended => Some(("ends", "")),
            Fact::Answered => {
                counts.results += 1;
                Some(("", "has the result"))
            }
        };
        if let Some((left, right)) = said {
            terminal.print(&row(at - began, left, right));
        }
    }
    terminal.print(&format!("\n{}", counts.summary()));
    counts
}

fn row(at: Duration, left: &str, right: &str) -> String {
    format!("{:>6.2} s    {left:<WIDTH$}{right}", at.as_secs_f64()).trim_end().to_owned()
}

/// Numbers that follow each other.
#[derive(Default)]
struct Files(Option<(u32, u32)>);

impl Files {
    fn take(&mut self, number: u32) {
        let first = self.0.map_or(number, |(first, _)| first);
        self.0 = Some((first, number));
    }

    fn said(&mut self, does: &str) -> String {
        match self.0.take() {
            None => String::new(),
            Some((first, last)) if first == last => format!("{does} {first}"),
            Some((first, last)) => format!("{does} {first} to {last}"),
        }
    }
}
