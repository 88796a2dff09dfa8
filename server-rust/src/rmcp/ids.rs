//! Ids of requests between rmcp's type and the engine's.

use std::sync::Arc;

use rmcp::model::{NumberOrString, RequestId as RmcpId};
use tailrope_core::protocol::RequestId;

pub(crate) fn request_id(id: &RmcpId) -> RequestId {
    match id {
        NumberOrString::Number(number) => RequestId::integer(*number),
        NumberOrString::String(text) => RequestId::Text(Arc::clone(text)),
    }
}

/// None for an integer that does not fit in rmcp's type.
pub(crate) fn rmcp_id(id: &RequestId) -> Option<RmcpId> {
    Some(match id {
        RequestId::Integer(digits) => NumberOrString::Number(digits.parse().ok()?),
        RequestId::Text(text) => NumberOrString::String(Arc::clone(text)),
    })
}
