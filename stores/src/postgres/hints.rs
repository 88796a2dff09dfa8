//! Two of the tasks of [`Wake`](super::wake::Wake): one says what was written, one listens.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailrope_core::store::parts::{Fault, NOT_HEARD};
use tokio_postgres::types::{ToSql, Type};

use super::Context;
use super::link::{SharedLink, passing};
use super::wake::notifications;

/// Pause between two notifications.
pub(super) const GAP: Duration = Duration::from_millis(3);
/// Pause after what failed.
pub(super) const AGAIN: Duration = Duration::from_millis(50);
/// Within this time an own notification comes back, or none ever will.
const ECHO: Duration = Duration::from_secs(3);
/// Pause before that is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Says what was written, until the store is closed.
pub(super) async fn tell(link: SharedLink, context: Arc<Context>) {
    while !context.mailbox.is_closed() {
        context.wake.news_came.notified().await;
        say(&link, &context).await;
        tokio::time::sleep(GAP).await;
    }
}

/// Says what was not said yet.
pub(super) async fn say(link: &SharedLink, context: &Context) {
    let news = context.wake.take();
    let (hearers, payloads) = notifications(&news);
    if hearers.is_empty() {
        return;
    }
    let what = [(&hearers as &(dyn ToSql + Sync), Type::INT8_ARRAY), (&payloads, Type::TEXT_ARRAY)];
    let told = link.ask(context.timeout, async |client| client.query_typed(&context.statements.tell, &what).await);
    if told.await.is_err() {
        tokio::time::sleep(AGAIN).await;
        context.wake.give_back(news);
    }
}

/// Listens. Ends when the store is closed.
pub(super) async fn listen(link: SharedLink, context: Arc<Context>) {
    let (mut pause, mut is_told) = (AGAIN, false);
    while !context.mailbox.is_closed() {
        let wait = match heed(&link, &context).await {
            Ok(true) => {
                (pause, is_told) = (AGAIN, false);
                pause
            }
            Ok(false) => {
                tracing::info!(
                    target: "tailrope",
                    "no notifications come through: watched logs are looked at instead. Behind a pooler name a \
                     direct address with listen="
                );
                RETRY
            }
            Err(fault) => {
                if !is_told && !context.mailbox.is_closed() {
                    tracing::warn!(target: "tailrope", error = fault.what, "{NOT_HEARD}");
                }
                is_told = true;
                pause = (2 * pause).min(Duration::from_secs(2));
                pause
            }
        };
        let _ = tokio::time::timeout(wait, context.wake.closed.notified()).await;
    }
}

/// Listens on one connection as long as it lasts; false when it was connected and nothing came through.
async fn heed(link: &SharedLink, context: &Context) -> Result<bool, Fault> {
    let late = || passing("nothing was heard in time", true);
    let (client, ended) = (link.client().await?, link.ended().await);
    let (wake, mailbox) = (&context.wake, &context.mailbox);
    let echoes = || wake.echoes.load(Ordering::Relaxed);
    let before = echoes();
    let listen = format!("LISTEN \"tailrope:{:016x}\"", context.owner.cast_unsigned());
    link.ask(context.timeout, async |client| client.batch_execute(&listen).await).await?;
    let asked = Instant::now();
    wake.check(context.owner);
    while echoes() == before {
        if client.is_closed() || mailbox.is_closed() {
            return Err(late());
        }
        if asked.elapsed() > ECHO && !wake.is_deaf() {
            let _ = tokio::time::timeout(GAP * 100, client.batch_execute("UNLISTEN *")).await;
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    wake.listen(true);
    // What was said before is lost.
    wake.watchers.all_changed();
    let beat = context.pause.max(Duration::from_millis(500));
    let mut heard = (echoes(), Instant::now());
    // Others may let go of it, and then it ends.
    let left = Arc::downgrade(&client);
    drop(client);
    while !mailbox.is_closed() && left.upgrade().is_some_and(|client| !client.is_closed()) {
        if echoes() != heard.0 || wake.is_deaf() {
            heard = (echoes(), Instant::now());
        } else if heard.1.elapsed() > 3 * beat + ECHO {
            if let Some(client) = left.upgrade() {
                link.give_up(&client, &late()).await;
            }
            break;
        }
        let _ = tokio::time::timeout(beat.min(ECHO), ended.notified()).await;
    }
    wake.listen(false);
    Ok(true)
}
