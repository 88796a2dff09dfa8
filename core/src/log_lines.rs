//! The engine's log as lines of text, for hosts whose log is not `tracing`'s.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Where lines go. They are formatted where they happen, on any thread and with locks held: keep them for later.
pub trait LineSink: Send + Sync + 'static {
    /// Whether lines of this level are wanted now.
    fn wants(&self, level: Level) -> bool;

    /// Keeps a line.
    fn take(&self, level: Level, line: String);
}

/// Gives the engine's lines of this process to a sink, unless somebody else takes the process's events already.
pub fn send_lines(sink: impl LineSink) {
    let _ = tracing::subscriber::set_global_default(Lines(sink));
}

struct Lines<S>(S);

impl<S: LineSink> Subscriber for Lines<S> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tailrope" && self.0.wants(*metadata.level())
    }

    // What is wanted changes at run time, so no callsite may be switched off for good.
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.take(*event.metadata().level(), line.message + &line.fields);
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
