//! Requests about tasks, which may be sent again: each does the same however often it comes. No SDK sends one twice, so a
//! call would fail with one of its polls.

use super::pacing::{Fruitless, Options, Pacing};
use crate::Ms;
use crate::protocol::Revision;
use crate::protocol::jsonrpc::{self, Body, Kind};

/// Whether a POST with this body is about a task of 2026-07-28.
pub fn may_repeat(protocol_version: Option<&str>, body: &[u8]) -> bool {
    let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return false };
    let is_about_task = matches!(envelope.method.as_deref(), Some("tasks/get" | "tasks/update" | "tasks/cancel"));
    has_tasks(protocol_version) && envelope.kind == Kind::Request && is_about_task
}

/// Whether tasks mean anything in this revision.
pub(super) fn has_tasks(protocol_version: Option<&str>) -> bool {
    protocol_version.and_then(Revision::parse).is_some_and(|revision| !revision.rules().sessions)
}

/// Whether an answer with this status may be another one later.
pub(super) fn is_for_now(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..=599)
}

/// One such request, and how often it was sent in vain.
#[derive(Debug)]
pub struct Repeats {
    pacing: Pacing,
}

impl Repeats {
    /// A request that is sent for the first time.
    pub fn new(options: Options) -> Self {
        Self { pacing: Pacing::new(options, None) }
    }

    /// How long to wait before it is sent again, in milliseconds; none where this outcome counts. `status` is that of the answer;
    /// none where there is no answer. `jitter` is a fraction of 2^32.
    pub fn after(&mut self, now: Ms, jitter: u32, status: Option<u16>, retry_after_ms: Option<u64>) -> Option<u64> {
        let at_least_ms = retry_after_ms.unwrap_or(0);
        if !status.is_none_or(is_for_now) || self.pacing.is_too_long(at_least_ms) {
            return None;
        }
        match self.pacing.failed(now, Fruitless::Failed) {
            Some(_) => None,
            None => Some(self.pacing.delay(at_least_ms, jitter)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_about_tasks_are_sent_again() {
        let body = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{}}}}"#);
        let modern = Some("2026-07-28");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            assert!(may_repeat(modern, body(method).as_bytes()), "{method}");
            assert!(!may_repeat(Some("2025-11-25"), body(method).as_bytes()), "{method}");
            assert!(!may_repeat(None, body(method).as_bytes()), "{method}");
        }
        for text in [&body("tools/call"), &body("tasks/list"), "", "[]", r#"{"jsonrpc":"2.0","method":"tasks/get"}"#] {
            assert!(!may_repeat(modern, text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_may_be_another_answer_later_is_asked_again_until_the_bounds() {
        let options = Options { initial_delay_ms: 100, max_attempts: Some(3), ..Options::default() };
        let mut repeats = Repeats::new(options.clone());
        assert_eq!(repeats.after(Ms(0), 0, None, None), Some(150));
        assert_eq!(repeats.after(Ms(1), 0, Some(503), Some(2_000)), Some(2_000));
        assert_eq!(repeats.after(Ms(2), 0, None, None), None);
        for status in [200, 400, 401, 404] {
            assert_eq!(Repeats::new(options.clone()).after(Ms(0), 0, Some(status), None), None, "{status}");
        }
        assert_eq!(Repeats::new(options).after(Ms(0), 0, Some(429), Some(3_600_000)), None);
    }
}
