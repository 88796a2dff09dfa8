//! One connection that comes back: connects when it is needed, with pauses that grow while that fails.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error};

use super::server::{Server, handshake};
use crate::store::StoreError;
use crate::store::open::not_reached;
use crate::tls;

/// Pauses between attempts.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// Why something did not happen, in words that name no address, password or data.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) text: String,
    pub(super) kind: Kind,
    /// For how long nothing was heard of what was sent: it may have been done.
    pub(super) unheard: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The connection is gone. What was under way may have been done.
    Lost,
    /// The server does nothing of that kind for anybody now.
    Refuses,
    /// The server did not answer in time. What was under way may have been done.
    Late,
    /// Two transactions were in each other's way. The next try goes through.
    Conflict,
    /// It has to do with what was asked.
    Other,
}

impl Fault {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { text: text.into(), kind, unheard: None }
    }

    pub(super) fn late() -> Self {
        Self::new(Kind::Late, "the server did not answer in time")
    }

    /// Whether a transaction with so many writes would have failed with any others, too. A server that is late
    /// with one write alone does nothing; with several, one of them may be what takes long.
    pub(super) fn is_of_all(&self, writes: usize) -> bool {
        match self.kind {
            Kind::Lost | Kind::Refuses => true,
            Kind::Late => writes == 1,
            Kind::Conflict | Kind::Other => false,
        }
    }

    pub(super) fn unheard_for(self, time: Duration) -> Self {
        Self { unheard: Some(time), ..self }
    }

    /// Says what an error is, without its details: they may repeat what was sent.
    pub(super) fn of(error: &Error) -> Self {
        let Some(code) = error.code() else { return Self::new(Kind::Lost, describe(error)) };
        let (kind, what) = match *code {
            SqlState::READ_ONLY_SQL_TRANSACTION => (Kind::Refuses, "the server is read-only"),
            SqlState::DISK_FULL => (Kind::Refuses, "the server's disk is full"),
            SqlState::TOO_MANY_CONNECTIONS => (Kind::Lost, "the server has too many connections"),
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                (Kind::Lost, "the server refuses the user or the password")
            }
            SqlState::INVALID_CATALOG_NAME => (Kind::Lost, "there is no such database"),
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => (Kind::Lost, "the server ended the connection"),
            SqlState::CANNOT_CONNECT_NOW => (Kind::Lost, "the server is starting or stopping"),
            SqlState::INSUFFICIENT_PRIVILEGE => (Kind::Refuses, "the user has not the rights that it takes"),
            SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => {
                (Kind::Refuses, "the tables are gone, or of another version")
            }
            SqlState::LOCK_NOT_AVAILABLE => (Kind::Other, "somebody else kept the log locked"),
            SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
                (Kind::Conflict, "another process was in the way")
            }
            SqlState::QUERY_CANCELED => (Kind::Other, "the server gave up"),
            _ => match &code.code()[..2] {
                "08" | "57" => (Kind::Lost, "the server ended the connection"),
                "53" => (Kind::Refuses, "the server is out of resources"),
                "28" => (Kind::Lost, "the server refuses the user or the password"),
                _ => (Kind::Other, "the server refused it"),
            },
        };
        Self::new(kind, format!("{what} ({})", code.code()))
    }
}

impl From<&Fault> for StoreError {
    fn from(fault: &Fault) -> Self {
        Self::Failed(fault.text.clone())
    }
}

fn describe(error: &Error) -> String {
    if let Some(fault) = handshake(error) {
        return tls::describe(fault);
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return format!("the connection failed ({})", not_reached(io));
        }
        source = cause.source();
    }
    if error.is_closed() {
        return "the connection is closed".to_owned();
    }
    // Of the client itself: names what failed, and no value.
    format!("the connection failed ({error})")
}

/// Takes what a connection is notified of.
pub(super) type Heard = Arc<dyn Fn(&str) + Send + Sync>;

/// One link of several tasks.
pub(super) type SharedLink = Arc<tokio::sync::Mutex<Link>>;

/// See the module.
pub(super) struct Link {
    server: Server,
    heard: Option<Heard>,
    /// A connection has ended.
    pub(super) ended: Arc<Notify>,
    client: Option<Arc<Client>>,
    pause: Duration,
    not_before: Option<Instant>,
    down: Option<(Instant, Fault)>,
}

impl Link {
    pub(super) fn new(server: Server) -> Self {
        let ended = Arc::default();
        Self { server, heard: None, ended, client: None, pause: SHORTEST, not_before: None, down: None }
    }

    /// One whose notifications somebody takes.
    pub(super) fn hearing(server: Server, heard: Heard) -> SharedLink {
        Arc::new(tokio::sync::Mutex::new(Self { heard: Some(heard), ..Self::new(server) }))
    }

    /// The connection. One that was gone for less than `patience` is waited for.
    pub(super) async fn client(&mut self, patience: Duration) -> Result<Arc<Client>, Fault> {
        loop {
            if let Some(client) = self.client.as_ref().filter(|client| !client.is_closed()) {
                return Ok(Arc::clone(client));
            }
            if let Some(wait) = self.wait() {
                match &self.down {
                    Some((since, fault)) if since.elapsed() + wait > patience => return Err(fault.clone()),
                    _ => tokio::time::sleep(wait).await,
                }
            }
            match connect(&self.server, self.heard.clone(), Arc::clone(&self.ended)).await {
                Ok(client) => {
                    if self.down.take().is_some() {
                        tracing::info!(target: "tailrope", "the event store's server is back");
                    }
                    self.pause = SHORTEST;
                    self.not_before = None;
                    self.client = Some(Arc::new(client));
                }
                Err(fault) => self.failed(fault),
            }
        }
    }

    /// Until the next attempt.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.not_before.map(|at| at.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    fn failed(&mut self, fault: Fault) {
        if self.down.is_none() {
            tracing::warn!(target: "tailrope", error = fault.text, "the event store's server cannot be reached");
        }
        let since = self.down.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        self.down = Some((since, fault));
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// The connection is of no use any more.
    pub(super) fn lost(&mut self) {
        self.client = None;
    }

    /// The same, of a connection that may have been given up since.
    pub(super) fn lost_one(&mut self, lost: &Arc<Client>) {
        if self.client.as_ref().is_some_and(|client| Arc::ptr_eq(client, lost)) {
            self.lost();
        }
    }

    /// The server was reached and does nothing: the next attempt is made with a new connection, which
    /// may lead elsewhere, and until then nobody waits.
    pub(super) fn refuses(&mut self, fault: Fault, patience: Duration) {
        self.client = None;
        self.failed(fault);
        if let Some((since, _)) = &mut self.down {
            *since = since.checked_sub(patience).unwrap_or(*since);
        }
    }

    /// Asks the server to stop what this connection does, and lets it go.
    pub(super) fn give_up(&mut self) {
        let Some(client) = self.client.take() else { return };
        let (token, tls) = (client.cancel_token(), self.server.tls.clone());
        let limit = self.server.connect_timeout;
        tokio::spawn(async move {
            let _ = tokio::time::timeout(limit, token.cancel_query(tls)).await;
        });
    }
}

/// Connects, and lets the connection run. What it is notified of is `heard`.
pub(super) async fn connect(server: &Server, heard: Option<Heard>, ended: Arc<Notify>) -> Result<Client, Fault> {
    let (client, mut connection) = server.connect().await?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let (AsyncMessage::Notification(notification), Some(heard)) = (message, &heard) {
                heard(notification.payload());
            }
        }
        ended.notify_one();
    });
    Ok(client)
}
