//! One stream and its connections, one after the other.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt as _, unfold};
use tailrope_core::Ms;
use tailrope_core::client::{Failure, Input, Message, Opening, Options, ResumableStream, Step, Token};
use tailrope_core::protocol::RequestId;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

/// How long the rest of an HTTP answer is read when the stream has finished, so that its connection can be used again.
const LINGER: Duration = Duration::from_secs(1);

/// The body of an answer. An error means that the connection broke; why does not matter.
pub(crate) type Body = BoxStream<'static, Result<Bytes, ()>>;

/// The outcome of a GET.
pub(crate) enum Connected {
    Answer { status: u16, content_type: Option<String>, retry_after_ms: Option<u64>, body: Body },
    Broken,
}

/// Makes the connections of a stream.
pub(crate) trait Connect: Send + 'static {
    fn connect(&mut self, last_event_id: Option<String>) -> BoxFuture<'static, Connected>;
}

/// What a stream tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The stream began with a GET, and was answered with an event stream for the first time.
    Opened,
    /// A JSON-RPC message, or an array of them, as JSON text. `event` is its type, unless that is `message`.
    Message {
        /// The type that the event names.
        event: Option<String>,
        /// The data.
        data: String,
    },
    /// The server lost this many events of the stream.
    Gap {
        /// The position of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The server refused the cursor of the standalone stream: what it sent meanwhile is lost.
    CursorLost,
    /// The stream does not go on. Nothing follows.
    Failed {
        /// Why.
        failure: Failure,
        /// The requests that got no answer.
        unanswered: Vec<RequestId>,
    },
}

/// Requests of a stream that nobody waits for any more.
pub(crate) type Cancelled = mpsc::UnboundedReceiver<RequestId>;

/// The requests that streams wait for, or that are on their way, by endpoint and session: ids are unique only within a
/// session.
#[derive(Clone, Default)]
pub(crate) struct Cancels(Arc<Mutex<Vec<Waiting>>>);

struct Waiting {
    scope: (String, Option<String>),
    requests: Vec<RequestId>,
    cancel: mpsc::UnboundedSender<RequestId>,
}

impl Cancels {
    /// From now on cancellations of these requests reach the receiver, until it is dropped.
    pub(crate) fn register(&self, uri: &str, session: Option<&str>, requests: &[RequestId]) -> Cancelled {
        let (cancel, cancelled) = mpsc::unbounded_channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|one| !one.cancel.is_closed());
        let scope = (uri.to_owned(), session.map(str::to_owned));
        waiting.push(Waiting { scope, requests: requests.to_vec(), cancel });
        cancelled
    }

    pub(crate) fn cancel(&self, uri: &str, session: Option<&str>, requests: &[RequestId]) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for one in waiting.iter().filter(|one| one.scope.0 == uri && one.scope.1.as_deref() == session) {
            for request in requests.iter().filter(|request| one.requests.contains(request)) {
                // An error means that the stream has ended.
                let _ = one.cancel.send(request.clone());
            }
        }
    }
}

/// For streams whose requests are not known.
pub(crate) fn never_cancelled() -> Cancelled {
    mpsc::unbounded_channel().1
}

/// The events of one stream, over all its connections. Dropping it lets go of the stream at once, even during a wait.
pub struct Events {
    events: BoxStream<'static, Event>,
    /// The newest token that can be saved.
    token: tokio::sync::watch::Receiver<Option<Token>>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// What another process needs to continue the stream. It is never ahead of the events that were taken, so the last
    /// of them may come again. None while there is no cursor, and when the stream has ended. The caller adds the
    /// session and its revision.
    pub fn token(&self) -> Option<Token> {
        self.token.borrow().clone()
    }

    /// Runs the stream. `body` is the answer of a POST, if that was a stream.
    pub(crate) fn run(
        opening: Opening,
        options: Options,
        connect: impl Connect,
        body: Option<Body>,
        cancelled: Cancelled,
    ) -> Self {
        let (save, token) = tokio::sync::watch::channel(None);
        let started = Instant::now();
        let mut steps = Vec::new();
        let machine = ResumableStream::new(Ms(0), opening, options, &mut steps);
        let mut driver = Driver {
            machine,
            connect,
            started,
            connection: body.map_or(Connection::None, Connection::Open),
            ready: VecDeque::new(),
            cancelled,
            save,
        };
        driver.perform(steps);
        let events = unfold(driver, |mut driver| async move { driver.next().await.map(|event| (event, driver)) });
        Self { events: events.boxed(), token }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next_unpin(cx)
    }
}

