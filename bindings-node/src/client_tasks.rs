//! Which requests of 2026-07-28 a client's half sends again: see `tailrope_core::client`, which decides it.

use napi::bindgen_prelude::Either;
use napi_derive::napi;
use tailrope_core::client::{Repeats, may_repeat};

use crate::admission::JsBody;
use crate::client::{ClientOptions, time};
use crate::convert::number;

/// One request about a task, and how often it was sent in vain.
#[napi]
pub struct ClientRepeats {
    repeats: Repeats,
}

#[allow(clippy::use_self, reason = "napi puts the types of methods where there is no Self")]
#[napi]
impl ClientRepeats {
    /// Of a POST; null where it is not to be sent again.
    #[napi(catch_unwind)]
    pub fn of(protocol_version: Option<String>, body: JsBody<'_>, options: &ClientOptions) -> Option<ClientRepeats> {
        let body = match &body {
            Either::A(text) => text.as_bytes(),
            Either::B(bytes) => bytes,
        };
        may_repeat(protocol_version.as_deref(), body).then(|| Self { repeats: Repeats::new(options.options.clone()) })
    }

    /// How long to wait before it is sent again, in milliseconds; null where this outcome counts.
    #[napi(catch_unwind)]
    pub fn after(&mut self, now: f64, jitter: u32, status: Option<u16>, retry_after_ms: Option<f64>) -> Option<f64> {
        // What is no number of milliseconds is as good as none.
        let retry_after_ms = retry_after_ms.map(|ms| ms as u64);
        self.repeats.after(time(now), jitter, status, retry_after_ms).map(number)
    }
}
