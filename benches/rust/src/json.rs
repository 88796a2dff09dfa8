//! Tools without an SDK: what our service takes by itself.

use serde_json::{Value, json};
use tailrope_server::{Call, Handler, RpcError};

pub(crate) struct Tools;

const INVALID_PARAMS: i32 = -32602;
const INTERNAL_ERROR: i32 = -32603;

impl Handler for Tools {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        let params = call.params();
        let text = match (call.method(), params["name"].as_str()) {
            ("initialize", _) => {
                return Ok(json!({
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": { "tools": {} },
                    "serverInfo": { "name": "bench", "version": "1" },
                }));
            }
            ("tools/call", Some("echo")) => params["arguments"]["text"].clone(),
            ("tools/call", Some("emit")) => emit(&call).await?.into(),
            (method, _) => return Err(RpcError::method_not_found(method)),
        };
        Ok(json!({ "content": [{ "type": "text", "text": text }] }))
    }
}

async fn emit(call: &Call) -> Result<String, RpcError> {
    let invalid = || RpcError::new(INVALID_PARAMS, "a call without `n`, `bytes` or a progress token");
    let number = |name: &str| call.params()["arguments"][name].as_u64().ok_or_else(invalid);
    let (total, bytes) = (number("n")?, number("bytes")?);
    let token = call.progress_token().ok_or_else(invalid)?;
    let message = "x".repeat(usize::try_from(bytes).map_err(|_| invalid())?);
    for n in 1..=total {
        let progress = json!({ "progressToken": token, "progress": n, "total": total, "message": message });
        let told = call.notify("notifications/progress", progress).await;
        told.map_err(|error| RpcError::new(INTERNAL_ERROR, error.to_string()))?;
    }
    Ok(total.to_string())
}
