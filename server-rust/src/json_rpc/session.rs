//! One session of a server without an SDK.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailrope_core::engine::{EngineError, OutgoingKind, OutgoingMessage, SessionHandle};
use tailrope_core::exchange::Admission;
use tailrope_core::protocol::{Envelope, Kind, RequestId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::hearing::Hear;
use crate::host::Host;
use crate::json_rpc::{Call, Handler, RpcError};
use crate::outcomes::Outcomes;
use crate::panics;
use crate::service::{Begun, Handlers, Posts, serve_posted};
use crate::table::Table;

type Answer = Result<Value, RpcError>;

/// What handlers send messages with.
pub(crate) struct Line {
    pub(crate) session: SessionHandle,
    host: Arc<Host>,
    outcomes: Outcomes,
    asked: Mutex<Asked>,
}

/// Questions without an answer.
#[derive(Default)]
struct Asked {
    last: i64,
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
}

/// One session.
pub struct Session<H: Handler> {
    /// None when the session has ended.
    life: Mutex<Option<Arc<Life<H>>>>,
    line: Arc<Line>,
    cancels: Arc<Mutex<Cancels>>,
    table: Weak<Table<Self>>,
    posts: Posts,
}

/// Shared by the session and all that its handler does for it. When the last of these is over, the handler hears of the
/// end.
struct Life<H: Handler> {
    handler: Arc<H>,
    line: Arc<Line>,
    runtime: Handle,
}

impl<H: Handler> Drop for Life<H> {
    fn drop(&mut self) {
        let (handler, line) = (Arc::clone(&self.handler), Arc::clone(&self.line));
        // Not here: this may be a thread of a store, and the handler is the user's.
        self.runtime.spawn(async move { handler.ended(line.session.id()) });
    }
}

/// Why a request comes to its handler.
enum Why {
    /// It is the `initialize` that opens the session.
    Opens,
    /// The client has sent it to handlers before these: the session was adopted.
    Replayed,
    Sent,
}

/// What tells running requests that they are cancelled.
type Cancels = HashMap<RequestId, Arc<Notify>>;

/// A request whose handler runs. When this is dropped, the answer is sent, if there is one.
struct Running {
    line: Arc<Line>,
    cancels: Arc<Mutex<Cancels>>,
    id: RequestId,
    answer: Option<Answer>,
    why: Why,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.cancels).remove(&self.id);
        let session = &self.line.session;
        let is_opened = match self.answer.take() {
            Some(answer) => {
                let is_result = answer.is_ok();
                self.line.respond(&self.id, answer);
                is_result
            }
            None if thread::panicking() => {
                panics::answer_for(session, &self.id);
                false
            }
            // The request was cancelled, or the session has ended: the engine has given the request its end.
            None => return,
        };
        match self.why {
            // No client goes on with a session that was refused.
            Why::Opens if !is_opened => session.end_at_rest(),
            Why::Replayed if !is_opened => {
                tracing::error!(
                    target: "tailrope", session = session.name(),
                    "a session was not adopted: the handler refuses the `initialize` of its client"
                );
                session.release();
            }
            _ => {}
        }
    }
}

/// A message, as it was read.
pub struct Message {
    kind: Kind,
    method: Option<String>,
    id: Option<RequestId>,
    parts: Parts,
    params: Value,
    answer: Option<Answer>,
}

