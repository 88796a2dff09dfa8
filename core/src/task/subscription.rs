//! The answer to a `subscriptions/listen` that names tasks: the SDK's stream of events, with what becomes of the tasks between
//! its events (T-24, T-25).
//!
//! ```text
//!              the acknowledgement is there, and        the SDK's end, a drain,
//!              each task was found or not               or all tasks are over
//!   unacknowledged ───────────────────────────▶ open ───────────────────────────▶ over
//!        │ the SDK does not acknowledge
//!        └──▶ passing: the SDK's bytes, and nothing of ours
//! ```
//!
//! Of a task only its newest state waits, however slow the reader is. An SDK that has nothing of its own to tell may end its stream
//! at once. That says nothing of the tasks, so its last word waits until they are over.

use bytes::Bytes;

use super::declaration::{subscribed_tasks, with_subscribed_tasks};
use super::id::TaskId;
use super::json::{known_member, member, text};
use super::reply::SILENCE_MS;
use super::run_reader::is_stream;
use super::status::{Status, Task};
use super::view::notification;
use crate::Ms;
use crate::protocol::fields::entries;
use crate::protocol::jsonrpc::{self, INVALID_PARAMS};
use crate::protocol::sse_blocks::Blocks;
use crate::protocol::sse_decoder::{Decoder, Item};
use crate::protocol::{Body, Kind, Refusal, RequestId, sse};

/// The tasks that one subscription may name.
pub const MAX_SUBSCRIBED_TASKS: usize = 64;
/// Bytes that are given at once, unless one notification has more.
const MAX_GIVEN_BYTES: usize = 64 << 10;

/// A subscription to tasks. See the module's diagram.
#[derive(Debug)]
pub struct Subscription {
    request: RequestId,
    tasks: Vec<Followed>,
    stage: Stage,
    blocks: Blocks,
    max_event_bytes: usize,
    /// The last bytes given are the beginning of an event of the SDK that is longer than may be.
    is_inside: bool,
    /// The SDK has agreed to nothing.
    is_bare: bool,
    /// The SDK's last word. Of one that has agreed to nothing it waits until the tasks are over.
    last: Option<Vec<u8>>,
    has_ended: bool,
    is_draining: bool,
    last_write: Ms,
}

#[derive(Debug)]
enum Stage {
    /// With the acknowledgement, once it has come.
    Unacknowledged(Option<Vec<u8>>),
    Open,
    Passing,
    Over,
}

#[derive(Debug)]
struct Followed {
    /// The task that the request names.
    named: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Sought,
    /// There is no such task for this client, or not any more, or its end was told.
    Done,
    Known {
        id: TaskId,
        /// When the state that the client knows was there.
        seen: u64,
        /// What the client is to be told.
        due: Option<Box<Task>>,
    },
}

