//! Room that deleted rows have left, for new ones.
//!
//! A server's own autovacuum begins once a minute at most, whatever the settings of a table: short sessions
//! that come by the thousand leave hundreds of megabytes behind in that time. So the housekeeper looks with
//! each sign of life, and has this done beside everything else, over the connection that listens. What that is
//! notified of comes when it is done, so watched logs are looked at all the time meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::store::parts::Fault;
use tokio::task::JoinHandle;

use super::link::{self, SharedLink};
use super::{Context, schema};

/// Dead rows of a table that are not worth it; a fifth of its live ones comes on top.
pub(super) const AT_LEAST: i64 = 10_000;

/// So many times as long as it took nothing is done: where somebody's open transaction keeps the dead rows, they
/// are found dead again at once.
const REST: u32 = 4;
/// Pause after one that failed.
const RETRY: Duration = Duration::from_secs(60);

/// See the module. One at a time.
pub(super) struct Vacuum {
    link: SharedLink,
    context: Arc<Context>,
    under_way: Option<JoinHandle<()>>,
}

impl Vacuum {
    pub(super) fn new(link: SharedLink, context: Arc<Context>) -> Self {
        Self { link, context, under_way: None }
    }

    /// Begins with these tables, unless the last time is not over, or not long ago.
    pub(super) fn begin(&mut self, tables: Vec<String>) {
        if tables.is_empty() || self.under_way.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (link, context) = (self.link.clone(), Arc::clone(&self.context));
        self.under_way = Some(tokio::spawn(async move {
            let began = Instant::now();
            context.wake.deafen(true);
            let done = vacuum(&link, &context.namespace, &tables).await;
            context.wake.deafen(false);
            let pause = match done {
                Ok(()) => began.elapsed() * REST,
                Err(fault) => {
                    tracing::warn!(target: "tailrope", error = fault.what, "dead rows of the event store stay");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }));
    }
}

async fn vacuum(link: &SharedLink, namespace: &str, tables: &[String]) -> Result<(), Fault> {
    let client = link.client().await?;
    for table in tables {
        // A transaction of its own each: they cannot be said together.
        client.batch_execute(&schema::vacuum(namespace, table)).await.map_err(|error| link::fault(&error))?;
    }
    Ok(())
}
