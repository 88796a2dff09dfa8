//! One session that rmcp serves here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;
use rmcp::model::{
    ClientJsonRpcMessage, Extensions, GetExtensions as _, GetMeta as _, JsonRpcMessage, ProgressToken,
    RequestId as RmcpId, ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::OriginatingRequestId;
use tailrope_core::engine::{EngineError, OutgoingKind, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::exchange::{Admission, Pause};
use tailrope_core::protocol::{Kind, RequestId};
use tokio::sync::oneshot;

use crate::hearing::Hear;
use crate::host::Host;
use crate::outcomes::{Outcomes, Sending};
use crate::panics;
use crate::rmcp::context::Control;
use crate::rmcp::ids::request_id;
use crate::rmcp::inbox::Inbox;
use crate::rmcp::lean;
use crate::rmcp::messages::json;
use crate::rmcp::recent::Recent;
use crate::service::{Begun, Posts, serve_posted};
use crate::table::Table;

pub struct Served {
    pub(crate) session: SessionHandle,
    pub(crate) inbox: Inbox,
    outcomes: Outcomes,
    routes: Arc<Mutex<Routes>>,
    /// None if the session's readers take the JSON.
    pub(crate) recent: Option<Arc<Recent>>,
    initializing: Mutex<Option<(RmcpId, oneshot::Sender<ServerJsonRpcMessage>)>>,
    host: Arc<Host>,
    table: Weak<Table<Self>>,
    pub(crate) posts: Posts,
    has_left: AtomicBool,
    pub(crate) has_answered: AtomicBool,
    /// The first answer, to `initialize`, was an error.
    is_refused: AtomicBool,
}

/// A request that has come to its handler.
pub(crate) struct Running {
    pub(crate) session: SessionHandle,
    pub(crate) request: RequestId,
    routes: Arc<Mutex<Routes>>,
}

impl Running {
    /// Its handler has panicked. rmcp tells nobody of it.
    pub(crate) fn answer_for_panic(&self) {
        lock(&self.routes).forget(&self.request);
        panics::answer_for(&self.session, &self.request);
    }
}

/// Which request a message belongs to, for messages that do not say so themselves.
#[derive(Default)]
struct Routes {
    /// Looked up for each progress message. Clients choose the keys, so the hash has a secret.
    by_token: HashMap<ProgressToken, RequestId, RandomState>,
    /// For each question of the server: the client's request that it is related to.
    questions: HashMap<RequestId, RequestId>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("session", &self.session.id()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Served {
    pub(crate) fn new(begun: &Begun<'_, Self>, recent: Option<Arc<Recent>>) -> Arc<Self> {
        let served = Arc::new(Self {
            session: begun.session.clone(),
            inbox: Inbox::default(),
            outcomes: Outcomes::default(),
            routes: Arc::default(),
            recent,
            initializing: Mutex::default(),
            host: Arc::clone(begun.host),
            table: Arc::downgrade(begun.table),
            posts: Posts::new(begun.terms, begun.path),
            has_left: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
        });
        begun.ears.listen(Arc::downgrade(&served) as Weak<dyn Hear>);
        // Something may have happened before there was a listener.
        Arc::clone(&served).hear();
        served
    }

    /// rmcp's loop has ended. If the store outlives the process, other processes can go on with the session. Returns
    /// false if it was called before.
    pub(crate) fn leave(&self) -> bool {
        if self.has_left.swap(true, Ordering::SeqCst) {
            return false;
        }
        let left = self.inbox.close();
        if self.is_refused.load(Ordering::SeqCst) {
            // Requests that came behind the refused `initialize` have nobody to answer them (I13).
            left.iter().for_each(|message| self.unanswered(message));
            self.session.end_at_rest();
        } else if !self.session.has_ended() {
            // A session that has ended is not left to other processes.
            self.session.release();
        }
        true
    }

    /// Gives a request that is in flight to the handlers.
    pub(crate) fn begin(&self, mut message: ClientJsonRpcMessage) -> bool {
        let mut requested = None;
        if let JsonRpcMessage::Request(request) = &mut message {
            let id = request_id(&request.id);
            requested = Some(id.clone());
            if let Some(token) = request.request.get_meta().get_progress_token() {
                lock(&self.routes).by_token.insert(token, id.clone());
            }
            let running = Running { session: self.session.clone(), request: id, routes: Arc::clone(&self.routes) };
            request.request.extensions_mut().insert(Control::new(running));
        }
        let is_taken = self.inbox.put(message);
        if let Some(id) = requested.filter(|_| !is_taken) {
            // The session may go on until nothing runs in it.
            self.session.cancelled(&id);
        }
        is_taken
    }

    /// A message will not be taken: a request gets its end.
    fn unanswered(&self, message: &ClientJsonRpcMessage) {
        if let JsonRpcMessage::Request(request) = message {
            self.session.cancelled(&request_id(&request.id));
        }
    }

    /// Gives a message that has no answer to the handlers.
    pub(crate) fn pass_on(&self, admission: &Admission, message: ClientJsonRpcMessage) -> bool {
        self.session.received(admission);
        let answers = |kind| matches!(kind, Kind::Response | Kind::ErrorResponse);
        for envelope in admission.envelopes().iter().filter(|envelope| answers(envelope.kind)) {
            envelope.id.as_ref().map(|id| lock(&self.routes).questions.remove(id));
        }
        let is_taken = self.inbox.put(message);
        self.session.dispatched(admission);
        for request in admission.cancelled() {
            lock(&self.routes).forget(request);
        }
        is_taken
    }

    /// Receives the answer to the `initialize` with this id, in rmcp's type.
    pub(crate) fn initialized(&self, id: RmcpId) -> oneshot::Receiver<ServerJsonRpcMessage> {
        let (sender, answer) = oneshot::channel();
        *lock(&self.initializing) = Some((id, sender));
        answer
    }

    /// Sends a message of the server.
    pub(crate) fn send(&self, mut message: ServerJsonRpcMessage) -> Sending {
        let payload = lean::write_progress(&mut message).map_or_else(|| json(&message), Into::into);
        let (mut kind, mut id, mut related) = (OutgoingKind::Notification, None, None);
        match &message {
            JsonRpcMessage::Response(response) => (kind, id) = (OutgoingKind::Response, Some(request_id(&response.id))),
            JsonRpcMessage::Error(error) => (kind, id) = (OutgoingKind::Response, error.id.as_ref().map(request_id)),
            JsonRpcMessage::Request(request) => {
                (kind, id) = (OutgoingKind::Request, Some(request_id(&request.id)));
                related = originating(request.request.extensions());
                if let (Some(id), Some(related)) = (&id, &related) {
                    lock(&self.routes).questions.insert(id.clone(), related.clone());
                }
            }
            JsonRpcMessage::Notification(sent) => related = lock(&self.routes).related(&sent.notification),
        }
        let recent = self.recent.as_ref().map(|recent| (recent, payload.clone()));
        let outgoing = OutgoingMessage { kind, id: id.as_ref(), related: related.as_ref(), payload };
        let sent = self.session.send_in_turn(outgoing, 0);
        if let Some(id) = id.filter(|_| kind == OutgoingKind::Response) {
            lock(&self.routes).forget(&id);
            if !self.has_answered.swap(true, Ordering::SeqCst) {
                self.is_refused.store(matches!(message, JsonRpcMessage::Error(_)), Ordering::SeqCst);
            }
        }
        let waiter = if kind == OutgoingKind::Response { self.initialize_waiter(&message) } else { None };
        match (waiter, recent) {
            // The waiter may be gone, with its client.
            (Some(waiter), _) => drop(waiter.send(message)),
            (None, Some((recent, json))) => recent.keep(json, message),
            (None, None) => {}
        }
        match kind {
            // The engine answers for a response that is not stored (I9).
            OutgoingKind::Response => Ok(sent.unwrap_or((Sent::Dropped, Pause::None))),
            OutgoingKind::Request | OutgoingKind::Notification => sent,
        }
    }

    /// The waiter for this message, if it is the answer to `initialize`.
    fn initialize_waiter(&self, message: &ServerJsonRpcMessage) -> Option<oneshot::Sender<ServerJsonRpcMessage>> {
        let answered = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        let is_it = |initializing: &mut (RmcpId, _)| Some(&initializing.0) == answered;
        lock(&self.initializing).take_if(is_it).map(|(_, waiter)| waiter)
    }

    /// Waits until the sender may go on. Returns the outcome.
    pub(crate) async fn finish(&self, sending: Sending) -> Result<(), EngineError> {
        self.outcomes.finish(sending, &self.host).await
    }
}

impl Routes {
    /// The request that a notification belongs to.
    fn related(&mut self, notification: &ServerNotification) -> Option<RequestId> {
        if let Some(related) = originating(notification.extensions()) {
            return Some(related);
        }
        match notification {
            ServerNotification::ProgressNotification(progress) => {
                self.by_token.get(&progress.params.progress_token).cloned()
            }
            // It cancels a question of the server, and goes where the question went.
            ServerNotification::CancelledNotification(cancelled) => {
                self.questions.remove(&request_id(cancelled.params.request_id.as_ref()?))
            }
            _ => None,
        }
    }

    /// Forgets a request that has its end.
    fn forget(&mut self, request: &RequestId) {
        self.by_token.retain(|_, related| related != request);
        self.questions.retain(|_, related| related != request);
    }
}

impl Hear for Served {
    fn hear(self: Arc<Self>) {
        self.outcomes.settle(self.session.take_outcomes());
        serve_posted(&self);
        if self.session.has_ended() {
            self.inbox.close();
            lock(&self.initializing).take();
            if let Some(table) = self.table.upgrade() {
                table.remove(self.session.id());
            }
        }
    }
}

fn originating(extensions: &Extensions) -> Option<RequestId> {
    extensions.get::<OriginatingRequestId>().map(|originating| request_id(&originating.0))
}