enum Connection {
    None,
    Making(BoxFuture<'static, Connected>),
    Open(Body),
}

struct Driver<C> {
    machine: ResumableStream,
    connect: C,
    started: Instant,
    connection: Connection,
    ready: VecDeque<Event>,
    cancelled: Cancelled,
    save: tokio::sync::watch::Sender<Option<Token>>,
}

enum Happened {
    Made(Connected),
    Chunk(Option<Result<Bytes, ()>>),
    Cancelled(RequestId),
    Due,
}

impl<C: Connect> Driver<C> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if self.ready.is_empty() {
                    self.save_token();
                }
                return Some(event);
            }
            self.save_token();
            if self.machine.is_done() {
                return None;
            }
            match self.happened().await {
                Happened::Made(Connected::Broken) => {
                    self.connection = Connection::None;
                    self.input(Input::Broken);
                }
                Happened::Made(Connected::Answer { status, content_type, retry_after_ms, body }) => {
                    self.connection = Connection::Open(body);
                    self.input(Input::Head { status, content_type: content_type.as_deref(), retry_after_ms });
                }
                Happened::Chunk(Some(Ok(bytes))) => self.input(Input::Bytes(&bytes)),
                Happened::Chunk(ended) => {
                    self.connection = Connection::None;
                    self.input(if ended.is_none() { Input::End } else { Input::Broken });
                }
                Happened::Cancelled(request) => self.input(Input::Cancelled(request)),
                Happened::Due => self.input(Input::Tick),
            }
        }
    }

    /// Nothing is lost if this future is dropped halfway: everything in it can be polled again.
    async fn happened(&mut self) -> Happened {
        let due = self.machine.deadline();
        // A time that a timer cannot hold never comes.
        let due = (due != Ms::NEVER).then(|| self.started.checked_add(Duration::from_millis(due.0))).flatten();
        let connection = &mut self.connection;
        let connected = async {
            match connection {
                Connection::None => pending().await,
                Connection::Making(making) => Happened::Made(making.await),
                Connection::Open(body) => Happened::Chunk(body.next().await),
            }
        };
        let tick = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(request) = self.cancelled.recv() => Happened::Cancelled(request),
            happened = connected => happened,
            () = tick => Happened::Due,
        }
    }

    fn input(&mut self, input: Input<'_>) {
        let now = u64::try_from(self.started.elapsed().as_millis()).map_or(Ms::NEVER, Ms);
        // Without randomness, clients come back together. That is a fault, but no reason to stop.
        let jitter = getrandom::u32().unwrap_or(0);
        let mut steps = Vec::new();
        self.machine.handle(now, jitter, input, &mut steps);
        self.perform(steps);
    }

    fn perform(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Connect { last_event_id } => {
                    tracing::debug!(target: "tailrope", attempt = self.machine.attempts(), "stream connects");
                    self.connection = Connection::Making(self.connect.connect(last_event_id));
                }
                Step::Opened => self.ready.push_back(Event::Opened),
                Step::Deliver(Message { event, data }) => self.ready.push_back(Event::Message { event, data }),
                Step::Gap { first, count } => self.ready.push_back(Event::Gap { first, count }),
                Step::CursorLost => self.ready.push_back(Event::CursorLost),
                Step::Disconnect => self.connection = Connection::None,
                Step::Finished => {
                    if let Connection::Open(body) = std::mem::replace(&mut self.connection, Connection::None) {
                        tokio::spawn(read_out(body));
                    }
                }
                Step::Failed(failure) => {
                    self.connection = Connection::None;
                    let unanswered = self.machine.requests().to_vec();
                    self.ready.push_back(Event::Failed { failure, unanswered });
                }
            }
        }
    }

    fn save_token(&self) {
        let token = self.machine.token();
        self.save.send_if_modified(|saved| {
            let is_new = *saved != token;
            *saved = token;
            is_new
        });
    }
}

async fn read_out(mut body: Body) {
    let _ = timeout(LINGER, async { while let Some(Ok(_)) = body.next().await {} }).await;
}
