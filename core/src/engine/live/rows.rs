//! The rows of the page: the newest of each kind, and how many there are.

use serde_json::{Value, json};

use crate::Ms;
use crate::engine::lines::shown;
use crate::engine::live::trails::{Ended, Trail, Trails};
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::tasks::cell::LiveTask;
use crate::protocol::{Origin, RequestId, StreamNonce, jsonrpc};
use crate::session::{Asked, Counts, Stream};
use crate::stream::ConnectionId;
use crate::sync::Arc;

/// The newest of many things, by the time at which they began.
pub(super) struct Newest<T> {
    max: usize,
    count: usize,
    floor: u64,
    items: Vec<(u64, T)>,
}

impl<T> Newest<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, count: 0, floor: 0, items: Vec::new() }
    }

    /// Takes one more; `make` is called only if it may be among the newest.
    pub(super) fn push(&mut self, began: u64, make: impl FnOnce() -> T) {
        self.count += 1;
        if began < self.floor {
            return;
        }
        self.items.push((began, make()));
        if self.items.len() >= 2 * self.max {
            self.trim();
            self.floor = self.items.last().map_or(0, |(began, _)| *began);
        }
    }

    fn trim(&mut self) {
        self.items.sort_by_key(|(began, _)| std::cmp::Reverse(*began));
        self.items.truncate(self.max);
    }

    /// These, the newest first, and how many there are in all.
    pub(super) fn take(mut self) -> (Vec<T>, usize) {
        self.trim();
        (self.items.into_iter().map(|(_, item)| item).collect(), self.count)
    }
}

/// Who reads a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// A connection here.
    Connected(ConnectionId),
    /// A connection in another process.
    Elsewhere,
    /// Nobody: its client is expected to come back.
    Awaited,
    /// Nobody, and the client has been away for long.
    Away,
    /// It is answered in JSON, so it has one connection and no stream.
    Json,
}

impl Read {
    fn of(stream: &Stream) -> Self {
        match stream.machine.connection() {
            Some(conn) => Self::Connected(conn),
            None if stream.machine.is_read_elsewhere() => Self::Elsewhere,
            None if stream.is_awaited() => Self::Awaited,
            None => Self::Away,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Connected(_) => "connected",
            Self::Elsewhere => "elsewhere",
            Self::Awaited => "awaited",
            Self::Away => "away",
            Self::Json => "json",
        }
    }
}

/// How many calls are read so.
#[derive(Default)]
pub(super) struct Reads {
    connected: u64,
    elsewhere: u64,
    awaited: u64,
    away: u64,
    json: u64,
}

impl Reads {
    fn count(&mut self, read: Read) {
        match read {
            Read::Connected(_) => self.connected += 1,
            Read::Elsewhere => self.elsewhere += 1,
            Read::Awaited => self.awaited += 1,
            Read::Away => self.away += 1,
            Read::Json => self.json += 1,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let Self { connected, elsewhere, awaited, away, json } = self;
        json!({"connected": connected, "elsewhere": elsewhere, "awaited": awaited, "away": away, "json": json})
    }
}

/// A call that runs, or is read here while another process runs it.
pub(super) struct CallRow {
    session: Arc<str>,
    user: Option<Box<str>>,
    nonce: Option<StreamNonce>,
    request: RequestId,
    asked: Asked,
    began: Option<Ms>,
    read: Read,
    counts: Counts,
    events: u64,
    is_of_another: bool,
}

pub(super) struct SessionRow {
    session: Arc<str>,
    server: Arc<str>,
    user: Option<Box<str>>,
    sdk: &'static str,
    revision: Option<&'static str>,
    running: usize,
    connections: usize,
    last_contact: Ms,
    standalone: Option<(StreamNonce, Read)>,
    is_of_another: bool,
    is_draining: bool,
}

/// Everything that is shown of sessions.
pub(super) struct Rows {
    pub(super) calls: Newest<CallRow>,
    pub(super) sessions: Newest<SessionRow>,
    pub(super) reads: Reads,
}

impl Rows {
    pub(super) fn add(&mut self, cell: &Cell, state: &State) {
        let is_of_another = cell.is_elsewhere();
        let session = &state.session;
        let user = || state.shown_user();
        for (nonce, stream) in session.streams() {
            let read = Read::of(stream);
            let Some(request) = running(stream, is_of_another, read) else { continue };
            self.reads.count(read);
            let began = stream.begun();
            self.calls.push(began.unwrap_or_default().0, || CallRow {
                session: Arc::clone(&cell.name),
                user: user(),
                nonce: Some(*nonce),
                request: request.clone(),
                asked: stream.subject().map(|(_, asked)| asked.clone()).unwrap_or_default(),
                began,
                read,
                counts: stream.counts,
                events: stream.machine.durable(),
                is_of_another,
            });
        }
        for (request, (asked, began)) in session.outside() {
            self.reads.count(Read::Json);
            self.calls.push(began.0, || CallRow {
                session: Arc::clone(&cell.name),
                user: user(),
                nonce: None,
                request: request.clone(),
                asked: asked.clone(),
                began: Some(*began),
                read: Read::Json,
                counts: Counts { connections: 1, ..Counts::default() },
                events: 0,
                is_of_another,
            });
        }
        let standalone = || {
            let nonce = session.standalone()?;
            Some((nonce, session.stream(nonce).map_or(Read::Away, Read::of)))
        };
        self.sessions.push(cell.number, || SessionRow {
            session: Arc::clone(&cell.name),
            server: Arc::clone(&cell.server),
            user: user(),
            sdk: cell.dialect.sdk,
            revision: session.revision().map(|revision| revision.as_str()),
            running: session.in_flight(),
            connections: state.conns.len(),
            last_contact: session.last_contact(),
            standalone: standalone(),
            is_of_another,
            is_draining: session.is_draining(),
        });
    }
}

/// The request of a stream that is shown among the calls: one that has no end, or that is read here for another process.
fn running(stream: &Stream, is_of_another: bool, read: Read) -> Option<&RequestId> {
    if is_of_another {
        let Origin::Request(request) = &stream.origin else { return None };
        return matches!(read, Read::Connected(_)).then_some(request);
    }
    stream.running()
}

impl CallRow {
    pub(super) fn stream(&self) -> Option<StreamNonce> {
        self.nonce
    }

