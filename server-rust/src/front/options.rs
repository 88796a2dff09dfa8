//! What can be set on a front, and on what terms it serves a session.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

/// Where the application listens. Nobody but the front may be able to connect there: the application believes the front
/// where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppAddress {
    /// A Unix socket, in a folder of mode 0700.
    #[cfg(unix)]
    Unix(PathBuf),
    /// A port of the loopback interface.
    Tcp(SocketAddr),
}

/// What can be set on a [`Front`](super::Front).
#[derive(Debug)]
#[non_exhaustive]
pub struct FrontOptions {
    /// Where to listen. Port 0 is any free port.
    pub addresses: Vec<SocketAddr>,
    /// Sockets that listen already.
    pub listeners: Vec<TcpListener>,
    /// Other processes may listen on the same addresses, and the system spreads connections over them (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The application behind the front.
    pub app: AppAddress,
    /// How long a client may take to send the head of a request, in milliseconds, 10,000 by default. A connection without
    /// a request is closed after that time, too.
    pub head_timeout_ms: u64,
    /// How long a client may send nothing in the middle of a body, in milliseconds, 60,000 by default.
    pub body_timeout_ms: u64,
    /// How many requests may wait for the host, 10,000 by default. Further ones are answered with 503.
    pub max_waiting: usize,
    /// How many connections may be open, 20,000 by default, and never more than three quarters of the descriptors that the
    /// process may have (`ulimit -n`). Further ones wait until the system accepts them.
    pub max_connections: usize,
    /// Threads that serve connections, 1 by default.
    pub threads: usize,
}

impl FrontOptions {
    /// The defaults, in front of this application. They listen nowhere.
    pub fn new(app: AppAddress) -> Self {
        Self {
            addresses: Vec::new(),
            listeners: Vec::new(),
            reuse_port: false,
            app,
            head_timeout_ms: 10_000,
            body_timeout_ms: 60_000,
            max_waiting: 10_000,
            max_connections: 20_000,
            threads: 1,
        }
    }
}

/// How many connections may be open. What is left of the process's descriptors serves the application, and all else.
pub(super) fn most_connections(wanted: usize) -> usize {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        // None: there is no bound.
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
        descriptors.map_or(wanted, |most| wanted.min(most / 4 * 3))
    }
    #[cfg(not(unix))]
    wanted
}

/// On what terms the requests of a session are served. A request that does not meet them is proxied, so that the
/// application refuses it in its own words.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FrontTerms {
    /// The path at which the session is served, as it comes in a request: undecoded, without a query. Requests for any
    /// other path are not for the session.
    pub path: String,
    /// The id by which clients know the session, if it is not the engine's.
    pub session_id: Option<String>,
    /// Requests are answered with one JSON body.
    pub json_response: bool,
    /// Values of the version header that are served, where the dialect leaves that to the host.
    pub versions: Option<Vec<String>>,
    /// Values of `Host` that are served, as they come; one that ends with `:*` stands for all ports. None: any.
    pub allowed_hosts: Option<Vec<String>>,
    /// Values of `Origin` that are served, in the same way. A request without `Origin` is served. None: any.
    pub allowed_origins: Option<Vec<String>>,
    /// How many bytes the body of a POST may have, 4 MiB by default.
    pub max_body_bytes: usize,
}

impl FrontTerms {
    /// The defaults, for a session that is served at this path.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            session_id: None,
            json_response: false,
            versions: None,
            allowed_hosts: None,
            allowed_origins: None,
            max_body_bytes: 4 << 20,
        }
    }
}
