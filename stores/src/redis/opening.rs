//! Opening: the thread begins with finding out whether the servers can be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use ::redis::{Value, cmd};
use tailrope_core::store::parts::{Fault, Kind, Mailbox, Pulse, Threads};
use tailrope_core::store::{Durability, StoreOptions};
use tokio::time::sleep;

use super::address::Address;
use super::hints::{self, Listening};
use super::layout;
use super::nodes::{Nodes, describe, lasting, passing};
use super::owners::Owners;
use super::script::{self, Lives};
use super::tags::Tags;
use super::usage::Book;
use super::worker::{self, Core};
use super::{Redis, RedisStore};

/// The oldest server with everything that the script uses.
const OLDEST: (u32, u32) = (6, 2);
/// Pause before a server that could not be used is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a store that is closed goes on with what waits.
const CLOSING: Duration = Duration::from_secs(5);

/// Opens a store.
///
/// # Errors
/// What was tried, and why it did not work.
pub(super) fn open(address: &str, options: &StoreOptions) -> Result<RedisStore, String> {
    let address = Address::parse(address)?;
    let nodes = Nodes::new(address)?;
    let mut me = [0; 8];
    getrandom::fill(&mut me).map_err(|error| format!("no random numbers: {error}"))?;
    let me: Arc<str> = format!("{:016x}", u64::from_be_bytes(me)).into();
    let timeout = nodes.address.timeout;
    let mailbox = Arc::new(Mailbox::new(timeout, CLOSING.min(timeout)));
    let pulse = Arc::new(Pulse::new(options.owner_lost_ms));
    let namespace = nodes.address.namespace.as_str().into();
    let shared = Redis { book: Arc::new(Book::new(options)), hints: Arc::default(), pulse, namespace };
    let (mail, backend) = (Arc::clone(&mailbox), shared.clone());
    let max_event_bytes = options.limits.max_event_bytes;
    let (tell, told) = channel();
    let options = options.clone();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(start(Arc::new(nodes), me, mail, shared, &options, &tell));
                // A name that is being looked up is not waited for.
                runtime.shutdown_background();
            }
            Err(error) => drop(tell.send(Err(format!("no runtime for it: {error}")))),
        }
    };
    let thread = std::thread::Builder::new().name("tailrope-redis".to_owned()).spawn(run);
    let thread = thread.map_err(|error| format!("no thread for it: {error}"))?;
    // From here on dropping the store ends the thread.
    let store = RedisStore::new(mailbox, max_event_bytes, Threads::new(vec![thread]), backend);
    told.recv().unwrap_or_else(|_| Err("its thread ended".to_owned()))?;
    Ok(store)
}

async fn start(
    nodes: Arc<Nodes>,
    me: Arc<str>,
    mailbox: Arc<Mailbox>,
    Redis { book, hints, pulse, .. }: Redis,
    options: &StoreOptions,
    tell: &Sender<Result<(), String>>,
) {
    let tags = Tags::new(&nodes.address.namespace);
    let until = Instant::now() + nodes.address.connect_timeout;
    let sha = loop {
        match prepare(&nodes, options).await {
            Ok(sha) => break sha,
            Err(fault) if fault.kind == Kind::Passes && Instant::now() + PAUSE < until => {
                nodes.doubt();
                sleep(PAUSE).await;
            }
            Err(fault) => return drop(tell.send(Err(fault.what))),
        }
    };
    let core = Core {
        nodes: Arc::clone(&nodes),
        mailbox,
        book,
        hints: Arc::clone(&hints),
        tags: tags.clone(),
        me: Arc::clone(&me),
        sha,
        owner_lost_ms: options.owner_lost_ms,
        sign_ms: Lives::new(&options.limits, options.owner_lost_ms).sign_ms,
        beats: AtomicU64::new(1),
        pulse,
        owners: Owners::new(options.owner_lost_ms),
        is_silent: AtomicBool::new(false),
    };
    while let Err(fault) = begin(&core).await {
        if fault.kind == Kind::Lasts || Instant::now() + PAUSE >= until {
            return drop(tell.send(Err(fault.what)));
        }
        sleep(PAUSE).await;
    }
    let channel = tags.channel(&me);
    tokio::spawn(hints::run(Listening { nodes, hints, me, channel }));
    let _ = tell.send(Ok(()));
    worker::run(Arc::new(core)).await;
}