    pub(super) fn to_json(&self, now: Ms, trails: &mut Trails) -> Value {
        if let (Read::Connected(conn), Some(nonce)) = (self.read, self.nonce) {
            trails.has_connection(nonce, conn);
        }
        let mut row = json!({
            "session": &*self.session,
            "state": self.read.as_str(),
            "age_ms": self.began.map(|began| now.since(began)),
            "events": self.events,
            "of_another": self.is_of_another,
        });
        add_request(&mut row, &self.request, &self.asked, self.user.as_deref());
        add_stream(&mut row, now, self.nonce, self.counts, trails);
        row
    }
}

impl SessionRow {
    pub(super) fn stream(&self) -> Option<StreamNonce> {
        self.standalone.map(|(nonce, _)| nonce)
    }

    pub(super) fn to_json(&self, now: Ms, trails: &mut Trails) -> Value {
        if let Some((nonce, Read::Connected(conn))) = self.standalone {
            trails.has_connection(nonce, conn);
        }
        let trail = self.standalone.and_then(|(nonce, _)| trails.of(nonce));
        json!({
            "session": &*self.session,
            "server": shown(&self.server),
            "user": self.user,
            "sdk": self.sdk,
            "revision": self.revision,
            "running": self.running,
            "connections": self.connections,
            "silent_ms": now.since(self.last_contact),
            "standalone": self.standalone.map(|(_, read)| read.as_str()),
            "spans": trail.map(|trail| spans(now, trail)),
            "of_another": self.is_of_another,
            "draining": self.is_draining,
        })
    }
}

impl Ended {
    pub(super) fn to_json(&self, now: Ms, trails: &Trails) -> Value {
        let record = &self.record;
        let mut row = json!({
            "session": &*self.session,
            "outcome": record.outcome.as_str(),
            "weight": record.outcome.weight().as_str(),
            "cause": record.cause(),
            "ended_ms": now.since(self.at),
            "age_ms": record.begun.map(|begun| now.since(begun)),
        });
        add_request(&mut row, &record.request, &record.asked, self.user.as_deref());
        add_stream(&mut row, now, record.stream, record.counts, trails);
        row
    }
}

pub(super) fn task_json(task: &LiveTask, now: Ms, unix_ms: u64) -> Value {
    let read = jsonrpc::read(&task.body).ok();
    let tool = read.as_ref().and_then(|body| body.envelopes().first()?.fields.tool_name.as_deref());
    json!({
        "task": &*task.name,
        "tool": tool.map(shown),
        "status": task.status,
        "age_ms": unix_ms.saturating_sub(task.created_at),
        "asked_ms": now.since(task.asked_at),
    })
}

fn add_request(row: &mut Value, request: &RequestId, asked: &Asked, user: Option<&str>) {
    row["request"] = shown(&request.to_json()).into();
    row["method"] = asked.method.into();
    row["tool"] = asked.tool.as_deref().map(shown).into();
    row["user"] = user.into();
}

fn add_stream(row: &mut Value, now: Ms, nonce: Option<StreamNonce>, counts: Counts, trails: &Trails) {
    row["stream"] = nonce.map(|nonce| nonce.hex()).into();
    row["connections"] = counts.connections.into();
    row["resumes"] = counts.resumes.into();
    row["gaps"] = counts.gaps.into();
    if let Some(trail) = nonce.and_then(|nonce| trails.of(nonce)) {
        row["spans"] = spans(now, trail);
        row["lost"] = trail.gaps.iter().map(|(at, count)| json!([now.since(*at), count])).collect();
    }
}

/// Connections as `[begin, end, why, is a resume]`, in milliseconds before now.
pub(super) fn spans(now: Ms, trail: &Trail) -> Value {
    let span = |span: &super::trails::Span| {
        let (end, why) = span.end.map_or((None, None), |(at, why)| (Some(now.since(at)), Some(why)));
        json!([now.since(span.from), end, why, u8::from(span.is_resume)])
    };
    trail.spans.iter().map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::Newest;

    #[test]
    fn the_newest_of_many_are_kept_and_all_are_counted() {
        let mut newest = Newest::new(3);
        for began in [5, 9, 1, 7, 3, 8, 2, 6, 4, 0] {
            newest.push(began, || began);
        }
        assert_eq!(newest.take(), (vec![9, 8, 7], 10));
    }
}
