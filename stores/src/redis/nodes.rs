//! The servers: which one has a key, a connection to each, and what their errors mean.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError, Value, cmd};
use futures_util::future;
use tailrope_core::store::parts::{self, Fault};
use tailrope_core::tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::{Address, Kind, Login, Place};
use super::live::{Late, Live};
use super::slots::{SLOTS, parse_node, parse_slots};
use crate::address::not_reached;

/// Requests that may wait to be written into one connection; more wait where they are.
const PIPELINE: usize = 1_024;
/// Pause before a server that could not be reached is tried again.
const BACK_OFF: [u64; 6] = [20, 50, 100, 200, 400, 800];
/// Pause between two questions for where everything is.
const LOCATE_PAUSE: Duration = Duration::from_millis(50);
const NO_ANSWER: &str = "the server cannot be reached: no answer in time (check the address, and firewalls on the way)";

/// What may work in a moment.
pub(super) fn passing(what: impl Into<String>) -> Fault {
    Fault { what: what.into(), kind: parts::Kind::Passes, was_sent: false }
}

/// What will not work.
pub(super) fn lasting(what: impl Into<String>) -> Fault {
    Fault { kind: parts::Kind::Lasts, ..passing(what) }
}

/// What may work in a moment, or was done already.
fn unanswered(what: impl Into<String>) -> Fault {
    Fault { was_sent: true, ..passing(what) }
}

#[derive(Default)]
struct Door {
    live: Option<Live>,
    /// Failures in a row, the last, and when to try again.
    failures: usize,
    last: Option<Fault>,
    again: Option<Instant>,
}

#[derive(Default)]
struct Map {
    /// First slot, last slot, server. Everything is at one server where there is no cluster.
    ranges: Vec<(u16, u16, Place)>,
    is_stale: bool,
    asked: Option<Instant>,
}

pub(super) struct Nodes {
    pub(super) address: Address,
    tls: Option<TlsConnector>,
    doors: Mutex<HashMap<Place, Arc<tokio::sync::Mutex<Door>>>>,
    map: Mutex<Map>,
    locating: tokio::sync::Mutex<()>,
    /// What every connection begins with.
    pub(super) greeting: OnceLock<Cmd>,
    /// There is a new connection: what is kept on the servers is written again.
    pub(super) connected: tokio::sync::Notify,
}

