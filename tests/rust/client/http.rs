//! The traces of `tests/vectors/client.json` over sockets, and what only sockets show: a hyper client against a
//! server that says exactly what its script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use http::HeaderMap;
use serde_json::Value;
use tailrope_client::{Event, Events, Failure, HttpClient, Options, Posted, Token};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

/// What the server does with one request.
#[derive(Clone)]
struct Turn {
    status: u16,
    content_type: Option<String>,
    headers: String,
    texts: Vec<String>,
    end: End,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The body ends as its coding says.
    Close,
    /// The socket is closed within the body.
    Break,
    /// Nothing more comes.
    Hold,
}

fn turn(texts: &[&str], end: End) -> Turn {
    Turn {
        status: 200,
        content_type: Some("text/event-stream".into()),
        headers: String::new(),
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        end,
    }
}

fn refusal(status: u16) -> Turn {
    Turn { status, content_type: None, headers: String::new(), texts: Vec::new(), end: End::Close }
}

/// A request as it came.
#[derive(Clone, Debug)]
struct Got {
    method: String,
    last_event_id: Option<String>,
    head: String,
    at: Instant,
}

struct Server {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
    open: Arc<Mutex<usize>>,
    accepting: JoinHandle<()>,
}

impl Server {
    async fn start(turns: Vec<Turn>) -> Self {
        Self::start_at("127.0.0.1:0", turns).await
    }

    async fn start_at(address: &str, turns: Vec<Turn>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let got = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::new(Mutex::new(0));
        let turns = Arc::new(Mutex::new(VecDeque::from(turns)));
        let (all, sockets) = (Arc::clone(&got), Arc::clone(&open));
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (all, turns, sockets) = (Arc::clone(&all), Arc::clone(&turns), Arc::clone(&sockets));
                tokio::spawn(async move {
                    *sockets.lock().unwrap() += 1;
                    serve(socket, &all, &turns).await;
                    *sockets.lock().unwrap() -= 1;
                });
            }
        });
        Self { url, got, open, accepting }
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

async fn serve(mut socket: TcpStream, all: &Mutex<Vec<Got>>, turns: &Mutex<VecDeque<Turn>>) {
    while let Some(got) = read_request(&mut socket).await {
        all.lock().unwrap().push(got);
        let next = turns.lock().unwrap().pop_front();
        let Some(turn) = next else { return };
        let content_type = turn.content_type.map(|found| format!("content-type: {found}\r\n")).unwrap_or_default();
        let body = if turn.status == 204 { "" } else { "transfer-encoding: chunked\r\n" };
        if turn.status == 0 {
            // No answer at all.
            let _ = socket.read(&mut [0; 1]).await;
            return;
        }
        let head = format!("HTTP/1.1 {} X\r\n{content_type}{}{body}\r\n", turn.status, turn.headers);
        if socket.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        for text in &turn.texts {
            let chunk = format!("{:x}\r\n{text}\r\n", text.len());
            if socket.write_all(chunk.as_bytes()).await.is_err() {
                return;
            }
        }
        match turn.end {
            End::Close if turn.status == 204 => {}
            End::Close => {
                let _ = socket.write_all(b"0\r\n\r\n").await;
            }
            End::Break => return,
            End::Hold => {
                let _ = socket.read(&mut [0; 1]).await;
                return;
            }
        }
    }
}

async fn read_request(socket: &mut TcpStream) -> Option<Got> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let mut more = [0; 4096];
        let read = socket.read(&mut more).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&more[..read]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")));
        line.map(str::to_owned)
    };
    let length: usize = header("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        let mut more = [0; 4096];
        let read = socket.read(&mut more).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&more[..read]);
    }
    let method = head.split(' ').next()?.to_owned();
    Some(Got { method, last_event_id: header("last-event-id"), head: head.clone(), at: Instant::now() })
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
const RESULT: &str = "id: z\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";

fn client(server: &Server, options: Options) -> HttpClient {
    HttpClient::http(server.url.parse().unwrap(), Options { jitter: 0.0, ..options }).unwrap()
}

