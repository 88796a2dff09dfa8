//! The measurements. Each prints one JSON object; a fault is counted, described once, and never counted as work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::check::{self, Call};
use crate::http::{Connection, Result};
use crate::session::{End, Session, next_id, read};
use crate::sse::Events;

const MESSAGE_BYTES: usize = 100;
/// How often a finished stream is read again from its start.
const REPLAYS: usize = 3;
/// How long a resumed connection may be silent before the cycle counts as lost.
const SILENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    pub(crate) pid: Option<u32>,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) events: usize,
}

fn emit_call(n: usize) -> (Call, Value) {
    let call = Call { id: next_id(), total: n, message_bytes: Some(MESSAGE_BYTES), text: n.to_string() };
    (call, json!({"n": n, "bytes": MESSAGE_BYTES}))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).map_or(0.0, |d| millis(*d))
}

/// What workers that run side by side until a moment have done.
#[derive(Default)]
struct Tally {
    took: Vec<Duration>,
    faults: usize,
    first_fault: Option<String>,
}

impl Tally {
    fn fault(&mut self, text: String) {
        self.faults += 1;
        self.first_fault.get_or_insert(text);
    }

    fn merge(&mut self, other: Self) {
        self.took.extend(other.took);
        self.faults += other.faults;
        if let Some(text) = other.first_fault {
            self.first_fault.get_or_insert(text);
        }
    }

    fn report(mut self, measure: &str, sessions: usize, elapsed: Duration) -> Value {
        self.took.sort();
        json!({"measure": measure, "sessions": sessions, "count": self.took.len(),
            "per_second": self.took.len() as f64 / elapsed.as_secs_f64(),
            "p50_ms": percentile(&self.took, 50), "p99_ms": percentile(&self.took, 99),
            "faults": self.faults, "first_fault": self.first_fault})
    }
}

async fn side_by_side<F, W>(set: Settings, measure: &str, sessions: usize, worker: W) -> Result<Value>
where
    F: Future<Output = Tally> + Send + 'static,
    W: Fn(Session, Instant) -> F,
{
    let mut opened = Vec::new();
    for _ in 0..sessions {
        let mut session = Session::open(set.port).await?;
        // The first call of a process or session pays for what is made lazily.
        session.call(next_id(), "echo", json!({"text": "warm"})).await?;
        opened.push(session);
    }
    let cpu = set.pid.map(cpu_time).transpose()?;
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(set.seconds);
    let workers: Vec<_> = opened.into_iter().map(|session| tokio::spawn(worker(session, until))).collect();
    let mut tally = Tally::default();
    for worker in workers {
        tally.merge(worker.await?);
    }
    let mut report = tally.report(measure, sessions, start.elapsed());
    if let (Some(pid), Some(before)) = (set.pid, cpu) {
        let used = cpu_time(pid)?.saturating_sub(before);
        report["cpu_us"] = json!(used.as_secs_f64() * 1e6 / report["count"].as_f64().unwrap_or(0.0));
    }
    Ok(report)
}

