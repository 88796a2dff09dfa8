//! The measurements. Each prints one JSON object; a fault is counted, described once, and never counted as work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::check::{self, Call};
use crate::http::{Connection, Result};
use crate::process::{Meter, rss_at_rest};
use crate::session::{CALL_TIMEOUT, End, Session, next_id, read};
use crate::sse::Events;

const MESSAGE_BYTES: usize = 100;
/// Calls of each session that warms a server up: with 16, V8 has compiled what they run.
const WARM_CALLS: usize = 400;
/// How often a finished stream is read again from its start.
const REPLAYS: usize = 3;
/// After so many events a reader leaves its first connection, after twice as many its second, and so on.
const LEAVES: usize = 10;
/// How long a resumed connection may be silent before the cycle counts as lost.
const SILENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    pub(crate) pid: Option<u32>,
    /// The server collects its garbage at SIGUSR2: its memory is read behind that.
    pub(crate) collects: bool,
    /// Another process on the same store.
    pub(crate) there: Option<u16>,
    pub(crate) there_pid: Option<u32>,
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

pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).map_or(0.0, |d| millis(*d))
}

/// What workers that run side by side until a moment have done.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) took: Vec<Duration>,
    pub(crate) faults: usize,
    first_fault: Option<String>,
}

impl Tally {
    pub(crate) fn fault(&mut self, text: String) {
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

async fn opened(set: Settings, sessions: usize) -> Result<Vec<Session>> {
    let mut opened = Vec::new();
    for _ in 0..sessions {
        let mut session = Session::open(set.port).await?;
        // The first call of a process or session pays for what is made lazily.
        session.call(next_id(), "echo", json!({"text": "warm"})).await?;
        opened.push(session);
    }
    Ok(opened)
}

/// Lets each client do its work until the time is over.
pub(crate) async fn side_by_side<C, F, W>(set: Settings, measure: &str, clients: Vec<C>, worker: W) -> Result<Value>
where
    F: Future<Output = Tally> + Send + 'static,
    W: Fn(C, Instant) -> F,
{
    let sessions = clients.len();
    let mut meter = Meter::new(set.pid);
    let used = meter.start()?;
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(set.seconds);
    let workers: Vec<_> = clients.into_iter().map(|client| tokio::spawn(worker(client, until))).collect();
    let mut tally = Tally::default();
    for worker in workers {
        tally.merge(worker.await?);
    }
    meter.stop(used)?;
    let count = tally.took.len();
    let mut report = tally.report(measure, sessions, start.elapsed());
    report["cpu_us"] = json!(meter.us_each(count));
    Ok(report)
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
    side_by_side(set, "echo", opened(set, sessions).await?, |session, until| async move {
        echo_while(session, |_| Instant::now() < until).await
    })
    .await
}

/// Calls by number instead of time: what a machine with other work does in a second may not be enough.
pub(crate) async fn warm(set: Settings, sessions: usize) -> Result<Value> {
    let opened = opened(set, sessions).await?;
    side_by_side(set, "warm", opened, |session, _| echo_while(session, |done| done < WARM_CALLS)).await
}

async fn echo_while(mut session: Session, goes_on: impl Fn(usize) -> bool) -> Tally {
    let mut tally = Tally::default();
    while goes_on(tally.took.len()) && tally.faults < 10 {
        let id = next_id();
        let call = Call { id, total: 0, message_bytes: None, text: format!("hello {id}") };
        let start = Instant::now();
        match session.checked_call("echo", json!({"text": call.text}), &call).await {
            Ok(()) => tally.took.push(start.elapsed()),
            Err(e) => tally.fault(e.to_string()),
        }
    }
    tally
}

/// Progress events per second of a call that is read live.
pub(crate) async fn emit(set: Settings) -> Result<Value> {
    let mut session = Session::open(set.port).await?;
    // Once without counting: a server that compiles while it runs is measured when it has done so.
    let (call, arguments) = emit_call(set.events);
    session.checked_call("emit", arguments, &call).await?;
    let mut rates = Rates::new(set);
    for _ in 0..set.rounds {
        let (call, arguments) = emit_call(set.events);
        let mut events = Events::with_room_for(set.events);
        let used = rates.meter.start()?;
        let start = Instant::now();
        session.call_into(&mut events, call.id, "emit", arguments).await?;
        let took = start.elapsed();
        rates.meter.stop(used)?;
        rates.add(&call, &[&events], took);
    }
    Ok(rates.report("emit"))
}

/// Events per second of a resume from the priming event, after the tool has ended.
pub(crate) async fn replay(set: Settings) -> Result<Value> {
    let mut session = Session::open(set.port).await?;
    let mut rates = Rates::new(set);
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
            let used = rates.meter.start()?;
            let start = Instant::now();
            let mut connection = session.get(Some(&cursor)).await?;
            let end = timeout(Duration::from_secs(60), read(&mut connection, &mut events)).await??;
            let took = start.elapsed();
            rates.meter.stop(used)?;
            if end != End::Response {
                return Err("the replay ended without the response".into());
            }
            rates.add(&call, &[&events], took);
        }
    }
    Ok(rates.report("replay"))
}

