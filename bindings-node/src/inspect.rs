//! What the core reads a body as, for tests that compare it with what the SDKs read. Only in builds for tests.

use napi_derive::napi;
use tailrope_core::protocol;

use crate::admission::{JsBody, body_bytes};
use crate::convert::{Result, dialect};

/// What the core reads a body as, as JSON: see `inspect` there.
#[allow(unreachable_pub, dead_code, reason = "it is exported to JavaScript alone")]
#[napi]
pub fn inspect_body(sdk_major: u32, body: JsBody<'_>) -> Result<String> {
    Ok(protocol::inspect::inspect(body_bytes(&body), dialect(sdk_major)?).to_string())
}
