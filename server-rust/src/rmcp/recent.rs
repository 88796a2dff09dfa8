//! The message that a session sent last, in rmcp's type.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rmcp::model::ServerJsonRpcMessage;

/// A larger message is not kept here, but read from its JSON: otherwise a session whose client is gone would hold it
/// twice.
const MAX_BYTES: usize = 4 << 10;

/// One message with its JSON. A reader that takes it at once need not parse the JSON again.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Option<(Bytes, Arc<ServerJsonRpcMessage>)>>);

impl Recent {
    /// Keeps a message instead of the one before, if it is not too large.
    pub(crate) fn keep(&self, json: Bytes, message: ServerJsonRpcMessage) {
        *self.lock() = Some((json, Arc::new(message))).filter(|(json, _)| json.len() <= MAX_BYTES);
    }

    /// The message, if this is its JSON.
    pub(crate) fn take(&self, json: &str) -> Option<Arc<ServerJsonRpcMessage>> {
        self.lock().take_if(|(known, _)| *known == json).map(|(_, message)| message)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Bytes, Arc<ServerJsonRpcMessage>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{EmptyResult, JsonRpcMessage, NumberOrString, ServerResult};

    use super::*;

    #[test]
    fn the_last_message_is_taken_once_and_by_its_own_json() {
        let recent = Recent::default();
        let send = |json: &str| {
            let result = ServerResult::EmptyResult(EmptyResult {});
            recent.keep(
                Bytes::copy_from_slice(json.as_bytes()),
                JsonRpcMessage::response(result, NumberOrString::Number(1)),
            );
        };
        send("first");
        send("last");
        assert!(recent.take("first").is_none());
        assert!(recent.take("last").is_some());
        assert!(recent.take("last").is_none());
        let large = "x".repeat(MAX_BYTES + 1);
        send("last");
        send(&large);
        assert!(recent.take("last").is_none() && recent.take(&large).is_none());
    }
}
