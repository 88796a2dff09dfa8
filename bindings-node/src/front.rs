//! The listener in front of the application's HTTP server.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use napi::Task;
use napi::bindgen_prelude::{AsyncTask, Either, Env};
use napi_derive::napi;
use tailrope_server::front::{self, AppAddress, Asked};

use crate::admission::{Admission, facts_of};
use crate::convert::{Result, internal, invalid, of_system};
use crate::engine::Engine;
use crate::session::Session;
use crate::waiters::Waiters;

/// Where a front listens, and what is behind it.
#[napi(object, object_to_js = false)]
pub struct FrontOptions {
    /// An IP address.
    pub address: String,
    pub port: u16,
    pub reuse_port: bool,
    /// The path of a Unix socket, or `host:port`.
    pub app: String,
}

/// How the front serves a session. Where a request differs from that, it is passed on.
#[napi(object, object_to_js = false)]
pub struct FrontTerms {
    /// The path at which the session is served.
    pub path: String,
    pub json_response: bool,
    /// Values of `Host` and `Origin`; `:*` at the end of one stands for any port. Absent where any value is served.
    pub allowed_hosts: Option<Vec<String>>,
    pub allowed_origins: Option<Vec<String>>,
    pub max_body_bytes: f64,
}

/// Listens on a port, on threads of its own. It serves the sessions that were handed over to it, as far as that needs no
/// JavaScript; everything else it passes on to the server behind it.
#[napi]
pub struct Front {
    front: Arc<front::Front>,
    key: u32,
    waiters: Rc<Waiters>,
}

/// What is behind the front.
fn app_of(app: &str) -> Result<AppAddress> {
    if let Ok(address) = app.parse() {
        return Ok(AppAddress::Tcp(address));
    }
    #[cfg(unix)]
    return Ok(AppAddress::Unix(app.into()));
    #[cfg(not(unix))]
    Err(invalid("app must be an address and a port".to_owned()))
}

/// Removes a socket, and the folder in which it was alone.
fn remove_socket(app: &Path) {
    let _ = fs::remove_file(app);
    if let Some(folder) = app.parent() {
        let _ = fs::remove_dir(folder);
    }
}

#[napi]
impl Front {
    /// Listens. Throws with the system's code where that is not possible.
    #[napi(constructor)]
    pub fn new(env: &Env, engine: &Engine, options: FrontOptions) -> Result<Self> {
        let FrontOptions { address, port, reuse_port, app } = options;
        let ip: IpAddr = address.parse().map_err(|_| invalid(format!("{address} is no IP address")))?;
        let mut chosen = front::FrontOptions::new(app_of(&app)?);
        chosen.addresses.push(SocketAddr::new(ip, port));
        chosen.reuse_port = reuse_port;
        let waiters = engine.woken_elsewhere(env)?;
        let key = waiters.key();
        let started = front::Front::start(engine.engine().clone(), chosen, waiters.wake(), u64::from(key));
        let front = Arc::new(started.map_err(|error| not_listening(&error, &address, port))?);
        // A thread of JavaScript that ends does not wait for its objects.
        let hook = move |front: Weak<front::Front>| {
            if let Some(front) = front.upgrade() {
                front.close(0);
            }
            remove_socket(Path::new(&app));
        };
        env.add_env_cleanup_hook(Arc::downgrade(&front), hook).map_err(internal)?;
        Ok(Self { front, key, waiters: Rc::clone(waiters) })
    }

    /// Where it listens.
    #[napi(getter)]
    pub fn port(&self) -> u16 {
        self.front.addresses().first().map_or(0, SocketAddr::port)
    }

    /// What the waiters know it as: it is woken when `take` has something.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// From now on the front serves the requests of a session, until that ends.
    #[napi(catch_unwind)]
    pub fn serve(&self, session: &Session, terms: FrontTerms) {
        let FrontTerms { path, json_response, allowed_hosts, allowed_origins, max_body_bytes } = terms;
        let mut chosen = front::FrontTerms::new(path);
        chosen.json_response = json_response;
        (chosen.allowed_hosts, chosen.allowed_origins) = (allowed_hosts, allowed_origins);
        // Saturates: a bound may be infinite.
        chosen.max_body_bytes = max_body_bytes as usize;
        session.on_terms(json_response, |terms| {
            chosen.session_id = terms.session_id.map(str::to_owned);
            chosen.versions =
                terms.versions.map(|versions| versions.iter().map(|&version| version.to_owned()).collect());
        });
        self.front.serve(session.handle(), chosen);
    }

