//! The engine's log as lines of text with fields, for hosts whose log is not `tracing`'s.

use std::fmt::{self, Write};

pub use tracing::Level;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// A line of the log.
#[derive(Debug, Default)]
pub struct Line {
    /// All of it: what happened, and the fields.
    pub text: String,
    /// The fields, by name.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// What a field of a line holds.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// A text.
    Text(String),
}

/// Where lines go. They are formatted where they happen, on any thread and with locks held: keep them for later.
pub trait LineSink: Send + Sync + 'static {
    /// Whether lines of this level are wanted now.
    fn wants(&self, level: Level) -> bool;

    /// Keeps a line.
    fn take(&self, level: Level, line: Line);
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
        let mut writer = Writer::default();
        event.record(&mut writer);
        let Writer { mut line, shown } = writer;
        line.text += &shown;
        self.0.take(*event.metadata().level(), line);
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
struct Writer {
    line: Line,
    /// The fields as the text has them.
    shown: String,
}

impl Writer {
    fn add(&mut self, field: &Field, value: FieldValue, shown: fmt::Arguments<'_>) {
        // Writing into a String does not fail.
        let _ = write!(self.shown, " {}={shown}", field.name());
        self.line.fields.push((field.name(), value));
    }
}

impl Visit for Writer {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.line.text, "{value:?}");
        } else {
            self.add(field, FieldValue::Text(format!("{value:?}")), format_args!("{value:?}"));
        }
    }

    /// A client may have chosen the text: it makes no further field, and no further line.
    fn record_str(&mut self, field: &Field, value: &str) {
        let text = FieldValue::Text(value.to_owned());
        if value.is_empty()
            || value.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == '"')
        {
            self.add(field, text, format_args!("{value:?}"));
        } else {
            self.add(field, text, format_args!("{value}"));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, FieldValue::Number(value), format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, FieldValue::Flag(value), format_args!("{value}"));
    }
}
