//! What several checks need to know, each found out once: sessions, a short stream, a long call.

mod calls;
mod tasks;
mod words;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tailrope_core::protocol::Revision;
use tailrope_core::protocol::jsonrpc::UNSUPPORTED_PROTOCOL_VERSION;
use tokio::sync::OnceCell;

use crate::options::Options;
use crate::session::{NEWEST, Run, Session, Stream};
use crate::wire::{Endpoint, Exchange, NoAnswer};
pub(crate) use calls::{Polled, Tool};
pub(crate) use tasks::{Created, EXTENSION, result_of};
pub(crate) use words::{shown, shown_type};

/// How long what must not come is waited for, and what comes by itself.
const SETTLE: Duration = Duration::from_millis(500);

/// What a check found.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) reason: String,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The server did as it should, this time.
    Ok,
    /// A client loses nothing, but the server does less than it should or could.
    Warn,
    /// A client loses events, waits for ever, or sees what is not its own.
    Fault,
    /// It was not made; the reason says why.
    Skipped,
}

/// Why a check has no outcome.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    NotChecked(String),
    NoAnswer(NoAnswer),
    /// Nothing can be checked at all: no MCP server.
    Unusable(String),
}

impl From<NoAnswer> for Stop {
    fn from(why: NoAnswer) -> Self {
        Self::NoAnswer(why)
    }
}

pub(crate) type Found<T> = Result<T, Stop>;

pub(crate) fn ok(reason: impl Into<String>) -> Found<Outcome> {
    Ok(Outcome { kind: Kind::Ok, reason: reason.into() })
}

pub(crate) fn warn(reason: impl Into<String>) -> Found<Outcome> {
    Ok(Outcome { kind: Kind::Warn, reason: reason.into() })
}

pub(crate) fn fault(reason: impl Into<String>) -> Found<Outcome> {
    Ok(Outcome { kind: Kind::Fault, reason: reason.into() })
}

pub(crate) fn not_checked<T>(reason: impl Into<String>) -> Found<T> {
    Err(Stop::NotChecked(reason.into()))
}

/// What was sent and got, of the check that runs. Answers are described when the check is over.
#[derive(Default)]
pub(crate) struct Evidence(RefCell<Vec<(String, Option<Rc<Exchange>>)>>);

impl Evidence {
    pub(crate) fn note(&self, what: impl Into<String>, exchange: &Rc<Exchange>) {
        self.0.borrow_mut().push((what.into(), Some(Rc::clone(exchange))));
    }

    pub(crate) fn say(&self, what: impl Into<String>) {
        self.0.borrow_mut().push((what.into(), None));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |(what, exchange): &(String, Option<Rc<Exchange>>)| match exchange {
            Some(exchange) => format!("{what}: {}", shown(exchange)),
            None => what.clone(),
        };
        self.0.borrow().iter().map(line).collect()
    }
}

/// Found out once, or what kept it from being found.
type Fact<T> = OnceCell<Found<T>>;

pub(crate) struct Facts {
    pub(crate) options: Options,
    endpoint: Rc<Endpoint>,
    sessions: RefCell<Vec<Rc<Session>>>,
    server: RefCell<Server>,
    calls: Cell<u32>,
    last_id: Cell<u64>,
    /// How long the longest request took that nobody disturbed; none is known to take long before.
    known: Cell<Duration>,
    opening: Fact<Opening>,
    second: Fact<Rc<Session>>,
    idle: Fact<Rc<Session>>,
    older: Fact<Rc<Session>>,
    source: Fact<String>,
    ping: Fact<Rc<Exchange>>,
    short: Fact<Rc<Run>>,
    finished: Fact<Rc<Run>>,
    standalone: Fact<Rc<Exchange>>,
    tool: Fact<Rc<Tool>>,
    polled: Fact<Rc<Polled>>,
    discovered: Fact<Rc<Exchange>>,
    task: Fact<Created>,
    pub(crate) neighbours: Fact<(Rc<Run>, Rc<Run>)>,
    pub(crate) cut_call: Fact<Rc<CutCall>>,
}

/// A call that was cut as soon as it had an id, and resumed later.
pub(crate) struct CutCall {
    pub(crate) run: Run,
    pub(crate) resumed: Rc<Exchange>,
    pub(crate) ended: Result<(), String>,
}

/// What the server says that it is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Server {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// How the session was opened that most is done with.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) session: Rc<Session>,
    pub(crate) initialize: Rc<Exchange>,
    pub(crate) initialized: Rc<Exchange>,
}

