//! Servers without an SDK: a handler takes requests as JSON, and answers in JSON.

mod call;
mod session;

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;

use serde_json::Value;
use tailrope_core::engine::{Engine, EngineError};
use tailrope_core::protocol::jsonrpc;

pub use call::Call;
use session::Session;

use crate::service::{Application, Begun, ServiceConfig, TailropeService};

/// The error of a request, as JSON-RPC has it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RpcError {
    /// What kind of error it is: -32601 for a method that does not exist, -32602 for wrong parameters.
    pub code: i32,
    /// For people.
    pub message: String,
    /// For programs.
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// There is no such method.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(-32601, format!("Method not found: {method}"))
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}

/// -32603: what the engine could not do, for example because the session has ended.
impl From<EngineError> for RpcError {
    fn from(error: EngineError) -> Self {
        Self::new(jsonrpc::INTERNAL_ERROR, error.to_string())
    }
}

/// Answers the requests of all sessions, `initialize` among them. If `initialize` is answered with an error, the session
/// is over.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The future is dropped if the request is cancelled or the session ends. A lost connection
    /// cancels nothing.
    ///
    /// # Errors
    /// The error that the client gets instead of a result.
    fn call(&self, call: Call) -> impl Future<Output = Result<Value, RpcError>> + Send;

    /// A notification came. Cancellations do not come here: they are handled before.
    fn notified(&self, session_id: &str, method: &str, params: Value) {
        let _ = (session_id, method, params);
    }

    /// A session is over here: its client has ended it, it was idle for too long, or another process has it now. Forget
    /// what you kept for it: this comes after the last call and the last notification. It does not come for the sessions
    /// that there are when the process ends.
    fn ended(&self, session_id: &str) {
        let _ = session_id;
    }
}

/// A server without an SDK.
pub struct JsonRpcServer<H>(Arc<H>);

impl<H: Handler> TailropeService<JsonRpcServer<H>> {
    /// A service whose requests this handler answers. The [crate](crate) has an example.
    pub fn json_rpc(handler: H, engine: Engine, config: ServiceConfig) -> Self {
        Self::of(JsonRpcServer(Arc::new(handler)), engine, config)
    }
}

impl<H: Handler> Application for JsonRpcServer<H> {
    type Session = Session<H>;

    fn begin(&self, begun: &Begun<'_, Session<H>>) -> io::Result<Arc<Session<H>>> {
        Ok(Session::new(Arc::clone(&self.0), begun))
    }
}