/// A connection with TLS or without.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Nodes {
    /// # Errors
    /// When the certificates cannot be used.
    pub(super) fn new(address: Address) -> Result<Self, String> {
        let tls = address.tls.then(|| secured(&address)).transpose()?;
        Ok(Self {
            address,
            tls,
            doors: Mutex::default(),
            map: Mutex::default(),
            locating: tokio::sync::Mutex::default(),
            greeting: OnceLock::new(),
            connected: tokio::sync::Notify::new(),
        })
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.address.kind == Kind::Cluster
    }

    /// Sends one command to the server that has the slot. A server that says nothing for `limit` is given up; one that
    /// answers others meanwhile is waited for twice as long.
    pub(super) async fn call(&self, slot: u16, command: &Cmd, limit: Duration) -> Result<Value, Fault> {
        let place = self.find(slot, limit).await?;
        match self.call_at(&place, command, limit).await {
            Err(Redirect::Fault(fault)) => Err(fault),
            Err(Redirect::Moved) => {
                self.doubt();
                let place = self.find(slot, limit).await?;
                self.call_at(&place, command, limit).await.map_err(Redirect::fault)
            }
            Err(Redirect::Ask(place)) => self.call_asking(&place, command, limit).await,
            Ok(value) => Ok(value),
        }
    }

    async fn find(&self, slot: u16, limit: Duration) -> Result<Place, Fault> {
        timeout(limit, self.locate(slot)).await.unwrap_or_else(|_| Err(passing(NO_ANSWER)))
    }

    /// The connection to a server, if that can be made in time.
    async fn reach(&self, place: &Place, limit: Duration) -> Result<Live, Fault> {
        timeout(limit, self.connection(place)).await.unwrap_or_else(|_| Err(passing(NO_ANSWER)))
    }

    async fn call_at(&self, place: &Place, command: &Cmd, limit: Duration) -> Result<Value, Redirect> {
        let live = self.reach(place, limit).await?;
        let mut connection = live.connection.clone();
        let answer = live.answer(limit, connection.send_packed_command(command)).await;
        self.judge(place, &live, answer.map(|answer| answer.and_then(Value::extract_error)))
    }

    /// A slot is on its way to another server, and this key is there already.
    async fn call_asking(&self, place: &Place, command: &Cmd, limit: Duration) -> Result<Value, Fault> {
        let live = self.reach(place, limit).await?;
        let mut connection = live.connection.clone();
        let mut both = redis::Pipeline::new();
        both.cmd("ASKING").add_command(command.clone());
        let answer = live.answer(limit, connection.send_packed_commands(&both, 0, 2)).await;
        let answer =
            answer.map(|answer| answer.and_then(|mut answers| answers.pop().unwrap_or_default().extract_error()));
        self.judge(place, &live, answer).map_err(Redirect::fault)
    }

    /// What an answer, or none, means. A connection that is of no use any more is given up.
    fn judge(
        &self,
        place: &Place,
        live: &Live,
        answer: Result<Result<Value, RedisError>, Late>,
    ) -> Result<Value, Redirect> {
        let error = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            // What else is on its way comes: sent again it would make the server slower still.
            Err(Late::Busy) => {
                return Err(unanswered("the server is too slow").into());
            }
            Err(Late::Silent) => {
                self.give_up(place, live);
                return Err(unanswered("the server does not answer").into());
            }
        };
        if !is_of_server(&error) {
            self.give_up(place, live);
            return Err(unanswered(describe(&error)).into());
        }
        let what = describe(&error);
        match error.code().unwrap_or_default() {
            "MOVED" => Err(Redirect::Moved),
            "ASK" => Err(error
                .redirect_node()
                .and_then(|(node, _)| parse_node(node, place))
                .map_or_else(|| passing(what).into(), Redirect::Ask)),
            // Somebody else is in charge now, or wants to know again who we are, or what our script is.
            "READONLY" | "NOSCRIPT" | "MASTERDOWN" | "NOREPLICAS" | "NOAUTH" | "UNBLOCKED" => {
                self.give_up(place, live);
                Err(passing(what).into())
            }
            "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "BUSY" => {
                self.doubt();
                Err(passing(what).into())
            }
            _ => Err(lasting(what).into()),
        }
    }

    fn give_up(&self, place: &Place, live: &Live) {
        live.cut();
        self.doubt();
        let door = self.lock_doors().get(place).cloned();
        // Where it is locked, another connection is being made.
        if let Some(door) = door
            && let Ok(mut door) = door.try_lock()
            && door.live.as_ref().is_some_and(|known| known.is(live))
        {
            door.live = None;
        }
    }

    /// The connection to a server, made when there is none.
    pub(super) async fn connection(&self, place: &Place) -> Result<Live, Fault> {
        let door = Arc::clone(self.lock_doors().entry(place.clone()).or_default());
        let mut door = door.lock().await;
        if let Some(live) = &door.live {
            if !live.is_over() {
                return Ok(live.clone());
            }
            door.live = None;
        }
        if let (Some(again), Some(last)) = (door.again, &door.last)
            && Instant::now() < again
        {
            return Err(last.clone());
        }
        match self.connect_and_greet(place).await {
            Ok(live) => {
                *door = Door { live: Some(live.clone()), ..Door::default() };
                self.connected.notify_one();
                Ok(live)
            }
            Err(fault) => {
                self.doubt();
                let pause = BACK_OFF[door.failures.min(BACK_OFF.len() - 1)];
                door.failures += 1;
                door.again = Some(Instant::now() + Duration::from_millis(pause));
                door.last = Some(fault.clone());
                Err(fault)
            }
        }
    }

    async fn connect_and_greet(&self, place: &Place) -> Result<Live, Fault> {
        let Address { login, db, .. } = &self.address;
        let live = self.connect(place, login, *db, AsyncConnectionConfig::new(), false).await?;
        let Some(greeting) = self.greeting.get() else { return Ok(live) };
        let mut connection = live.connection.clone();
        let answer = timeout(self.address.connect_timeout, connection.send_packed_command(greeting)).await;
        let fault = match answer.map(|answer| answer.and_then(Value::extract_error)) {
            Ok(Ok(_)) => return Ok(live),
            Ok(Err(error)) if is_of_server(&error) && !is_passing(&error) => lasting(describe(&error)),
            Ok(Err(error)) => passing(describe(&error)),
            Err(_) => passing("the server does not answer"),
        };
        live.cut();
        Err(fault)
    }

    /// Connects and logs in. RESP3 is for connections that are pushed to.
    pub(super) async fn connect(
        &self,
        place: &Place,
        login: &Login,
        db: u32,
        config: AsyncConnectionConfig,
        is_pushed_to: bool,
    ) -> Result<Live, Fault> {
        let mut info = RedisConnectionInfo::default().set_db(db.into()).set_skip_set_lib_name();
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password);
        }
        info = info.set_protocol(if is_pushed_to { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 });
        let config = config.set_response_timeout(None).set_pipeline_buffer_size(PIPELINE);
        let is_securing = AtomicBool::new(false);
        let connecting = async {
            let stream = TcpStream::connect((place.host.as_str(), place.port)).await.map_err(|error| reach(&error))?;
            // Small requests that nobody adds to.
            let _ = stream.set_nodelay(true);
            is_securing.store(self.tls.is_some(), Ordering::Relaxed);
            let stream: Box<dyn Wire> = match &self.tls {
                Some(tls) => Box::new(secure(tls, &place.host, stream).await?),
                None => Box::new(stream),
            };
            is_securing.store(false, Ordering::Relaxed);
            let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
            made.map_err(|error| match error.kind() {
                ErrorKind::AuthenticationFailed => lasting("the server refused the user or password"),
                _ if is_of_server(&error) && !is_passing(&error) => lasting(describe(&error)),
                _ => passing(describe(&error)),
            })
        };
        let (connection, driver) = timeout(self.address.connect_timeout, connecting).await.map_err(|_| {
            let is_securing = is_securing.load(Ordering::Relaxed);
            passing(if is_securing { "TLS: no answer" } else { NO_ANSWER })
        })??;
        Ok(Live::new(connection, tokio::spawn(driver).abort_handle()))
    }

    /// The server that has a slot.
    pub(super) async fn locate(&self, slot: u16) -> Result<Place, Fault> {
        let find = |map: &Map| {
            let range = map.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            range.map(|(.., place)| place.clone()).filter(|_| !map.is_stale)
        };
        if let Some(place) = find(&self.lock_map()) {
            return Ok(place);
        }
        let _only_one = self.locating.lock().await;
        let (found, asked, known) = {
            let map = self.lock_map();
            (find(&map), map.asked, map.ranges.clone())
        };
        if let Some(place) = found {
            return Ok(place);
        }
        // Nobody may wait for all the others who come with the same question.
        if let Some(since) = asked.map(|asked| asked.elapsed()).filter(|since| *since < LOCATE_PAUSE) {
            tokio::time::sleep(LOCATE_PAUSE - since).await;
        }
        self.lock_map().asked = Some(Instant::now());
        let ranges = match &self.address.kind {
            Kind::Alone => vec![(0, SLOTS - 1, self.address.places[0].clone())],
            Kind::Sentinel(service) => vec![(0, SLOTS - 1, self.ask_sentinels(service).await?)],
            Kind::Cluster => self.ask_cluster(&known).await?,
        };
        let mut map = self.lock_map();
        map.ranges = ranges;
        map.is_stale = false;
        map.asked = Some(Instant::now());
        find(&map).ok_or_else(|| passing("the cluster has no server for a part of the keys"))
    }

    /// Where everything is, is to be asked again.
    pub(super) fn doubt(&self) {
        self.lock_map().is_stale = true;
    }

    async fn ask_sentinels(&self, service: &str) -> Result<Place, Fault> {
        // All at once: one that does not answer delays nobody.
        let asked = self.address.places.iter().map(|sentinel| Box::pin(self.ask_sentinel(sentinel, service)));
        future::select_ok(asked).await.map(|(place, _)| place)
    }

    async fn ask_sentinel(&self, sentinel: &Place, service: &str) -> Result<Place, Fault> {
        let a_sentinel = |what: String| passing(format!("a sentinel: {what}"));
        let login = &self.address.sentinel_login;
        let connected = self.connect(sentinel, login, 0, AsyncConnectionConfig::new(), false).await;
        let live = connected.map_err(|fault| a_sentinel(fault.what))?;
        let mut connection = live.connection.clone();
        let question = cmd("SENTINEL").arg("get-master-addr-by-name").arg(service).to_owned();
        let answer = timeout(self.address.connect_timeout, connection.send_packed_command(&question)).await;
        live.cut();
        let answer = answer.map_err(|_| a_sentinel("it does not answer".to_owned()))?;
        let place = answer.and_then(Value::extract_error).map_err(|error| a_sentinel(describe(&error)))?;
        if let Value::Array(place) = place
            && let [Value::BulkString(host), Value::BulkString(port)] = &place[..]
            && let (Ok(host), Ok(port)) = (std::str::from_utf8(host), std::str::from_utf8(port))
            && let Ok(port) = port.parse()
        {
            return Ok(Place { host: host.to_owned(), port });
        }
        Err(passing(format!("the sentinels know no service called {service:?}")))
    }

    async fn ask_cluster(&self, known: &[(u16, u16, Place)]) -> Result<Vec<(u16, u16, Place)>, Fault> {
        let mut last = passing("no server of the cluster is known");
        let known = known.iter().map(|(.., place)| place);
        let mut asked: Vec<&Place> = Vec::new();
        for place in known.chain(&self.address.places) {
            if asked.contains(&place) {
                continue;
            }
            asked.push(place);
            let live = match self.connection(place).await {
                Ok(live) => live,
                Err(fault) => {
                    last = fault;
                    continue;
                }
            };
            let mut connection = live.connection.clone();
            let question = cmd("CLUSTER").arg("SLOTS").to_owned();
            let answer = timeout(self.address.connect_timeout, connection.send_packed_command(&question)).await;
            match answer.map(|answer| answer.and_then(Value::extract_error)) {
                Ok(Ok(value)) => {
                    let ranges = parse_slots(&value, place);
                    if !ranges.is_empty() {
                        return Ok(ranges);
                    }
                    last = passing("the cluster has no slots");
                }
                Ok(Err(error)) => last = passing(describe(&error)),
                Err(_) => {
                    live.cut();
                    last = passing("the server does not answer");
                }
            }
        }
        Err(last)
    }

    /// All servers that have slots, or may say who has.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut places: Vec<Place> = self.lock_map().ranges.iter().map(|(.., place)| place.clone()).collect();
        places.sort_unstable_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        places.dedup();
        places
    }

    fn lock_doors(&self) -> MutexGuard<'_, HashMap<Place, Arc<tokio::sync::Mutex<Door>>>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a request should have gone.
