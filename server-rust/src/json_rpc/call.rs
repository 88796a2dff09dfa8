//! A request, as its handler gets it.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use serde_json::Value;
use tailrope_core::engine::EngineError;
use tailrope_core::protocol::RequestId;

use crate::close::{Close, delay};
use crate::json_rpc::RpcError;
use crate::json_rpc::session::Line;

/// A request of a client. What you send here goes into the request's stream, whether the client is connected or not.
pub struct Call {
    pub(crate) line: Arc<Line>,
    pub(crate) id: RequestId,
    pub(crate) method: String,
    pub(crate) params: Value,
    pub(crate) parts: Parts,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and payloads must not get into a log.
        f.debug_struct("Call").field("id", &self.id).field("method", &self.method).finish_non_exhaustive()
    }
}

impl Call {
    /// The id of the session. It is a credential of the client: it must not get into a log.
    pub fn session_id(&self) -> &str {
        self.line.session.id()
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The parameters; null if there are none.
    pub fn params(&self) -> &Value {
        &self.params
    }

    /// The head of the HTTP request that brought it. If the request came to another process, the head has only the
    /// headers that may be relayed.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The token that progress notifications have to name; none if the client does not want progress.
    pub fn progress_token(&self) -> Option<&Value> {
        self.params.get("_meta")?.get("progressToken")
    }

    /// Sends a notification on the stream of the request. If the event store answers later, this waits for it only
    /// while much of the stream is not stored yet.
    ///
    /// # Errors
    /// It was not stored, or the session has ended.
    pub async fn notify(&self, method: &str, params: Value) -> Result<(), EngineError> {
        self.line.notify(Some(&self.id), method, &params).await
    }

    /// Sends a notification on the standalone stream of the session.
    ///
    /// # Errors
    /// As [`notify`](Self::notify).
    pub async fn notify_session(&self, method: &str, params: Value) -> Result<(), EngineError> {
        self.line.notify(None, method, &params).await
    }

    /// Asks the client, and waits for its answer.
    ///
    /// # Errors
    /// The error that the client answers with; -32603 if the client could not be asked, or cannot answer any more.
    pub async fn ask(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        self.line.ask(&self.id, method, &params).await
    }

    /// Closes the connection that the client waits on (SEP-1699). The call goes on, and the client comes back for what is sent
    /// meanwhile.
    ///
    /// Returns whether the stream can be polled. If the client could not come back, nothing is closed and the result is
    /// false.
    pub fn close_sse_stream(&self, close: Close) -> bool {
        self.line.session.close_connection(&self.id, delay(close.retry_ms), close.hold_ms)
    }

    /// Closes the connection of the session's standalone stream, in the same way.
    pub fn close_standalone_sse_stream(&self, close: Close) -> bool {
        self.line.session.close_standalone(delay(close.retry_ms), close.hold_ms)
    }
}