impl Subscription {
    /// Reads the request. None for what is no subscription to tasks.
    ///
    /// # Errors
    /// A refusal that names the request, for one that names too many tasks.
    pub fn read(body: &[u8], now: Ms, max_event_bytes: usize) -> Option<Result<Self, Refusal>> {
        let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return None };
        let named = subscribed_tasks(std::str::from_utf8(body.get(envelope.params)?).ok()?)?;
        let request = envelope.id.filter(|_| envelope.kind == Kind::Request)?;
        if named.len() > MAX_SUBSCRIBED_TASKS {
            let why = format!("Invalid params: a subscription may name {MAX_SUBSCRIBED_TASKS} tasks (`taskIds`)");
            return Some(Err(Refusal { request: Some(request), ..Refusal::new(400, INVALID_PARAMS, why) }));
        }
        let mut tasks: Vec<Followed> = Vec::new();
        for named in named {
            if tasks.iter().all(|task| task.named != named) {
                let state = if TaskId::parse(&named).is_some() { State::Sought } else { State::Done };
                tasks.push(Followed { named, state });
            }
        }
        Some(Ok(Self {
            request,
            tasks,
            stage: Stage::Unacknowledged(None),
            blocks: Blocks::default(),
            max_event_bytes,
            is_inside: false,
            is_bare: false,
            last: None,
            has_ended: false,
            is_draining: false,
            last_write: now,
        }))
    }

    /// The id of the request, which names the subscription.
    pub fn request(&self) -> &RequestId {
        &self.request
    }

    /// The tasks that are to be followed, with their numbers.
    pub fn sought(&self) -> impl Iterator<Item = (usize, TaskId)> {
        let sought = self.tasks.iter().enumerate().filter(|(_, task)| matches!(task.state, State::Sought));
        sought.filter_map(|(number, task)| Some((number, TaskId::parse(&task.named)?)))
    }

    /// Whether the task with this number concerns nobody any more.
    pub fn is_done(&self, number: usize) -> bool {
        matches!(self.stage, Stage::Passing | Stage::Over)
            || self.tasks.get(number).is_none_or(|task| matches!(task.state, State::Done))
    }

    /// How the task with this number stands now; none where there is none for this client. Whether there is something to tell.
    pub fn update(&mut self, number: usize, task: Option<&Task>) -> bool {
        let Some(followed) = self.tasks.get_mut(number) else { return false };
        match (&mut followed.state, task) {
            (State::Done, _) => return false,
            (state, None) => *state = State::Done,
            (State::Sought, Some(task)) => {
                let Some(id) = TaskId::parse(&followed.named) else { return false };
                // A call that runs changes by itself. Anything else may stay as it is for ever.
                let due = (task.status() != Status::Working).then(|| Box::new(task.clone()));
                followed.state = State::Known { id, seen: task.updated_at(), due };
            }
            (State::Known { seen, due, .. }, Some(task)) => {
                if task.updated_at() <= due.as_ref().map_or(*seen, |due| due.updated_at()) {
                    return false;
                }
                *due = Some(Box::new(task.clone()));
            }
        }
        true
    }

    /// The SDK's answer begins. False where it is no stream of events: it goes to the client as it is, and this is over.
    pub fn begin(&mut self, content_type: Option<&str>) -> bool {
        let is_stream = is_stream(content_type);
        if !is_stream {
            self.leave();
        }
        is_stream
    }

    /// Whether the next bytes of the SDK's stream are wanted.
    pub fn takes(&self) -> bool {
        !matches!(self.stage, Stage::Unacknowledged(Some(_)))
    }

    /// The next bytes of the SDK's stream.
    pub fn push(&mut self, chunk: &[u8]) {
        if !matches!(self.stage, Stage::Over) && self.last.is_none() {
            self.blocks.push(chunk);
        }
    }

    /// The SDK's stream is over.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// The host stops. The subscription ends once it is acknowledged.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Nobody is there who could be told.
    pub fn leave(&mut self) {
        self.stage = Stage::Over;
    }

    /// Nothing follows what [`next`](Self::next) gave.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// When [`next`](Self::next) has something to give though nothing happens: the SDK keeps its own stream alive.
    pub fn deadline(&self) -> Ms {
        if matches!(self.stage, Stage::Open) && self.has_ended { self.last_write + SILENCE_MS } else { Ms::NEVER }
    }

    /// The next bytes for the client; none until something happens. To be asked again until there are none.
    pub fn next(&mut self, now: Ms, unix_ms: u64) -> Option<Bytes> {
        let mut out = Vec::new();
        if let Stage::Unacknowledged(_) = self.stage {
            self.acknowledge(&mut out);
        }
        match self.stage {
            Stage::Open => self.interleave(now, unix_ms, &mut out),
            Stage::Passing => {
                out.extend(self.blocks.take_rest());
                if self.has_ended {
                    self.stage = Stage::Over;
                }
            }
            Stage::Unacknowledged(_) | Stage::Over => {}
        }
        if out.is_empty() {
            return None;
        }
        self.last_write = now;
        Some(out.into())
    }

    fn acknowledge(&mut self, out: &mut Vec<u8>) {
        let Stage::Unacknowledged(acknowledgement) = &mut self.stage else { return };
        while acknowledgement.is_none() {
            let Some(block) = self.blocks.next() else { break };
            match message_of(&block, self.max_event_bytes) {
                None => out.extend(block),
                Some(message) if is_acknowledgement(&message) => *acknowledgement = Some(block),
                Some(_) => {
                    out.extend(block);
                    self.stage = Stage::Passing;
                    return;
                }
            }
        }
        let Some(block) = acknowledgement else {
            if self.has_ended || self.blocks.len() > self.max_event_bytes {
                self.stage = Stage::Passing;
            }
            return;
        };
        if self.tasks.iter().any(|task| matches!(task.state, State::Sought)) {
            return;
        }
        let known = self.tasks.iter().filter(|task| matches!(task.state, State::Known { .. }));
        let agreed: Vec<&str> = known.map(|task| &*task.named).collect();
        let block = std::mem::take(block);
        let message = message_of(&block, self.max_event_bytes).unwrap_or_default();
        match with_subscribed_tasks(&message, &agreed) {
            Some(written) => {
                self.is_bare = agrees_to_nothing(&message);
                write_with_data(out, &block, written.as_bytes());
                self.stage = Stage::Open;
            }
            None => {
                out.extend(block);
                self.stage = Stage::Passing;
            }
        }
    }

    fn interleave(&mut self, now: Ms, unix_ms: u64, out: &mut Vec<u8>) {
        self.pass_events(out);
        if !self.is_inside {
            self.tell(unix_ms, out);
        }
        let has_tasks = self.tasks.iter().any(|task| !matches!(task.state, State::Done));
        let is_due = self.tasks.iter().any(|task| matches!(task.state, State::Known { due: Some(_), .. }));
        if is_due && !self.is_inside {
            return;
        }
        if self.is_draining {
            if !self.is_inside {
                let last = self.last.take().unwrap_or_else(|| self.last_word());
                out.extend(last);
            }
            self.stage = Stage::Over;
        } else if self.has_ended && (!self.is_bare || !has_tasks) {
            out.extend(self.last.take().unwrap_or_default());
            out.extend(self.blocks.take_rest());
            self.stage = Stage::Over;
        } else if out.is_empty() && self.deadline() <= now {
            sse::write_keep_alive(out);
        }
    }

    fn pass_events(&mut self, out: &mut Vec<u8>) {
        while let Some(block) = self.blocks.next() {
            if !self.is_inside && is_response(&block, self.max_event_bytes) {
                self.last = Some(block);
                self.has_ended = true;
                let _ = self.blocks.take_rest();
                return;
            }
            self.is_inside = false;
            out.extend(block);
        }
        if self.is_inside || self.blocks.len() > self.max_event_bytes {
            self.is_inside = true;
            out.extend(self.blocks.take_rest());
        }
    }

    fn tell(&mut self, unix_ms: u64, out: &mut Vec<u8>) {
        for task in &mut self.tasks {
            let State::Known { id, seen, due } = &mut task.state else { continue };
            if out.len() > MAX_GIVEN_BYTES {
                return;
            }
            let Some(due) = due.take() else { continue };
            *seen = due.updated_at();
            sse::write_anonymous(out, &notification(&self.request, id, &due, unix_ms));
            if due.end().is_some() {
                task.state = State::Done;
            }
        }
    }

    /// How a server ends a subscription on purpose.
    fn last_word(&self) -> Vec<u8> {
        let id = self.request.to_json();
        let meta = format!(r#"{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{meta}}}}}"#);
        let mut block = Vec::new();
        sse::write_anonymous(&mut block, message.as_bytes());
        block
    }
}