enum Redirect {
    Moved,
    Ask(Place),
    Fault(Fault),
}

impl Redirect {
    fn fault(self) -> Fault {
        match self {
            Self::Moved | Self::Ask(_) => passing("keys are moving between the servers of the cluster"),
            Self::Fault(fault) => fault,
        }
    }
}

impl From<Fault> for Redirect {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether the server said it, rather than the connection to it.
fn is_of_server(error: &RedisError) -> bool {
    error.code().is_some()
}

fn is_passing(error: &RedisError) -> bool {
    matches!(error.code(), Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"))
}

/// An error in words that say nothing of where the server is, and who we are there.
pub(super) fn describe(error: &RedisError) -> String {
    match error.code() {
        Some(code @ ("MOVED" | "ASK" | "READONLY" | "CLUSTERDOWN" | "LOADING" | "BUSY" | "MASTERDOWN")) => {
            format!("the server said {code}")
        }
        Some(code) => format!("the server said {code}: {}", error.detail().unwrap_or_default()),
        None if error.is_io_error() => "the connection to the server broke".to_owned(),
        None => "the server said something that is not understood".to_owned(),
    }
}

fn reach(error: &std::io::Error) -> Fault {
    passing(format!("the server cannot be reached: {}", not_reached(error)))
}

/// What connections with TLS begin with.
fn secured(address: &Address) -> Result<TlsConnector, String> {
    let roots = match &address.ca {
        Some(file) => tls::authorities(file).map_err(|what| format!("ca: {what}")),
        None => tls::authorities_of_system(),
    };
    let identity = address.identity.as_ref().map(|(certificate, key)| tls::Identity::read(certificate, key));
    let identity = identity.transpose().map_err(|what| format!("cert and key: {what}"))?;
    Ok(TlsConnector::from(Arc::new(tls::client(tls::Server::Named(roots?), identity)?)))
}

async fn secure(connector: &TlsConnector, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, Fault> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| lasting("TLS: a certificate cannot be for such a host"))?;
    connector.connect(name, stream).await.map_err(|error| passing(tls::describe(&error)))
}
