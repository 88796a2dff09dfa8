//! The engine's log on its way to a JavaScript function.
//!
//! Events are formatted where they happen and written when the native call returns, so that no lock
//! is held while JavaScript runs. They wait on the thread that they happened on, which is the one of
//! the engine's owner.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::Once;

use napi::bindgen_prelude::{Env, FnArgs, Function, FunctionRef};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::convert::{Result, internal, invalid};

/// Lines that may wait. Older ones go first.
const MAX_LINES: usize = 1_000;

thread_local! {
    static LINES: RefCell<VecDeque<(&'static str, String)>> = const { RefCell::new(VecDeque::new()) };
    /// What is less is not formatted.
    static LEVEL: Cell<Level> = const { Cell::new(Level::WARN) };
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
    let known = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
    let chosen = known.into_iter().find(|known| js_level(*known) == level);
    let chosen = chosen.ok_or_else(|| invalid(format!("unknown log level {level}: error, warn, info or debug")))?;
    LEVEL.with(|level| level.set(chosen));
    Ok(())
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tailrope" && LEVEL.try_with(|level| *metadata.level() <= level.get()).unwrap_or(false)
    }

    // The level changes at run time, so no callsite may be switched off for good.
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let level = js_level(*event.metadata().level());
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}", line.message, line.fields);
        // Fails only while the thread ends; then nobody reads it.
        let _ = LINES.try_with(|lines| {
            let mut lines = lines.borrow_mut();
            if lines.len() >= MAX_LINES {
                lines.pop_front();
            }
            lines.push_back((level, text));
        });
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a String does not fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, " {}={value}", field.name());
    }
}

/// Where an engine's lines go.
pub(crate) struct Sink(FunctionRef<FnArgs<(String, String)>, ()>);

impl Sink {
    pub(crate) fn new(log: Function<'_, FnArgs<(String, String)>, ()>) -> Result<Self> {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            // Somebody else may take the process's events already.
            let _ = tracing::subscriber::set_global_default(Lines);
        });
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
            let _ = log.call(FnArgs { data: (level.to_owned(), line) });
        }
    }
}
