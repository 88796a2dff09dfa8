//! The engine's log on its way to Python's `logging`, under the name `tailrope`.
//!
//! Events are formatted where they happen and written when the native call returns, so that no lock
//! is held while Python code runs. What a store's thread logs is written by the next such return.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::Observation;
use tailrope_core::log_lines::{FieldValue, Line, LineSink, send_lines};
use tracing::Level;

use crate::telemetry::hand_over;

/// Lines with their levels, and what was observed.
pub(crate) struct Queue {
    lines: VecDeque<(u8, Line)>,
    observed: VecDeque<Observation>,
}

impl Queue {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), observed: VecDeque::new() }
    }
}

/// Lines that may wait. Older ones go first.
const MAX_LINES: usize = 1_000;
/// The same of what was observed.
const MAX_OBSERVED: usize = 10_000;

static LINES: Mutex<Queue> = Mutex::new(Queue::new());
static ANY: AtomicBool = AtomicBool::new(false);
/// A thread holds the lines, and is about to fork.
static FORKING: AtomicBool = AtomicBool::new(false);
/// The numeric level of Python's `logging`; lower ones are not formatted.
static MIN_LEVEL: AtomicU8 = AtomicU8::new(30);

struct Lines;

fn python_level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl LineSink for Lines {
    fn wants(&self, level: Level) -> bool {
        python_level(level) >= MIN_LEVEL.load(Ordering::Relaxed)
    }

    fn take(&self, level: Level, line: Line) {
        let Some(mut waiting) = lines() else { return };
        push(&mut waiting.lines, MAX_LINES, (python_level(level), line));
    }
}

/// Keeps what was observed until the next native call returns.
pub(crate) fn keep(observation: Observation) {
    let Some(mut waiting) = lines() else { return };
    push(&mut waiting.observed, MAX_OBSERVED, observation);
}

fn push<T>(waiting: &mut VecDeque<T>, max: usize, item: T) {
    if waiting.len() >= max {
        waiting.pop_front();
    }
    waiting.push_back(item);
    ANY.store(true, Ordering::Release);
}

/// Takes the process's tracing events, unless somebody else does already.
pub(crate) fn install() {
    send_lines(Lines);
}

/// None while a thread forks: it may wait for the interpreter, which the caller may hold.
fn lines() -> Option<MutexGuard<'static, Queue>> {
    if !FORKING.load(Ordering::Acquire) {
        return Some(LINES.lock().unwrap_or_else(PoisonError::into_inner));
    }
    match LINES.try_lock() {
        Ok(lines) => Some(lines),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Nothing is logged until [`release`]: a store's thread that is at it would leave the child of a fork a lock that
/// nobody opens.
pub(crate) fn hold() -> MutexGuard<'static, Queue> {
    FORKING.store(true, Ordering::Release);
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn release(lines: MutexGuard<'static, Queue>) {
    FORKING.store(false, Ordering::Release);
    drop(lines);
}

/// Sets the numeric level of Python's `logging` below which nothing is formatted. Any number is one.
#[pyfunction]
pub(crate) fn set_log_level(level: i64) {
    MIN_LEVEL.store(u8::try_from(level.max(0)).unwrap_or(u8::MAX), Ordering::Relaxed);
}

/// Writes the waiting lines. A logger that raises costs its lines, never the caller.
pub(crate) fn flush(py: Python<'_>) {
    if !ANY.swap(false, Ordering::AcqRel) {
        return;
    }
    let Some(Queue { lines, observed }) = lines().map(|mut waiting| std::mem::replace(&mut *waiting, Queue::new()))
    else {
        ANY.store(true, Ordering::Release);
        return;
    };
    for observation in observed {
        if let Err(error) = hand_over(py, &observation) {
            error.write_unraisable(py, None);
        }
    }
    if lines.is_empty() {
        return;
    }
    let logger = py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("tailrope",)));
    let Ok(logger) = logger else { return };
    for (level, line) in lines {
        if let Err(error) = write(py, &logger, level, &line) {
            error.write_unraisable(py, None);
        }
    }
}

/// Writes a line. Its fields are attributes of the record, where nothing else of the program has such an attribute there.
fn write(py: Python<'_>, logger: &Bound<'_, PyAny>, level: u8, line: &Line) -> PyResult<()> {
    let fields = PyDict::new(py);
    for (name, value) in &line.fields {
        match value {
            FieldValue::Number(number) => fields.set_item(name, number)?,
            FieldValue::Flag(flag) => fields.set_item(name, flag)?,
            FieldValue::Text(text) => fields.set_item(name, text)?,
        }
    }
    let log = intern!(py, "log");
    let extra = PyDict::new(py);
    extra.set_item("extra", fields)?;
    match logger.call_method(log, (level, "%s", &line.text), Some(&extra)) {
        Err(error) if error.is_instance_of::<PyKeyError>(py) => {
            logger.call_method1(log, (level, "%s", &line.text)).map(|_| ())
        }
        written => written.map(|_| ()),
    }
}
