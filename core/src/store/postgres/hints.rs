//! The tasks of [`Wake`](super::wake::Wake): one says what was written, one listens, one looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::Context;
use super::link::{SharedLink, passing};
use crate::store::StreamKey;
use crate::store::mailbox::Fault;

/// Pause between two notifications.
const GAP: Duration = Duration::from_millis(3);
/// Pause after what failed.
const AGAIN: Duration = Duration::from_millis(50);
/// Pause between two looks at the watched logs where notifications come through.
const RARELY: Duration = Duration::from_secs(1);
/// The same where they do not.
const OFTEN: Duration = Duration::from_millis(12);
/// Watched logs that one look asks for.
const AT_A_TIME: usize = 512;
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
    let payloads = context.wake.take(context.owner);
    if payloads.is_empty() {
        return;
    }
    let what = [(&payloads as &(dyn ToSql + Sync), Type::TEXT_ARRAY)];
    let told = link.ask(context.timeout, async |client| client.query_typed(&context.statements.tell, &what).await);
    if told.await.is_err() {
        tokio::time::sleep(AGAIN).await;
        context.wake.unheard();
    }
}

/// Looks at the watched logs, until the store is closed.
pub(super) async fn look(link: SharedLink, context: Arc<Context>) {
    let mut known: HashMap<StreamKey, Seen> = HashMap::new();
    let wake = &context.wake;
    while !context.mailbox.is_closed() {
        let keys = wake.watchers.keys();
        if keys.is_empty() {
            known.clear();
            wake.watched.notified().await;
            continue;
        }
        let asked = Instant::now();
        let pause = match link.ask(context.timeout, async |client| see(&client, &context, &keys).await).await {
            Ok(found) => {
                known.retain(|key, _| found.contains_key(key));
                for (key, seen) in found {
                    if known.get(&key) != Some(&seen) {
                        wake.watchers.changed(&key);
                        known.insert(key, seen);
                    }
                }
                if wake.hears() { RARELY } else { OFTEN.max(4 * asked.elapsed()) }
            }
            Err(_) => AGAIN,
        };
        // Whoever begins to watch is told soon, but not each in a look of its own.
        if tokio::time::timeout(pause, wake.watched.notified()).await.is_ok() {
            tokio::time::sleep(GAP).await;
        }
    }
}

/// What a watcher wants to know of a log: head, whether it is finished, readers. What this store object
/// writes itself does not count. None when the log is gone.
type Seen = Option<(i64, bool, i64)>;

async fn see(client: &Client, context: &Context, keys: &[StreamKey]) -> Result<HashMap<StreamKey, Seen>, Error> {
    let mut found: HashMap<StreamKey, Seen> = keys.iter().map(|key| (key.clone(), None)).collect();
    for keys in keys.chunks(AT_A_TIME) {
        see_some(client, context, keys, &mut found).await?;
    }
    Ok(found)
}

async fn see_some(
    client: &Client,
    context: &Context,
    keys: &[StreamKey],
    found: &mut HashMap<StreamKey, Seen>,
) -> Result<(), Error> {
    let names: Vec<&[u8]> = keys.iter().map(|key| key.session.as_bytes()).collect();
    let nonces: Vec<&[u8]> = keys.iter().map(|key| key.nonce.0.as_slice()).collect();
    let rows = client
        .query_typed(
            &context.statements.heads,
            &[(&context.owner, Type::INT8), (&names, Type::BYTEA_ARRAY), (&nonces, Type::BYTEA_ARRAY)],
        )
        .await?;
    for row in rows {
        let at = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
        let (head, is_finished, readers, is_mine) = (row.get(2), row.get(3), row.get(4), row.get(5));
        if let Some(key) = keys.get(at) {
            found.insert(key.clone(), Some(if is_mine { (-1, false, readers) } else { (head, is_finished, readers) }));
        }
    }
    Ok(())
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
                    tracing::warn!(target: "tailrope", error = fault.what, "the event store hears no notifications");
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
    let listen = format!("LISTEN \"{}\"", context.channel);
    link.ask(context.timeout, async |client| client.batch_execute(&listen).await).await?;
    let asked = Instant::now();
    wake.hello();
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
    wake.is_listening.store(true, Ordering::Relaxed);
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
    wake.is_listening.store(false, Ordering::Relaxed);
    wake.watched.notify_one();
    Ok(true)
}
