//! What the load client of the benchmarks calls, besides `echo`.

use std::sync::atomic::{AtomicU64, Ordering};

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailrope_server::Close;

use crate::stock;

/// How many `emit` calls this process has run to their end.
static EMITS: AtomicU64 = AtomicU64::new(0);

#[derive(Deserialize)]
struct Emit {
    n: u64,
    bytes: usize,
}

#[derive(Deserialize)]
struct Poll {
    before: u64,
    after: u64,
}

pub(crate) fn read<T: DeserializeOwned>(arguments: &Value) -> Result<T, ErrorData> {
    T::deserialize(arguments).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
}

/// What a call reports.
pub(crate) struct Report<'a> {
    context: &'a RequestContext<RoleServer>,
    token: ProgressToken,
    total: u64,
    message: Option<String>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(context: &'a RequestContext<RoleServer>, total: u64) -> Result<Self, ErrorData> {
        let token = context.meta.get_progress_token();
        let token = token.ok_or_else(|| ErrorData::invalid_params("a call without a progress token", None))?;
        Ok(Self { context, token, total, message: None })
    }

    pub(crate) async fn tell(&self, n: u64) -> Result<(), ErrorData> {
        #[allow(clippy::cast_precision_loss, reason = "no call counts so far")]
        let (n, total) = (n as f64, self.total as f64);
        let mut progress = ProgressNotificationParam::new(self.token.clone(), n).with_total(total);
        progress.message.clone_from(&self.message);
        let told = self.context.peer.notify_progress(progress).await;
        told.map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }
}

pub(crate) async fn emit(arguments: &Value, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let Emit { n, bytes } = read(arguments)?;
    let report = Report { message: Some("x".repeat(bytes)), ..Report::new(context, n)? };
    for i in 1..=n {
        report.tell(i).await?;
    }
    EMITS.fetch_add(1, Ordering::Relaxed);
    Ok(n.to_string())
}

pub(crate) async fn poll(arguments: &Value, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let Poll { before, after } = read(arguments)?;
    let report = Report::new(context, before + after)?;
    for i in 1..=before {
        report.tell(i).await?;
    }
    stock::close(context, Close::default()).await;
    for i in before + 1..=before + after {
        report.tell(i).await?;
    }
    Ok("done".to_owned())
}

pub(crate) fn completed() -> String {
    EMITS.load(Ordering::Relaxed).to_string()
}