async fn call(client: &HttpClient, headers: &HeaderMap) -> Events {
    match client.post(headers, CALL.into()).await.unwrap() {
        Posted::Events(answer) => answer.into_body(),
        Posted::Answer(answer) => panic!("no stream: {answer:?}"),
    }
}

async fn all(events: &mut Events) -> Vec<Event> {
    timeout(PATIENCE, events.collect()).await.expect("the stream ends")
}

fn data(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .map(|event| match event {
            Event::Message { data, .. } => data.as_str(),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The turns that a trace's server takes, and what its client is to get; none for a trace that sockets cannot show.
fn playable(vector: &Value) -> Option<(Vec<Turn>, Vec<Value>)> {
    if vector["stream"].get("requests").is_none() || vector.get("options").is_some() {
        return None;
    }
    let mut turns: Vec<Turn> = vec![turn(&[], End::Hold)];
    let mut wanted = Vec::new();
    for step in vector["steps"].as_array().unwrap() {
        let outs = step["out"].as_array().unwrap();
        let last = turns.last_mut().unwrap();
        match &step["in"] {
            Value::String(text) => match text.as_str() {
                "end" => last.end = End::Close,
                "broken" => last.end = End::Break,
                "tick" => {}
                _ => return None,
            },
            input => {
                if let Some(text) = input["text"].as_str() {
                    last.texts.push(text.to_owned());
                } else if let Some(head) = input.get("head") {
                    last.status = u16::try_from(head["status"].as_u64().unwrap()).unwrap();
                    if let Some(content_type) = head.get("content_type") {
                        last.content_type = content_type.as_str().map(str::to_owned);
                    }
                    if last.status != 200 {
                        last.end = End::Close;
                    }
                    if head.get("retry_after_ms").is_some() {
                        return None;
                    }
                } else {
                    return None;
                }
            }
        }
        for out in outs {
            match out {
                Value::String(text) if text == "disconnect" || text == "finished" || text == "opened" => {}
                out if out.get("connect").is_some() => turns.push(turn(&[], End::Hold)),
                out => wanted.push(out.clone()),
            }
        }
    }
    // A wait that no test has the time for.
    let waits = vector["steps"].as_array().unwrap().last().unwrap()["at"].as_u64().unwrap();
    (waits <= 1_000).then_some((turns, wanted))
}

fn shown(event: &Event) -> Value {
    match event {
        Event::Message { event: None, data } => serde_json::json!({"deliver": data}),
        Event::Message { event: Some(event), data } => serde_json::json!({"deliver": data, "event": event}),
        Event::Gap { first, count } => serde_json::json!({"gap": [first, count]}),
        Event::CursorLost => serde_json::json!("cursor_lost"),
        Event::Failed { failure, .. } => serde_json::json!({"failed": failure.code().as_str()}),
        Event::Opened => serde_json::json!("opened"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn traces_of_the_clients_half_over_sockets() {
    let file: Value = serde_json::from_str(include_str!("../../vectors/client.json")).unwrap();
    let mut played = Vec::new();
    for vector in file["vectors"].as_array().unwrap() {
        let Some((turns, wanted)) = playable(vector) else { continue };
        let name = vector["name"].as_str().unwrap().to_owned();
        let requests = vector["stream"]["requests"].as_array().unwrap().clone();
        played.push(tokio::spawn(async move {
            let connections = turns.len();
            let server = Server::start(turns).await;
            let client = client(&server, Options::default());
            let calls: Vec<String> =
                requests.iter().map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#)).collect();
            let body = if calls.len() == 1 { calls[0].clone() } else { format!("[{}]", calls.join(",")) };
            let Posted::Events(answer) = client.post(&HeaderMap::new(), body.into()).await.unwrap() else {
                panic!("{name}: no stream")
            };
            let (mut events, mut got) = (answer.into_body(), Vec::new());
            // A trace may stop in the middle of its stream.
            while got.len() < wanted.len() {
                let next = timeout(PATIENCE, events.next()).await;
                got.push(shown(&next.unwrap_or_else(|_| panic!("{name}: {got:?}")).unwrap()));
            }
            assert_eq!(got, wanted, "{name}");
            let waiting = Instant::now();
            while server.got().len() < connections {
                assert!(waiting.elapsed() < PATIENCE, "{name}: every connection of the trace is made");
                let _ = timeout(Duration::from_millis(20), events.next()).await;
            }
        }));
    }
    assert!(played.len() >= 25, "{} traces are played", played.len());
    for trace in played {
        trace.await.unwrap();
    }
}

#[tokio::test]
async fn f_70_twenty_closes_that_deliver_nothing_lose_nothing() {
    let mut turns = vec![turn(&["id: a\nretry: 5\ndata: \n\n"], End::Close)];
    turns.extend((0..20).map(|at| turn(if at % 2 == 0 { &[": nothing\n\n"] } else { &[] }, End::Close)));
    turns.push(turn(&[RESULT], End::Close));
    let server = Server::start(turns).await;
    let mut events = call(&client(&server, Options::default()), &HeaderMap::new()).await;
    assert_eq!(data(&all(&mut events).await).len(), 1);
    let got = server.got();
    assert_eq!(got.len(), 22);
    assert!(got[1..].iter().all(|one| one.method == "get" && one.last_event_id.as_deref() == Some("a")), "{got:?}");
    for pair in got[1..].windows(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(5), "the retry is a floor (W-043)");
    }
}

#[tokio::test]
async fn f_80_a_lost_stream_and_a_lost_session_fail_at_once() {
    for (status, failure) in [
        (204, Failure::StreamLost { status: 204 }),
        (400, Failure::StreamLost { status: 400 }),
        (404, Failure::SessionLost),
        (405, Failure::NoStream),
        (401, Failure::Unauthorized { status: 401 }),
    ] {
        let server = Server::start(vec![turn(&["id: a\nretry: 1\ndata: \n\n"], End::Close), refusal(status)]).await;
        let mut events = call(&client(&server, Options::default()), &HeaderMap::new()).await;
        let ended = all(&mut events).await;
        assert!(
            matches!(&ended[..], [Event::Failed { failure: found, unanswered }]
                if *found == failure && unanswered.len() == 1),
            "{ended:?}"
        );
        assert_eq!(server.got().len(), 2);
    }
}

#[tokio::test]
async fn f_74_refused_connections_are_waited_out() {
    let server = Server::start(vec![turn(&["id: a\nretry: 10\ndata: \n\n"], End::Break)]).await;
    let client = client(&server, Options { max_delay_ms: 20, ..Options::default() });
    let mut events = call(&client, &HeaderMap::new()).await;
    server.accepting.abort();
    let nothing = timeout(Duration::from_millis(400), events.next()).await;
    assert!(nothing.is_err(), "it goes on trying: {nothing:?}");
    let address = server.url.trim_start_matches("http://").trim_end_matches("/mcp");
    let back = Server::start_at(address, vec![turn(&[RESULT], End::Close)]).await;
    assert_eq!(data(&all(&mut events).await).len(), 1);
    assert_eq!(back.got()[0].last_event_id.as_deref(), Some("a"));
}

#[tokio::test]
async fn nobody_comes_back_for_a_stream_that_was_dropped() {
    let server = Server::start(vec![turn(&["id: a\nretry: 10\ndata: \n\n"], End::Break)]).await;
    let client = client(&server, Options { max_delay_ms: 20, ..Options::default() });
    let mut events = call(&client, &HeaderMap::new()).await;
    // The server closes each connection that it has no turn for before it says anything.
    let deadline = Instant::now() + PATIENCE;
    while server.got().len() <= 2 {
        assert!(timeout(Duration::from_millis(200), events.next()).await.is_err());
        assert!(Instant::now() < deadline, "it goes on trying");
    }
    drop(events);
    let tried = server.got().len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(server.got().len() <= tried + 1);
}

#[tokio::test]
async fn w_113_a_saved_stream_is_resumed_with_its_session() {
    let server = Server::start(vec![
        turn(&["id: a\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n"], End::Hold),
        turn(&[RESULT], End::Close),
    ])
    .await;
    let client = client(&server, Options::default());
    let mut events = call(&client, &HeaderMap::new()).await;
    events.next().await.unwrap();
    let token = events.token().unwrap();
    drop(events);
    let saved = Token { session_id: Some("s-1".into()), protocol_version: Some("2025-11-25".into()), ..token };
    let token = Token::parse(&saved.to_string()).unwrap();
    let mut events = client.resume(&HeaderMap::new(), token);
    let got = all(&mut events).await;
    assert_eq!(got[0], Event::Opened);
    assert_eq!(data(&got[1..]).len(), 1);
    assert_eq!(events.token(), None, "what is answered is not to be resumed");
    let asked = &server.got()[1];
    assert_eq!(asked.last_event_id.as_deref(), Some("a"));
    assert!(asked.head.contains("mcp-session-id: s-1\r\n") && asked.head.contains("mcp-protocol-version: 2025-11-25"));
}

#[tokio::test]
async fn f_71_a_token_is_never_ahead_of_what_was_taken() {
    let note = |id: &str| format!("id: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"{id}\"}}\n\n");
    let all = ["id: a\ndata: \n\n", &note("b"), &note("c"), RESULT].concat();
    let server = Server::start(vec![turn(&[&all], End::Close)]).await;
    let mut events = call(&client(&server, Options::default()), &HeaderMap::new()).await;
    let cursor = |events: &Events| events.token().map(|token| token.last_event_id);
    for _ in 0..3 {
        assert_eq!(cursor(&events), None, "they came in one piece; none may be taken for read");
        events.next().await.unwrap();
    }
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn i7_a_cancellation_in_one_session_ends_no_call_of_another() {
    let accepted = Turn { status: 202, ..refusal(202) };
    let server = Server::start(vec![
        turn(&["id: a\nretry: 300\ndata: \n\n"], End::Close),
        accepted,
        turn(&[RESULT], End::Close),
    ])
    .await;
    let client = client(&server, Options::default());
    let of = |session: &str| HeaderMap::from_iter([("mcp-session-id".parse().unwrap(), session.parse().unwrap())]);
    let mut events = call(&client, &of("one")).await;
    assert!(timeout(Duration::from_millis(20), events.next()).await.is_err());
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    client.post(&of("two"), cancel.into()).await.unwrap();
    assert_eq!(data(&all(&mut events).await).len(), 1);
}

#[tokio::test]
async fn f_80_an_answer_that_never_comes_is_given_up() {
    let mute = Turn { status: 0, ..turn(&[], End::Hold) };
    let server = Server::start(vec![turn(&["id: a\nretry: 1\ndata: \n\n"], End::Close), mute.clone(), mute]).await;
    let options = Options { max_silence_ms: Some(100), max_attempts: Some(2), ..Options::default() };
    let mut events = call(&client(&server, options), &HeaderMap::new()).await;
    let got = all(&mut events).await;
    assert!(matches!(&got[..], [Event::Failed { failure: Failure::GaveUp { attempts: 2, .. }, .. }]), "{got:?}");
}

#[tokio::test]
async fn headers_of_resumes_are_those_of_the_call_and_fresh() {
    let server =
        Server::start(vec![turn(&["id: a\nretry: 1\ndata: \n\n"], End::Close), turn(&[RESULT], End::Close)]).await;
    let counter = Mutex::new(0);
    let client = client(&server, Options::default()).refresh(move |headers| {
        let mut count = counter.lock().unwrap();
        *count += 1;
        headers.insert("authorization", format!("Bearer {count}").parse().unwrap());
    });
    let headers = HeaderMap::from_iter([("x-tenant".parse().unwrap(), "t".parse().unwrap())]);
    all(&mut call(&client, &headers).await).await;
    let got = server.got();
    assert!(got[0].head.contains("authorization: bearer 1\r\n") && got[1].head.contains("authorization: bearer 2\r\n"));
    assert!(got[1].head.contains("x-tenant: t\r\n") && got[1].head.contains("accept: text/event-stream\r\n"));
    assert!(!got[1].head.contains("content-"), "{}", got[1].head);
}

#[tokio::test]
async fn w_080_the_session_that_an_answer_opens_is_named_in_its_head() {
    let mut first = turn(&["id: a\nretry: 1\ndata: \n\n"], End::Close);
    first.headers = "mcp-session-id: s1\r\n".to_owned();
    let server = Server::start(vec![first, turn(&[RESULT], End::Close)]).await;
    let client = client(&server, Options::default());
    let Posted::Events(answer) = client.post(&HeaderMap::new(), CALL.into()).await.unwrap() else {
        panic!("no stream")
    };
    assert_eq!((answer.status().as_u16(), &answer.headers()["mcp-session-id"]), (200, &"s1".parse().unwrap()));
    assert_eq!(data(&all(&mut answer.into_body()).await).len(), 1);
    assert!(server.got()[1].head.contains("mcp-session-id: s1\r\n"), "resumes name it, too");
}

#[tokio::test]
async fn w_025_nobody_comes_back_for_a_cancelled_request() {
    let accepted = Turn { status: 202, ..refusal(202) };
    let server = Server::start(vec![turn(&["id: a\nretry: 60000\ndata: \n\n"], End::Close), accepted]).await;
    let client = client(&server, Options::default());
    let mut events = call(&client, &HeaderMap::new()).await;
    assert!(timeout(Duration::from_millis(50), events.next()).await.is_err());
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert!(matches!(client.post(&HeaderMap::new(), cancel.into()).await.unwrap(), Posted::Answer(_)));
    assert_eq!(all(&mut events).await, []);
}

#[tokio::test]
async fn w_069_requests_of_2026_07_28_are_left_alone() {
    let server = Server::start(vec![turn(&["id: a\nretry: 1\ndata: \n\n"], End::Close)]).await;
    let headers = HeaderMap::from_iter([("mcp-protocol-version".parse().unwrap(), "2026-07-28".parse().unwrap())]);
    let posted = client(&server, Options::default()).post(&headers, CALL.into()).await.unwrap();
    assert!(matches!(posted, Posted::Answer(_)));
}

#[tokio::test]
async fn f_76_a_thousand_resumes_hold_one_socket() {
    let mut turns = vec![turn(&["id: 0\nretry: 0\ndata: \n\n"], End::Close)];
    turns.extend((1..1_000).map(|at| turn(&[&format!("id: {at}\ndata: \n\n")], End::Break)));
    turns.push(turn(&[RESULT], End::Close));
    let server = Server::start(turns).await;
    let mut events = call(&client(&server, Options::default()), &HeaderMap::new()).await;
    assert_eq!(data(&all(&mut events).await).len(), 1);
    assert_eq!(server.got().len(), 1_001);
    assert!(*server.open.lock().unwrap() <= 2);
}

#[tokio::test]
async fn a_standalone_stream_comes_back() {
    let note = |id: &str| format!("id: {id}\nretry: 1\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"{id}\"}}\n\n");
    let server = Server::start(vec![
        refusal(503),
        turn(&[&note("a")], End::Close),
        turn(&[&note("b")], End::Break),
        refusal(204),
    ])
    .await;
    let options = Options { initial_delay_ms: 1, ..Options::default() };
    let got = all(&mut client(&server, options).listen(&HeaderMap::new())).await;
    assert_eq!(got[0], Event::Opened);
    assert_eq!(data(&got[1..]).len(), 2, "{got:?}");
    let cursors: Vec<_> = server.got().into_iter().map(|one| one.last_event_id).collect();
    assert_eq!(cursors, [None, None, Some("a".into()), Some("b".into())]);
}