    /// What came for the host, in order; and the names of sessions that are to be closed, as from `Engine.tick`.
    #[napi(catch_unwind)]
    pub fn take(&self) -> Vec<Either<Arrival, String>> {
        let arrival = |waiting: Waiting| {
            let (head, waiters) = (head_of(waiting.asked()), Rc::clone(&self.waiters));
            Arrival { head, waiting: RefCell::new(Some(waiting)), waiters }
        };
        let taken = self.front.take().into_iter().filter_map(|arrived| match arrived {
            front::Arrival::Idle(session) => Some(Either::B(session.name().to_owned())),
            front::Arrival::Call(call) if is_plain(&call) => Some(Either::A(arrival(Waiting::Call(call)))),
            front::Arrival::Message(message) if is_plain(&message) => {
                Some(Either::A(arrival(Waiting::Message(message))))
            }
            // What is dropped is declined.
            front::Arrival::Call(_) | front::Arrival::Message(_) => None,
        });
        taken.collect()
    }

    /// Takes no further connections. Answers that are under way go on.
    #[napi(catch_unwind)]
    pub fn stop(&self) {
        self.front.stop();
    }

    /// Stops, waits so long for answers, and cuts what is left. Resolves once its threads have ended.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn close(&self, within_ms: u32) -> AsyncTask<Closing> {
        AsyncTask::new(Closing { front: Arc::clone(&self.front), within_ms })
    }
}

/// Whether every header is there once: Node has rules of its own for others.
fn is_plain(asked: &Asked) -> bool {
    asked.parts().headers.len() == asked.parts().headers.keys_len()
}

fn not_listening(error: &io::Error, address: &str, port: u16) -> crate::convert::Error {
    let why = if error.kind() == io::ErrorKind::AddrInUse {
        "another process listens there. Several processes share a port if all of them say reusePort: true".to_owned()
    } else {
        error.to_string()
    };
    of_system(error, format!("port {port} of {address} cannot be listened on: {why}"))
}

/// A front that closes, on a thread where that holds up nobody.
pub struct Closing {
    front: Arc<front::Front>,
    within_ms: u32,
}

impl Task for Closing {
    type Output = ();
    type JsValue = ();

    fn compute(&mut self) -> napi::Result<()> {
        self.front.close(u64::from(self.within_ms));
        Ok(())
    }

    fn resolve(&mut self, _env: Env, (): ()) -> napi::Result<()> {
        Ok(())
    }
}

enum Waiting {
    Call(front::Call),
    Message(front::Message),
}

impl Waiting {
    fn asked(&self) -> &Asked {
        match self {
            Self::Call(call) => call,
            Self::Message(message) => message,
        }
    }
}

/// A POST that the front has read, and that its session admits. Its host settles it: by `begin` of a call, by `done` of messages
/// without an answer, or by `decline`.
#[napi]
pub struct Arrival {
    /// Handlers may read it as long as they run. The body is not kept as long.
    head: String,
    waiting: RefCell<Option<Waiting>>,
    waiters: Rc<Waiters>,
}

impl Arrival {
    fn of<T>(&self, with: impl FnOnce(&Asked) -> T) -> Result<T> {
        let waiting = self.waiting.borrow();
        let waiting = waiting.as_ref().ok_or_else(|| invalid("the request is settled".to_owned()))?;
        Ok(with(waiting.asked()))
    }
}

/// The URL of a request; then each header's name, in lower case, and its value: a line for each.
fn head_of(asked: &Asked) -> String {
    let parts = asked.parts();
    // As Node reads them: each byte is a character.
    let characters = |value: &http::HeaderValue| value.as_bytes().iter().copied().map(char::from).collect::<String>();
    let host = parts.headers.get(http::header::HOST).map_or_else(|| "localhost".to_owned(), characters);
    let mut head = format!("http://{host}{}", parts.uri);
    for (name, value) in &parts.headers {
        head.push('\n');
        head.push_str(name.as_str());
        head.push('\n');
        head.extend(value.as_bytes().iter().copied().map(char::from));
    }
    head
}

#[napi]
impl Arrival {
    /// The name of its session, the facts of its admission, and its body as the handlers are to take it: a line for each of the
    /// first two, and the rest. One text, because each property costs more than what it says.
    #[napi(getter)]
    pub fn text(&self) -> Result<String> {
        self.of(|asked| {
            let facts = facts_of(asked.admission());
            format!("{}\n{facts}\n{}", asked.session().name(), String::from_utf8_lossy(asked.body()))
        })
    }

    #[napi(getter)]
    pub fn admission(&self) -> Result<Admission> {
        self.of(|asked| Admission(asked.admission().clone()))
    }

    /// The URL; then each header's name, in lower case, and its value: a line for each.
    #[napi(getter)]
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Opens the answer to a call. False where that is refused, behind the front, and it is not to be dispatched.
    #[napi(catch_unwind)]
    pub fn begin(&self, env: &Env) -> bool {
        let begun = match self.waiting.take() {
            Some(Waiting::Call(call)) => call.open(),
            _ => false,
        };
        self.waiters.flush(env);
        begun
    }

    /// The handlers have been given messages without an answer.
    #[napi]
    pub fn done(&self) {
        if let Some(Waiting::Message(message)) = self.waiting.take() {
            message.accept();
        }
    }

    /// The host does not take it: it is served behind the front.
    #[napi]
    pub fn decline(&self) {
        self.waiting.take();
    }
}
