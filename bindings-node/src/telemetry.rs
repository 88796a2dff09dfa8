//! What the engine observes, on its way to OpenTelemetry. It waits as the log's lines do, and goes when they do.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use napi::bindgen_prelude::{Either, Env, Function, FunctionRef};
use napi_derive::napi;
use tailrope_core::engine::{self, Attribute, Observation, Observer, Spanned, Value};

use crate::convert::{Result, internal};

/// What may wait. Older ones go first.
const MAX_OBSERVED: usize = 10_000;

/// Attributes, by their names.
type Attributes = HashMap<String, Either<i64, String>>;

/// Something that is over: see the core's `Observation`.
#[napi(object, object_from_js = false)]
pub struct Observed {
    pub session: Option<String>,
    pub request: Option<String>,
    pub parent: Option<String>,
    pub name: Option<String>,
    pub instrument: Option<String>,
    pub duration_ms: Option<f64>,
    pub error: Option<String>,
    pub attributes: Attributes,
    pub dimensions: Attributes,
}

/// What the span of a call is to say that begins.
#[napi(object, object_from_js = false)]
pub struct CallSpan {
    pub session: String,
    pub request: String,
    pub name: String,
    pub attributes: Attributes,
}

thread_local! {
    static HERE: RefCell<VecDeque<Observation>> = const { RefCell::new(VecDeque::new()) };
    static OBSERVER: RefCell<Option<FunctionRef<Observed, ()>>> = const { RefCell::new(None) };
    /// The thread's program has set OpenTelemetry up.
    static OBSERVES: Cell<bool> = const { Cell::new(false) };
}

/// Those of threads without JavaScript.
static OTHERS: Mutex<VecDeque<Observation>> = Mutex::new(VecDeque::new());
/// Whether any thread observes.
static WANTED: AtomicBool = AtomicBool::new(false);

pub(crate) struct Telemetry;

impl Observer for Telemetry {
    fn wants(&self) -> bool {
        WANTED.load(Ordering::Relaxed)
    }

    fn take(&self, observation: Observation) {
        let push = |waiting: &mut VecDeque<Observation>| {
            if waiting.len() >= MAX_OBSERVED {
                waiting.pop_front();
            }
            waiting.push_back(observation);
        };
        if OBSERVES.try_with(Cell::get).unwrap_or_default() {
            let _ = HERE.try_with(|waiting| push(&mut waiting.borrow_mut()));
        } else {
            push(&mut OTHERS.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The engines of this process are observed from now on, and `observer` is told on this thread. Gives the bounds of the
/// histograms, in seconds.
pub(crate) fn observe(observer: Function<'_, Observed, ()>) -> Result<Vec<f64>> {
    let observer = observer.create_ref().map_err(internal)?;
    OBSERVER.set(Some(observer));
    OBSERVES.set(true);
    WANTED.store(true, Ordering::Relaxed);
    Ok(engine::boundaries())
}

/// Tells what waits. The function is ours: it does not throw.
pub(crate) fn flush(env: &Env) {
    if !OBSERVES.get() {
        return;
    }
    let waiting = HERE.with(|waiting| std::mem::take(&mut *waiting.borrow_mut()));
    if waiting.is_empty() {
        return;
    }
    // What it calls may come back here.
    let observer = OBSERVER.with_borrow(|observer| observer.as_ref().and_then(|it| it.borrow_back(env).ok()));
    let Some(observer) = observer else { return };
    for observation in waiting {
        let _ = observer.call(to_observed(observation));
    }
}

/// The same with what other threads observed.
pub(crate) fn flush_others(env: &Env) {
    if OBSERVES.get() {
        let mut others = std::mem::take(&mut *OTHERS.lock().unwrap_or_else(PoisonError::into_inner));
        HERE.with(|waiting| waiting.borrow_mut().append(&mut others));
        flush(env);
    }
}

pub(crate) fn call_span(span: engine::CallSpan) -> CallSpan {
    let engine::CallSpan { session, request, name, attributes: all } = span;
    CallSpan { session: (*session).to_owned(), request, name, attributes: attributes(all) }
}

fn to_observed(observation: Observation) -> Observed {
    let (mut session, mut request, mut parent, mut name) = (None, None, None, None);
    match observation.span {
        Some(Spanned::Call { session: of, request: asked }) => {
            (session, request) = (Some((*of).to_owned()), Some(asked))
        }
        Some(Spanned::Under(place, called)) => {
            (parent, name) = (Some(place.as_str().to_owned()), Some(called.to_owned()));
        }
        None => {}
    }
    Observed {
        session,
        request,
        parent,
        name,
        instrument: observation.instrument.map(str::to_owned),
        duration_ms: observation.duration_ms.map(|ms| ms as f64),
        error: observation.error.map(|error| error.into_owned()),
        attributes: attributes(observation.attributes),
        dimensions: attributes(observation.dimensions),
    }
}

fn attributes(all: Vec<Attribute>) -> Attributes {
    let value = |value| match value {
        Value::Number(number) => Either::A(number),
        Value::Text(text) => Either::B(text),
    };
    all.into_iter().map(|(name, given)| (name.to_owned(), value(given))).collect()
}
