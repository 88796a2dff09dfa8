//! Log lines of a change. A subscriber may call the session, for example to send the line to the client. So lines are
//! written after the session's lock is released, like wake-ups.

/// Writes a line. It holds everything that the line says.
pub(crate) type Line = Box<dyn FnOnce() + Send>;

/// Keeps a line until the lock is released: `log_later!(change, LEVEL, [value = ..., ...], fields and text)`, as
/// `tracing::event!` takes the fields. The values are made at once, but only for lines that somebody wants.
macro_rules! log_later {
    (@ $session:expr, $lines:expr, $level:ident, [$($name:ident = $value:expr),*], $($fields:tt)+) => {
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            let session = crate::sync::Arc::clone(&$session);
            $(let $name = $value;)*
            $lines.push(Box::new(move || {
                tracing::event!(target: "tailrope", tracing::Level::$level, %session, $($fields)+);
            }));
        }
    };
    ($change:expr, $level:ident, [$($name:ident = $value:expr),*], $($fields:tt)+) => {
        log_later!(@ $change.cell.name, $change.effects.lines, $level, [$($name = $value),*], $($fields)+)
    };
}

pub(crate) use log_later;
