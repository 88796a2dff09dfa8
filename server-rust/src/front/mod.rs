//! An HTTP listener in front of the application of a host in another language.
//!
//! The front serves only the plain requests of sessions that its host has handed to it. Any other request goes on to the
//! application, unchanged but for what belongs to one connection alone. So the front holds no rule of the exchange: what
//! it cannot serve plainly, the application answers. This module has the threads of a front and what its host calls.

mod arrival;
mod body;
mod exchange;
mod inbox;
mod listening;
mod options;
mod proxy;
mod rarely;
mod sessions;
mod socket;

use std::fmt;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tailrope_core::engine::{Engine, SessionHandle, Wake};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

pub use arrival::{Arrival, Asked, Call, Message};
pub use options::{AppAddress, FrontOptions, FrontTerms};

use crate::host::Host;
use inbox::Inbox;
use rarely::Rarely;
use sessions::Sessions;

/// The header of a proxied request that says where the client's connection comes from: its address, a space, and the
/// scheme of its URLs, as in `127.0.0.1:49152 http`. The same header of a client is removed.
pub const PEER_HEADER: &str = "x-tailrope-peer";

/// How far the end of a front has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Nothing is accepted any more.
    Stopped,
    /// What still runs is cut at this time.
    Closing(Instant),
}

/// What the tasks of a front share.
struct Shared {
    host: Arc<Host>,
    options: FrontOptions,
    sessions: Sessions,
    inbox: Arc<Inbox>,
    phase: watch::Sender<Phase>,
    /// One for each connection that may be open.
    connections: Arc<Semaphore>,
    complaints: Complaints,
}

/// When what may happen often was last logged.
#[derive(Default)]
struct Complaints {
    not_accepted: Rarely,
    crowded: Rarely,
    unreachable: Rarely,
    inbox_full: Rarely,
}

/// A running listener. It has threads of its own, and shares the engine of its host.
pub struct Front {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Front {
    /// Begins to listen. `wake` is woken with `key` when there is something to [take](Self::take), on any thread, and
    /// once until it is taken.
    ///
    /// # Errors
    /// An address cannot be listened on, or no thread can be started.
    pub fn start(engine: Engine, mut options: FrontOptions, wake: Arc<dyn Wake>, key: u64) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .thread_name("tailrope-front")
            .enable_all()
            .build()?;
        let opened = {
            let _entered = runtime.enter();
            listening::open(&mut options)
        };
        let (listeners, addresses) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // To wait for its threads is not allowed in another runtime.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        options.max_connections = options::most_connections(options.max_connections);
        let inbox = Arc::new(Inbox::new(options.max_waiting, wake, key));
        let idle = Arc::clone(&inbox);
        let shared = Arc::new(Shared {
            host: Host::with_idle(engine, Box::new(move |session| idle.put_idle(session))),
            sessions: Sessions::default(),
            inbox,
            phase: watch::Sender::new(Phase::Serving),
            connections: Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS))),
            complaints: Complaints::default(),
            options,
        });
        for listener in listeners {
            runtime.spawn(listening::accept(Arc::clone(&shared), listener));
        }
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("tailrope-front".to_owned());
        let thread = thread.spawn(move || run(&runtime, &serving))?;
        Ok(Self { shared, addresses, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens, in the order of the options.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Serves the plain requests of this session from now on, until the session ends. Hand over a session only if there is
    /// nothing between the HTTP server of the application and the session that a request has to pass: no authentication,
    /// no middleware, no function of the user's.
    pub fn serve(&self, session: &SessionHandle, terms: FrontTerms) {
        if !self.is_forked() {
            self.shared.sessions.insert(session, terms);
        }
    }

    /// Everything that waits for the host, in the order in which it came.
    pub fn take(&self) -> Vec<Arrival> {
        if self.is_forked() { Vec::new() } else { self.shared.inbox.take() }
    }

    /// Accepts nothing more. Connections without a request close. Answers that run go on.
    pub fn stop(&self) {
        if self.is_forked() {
            return;
        }
        self.shared.phase.send_if_modified(|phase| {
            let is_serving = *phase == Phase::Serving;
            if is_serving {
                *phase = Phase::Stopped;
            }
            is_serving
        });
    }

    /// [Stops](Self::stop), waits for at most `within_ms` milliseconds until no answer runs, and then cuts those that do.
    /// What waits for the host is declined. Afterwards there are no threads of the front any more. Of several calls the one
    /// whose time is over first counts for all.
    pub fn close(&self, within_ms: u64) {
        if self.is_forked() {
            return;
        }
        let end = Instant::now() + Duration::from_millis(within_ms);
        self.shared.phase.send_if_modified(|phase| {
            let is_sooner = !matches!(*phase, Phase::Closing(known) if known <= end);
            if is_sooner {
                *phase = Phase::Closing(end);
            }
            is_sooner
        });
        // A second caller waits here.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // It has no result, and a panic in it has been printed.
            let _ = thread.join();
        }
        drop(thread);
        self.shared.inbox.close();
    }

    /// Whether this is the child of a fork. Its threads are the parent's, which may hold any lock.
    fn is_forked(&self) -> bool {
        self.shared.host.engine.is_forked()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.close(0);
    }
}

/// Waits for the end of the front, on a thread of its own. Then the runtime ends here: a host may have one of its own,
/// in which another must not be dropped.
fn run(runtime: &Runtime, shared: &Shared) {
    runtime.block_on(async {
        let mut phase = shared.phase.subscribe();
        let max = u32::try_from(shared.options.max_connections).unwrap_or(u32::MAX);
        // All permits are back when no connection is open. Before the end it must not be asked: nobody else would get one.
        let mut none_open = pin!(shared.connections.acquire_many(max));
        loop {
            let known = *phase.borrow_and_update();
            let is_over = async {
                match known {
                    Phase::Closing(end) => drop(timeout_at(end, none_open.as_mut()).await),
                    Phase::Serving | Phase::Stopped => pending().await,
                }
            };
            tokio::select! {
                () = is_over => break,
                changed = phase.changed() => if changed.is_err() { break },
            }
        }
    });
}