/// Before anything is written: others that find it know its layout, and look for its owner.
async fn begin(core: &Core) -> Result<(), Fault> {
    layout::keep(core).await?;
    core.beat().await
}

/// Looks at every server that there is, and gives it the script. Returns its name.
async fn prepare(nodes: &Nodes, options: &StoreOptions) -> Result<String, Fault> {
    nodes.locate(0).await?;
    let mut lives = Vec::new();
    for place in nodes.places() {
        let live = nodes.connection(&place).await?;
        let mut connection = live.connection.clone();
        let mut ask = async |question: redis::Cmd| {
            let answer = tokio::time::timeout(nodes.address.connect_timeout, connection.send_packed_command(&question));
            let answer = answer.await.map_err(|_| passing("the server does not answer"))?;
            let answer = answer.and_then(Value::extract_error);
            answer.map_err(|error| match error.code() {
                Some("LOADING" | "MASTERDOWN" | "BUSY") | None => passing(describe(&error)),
                Some(code) => {
                    lasting(format!("the server refused a question ({code}: {})", error.detail().unwrap_or_default()))
                }
            })
        };
        let info = ask(cmd("INFO")).await?;
        examine(&info, nodes.is_cluster(), options.durability)?;
        lives.push(live);
    }
    let text = script::text(options);
    let greeting = cmd("SCRIPT").arg("LOAD").arg(text).to_owned();
    let mut sha = String::new();
    for live in lives {
        let mut connection = live.connection.clone();
        let answer = tokio::time::timeout(nodes.address.connect_timeout, connection.send_packed_command(&greeting));
        let answer = answer.await.map_err(|_| passing("the server does not answer"))?;
        match answer.and_then(Value::extract_error) {
            Ok(Value::BulkString(name)) => sha = String::from_utf8_lossy(&name).into_owned(),
            Ok(_) => return Err(lasting("the server does not take scripts")),
            Err(error) => {
                let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
                return Err(lasting(format!("the server does not take our script ({code}: {detail})")));
            }
        }
    }
    let _ = nodes.greeting.set(greeting);
    Ok(sha)
}

/// A line of what a server tells of itself.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines().filter_map(|line| line.trim().split_once(':'));
    lines.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Whether a server can be used, by what it tells of itself.
fn examine(info: &Value, is_cluster: bool, durability: Durability) -> Result<(), Fault> {
    let info = match info {
        Value::BulkString(text) => String::from_utf8_lossy(text),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.into(),
        _ => return Err(lasting("the server tells nothing of itself (INFO)")),
    };
    let field = |name: &str| field(&info, name);
    let told = field("redis_version").unwrap_or_default();
    let mut parts = told.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < OLDEST {
        let (major, minor) = OLDEST;
        return Err(lasting(format!("the server has version {told:?}; Redis {major}.{minor} or Valkey are needed")));
    }
    match (field("redis_mode"), is_cluster) {
        (Some("cluster"), false) => {
            return Err(lasting("the server is one of a cluster: its address is redis+cluster://"));
        }
        (Some("sentinel"), _) => {
            return Err(lasting("this is a sentinel: its address is redis+sentinel://HOST/SERVICE"));
        }
        (Some("standalone"), true) => return Err(lasting("the server is not one of a cluster")),
        _ => {}
    }
    if field("role") == Some("slave") {
        return Err(passing("the server is a replica, which takes no writes"));
    }
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        if bounded {
            tracing::warn!(
                target: "tailrope",
                policy,
                "the event store's server evicts keys when its memory is full: events may go before their time"
            );
        }
    }
    if durability == Durability::Power && field("aof_enabled") == Some("0") {
        tracing::warn!(
            target: "tailrope",
            "the event store's server has no append-only file: a power failure there takes what it has not saved"
        );
    }
    Ok(())
}