/// What whole streams of the same number of events took, one after the other.
struct Rates {
    events: usize,
    per_second: Vec<f64>,
    meter: Meter,
    tally: Tally,
}

impl Rates {
    fn new(set: Settings) -> Self {
        Self { events: set.events, per_second: Vec::new(), meter: Meter::new(set.pid), tally: Tally::default() }
    }

    fn add(&mut self, call: &Call, connections: &[&Events], took: Duration) {
        match check::check(call, connections) {
            Ok(()) => self.per_second.push(call.total as f64 / took.as_secs_f64()),
            Err(e) => self.tally.fault(e.to_string()),
        }
    }

    fn report(mut self, measure: &str) -> Value {
        self.per_second.sort_by(f64::total_cmp);
        let streams = self.per_second.len();
        json!({"measure": measure, "events": self.events, "count": streams,
            "per_second": self.per_second.get(streams / 2), "rounds_per_second": self.per_second,
            "cpu_us": self.meter.us_each((streams + self.tally.faults) * self.events),
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
    let mut report = side_by_side(set, "poll", opened(set, sessions).await?, move |mut session, until| async move {
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

/// Calls whose reader leaves again and again in their midst, and comes back at once to the live end of their stream.
pub(crate) async fn resume(set: Settings, sessions: usize) -> Result<Value> {
    side_by_side(set, "resume", opened(set, sessions).await?, move |mut session, until| async move {
        let mut tally = Tally::default();
        while Instant::now() < until && tally.faults < 10 {
            let start = Instant::now();
            match timeout(CALL_TIMEOUT, resumed_call(&mut session, set.events)).await {
                Ok(Ok(())) => tally.took.push(start.elapsed()),
                Ok(Err(e)) => tally.fault(e.to_string()),
                Err(_) => tally.fault("resume: no end of the stream".into()),
            }
        }
        tally
    })
    .await
}

async fn resumed_call(session: &mut Session, n: usize) -> Result<()> {
    let (call, arguments) = emit_call(n);
    let mut connection = session.start(call.id, "emit", arguments).await?;
    let mut parts: Vec<Events> = Vec::new();
    loop {
        let mut events = Events::default();
        let most = LEAVES * (parts.len() + 1);
        let mut open = true;
        while open && events.events.len() < most {
            open = connection.read_body(&mut events.text).await?;
            if events.advance()? {
                parts.push(events);
                return check::check(&call, &parts.iter().collect::<Vec<_>>());
            }
        }
        parts.push(events);
        let cursor = parts.iter().rev().find_map(Events::last_id).ok_or("resume: no id to resume from")?.to_vec();
        connection = session.get(Some(&cursor)).await?;
    }
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
    let start = rss_at_rest(&set, Duration::from_millis(500)).await?;
    let mut opened = Vec::new();
    for _ in 0..sessions {
        opened.push(first.open_beside().await?);
    }
    let with_sessions = rss_at_rest(&set, Duration::from_millis(500)).await?;
    let mut connections = Vec::new();
    for session in &mut opened {
        connections.push(session.get(None).await?);
    }
    let with_gets = rss_at_rest(&set, Duration::from_millis(500)).await?;
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
    let start = rss_at_rest(&set, Duration::from_millis(300)).await?;
    for _ in 0..CALLS {
        let (call, arguments) = emit_call(set.events);
        session.checked_call("emit", arguments, &call).await?;
    }
    let grown = rss_at_rest(&set, Duration::from_millis(300)).await? - start;
    let count = CALLS * set.events;
    Ok(json!({"measure": "event_memory", "count": count, "event_bytes": grown / count as f64,
        "start_rss_bytes": start, "faults": 0}))
}