/// The message in a block of events.
fn message_of(block: &[u8], max_event_bytes: usize) -> Option<String> {
    let mut decoder = Decoder::new(max_event_bytes);
    decoder.push(block);
    while let Ok(Some(item)) = decoder.next() {
        if let Item::Event(event) = item
            && !event.data.is_empty()
        {
            return Some(event.data);
        }
    }
    None
}

fn is_acknowledgement(message: &str) -> bool {
    member(message, &["method"]).and_then(text).as_deref() == Some("notifications/subscriptions/acknowledged")
}

fn is_response(block: &[u8], max_event_bytes: usize) -> bool {
    let message = message_of(block, max_event_bytes).unwrap_or_default();
    matches!(jsonrpc::read(message.as_bytes()), Ok(Body::Single(envelope))
        if matches!(envelope.kind, Kind::Response | Kind::ErrorResponse))
}

/// Whether an acknowledgement, as the SDK wrote it, lists nothing.
fn agrees_to_nothing(acknowledgement: &str) -> bool {
    let listed = member(acknowledgement, &["params"]).and_then(|params| known_member(params.get(), &["notifications"]));
    let listed = listed.and_then(|listed| entries(listed.get())).unwrap_or_default();
    listed.iter().all(|(name, value)| name == "taskIds" || value.get() == "null")
}

/// The block with another message, which is of one line.
fn write_with_data(out: &mut Vec<u8>, block: &[u8], message: &[u8]) {
    let lines = block.split(|byte| matches!(byte, b'\r' | b'\n')).filter(|line| !line.is_empty());
    for line in lines.filter(|line| !matches!(line.split(|byte| *byte == b':').next(), Some(b"data"))) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    sse::write_anonymous(out, message);
}