/// The processor time that a process has used, all threads. Disturbed far less than rates by what else runs.
fn cpu_time(pid: u32) -> Result<Duration> {
    // Fields 14 and 15, counted behind the command, in the 10 ms ticks that Linux reports on every machine.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(str::parse::<u64>).sum::<std::result::Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Tool calls without progress, one after the other in each session.
pub(crate) async fn echo(set: Settings, sessions: usize) -> Result<Value> {
    // One session leaves the client idle half of the time, and how long a virtual machine takes to wake an idle
    // processor is not the server's doing: the client stays awake. With several it would take the server's time.
    let awake = (sessions == 1).then(|| tokio::spawn(stay_awake()));
    let report = echo_calls(set, sessions).await;
    if let Some(awake) = awake {
        awake.abort();
    }
    report
}

async fn stay_awake() {
    loop {
        tokio::task::yield_now().await;
    }
}

async fn echo_calls(set: Settings, sessions: usize) -> Result<Value> {
    side_by_side(set, "echo", sessions, |mut session, until| async move {
        let mut tally = Tally::default();
        while Instant::now() < until && tally.faults < 10 {
            let id = next_id();
            let call = Call { id, total: 0, message_bytes: None, text: format!("hello {id}") };
            let start = Instant::now();
            match session.checked_call("echo", json!({"text": call.text}), &call).await {
                Ok(()) => tally.took.push(start.elapsed()),
                Err(e) => tally.fault(e.to_string()),
            }
        }
        tally
    })
    .await
}

/// Progress events per second of a call that is read live.
pub(crate) async fn emit(set: Settings) -> Result<Value> {
    let mut session = Session::open(set.port).await?;
    let mut rates = Rates::default();
    for _ in 0..set.rounds {
        let (call, arguments) = emit_call(set.events);
        let mut events = Events::with_room_for(set.events);
        let start = Instant::now();
        session.call_into(&mut events, call.id, "emit", arguments).await?;
        rates.add(&call, &[&events], start.elapsed());
    }
    Ok(rates.report("emit", set.events))
}

/// Events per second of a resume from the priming event, after the tool has ended.
pub(crate) async fn replay(set: Settings) -> Result<Value> {
    let mut session = Session::open(set.port).await?;
    let mut rates = Rates::default();
    for _ in 0..set.rounds {
        let before = completed(&mut session).await?;
        let (call, arguments) = emit_call(set.events);
        let mut connection = session.start(call.id, "emit", arguments).await?;
        let cursor = first_id(&mut connection).await?;
        drop(connection);
        let left = Instant::now();
        while completed(&mut session).await? == before {
            if left.elapsed() > Duration::from_secs(60) {
                return Err("emit did not run to its end after its client left".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        for _ in 0..REPLAYS {
            // The counter moves before the response is written, and a server needs a moment to see a reader leave.
            sleep(Duration::from_millis(100)).await;
            let mut events = Events::with_room_for(set.events);
            let start = Instant::now();
            let mut connection = session.get(Some(&cursor)).await?;
            let end = timeout(Duration::from_secs(60), read(&mut connection, &mut events)).await??;
            let took = start.elapsed();
            if end != End::Response {
                return Err("the replay ended without the response".into());
            }
            rates.add(&call, &[&events], took);
        }
    }
    Ok(rates.report("replay", set.events))
}

#[derive(Default)]
struct Rates {
    per_second: Vec<f64>,
    tally: Tally,
}

impl Rates {
    fn add(&mut self, call: &Call, connections: &[&Events], took: Duration) {
        match check::check(call, connections) {
            Ok(()) => self.per_second.push(call.total as f64 / took.as_secs_f64()),
            Err(e) => self.tally.fault(e.to_string()),
        }
    }

    fn report(mut self, measure: &str, events: usize) -> Value {
        self.per_second.sort_by(f64::total_cmp);
        json!({"measure": measure, "events": events, "count": self.per_second.len(),
            "per_second": self.per_second.get(self.per_second.len() / 2), "rounds_per_second": self.per_second,
            "faults": self.tally.faults, "first_fault": self.tally.first_fault})
    }
}

async fn completed(session: &mut Session) -> Result<String> {
    check::result_text(&session.call(next_id(), "completed", json!({})).await?)
}

/// Read a call's stream up to its first id.
async fn first_id(connection: &mut Connection) -> Result<Vec<u8>> {
    let mut events = Events::default();
    while events.events.is_empty() {
        if !connection.read_body(&mut events.text).await? {
            return Err("the stream ended before its priming event".into());
        }
        events.advance()?;
    }
    if !events.data(&events.events[0]).is_empty() {
        return Err("the first event is no priming event".into());
    }
    Ok(events.id(&events.events[0]).to_vec())
}

/// Calls of the tool that closes its own connection: POST, close, wait `retry`, GET, response.
pub(crate) async fn poll(set: Settings, sessions: usize) -> Result<Value> {
    let mut probe = Session::open(set.port).await?;
    // Stock leaves a resumed connection open after the response: find out once, instead of waiting each time.
    let ends = poll_cycle(&mut probe, None).await?;
    let mut report = side_by_side(set, "poll", sessions, move |mut session, until| async move {
        let mut tally = Tally::default();
        while Instant::now() < until && tally.faults < 10 {
            let start = Instant::now();
            match poll_cycle(&mut session, Some(ends)).await {
                Ok(_) => tally.took.push(start.elapsed()),
                Err(e) => tally.fault(e.to_string()),
            }
        }
        tally
    })
    .await?;
    report["ends_after_response"] = json!(ends);
    Ok(report)
}

/// One full cycle; returns whether the server ended the resumed connection after the response.
async fn poll_cycle(session: &mut Session, ends: Option<bool>) -> Result<bool> {
    let call = Call { id: next_id(), total: 2, message_bytes: None, text: "done".into() };
    let mut connection = session.start(call.id, "poll", json!({"before": 1, "after": 1})).await?;
    let mut parts = vec![Events::default()];
    let mut end = read(&mut connection, &mut parts[0]).await?;
    if end == End::Response {
        return Err("poll: the response came on the first connection".into());
    }
    session.keep(connection, &mut parts[0]).await?;
    let mut ended = true;
    while end == End::Closed {
        let last = &parts[parts.len() - 1];
        let retry_ms = parts.iter().rev().find_map(|part| part.retry_ms).unwrap_or(1_000);
        sleep(Duration::from_millis(retry_ms)).await;
        let cursor = parts.iter().rev().find_map(Events::last_id).ok_or("poll: no id to resume from")?;
        if parts.len() > 20 {
            return Err(format!("poll: {} connections and no response", last.events.len()).into());
        }
        let mut connection = session.get(Some(cursor)).await?;
        let mut events = Events::default();
        end = match timeout(SILENCE, read(&mut connection, &mut events)).await {
            Ok(end) => end?,
            Err(_) => return Err("poll: a resumed connection stayed silent".into()),
        };
        ended = match ends {
            Some(false) if end == End::Response => false,
            Some(_) => session.keep(connection, &mut events).await.map(|()| true)?,
            None => timeout(Duration::from_millis(300), session.keep(connection, &mut events)).await.is_ok(),
        };
        parts.push(events);
    }
    check::check(&call, &parts.iter().collect::<Vec<_>>())?;
    Ok(ended)
}

/// Resident memory of the server once it is at rest.
async fn rss_at_rest(set: Settings, rest: Duration) -> Result<f64> {
    let pid = set.pid.ok_or("this measurement needs --pid")?;
    sleep(rest).await;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no VmRSS")?.parse()?;
    Ok(kib * 1024.0)
}

/// Resident memory per session, and per open standalone GET. Meant for a fresh server process.
pub(crate) async fn sessions_memory(set: Settings, sessions: usize) -> Result<Value> {
    let mut first = Session::open(set.port).await?;
    // Load the code paths and fill the pools once, so that the growth below is that of sessions and connections.
    for _ in 0..20 {
        let mut session = first.open_beside().await?;
        drop(session.get(None).await?);
        let id = next_id();
        session.call(id, "echo", json!({"text": "warm"})).await?;
        session.delete().await?;
    }
    let start = rss_at_rest(set, Duration::from_millis(500)).await?;
    let mut opened = Vec::new();
    for _ in 0..sessions {
        opened.push(first.open_beside().await?);
    }
    let with_sessions = rss_at_rest(set, Duration::from_millis(500)).await?;
    let mut connections = Vec::new();
    for session in &mut opened {
        connections.push(session.get(None).await?);
    }
    let with_gets = rss_at_rest(set, Duration::from_millis(500)).await?;
    let per = |bytes: f64| bytes / sessions as f64;
    Ok(json!({"measure": "memory", "sessions": sessions, "count": connections.len(),
        "session_bytes": per(with_sessions - start), "get_bytes": per(with_gets - with_sessions),
        "both_bytes": per(with_gets - start), "start_rss_bytes": start, "faults": 0}))
}

/// Resident memory per stored event: ten calls of `events` each, read live. Meant for a fresh server process.
pub(crate) async fn events_memory(set: Settings) -> Result<Value> {
    const CALLS: usize = 10;
    let mut session = Session::open(set.port).await?;
    let (call, arguments) = emit_call(100);
    session.checked_call("emit", arguments, &call).await?;
    let start = rss_at_rest(set, Duration::from_millis(300)).await?;
    for _ in 0..CALLS {
        let (call, arguments) = emit_call(set.events);
        session.checked_call("emit", arguments, &call).await?;
    }
    let grown = rss_at_rest(set, Duration::from_millis(300)).await? - start;
    let count = CALLS * set.events;
    Ok(json!({"measure": "event_memory", "count": count, "event_bytes": grown / count as f64,
        "start_rss_bytes": start, "faults": 0}))
}
