//! Log lines of a change. A subscriber may call the session, for example to send the line to the client. So lines are
//! written after the session's lock is released, like wake-ups.

use crate::engine::shared::{Shared, lock};
use crate::protocol::StreamNonce;
use crate::repeats::{BURST, Bounded, Line};
use crate::session::Session;

/// What is to be logged when the lock is released.
pub(crate) enum Later {
    Always(Line),
    Bounded(Bounded),
}

/// What a line of a stream says of it: its name, its request, and the tool that this calls.
#[derive(Default)]
pub(crate) struct Subject {
    pub(crate) stream: Option<String>,
    pub(crate) request: Option<String>,
    pub(crate) tool: Option<String>,
}

impl Subject {
    pub(crate) fn of(session: &Session, nonce: StreamNonce) -> Self {
        let of = session.stream(nonce).and_then(|stream| stream.subject());
        let tool = of.and_then(|(_, asked)| asked.tool.as_ref());
        Self {
            stream: Some(nonce.hex()),
            request: of.map(|(id, _)| id.to_json()),
            tool: tool.map(|tool| shown(tool).to_owned()),
        }
    }
}

/// The longest text of a client that log lines show as a whole.
const MAX_SHOWN: usize = 256;

/// As much of a client's text as a log line takes.
pub(crate) fn shown(text: &str) -> &str {
    text.char_indices().nth(MAX_SHOWN).map_or(text, |(end, _)| &text[..end])
}

impl Shared {
    /// Writes these lines, as far as their kinds are not written too often.
    pub(crate) fn write_lines(&self, lines: Vec<Later>) {
        for later in lines {
            match later {
                Later::Always(line) => line(None),
                Later::Bounded(bounded) => {
                    let due = lock(&self.repeats).take(self.clock.now(), bounded);
                    if let Some((line, before)) = due {
                        line(before);
                    }
                }
            }
        }
    }

    /// Writes a line that may come again and again, outside of a change.
    pub(crate) fn write_bounded(&self, kind: &'static str, line: impl FnOnce(Option<u64>) + Send + 'static) {
        self.write_lines(vec![Later::Bounded(Bounded { kind, whose: None, burst: BURST, line: Box::new(line) })]);
    }

    /// Says how many lines were not written lately.
    pub(crate) fn write_repeats(&self) {
        let due = lock(&self.repeats).due(self.clock.now());
        due.into_iter().for_each(|(line, count)| line(count));
    }

    /// The same at once: the process may end soon.
    pub(crate) fn write_all_repeats(&self) {
        let all = lock(&self.repeats).all(self.clock.now());
        all.into_iter().for_each(|(line, count)| line(count));
    }
}

/// Keeps a line until the lock is released: `log_later!(change, LEVEL, [value = ..., ...], fields and text)`, as
/// `tracing::event!` takes the fields. The values are made at once, but only for lines that somebody wants. With `of nonce`
/// before the values the line says which stream it is of. What is more than DEBUG may come again and again: of each such
/// line [a few](BURST) are written.
macro_rules! log_later {
    (@bound DEBUG, $line:expr) => {
        crate::engine::lines::Later::Always($line)
    };
    (@bound $level:ident, $line:expr) => {
        crate::engine::lines::Later::Bounded(crate::repeats::Bounded {
            kind: concat!(file!(), ":", line!()),
            whose: None,
            burst: crate::repeats::BURST,
            line: $line,
        })
    };
    (@ $session:expr, $lines:expr, $level:ident, [$($name:ident = $value:expr),*], $($fields:tt)+) => {
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            let session = crate::sync::Arc::clone(&$session);
            $(let $name = $value;)*
            let line: crate::repeats::Line = Box::new(move |repeated: Option<u64>| {
                tracing::event!(target: "tailrope", tracing::Level::$level, %session, repeated, $($fields)+);
            });
            $lines.push(log_later!(@bound $level, line));
        }
    };
    ($change:expr, $level:ident, of $nonce:expr, [$($name:ident = $value:expr),*], $($fields:tt)+) => {
        log_later!(@ $change.cell.name, $change.effects.lines, $level, [subject = crate::engine::lines::Subject::of(&$change.state.session, $nonce) $(, $name = $value)*],
            stream = subject.stream, request = subject.request, tool = subject.tool, $($fields)+)
    };
    ($change:expr, $level:ident, [$($name:ident = $value:expr),*], $($fields:tt)+) => {
        log_later!(@ $change.cell.name, $change.effects.lines, $level, [$($name = $value),*], $($fields)+)
    };
}

pub(crate) use log_later;