fn json_at<T: DeserializeOwned>(body: &[u8], range: &Range<usize>) -> Result<T, String> {
    serde_json::from_slice(&body[range.clone()]).map_err(|error| error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: Handler> Session<H> {
    pub(crate) fn new(handler: Arc<H>, begun: &Begun<'_, Self>) -> Arc<Self> {
        let line = Arc::new(Line {
            session: begun.session.clone(),
            host: Arc::clone(begun.host),
            outcomes: Outcomes::default(),
            asked: Mutex::default(),
        });
        let session = Arc::new(Self {
            life: Mutex::new(Some(Arc::new(Life { handler, line: Arc::clone(&line), runtime: Handle::current() }))),
            line,
            cancels: Arc::default(),
            table: Arc::downgrade(begun.table),
            posts: Posts::new(begun.terms, begun.path),
        });
        begun.ears.listen(Arc::downgrade(&session) as Weak<dyn Hear>);
        Arc::clone(&session).hear();
        session
    }
}

impl<H: Handler> Session<H> {
    /// Runs the handler of a request. Returns false if the session has ended.
    fn begin(&self, message: Message, why: Why) -> bool {
        let Message { id: Some(id), method: Some(method), parts, params, .. } = message else { return false };
        let cancelled = Arc::new(Notify::new());
        let life = {
            let life = lock(&self.life);
            let Some(life) = &*life else { return false };
            // Under the lock, so that the end of the session finds it.
            lock(&self.cancels).insert(id.clone(), Arc::clone(&cancelled));
            Arc::clone(life)
        };
        let (line, cancels) = (Arc::clone(&self.line), Arc::clone(&self.cancels));
        let call = Call { line: Arc::clone(&line), id: id.clone(), method, params, parts };
        let running = Running { line, cancels, id, answer: None, why };
        self.posts.runtime().spawn(async move {
            // Dropped after the request has its answer.
            let life = life;
            let mut running = running;
            tokio::select! {
                biased;
                () = cancelled.notified() => {}
                answer = life.handler.call(call) => running.answer = Some(answer),
            }
        });
        true
    }

    /// Tells the handler of a notification. Returns false if the session has ended.
    fn notify(&self, method: &str, params: Value) -> bool {
        let Some(life) = lock(&self.life).clone() else { return false };
        life.handler.notified(self.line.session.id(), method, params);
        true
    }
}

impl<H: Handler> Hear for Session<H> {
    fn hear(self: Arc<Self>) {
        self.line.outcomes.settle(self.line.session.take_outcomes());
        serve_posted(&self);
        if self.line.session.has_ended() {
            // The session has ended, so nobody can get an answer any more.
            let life = lock(&self.life).take();
            lock(&self.cancels).drain().for_each(|(_, cancelled)| cancelled.notify_one());
            lock(&self.line.asked).waiting.clear();
            if let Some(table) = self.table.upgrade() {
                table.remove(self.line.session.id());
            }
            drop(life);
        }
    }
}

impl<H: Handler> Handlers for Session<H> {
    type Message = Message;

    fn session(&self) -> &SessionHandle {
        &self.line.session
    }

    fn posts(&self) -> &Posts {
        &self.posts
    }

    fn read(&self, parts: Parts, envelope: &Envelope, body: &[u8]) -> Result<Message, String> {
        #[derive(Deserialize)]
        struct Wire {
            result: Option<Value>,
            error: Option<WireError>,
        }
        #[derive(Deserialize)]
        struct WireError {
            code: i32,
            message: String,
            data: Option<Value>,
        }
        let answer = match envelope.kind {
            Kind::Request | Kind::Notification => None,
            Kind::Response | Kind::ErrorResponse => {
                let Wire { result, error } = json_at(body, &envelope.range)?;
                let error = error.map(|WireError { code, message, data }| Err(RpcError { code, message, data }));
                error.or_else(|| result.map(Ok))
            }
        };
        let params = if envelope.params.is_empty() { Value::Null } else { json_at(body, &envelope.params)? };
        let Envelope { kind, method, id, .. } = envelope;
        Ok(Message { kind: *kind, method: method.clone(), id: id.clone(), parts, params, answer })
    }

    fn has_room(&self) -> bool {
        // A request begins at once; the engine bounds how many run.
        true
    }

    fn room(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn call(&self, message: Message) -> bool {
        self.begin(message, Why::Sent)
    }

    fn open(&self, message: Message) {
        self.begin(message, Why::Opens);
    }

    fn replay(&self, message: Message) {
        if message.kind == Kind::Request {
            self.begin(message, Why::Replayed);
        } else if let Some(method) = message.method {
            self.notify(&method, message.params);
        }
    }

    fn take(&self, admission: &Admission, message: Message) -> bool {
        let session = &self.line.session;
        session.received(admission);
        let Message { kind, method, id, params, answer, .. } = message;
        match (kind, id, method) {
            (Kind::Response | Kind::ErrorResponse, Some(id), _) => {
                let asker = lock(&self.line.asked).waiting.remove(&id);
                if let (Some(asker), Some(answer)) = (asker, answer) {
                    // The handler may have stopped waiting.
                    let _ = asker.send(answer);
                }
            }
            (Kind::Notification, _, Some(method)) if method != "notifications/cancelled" => {
                self.notify(&method, params);
            }
            _ => {}
        }
        session.dispatched(admission);
        for request in admission.cancelled() {
            if let Some(cancelled) = lock(&self.cancels).remove(request) {
                cancelled.notify_one();
            }
        }
        !session.has_ended()
    }
}

impl Line {
    pub(crate) async fn notify(
        &self,
        related: Option<&RequestId>,
        method: &str,
        params: &Value,
    ) -> Result<(), EngineError> {
        let payload = json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into();
        let message = OutgoingMessage { kind: OutgoingKind::Notification, id: None, related, payload };
        self.send(message).await
    }

    pub(crate) async fn ask(&self, related: &RequestId, method: &str, params: &Value) -> Answer {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut asked = lock(&self.asked);
            asked.last += 1;
            let number = asked.last;
            asked.waiting.insert(RequestId::integer(number), sender);
            number
        };
        let question = Question { line: self, id: RequestId::integer(number) };
        let payload = json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params }).to_string().into();
        let kind = OutgoingKind::Request;
        let message = OutgoingMessage { kind, id: Some(&question.id), related: Some(related), payload };
        self.send(message).await?;
        answer.await.unwrap_or_else(|_| Err(EngineError::SessionEnded.into()))
    }

    fn respond(&self, id: &RequestId, answer: Answer) {
        let rest = match answer {
            Ok(result) => format!(r#""result":{result}"#),
            Err(RpcError { code, message, data }) => {
                let mut error = json!({ "code": code, "message": message });
                if let Some(data) = data {
                    error["data"] = data;
                }
                format!(r#""error":{error}"#)
            }
        };
        // Written as text: an integer may have more digits than any integer type of ours.
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{},{rest}}}"#, id.to_json()).into();
        let message = OutgoingMessage { kind: OutgoingKind::Response, id: Some(id), related: None, payload };
        // The engine answers for a response that is not stored (I9).
        let _ = self.session.send(message);
    }

    async fn send(&self, message: OutgoingMessage<'_>) -> Result<(), EngineError> {
        let sending = self.session.send_in_turn(message, 0);
        self.outcomes.finish(sending, &self.host).await
    }
}

/// A question that the client was asked. If its handler is dropped, nobody waits for the answer.
struct Question<'a> {
    line: &'a Line,
    id: RequestId,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        lock(&self.line.asked).waiting.remove(&self.id);
    }
}
