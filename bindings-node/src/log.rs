//! The engine's log on its way to a JavaScript function.
//!
//! Events are formatted where they happen and written when the native call returns, so that no lock
//! is held while JavaScript runs. They wait on the thread that they happened on, which is the one of
//! the engine's owner. Those of other threads, which a store has, wait together: they are written by the
//! first engine that is woken from there, as far as its thread wants them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use napi::bindgen_prelude::{Either3, Env, FnArgs, Function, FunctionRef};
use tailrope_core::log_lines::{FieldValue, Line, LineSink, send_lines};
use tracing::Level;

use crate::convert::{Result, camel_case, internal, invalid, spelled};

/// Lines that may wait. Older ones go first.
const MAX_LINES: usize = 1_000;

/// Lines with their levels.
type Queue = VecDeque<(Level, Line)>;

thread_local! {
    static LINES: RefCell<Queue> = const { RefCell::new(VecDeque::new()) };
    /// What is less is not formatted. None on threads without JavaScript.
    static LEVEL: Cell<Option<Level>> = const { Cell::new(None) };
}

/// The lines of threads without JavaScript.
static OTHERS: Mutex<Queue> = Mutex::new(VecDeque::new());
/// How far down any thread with JavaScript wants to know: the position in `LEVELS`.
static MOST: AtomicU8 = AtomicU8::new(1);
const LEVELS: [Level; 4] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];

fn others() -> MutexGuard<'static, Queue> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn push(lines: &mut Queue, line: (Level, Line)) {
    if lines.len() >= MAX_LINES {
        lines.pop_front();
    }
    lines.push_back(line);
}

struct Lines;

/// The names that Node's console has.
fn js_level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

/// Sets what is written on this thread: `error`, `warn`, `info` or `debug`, and what is worse.
pub(crate) fn set_level(level: &str) -> Result<()> {
    let chosen = LEVELS.into_iter().zip(0..).find(|(known, _)| js_level(*known) == level);
    let unknown = || invalid(format!("unknown log level {level}: error, warn, info or debug"));
    let (chosen, position) = chosen.ok_or_else(unknown)?;
    MOST.fetch_max(position, Ordering::Relaxed);
    LEVEL.set(Some(chosen));
    Ok(())
}

impl LineSink for Lines {
    fn wants(&self, wanted: Level) -> bool {
        let here = LEVEL.try_with(Cell::get).unwrap_or_default();
        wanted <= here.unwrap_or_else(|| LEVELS[usize::from(MOST.load(Ordering::Relaxed))])
    }

    fn take(&self, level: Level, line: Line) {
        let line = Line { text: spelled(line.text), ..line };
        if LEVEL.try_with(Cell::get).unwrap_or_default().is_none() {
            return push(&mut others(), (level, line));
        }
        // Fails only while the thread ends; then nobody reads it.
        let _ = LINES.try_with(|lines| push(&mut lines.borrow_mut(), (level, line)));
    }
}

/// Where an engine's lines go.
pub(crate) struct Sink(FunctionRef<LogArgs, ()>);

/// A level, a line and its fields by name.
pub(crate) type LogArgs = FnArgs<(String, String, HashMap<String, Either3<i64, bool, String>>)>;

impl Sink {
    pub(crate) fn new(log: Function<'_, LogArgs, ()>) -> Result<Self> {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| send_lines(Lines));
        if LEVEL.get().is_none() {
            LEVEL.set(Some(Level::WARN));
        }
        Ok(Self(log.create_ref().map_err(internal)?))
    }

    /// Writes the waiting lines. The function is ours: it does not throw.
    pub(crate) fn flush(&self, env: &Env) {
        let lines = LINES.with(|lines| std::mem::take(&mut *lines.borrow_mut()));
        if lines.is_empty() {
            return;
        }
        let Ok(log) = self.0.borrow_back(env) else { return };
        for (level, line) in lines {
            let fields = line.fields.into_iter().map(|(name, value)| (camel_case(name), js_value(value))).collect();
            let _ = log.call(FnArgs { data: (js_level(level).to_owned(), line.text, fields) });
        }
    }

    /// Writes the waiting lines of threads without JavaScript.
    pub(crate) fn flush_others(&self, env: &Env) {
        let mut lines = std::mem::take(&mut *others());
        lines.retain(|(level, _)| LEVEL.get().is_some_and(|wanted| *level <= wanted));
        LINES.with(|waiting| waiting.borrow_mut().append(&mut lines));
        self.flush(env);
    }
}

fn js_value(value: FieldValue) -> Either3<i64, bool, String> {
    match value {
        FieldValue::Number(number) => Either3::A(number),
        FieldValue::Flag(flag) => Either3::B(flag),
        FieldValue::Text(text) => Either3::C(text),
    }
}
