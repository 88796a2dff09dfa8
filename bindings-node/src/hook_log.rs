//! The messages of an SDK's own transport in our store.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use napi::bindgen_prelude::Env;
use napi_derive::napi;
use tailrope_core::engine::{self, EngineError};
use tailrope_core::store::{EventKind, StoreError};

use crate::convert::{number, payload, spelled};
use crate::waiters::Waiters;

/// An outcome with its number.
type Numbered = (u32, Result<Answer, StoreError>);

/// What an operation gave.
enum Answer {
    Stored(String),
    Replayed(Option<engine::HookReplay>),
}

/// A log by the names that an SDK gives its streams. Each operation has a number; the key is woken when some
/// have their outcome.
#[napi]
pub struct HookLog {
    log: engine::HookLog,
    told: Arc<Mutex<Vec<Numbered>>>,
    next: Cell<u32>,
    key: u32,
    waiters: Rc<Waiters>,
}

/// The outcome of an operation.
#[napi(object, object_from_js = false)]
pub struct HookOutcome {
    pub number: f64,
    /// Why it failed; absent when it did not.
    pub code: Option<&'static str>,
    pub message: Option<String>,
    /// The id of what was stored.
    pub event_id: Option<String>,
    /// The stream that was replayed; absent when the id means nothing.
    pub stream: Option<String>,
    /// What came after the id.
    pub events: Option<Vec<HookEvent>>,
}

/// An event of a replay.
#[napi(object, object_from_js = false)]
pub struct HookEvent {
    pub id: String,
    pub payload: String,
}

impl HookLog {
    pub(crate) fn new(log: engine::HookLog, waiters: &Rc<Waiters>) -> Self {
        Self { log, told: Arc::default(), next: Cell::new(1), key: waiters.key(), waiters: Rc::clone(waiters) }
    }

    /// A number for an operation, and what takes its outcome.
    fn operation(&self) -> (u32, impl FnOnce(Result<Answer, StoreError>) + Send + 'static) {
        let number_of = self.next.get();
        self.next.set(number_of.wrapping_add(1));
        let (told, wake, key) = (Arc::clone(&self.told), self.waiters.wake(), u64::from(self.key));
        let tell = move |result: Result<Answer, StoreError>| {
            if let Err(error) = &result {
                tracing::warn!(target: "tailrope", %error, "event store failed the SDK's transport");
            }
            lock(&told).push((number_of, result));
            wake.wake(key);
        };
        (number_of, tell)
    }
}

#[napi]
impl HookLog {
    /// What the waiters know it as.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Stores a message of a stream: `kind` is 0 for a notification, 2 for a request, 3 for a response.
    /// Empty text is a priming: a position without a message.
    #[napi(catch_unwind)]
    pub fn store(&self, env: &Env, scope: String, stream: String, kind: u32, payload_json: String) -> f64 {
        let kind = match kind {
            2 => EventKind::Question,
            3 => EventKind::Terminal,
            _ => EventKind::Progress,
        };
        let (number_of, tell) = self.operation();
        let done = Box::new(move |result: Result<String, StoreError>| tell(result.map(Answer::Stored)));
        self.log.store(&scope, &stream, kind, payload(payload_json), done);
        self.waiters.flush(env);
        number(u64::from(number_of))
    }

    /// Asks for what a scope has after an id.
    #[napi(catch_unwind)]
    pub fn replay(&self, env: &Env, scope: String, last_event_id: String) -> f64 {
        let (number_of, tell) = self.operation();
        self.log.replay(&scope, &last_event_id, Box::new(move |result| tell(result.map(Answer::Replayed))));
        self.waiters.flush(env);
        number(u64::from(number_of))
    }

    /// Forgets what a scope has.
    #[napi(catch_unwind)]
    pub fn drop_scope(&self, env: &Env, scope: String) {
        self.log.drop_scope(&scope);
        self.waiters.flush(env);
    }

    /// The outcomes since the last time.
    #[napi]
    pub fn take_outcomes(&self) -> Vec<HookOutcome> {
        let told = std::mem::take(&mut *lock(&self.told));
        told.into_iter().map(|(number_of, result)| outcome(number_of, result)).collect()
    }
}

fn outcome(number_of: u32, result: Result<Answer, StoreError>) -> HookOutcome {
    let mut outcome = HookOutcome {
        number: number(u64::from(number_of)),
        code: None,
        message: None,
        event_id: None,
        stream: None,
        events: None,
    };
    match result {
        Ok(Answer::Stored(id)) => outcome.event_id = Some(id),
        Ok(Answer::Replayed(None)) => {}
        Ok(Answer::Replayed(Some(replay))) => {
            let text = |payload: bytes::Bytes| String::from_utf8_lossy(&payload).into_owned();
            let events = replay.events.into_iter().map(|(id, payload)| HookEvent { id, payload: text(payload) });
            (outcome.stream, outcome.events) = (Some(replay.stream), Some(events.collect()));
        }
        Err(error) => {
            // Its words say nothing of the store (I9).
            let error = EngineError::Store(error);
            (outcome.code, outcome.message) = (Some(error.code().as_str()), Some(spelled(error.to_string())));
        }
    }
    outcome
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