impl Facts {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            endpoint: Rc::new(Endpoint::new(options.uri.clone(), options.headers.clone())),
            options,
            sessions: RefCell::default(),
            server: RefCell::default(),
            calls: Cell::default(),
            last_id: Cell::default(),
            known: Cell::default(),
            opening: Fact::new(),
            second: Fact::new(),
            idle: Fact::new(),
            older: Fact::new(),
            source: Fact::new(),
            ping: Fact::new(),
            short: Fact::new(),
            finished: Fact::new(),
            standalone: Fact::new(),
            tool: Fact::new(),
            polled: Fact::new(),
            discovered: Fact::new(),
            task: Fact::new(),
            neighbours: Fact::new(),
            cut_call: Fact::new(),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// How long a request may take when it is disturbed.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout() + 2 * self.known.get()
    }

    pub(crate) fn server(&self) -> Server {
        self.server.borrow().clone()
    }

    pub(crate) fn calls(&self) -> u32 {
        self.calls.get()
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// The sessions that servers know.
    pub(crate) fn sessions(&self) -> Vec<Rc<Session>> {
        self.sessions.borrow().clone()
    }

    fn session(&self, name: &'static str) -> Rc<Session> {
        let session = Rc::new(Session::new(Rc::clone(&self.endpoint), self.timeout(), name));
        self.sessions.borrow_mut().push(Rc::clone(&session));
        session
    }

    /// One that the server did not open: it is not ours to end.
    pub(crate) fn stranger(&self, id: Option<String>, revision: Option<String>) -> Rc<Session> {
        Rc::new(Session::new(Rc::clone(&self.endpoint), self.timeout(), "unknown").pretending(id, revision))
    }

    async fn opened(&self, name: &'static str, revision: Revision) -> Found<Rc<Session>> {
        let session = self.session(name);
        let answer = session.open(revision).await?;
        if session.revision().is_none() {
            return not_checked(format!("initialize with {} is answered {}", revision.as_str(), answer.status));
        }
        session.notify("notifications/initialized").await?;
        Ok(session)
    }

    pub(crate) async fn second(&self) -> Found<Rc<Session>> {
        self.second.get_or_init(|| self.opened("b", NEWEST)).await.clone()
    }

    pub(crate) async fn idle(&self) -> Found<Rc<Session>> {
        self.idle.get_or_init(|| self.opened("idle", NEWEST)).await.clone()
    }

    pub(crate) async fn older(&self, revision: Revision) -> Found<Rc<Session>> {
        self.older.get_or_init(|| self.opened("older", revision)).await.clone()
    }

    /// The session that most is done with.
    pub(crate) async fn first(&self) -> Found<Rc<Session>> {
        let Opening { session, .. } = self.opening().await?;
        let revision = session.shown_revision();
        // 2024-11-05 is not made for this transport.
        let can_resume = Revision::parse(&revision)
            .is_some_and(|revision| revision.rules().resumable && revision != Revision::V2024_11_05);
        if !can_resume {
            return not_checked(format!("revision {revision} has no resumption"));
        }
        if session.id().is_none() {
            return not_checked("the server gives no session id");
        }
        Ok(session)
    }

    /// The same, whatever came of it.
    pub(crate) async fn opening(&self) -> Found<Opening> {
        self.opening.get_or_init(|| self.open()).await.clone()
    }

    async fn open(&self) -> Found<Opening> {
        let session = self.session("a");
        let initialize = session.open(NEWEST).await?;
        let message = initialize.json();
        if session.revision().is_none() {
            let code = message.get("error").and_then(|error| error["code"].as_i64());
            if code == Some(i64::from(UNSUPPORTED_PROTOCOL_VERSION)) {
                return not_checked("the server has only revisions without resumption");
            }
            let moved = initialize.header("location").map(|to| format!(", it is at {to}")).unwrap_or_default();
            let answer = shown(&initialize);
            return Err(Stop::Unusable(format!("no MCP server for us: initialize is answered {answer}{moved}")));
        }
        let about = message.get("result").map(|result| &result["serverInfo"]);
        let told = |name: &str| about.and_then(|about| about[name].as_str()).map(str::to_owned);
        let told = |name: &str| told(name).filter(|value| !value.is_empty());
        self.server.replace(Server { name: told("name"), version: told("version") });
        let initialized = session.notify("notifications/initialized").await?;
        Ok(Opening { session, initialize, initialized })
    }

    pub(crate) async fn standalone(&self) -> Found<Rc<Exchange>> {
        let find = || async {
            let exchange = self.first().await?.get(None, Some(Stream::Standalone)).await?;
            if exchange.status == 405 {
                return not_checked("the server has no standalone stream");
            }
            if exchange.is_stream() {
                exchange.until(|exchange| exchange.is_over() || exchange.has_event(), self.timeout()).await;
            }
            Ok(exchange)
        };
        self.standalone.get_or_init(find).await.clone()
    }
}

/// What an answer has in it by itself.
pub(crate) async fn settled(exchange: &Exchange) {
    exchange.over(SETTLE).await;
}
