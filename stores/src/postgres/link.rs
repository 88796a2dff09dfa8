//! One connection that comes back: connects when it is needed, with pauses that grow while that fails.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::store::parts::{Fault, Kind};
use tailrope_core::tls;
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error};

use super::server::{Server, handshake};
use crate::address::not_reached;

/// Pauses between attempts.
const SHORTEST: Duration = Duration::from_millis(50);
/// As that of Redis: until then calls are refused, though the server is back.
const LONGEST: Duration = Duration::from_millis(800);

/// Says what an error is, without its details: they may repeat what was sent. A connection on which something was sent and
/// may be done is of no use any more.
pub(super) fn fault(error: &Error) -> Fault {
    const LOST: (Kind, bool) = (Kind::Passes, true);
    const CONFLICT: (Kind, bool) = (Kind::Passes, false);
    const REFUSES: (Kind, bool) = (Kind::Lasts, false);
    const OTHER: (Kind, bool) = (Kind::OfOne, false);
    let Some(code) = error.code() else { return passing(describe(error), true) };
    let ((kind, was_sent), what) = match *code {
        // A new connection may lead elsewhere.
        SqlState::READ_ONLY_SQL_TRANSACTION => (LOST, "the server is read-only"),
        SqlState::DISK_FULL => (REFUSES, "the server's disk is full"),
        SqlState::TOO_MANY_CONNECTIONS => (LOST, "the server has too many connections"),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (LOST, "the server refuses the user or the password")
        }
        SqlState::INVALID_CATALOG_NAME => (LOST, "there is no such database"),
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => (LOST, "the server ended the connection"),
        SqlState::CANNOT_CONNECT_NOW => (LOST, "the server is starting or stopping"),
        SqlState::INSUFFICIENT_PRIVILEGE => (REFUSES, "the user has not the rights that it takes"),
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => {
            (REFUSES, "the tables are gone, or of another version")
        }
        SqlState::LOCK_NOT_AVAILABLE => (OTHER, "somebody else kept the log locked"),
        SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
            (CONFLICT, "another process was in the way")
        }
        SqlState::QUERY_CANCELED => (OTHER, "the server gave up"),
        _ => match &code.code()[..2] {
            "08" | "57" => (LOST, "the server ended the connection"),
            "53" => (REFUSES, "the server is out of resources"),
            "28" => (LOST, "the server refuses the user or the password"),
            _ => (OTHER, "the server refused it"),
        },
    };
    Fault { what: format!("{what} ({})", code.code()), kind, was_sent }
}

pub(super) fn passing(what: impl Into<String>, was_sent: bool) -> Fault {
    Fault { what: what.into(), kind: Kind::Passes, was_sent }
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
#[derive(Clone)]
pub(super) struct SharedLink(Arc<tokio::sync::Mutex<Link>>);

struct Link {
    server: Server,
    heard: Option<Heard>,
    /// A connection has ended.
    ended: Arc<Notify>,
    client: Option<Arc<Client>>,
    /// The server behind it refuses what another one may do. It answers questions until there is another connection.
    is_refused: bool,
    /// Why there is none.
    why: Fault,
    pause: Duration,
    /// Before that no attempt is made.
    due: Instant,
}

impl Link {
    fn is_of(&self, client: &Arc<Client>) -> bool {
        self.client.as_ref().is_some_and(|known| Arc::ptr_eq(known, client))
    }
}

impl SharedLink {
    /// One whose notifications somebody takes, if `heard` is there.
    pub(super) fn new(server: Server, heard: Option<Heard>) -> Self {
        let (ended, why) = (Arc::default(), passing("it was not connected", false));
        let (pause, due) = (SHORTEST, Instant::now());
        let (client, is_refused) = (None, false);
        Self(Arc::new(tokio::sync::Mutex::new(Link { server, heard, ended, client, is_refused, why, pause, due })))
    }

    /// Asks something over the connection. One that does not answer is given up.
    ///
    /// # Errors
    /// What went wrong. What takes longer than `limit` may be done all the same; where several things were asked
    /// together, one of them may be what takes long.
    pub(super) async fn ask<T, A>(&self, limit: Duration, what: impl FnOnce(Arc<Client>) -> A) -> Result<T, Fault>
    where
        A: Future<Output = Result<T, Error>>,
    {
        let client = self.client().await?;
        match tokio::time::timeout(limit, what(Arc::clone(&client))).await {
            Ok(Ok(answer)) => Ok(answer),
            // Somebody else has given the connection up, with all that was asked over it.
            Ok(Err(error)) if error.code() == Some(&SqlState::QUERY_CANCELED) && !self.is_of(&client).await => {
                Err(passing("the connection was given up", true))
            }
            Ok(Err(error)) => {
                let fault = fault(&error);
                if fault.was_sent {
                    self.refused(&client, &fault).await;
                }
                Err(fault)
            }
            Err(_) => {
                let fault = Fault { kind: Kind::OfOne, ..passing("the server did not answer in time", true) };
                self.give_up(&client, &fault).await;
                Err(fault)
            }
        }
    }

    /// The connection. Another one is made where there is none, or the server refuses, unless that was tried a moment ago.
    pub(super) async fn client(&self) -> Result<Arc<Client>, Fault> {
        let mut link = self.0.lock().await;
        let open = link.client.clone().filter(|client| !client.is_closed());
        if (open.is_some() && !link.is_refused) || Instant::now() < link.due {
            return open.ok_or_else(|| link.why.clone());
        }
        let connected = connect(&link.server, link.heard.clone(), Arc::clone(&link.ended)).await;
        link.due = Instant::now() + link.pause;
        match connected {
            Ok(client) => {
                (link.pause, link.is_refused) = (SHORTEST, false);
                let client = Arc::new(client);
                link.client = Some(Arc::clone(&client));
                Ok(client)
            }
            Err(fault) => {
                link.why = passing(fault.what, false);
                link.pause = (link.pause * 2).min(LONGEST);
                open.ok_or_else(|| link.why.clone())
            }
        }
    }

    /// Whether this is the connection, and nobody has given it up.
    async fn is_of(&self, client: &Arc<Client>) -> bool {
        self.0.lock().await.is_of(client)
    }

    /// The server refused something, and another connection may lead elsewhere. What else is asked over this one goes on.
    async fn refused(&self, client: &Arc<Client>, fault: &Fault) {
        let mut link = self.0.lock().await;
        if link.is_of(client) {
            link.is_refused = true;
            link.why = passing(fault.what.clone(), false);
        }
    }

    /// Lets a connection go, and asks the server to stop what it does.
    pub(super) async fn give_up(&self, client: &Arc<Client>, why: &Fault) {
        let mut link = self.0.lock().await;
        if link.client.take_if(|known| Arc::ptr_eq(known, client)).is_none() {
            return;
        }
        tracing::warn!(target: "tailrope", error = why.what, "a connection to the event store is given up");
        link.why = passing(why.what.clone(), false);
        let (token, tls, limit) = (client.cancel_token(), link.server.tls.clone(), link.server.connect_timeout);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(limit, token.cancel_query(tls)).await;
        });
    }

    /// Is notified when a connection has ended.
    pub(super) async fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.0.lock().await.ended)
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
