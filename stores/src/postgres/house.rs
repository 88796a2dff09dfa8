//! What time and bounds ask for: signs of life, retention, what is over the bound of everything.

use std::sync::{Arc, Weak};
use std::time::Instant;

use tailrope_core::store::parts::next_beat;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::link::SharedLink;
use super::usage::Tally;
use super::vacuum::{self, Vacuum};
use super::{Context, EVENT_OVERHEAD, lock};

/// Streams, or sessions, that one transaction removes at most: others want to write, too.
const AT_MOST: i32 = 256;
/// Events that one transaction deletes, about.
const EVENTS_AT_MOST: i64 = 5_000;

/// The task: ends when the store is closed.
pub(super) async fn run(link: SharedLink, quiet: SharedLink, context: Arc<Context>) {
    let vacuum = Vacuum::new(quiet, Arc::clone(&context));
    let (beat_due, is_stuck, lost) = (Instant::now(), false, Default::default());
    let mut house = House { beat_due, is_stuck, lost, heard_from: None, vacuum, context: Arc::clone(&context) };
    while !context.mailbox.is_closed() {
        let worked = link.ask(context.timeout, async |client| house.work(&client).await).await;
        match &worked {
            Ok(_) => context.mailbox.reach.back(),
            Err(fault) => context.mailbox.reach.lost(&fault.what),
        }
        if !worked.is_ok_and(|more| more) {
            // A beat that failed is tried again soon: others count how long it stands still.
            let wait = house.beat_due.saturating_duration_since(Instant::now()).max(context.pause / 16);
            let _ = tokio::time::timeout(wait, context.house.notified()).await;
        }
    }
}

struct House {
    beat_due: Instant,
    /// Nothing more could be freed: not tried again before the next sign of life.
    is_stuck: bool,
    /// The owners that were seen to stand still, and at which beats.
    lost: (Vec<i64>, Vec<i64>),
    /// The connection of the last sign of life, and the run of the server behind it.
    heard_from: Option<(Weak<Client>, String)>,
    vacuum: Vacuum,
    context: Arc<Context>,
}

impl House {
    /// One round. True when there is more to do at once.
    async fn work(&mut self, client: &Arc<Client>) -> Result<bool, Error> {
        let given = Instant::now();
        if given >= self.beat_due {
            self.beat(client).await?;
            self.beat_due = next_beat(given, self.context.pause);
            self.is_stuck = false;
            let worn = client.query_typed(&self.context.statements.worn, &[(&vacuum::AT_LEAST, Type::INT8)]).await?;
            self.vacuum.begin(worn.iter().map(|row| row.get(0)).collect());
        }
        let mut more = self.sweep(client).await?;
        more |= self.trim(client).await?;
        let empty_trash = &self.context.statements.empty_trash;
        more |= client.query_typed_one(empty_trash, &[(&EVENTS_AT_MOST, Type::INT8)]).await?.get::<_, bool>(0);
        Ok(more)
    }

    async fn beat(&mut self, client: &Arc<Client>) -> Result<(), Error> {
        let context = &self.context;
        let row = context.beat(client).await?;
        lock(&self.context.book).others = tally(&row);
        let (others, beats): (Vec<i64>, Vec<i64>) = (row.get(4), row.get(5));
        for session in row.get::<_, Vec<&[u8]>>(6) {
            context.wake.watchers.posted(&String::from_utf8_lossy(session));
        }
        if context.wake.is_listening() {
            context.wake.check(context.owner);
        }
        let is_lost = |(owner, beat): &(i64, i64)| context.unseen_ms(*owner, Some(*beat)) >= context.owner_lost_ms;
        let (lost, living): (Vec<_>, Vec<_>) = others.into_iter().zip(beats).partition(is_lost);
        context.pulse.saw_company(!living.is_empty());
        self.lost = lost.into_iter().unzip();
        // Another server may know less, and so may this one after a crash. Behind a pooler connections outlive both.
        let now = (Arc::downgrade(client), row.get::<_, String>(7));
        let is_same = |before: &(Weak<Client>, String)| before.0.ptr_eq(&now.0) && before.1 == now.1;
        if self.heard_from.as_ref().is_some_and(|before| !is_same(before)) {
            context.wake.watchers.all_changed();
        }
        self.heard_from = Some(now);
        Ok(())
    }

    async fn sweep(&self, client: &Client) -> Result<bool, Error> {
        let context = &self.context;
        let (lost, beats) = &self.lost;
        let row = client
            .query_typed_one(
                &context.statements.sweep,
                &[
                    (&context.owner, Type::INT8),
                    (&self.number(), Type::INT4),
                    (&context.clock(), Type::INT8),
                    (&context.max_age_ms, Type::INT8),
                    (&AT_MOST, Type::INT4),
                    (lost, Type::INT8_ARRAY),
                    (beats, Type::INT8_ARRAY),
                ],
            )
            .await?;
        lock(&self.context.book).set(self.context.lanes, tally(&row), 0);
        Ok(row.get(4))
    }

    /// A little more than needed goes, so that it is not done for every event.
    async fn trim(&mut self, client: &Client) -> Result<bool, Error> {
        let context = &self.context;
        let max = context.max_bytes;
        let held = lock(&self.context.book).bytes();
        if held <= max || self.is_stuck {
            return Ok(false);
        }
        let to_free = held - (max - max / 64);
        let row = client
            .query_typed_one(
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
        let mut book = lock(&self.context.book);
        book.set(self.context.lanes, tally(&row), row.get(4));
        let freed: i64 = row.get(5);
        self.is_stuck = freed == 0;
        Ok(freed > 0 && book.bytes() > max)
    }

    /// Of its row in `tally`.
    fn number(&self) -> i32 {
        i32::try_from(self.context.lanes).unwrap_or(i32::MAX)
    }
}

fn tally(row: &Row) -> Tally {
    Tally { sessions: row.get(0), streams: row.get(1), events: row.get(2), bytes: row.get(3) }
}
