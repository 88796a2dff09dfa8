//! What time and bounds ask for: signs of life, retention, what is over the bound of everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::link::{Fault, Kind, SharedLink};
use super::queue::{Shared, lock};
use super::usage::Tally;
use super::vacuum::{self, Vacuum};
use super::{Context, EVENT_OVERHEAD};

/// Streams, or sessions, that one transaction removes at most: others want to write, too.
const AT_MOST: i32 = 256;
/// Events that one transaction deletes, about.
const EVENTS_AT_MOST: i64 = 5_000;

/// The task: ends when the store is closed.
pub(super) async fn run(link: SharedLink, quiet: SharedLink, shared: Arc<Shared>, context: Arc<Context>) {
    let pause = context.pause;
    let vacuum = Vacuum::new(quiet, Arc::clone(&shared), Arc::clone(&context));
    let lane = shared.lanes.len();
    let (beat_due, is_stuck, lost) = (Instant::now(), false, Default::default());
    let mut house = House { lane, beat_due, is_stuck, lost, vacuum, shared, context };
    while !house.shared.is_closed() {
        let patience = pause.min(house.context.timeout);
        let asked = house.shared.sweeps_asked();
        let found = {
            let mut link = link.lock().await;
            link.client(patience).await.map_err(|_| link.wait())
        };
        let client = match found {
            Ok(client) => client,
            Err(wait) => {
                house.shared.swept(asked);
                let wait = wait.unwrap_or(patience);
                let _ = tokio::time::timeout(wait, house.shared.house.notified()).await;
                continue;
            }
        };
        let limit = house.context.timeout;
        let more = match tokio::time::timeout(limit, house.work(&client, asked)).await {
            Ok(Ok(more)) => more,
            Ok(Err(fault)) => {
                tracing::warn!(target: "tailrope", error = fault.text, "event store gave no sign of life");
                match fault.kind {
                    Kind::Lost => link.lock().await.lost_one(&client),
                    Kind::Refuses => link.lock().await.refuses(fault, Duration::ZERO),
                    Kind::Conflict | Kind::Late | Kind::Other => {}
                }
                false
            }
            Err(_) => {
                link.lock().await.give_up();
                false
            }
        };
        house.shared.swept(asked);
        if !more {
            // A beat that failed is tried again soon: others count how long it stands still.
            let wait = house.beat_due.saturating_duration_since(Instant::now()).max(pause / 16);
            let _ = tokio::time::timeout(wait, house.shared.house.notified()).await;
        }
    }
    house.shared.swept(u64::MAX);
}

struct House {
    /// The number of its row in `tally`.
    lane: usize,
    beat_due: Instant,
    /// Nothing more could be freed: not tried again before the next sign of life.
    is_stuck: bool,
    /// The owners that were seen to stand still, and at which beats.
    lost: (Vec<i64>, Vec<i64>),
    vacuum: Vacuum,
    shared: Arc<Shared>,
    context: Arc<Context>,
}

impl House {
    /// One round. True when there is more to do at once.
    async fn work(&mut self, client: &Client, asked: u64) -> Result<bool, Fault> {
        if Instant::now() >= self.beat_due {
            self.beat(client).await?;
            self.beat_due = Instant::now() + self.context.pause;
            self.is_stuck = false;
            let worn = client.query_typed(&self.context.statements.worn, &[(&vacuum::AT_LEAST, Type::INT8)]).await;
            let worn = worn.map_err(|error| Fault::of(&error))?;
            self.vacuum.begin(worn.iter().map(|row| row.get(0)).collect());
        }
        let mut more = self.sweep(client).await?;
        self.shared.swept(asked);
        more |= self.trim(client).await?;
        let trash = self.ask(client, &self.context.statements.empty_trash, &[(&EVENTS_AT_MOST, Type::INT8)]).await?;
        more |= trash.get::<_, bool>(0);
        Ok(more)
    }

    async fn beat(&mut self, client: &Client) -> Result<(), Fault> {
        let context = &self.context;
        let row = self.ask(client, &context.statements.beat, &[(&context.owner, Type::INT8)]).await?;
        lock(&self.shared.book).others = tally(&row);
        let (others, beats): (Vec<i64>, Vec<i64>) = (row.get(4), row.get(5));
        self.shared.wake.beat(others.is_empty());
        let is_lost = |(owner, beat): &(i64, i64)| context.unseen_ms(*owner, Some(*beat)) >= context.owner_lost_ms;
        self.lost = others.into_iter().zip(beats).filter(is_lost).unzip();
        Ok(())
    }

    async fn sweep(&self, client: &Client) -> Result<bool, Fault> {
        let context = &self.context;
        let [retention_ms, max_age_ms] = context.sweep_ms;
        let (lost, beats) = &self.lost;
        let row = self
            .ask(
                client,
                &context.statements.sweep,
                &[
                    (&context.owner, Type::INT8),
                    (&self.number(), Type::INT4),
                    (&context.clock(), Type::INT8),
                    (&retention_ms, Type::INT8),
                    (&max_age_ms, Type::INT8),
                    (&AT_MOST, Type::INT4),
                    (lost, Type::INT8_ARRAY),
                    (beats, Type::INT8_ARRAY),
                ],
            )
            .await?;
        lock(&self.shared.book).set(self.lane, tally(&row), 0);
        Ok(row.get(4))
    }

    /// A little more than needed goes, so that it is not done for every event.
    async fn trim(&mut self, client: &Client) -> Result<bool, Fault> {
        let context = &self.context;
        let max = context.max_bytes;
        let held = lock(&self.shared.book).bytes();
        if held <= max || self.is_stuck {
            return Ok(false);
        }
        let to_free = held - (max - max / 64);
        let row = self
            .ask(
                client,
                &context.statements.trim_all,
                &[
                    (&context.owner, Type::INT8),
                    (&self.number(), Type::INT4),
                    (&to_free, Type::INT8),
                    (&AT_MOST, Type::INT4),
                    (&EVENT_OVERHEAD, Type::INT8),
                ],
            )
            .await?;
        let mut book = lock(&self.shared.book);
        book.set(self.lane, tally(&row), row.get(4));
        let freed: i64 = row.get(5);
        self.is_stuck = freed == 0;
        Ok(freed > 0 && book.bytes() > max)
    }

    fn number(&self) -> i32 {
        i32::try_from(self.lane).unwrap_or(i32::MAX)
    }

    async fn ask(
        &self,
        client: &Client,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, Fault> {
        client.query_typed_one(statement, parameters).await.map_err(|error| Fault::of(&error))
    }
}

fn tally(row: &Row) -> Tally {
    Tally { sessions: row.get(0), streams: row.get(1), events: row.get(2), bytes: row.get(3) }
}
