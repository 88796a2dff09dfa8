//! The writes of one transaction as the parameters of the function that does them.

use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::parts::{Ask, Op};
use tailrope_core::store::{Attach, Chain, Epoch, Paced, StoredEvent};
use tokio_postgres::types::{ToSql, Type};

use super::{EVENT_OVERHEAD, ms};

/// Columns: one row for each write, in the order of sessions; and one for each event.
#[derive(Default)]
pub(super) struct Encoded<'a> {
    /// Which write a row is.
    pub(super) order: Vec<usize>,
    kinds: Vec<i16>,
    names: Vec<&'a [u8]>,
    epochs: Vec<i64>,
    salts: Vec<i64>,
    nonces: Vec<Option<&'a [u8]>>,
    a: Vec<i64>,
    b: Vec<i64>,
    c: Vec<i64>,
    counts: Vec<i32>,
    /// Where the events of the write begin, or its principals, from 1.
    ats: Vec<i32>,
    sizes: Vec<i64>,
    bodies: Vec<Option<Body<'a>>>,
    abouts: Vec<Option<&'a [u8]>>,
    tails: Vec<Option<&'a [u8]>>,
    retries: Vec<Option<i64>>,
    paces: Vec<Option<Vec<u8>>>,
    revisions: Vec<Option<&'a str>>,
    event_kinds: Vec<i16>,
    event_tags: Vec<i32>,
    event_offsets: Vec<i32>,
    event_lengths: Vec<i32>,
    principals: Vec<Option<&'a [u8]>>,
}

/// Of several events one after the other.
#[derive(Debug)]
enum Body<'a> {
    Shared(&'a [u8]),
    Joined(Vec<u8>),
}

impl ToSql for Body<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Shared(bytes) => bytes.to_sql(of, out),
            Self::Joined(bytes) => bytes.as_slice().to_sql(of, out),
        }
    }

    fn accepts(of: &Type) -> bool {
        <&[u8] as ToSql>::accepts(of)
    }

    tokio_postgres::types::to_sql_checked!();
}

/// What one write says, besides its names.
#[derive(Default)]
struct Row<'a> {
    kind: i16,
    epoch: Epoch,
    nonce: Option<&'a StreamNonce>,
    a: i64,
    b: i64,
    c: i64,
    count: usize,
    size: i64,
    body: Option<&'a [u8]>,
    events: &'a [StoredEvent],
    about: Option<&'a [u8]>,
    tail: Option<&'a [u8]>,
    retry: Option<i64>,
    paced: Option<Vec<u8>>,
    revision: Option<&'a str>,
    principals: Vec<Option<&'a [u8]>>,
}

impl<'a> Encoded<'a> {
    pub(super) fn new(writes: &'a [Op]) -> Self {
        let mut encoded = Self { order: (0..writes.len()).collect(), ..Self::default() };
        // All store objects lock sessions in this order.
        encoded.order.sort_by_key(|at| &writes[*at].session);
        for at in encoded.order.clone() {
            encoded.push(&writes[at].session, row(&writes[at].ask));
        }
        encoded
    }

    fn push(&mut self, session: &'a str, row: Row<'a>) {
        self.kinds.push(row.kind);
        self.names.push(session.as_bytes());
        self.epochs.push(row.epoch.number.cast_signed());
        self.salts.push(row.epoch.salt.cast_signed());
        self.nonces.push(row.nonce.map(|nonce| nonce.0.as_slice()));
        self.a.push(row.a);
        self.b.push(row.b);
        self.c.push(row.c);
        self.counts.push(small(row.events.len() + row.principals.len() + row.count));
        let before = if row.principals.is_empty() { self.event_kinds.len() } else { self.principals.len() };
        self.ats.push(small(before + 1));
        self.principals.extend(row.principals);
        let mut offset = 0;
        for event in row.events {
            self.event_kinds.push(event.kind as i16);
            self.event_tags.push(event.tag.cast_signed());
            self.event_offsets.push(small(offset));
            self.event_lengths.push(small(event.frame.len()));
            offset += event.frame.len();
        }
        self.sizes.push(row.size + EVENT_OVERHEAD * i64::from(small(row.events.len())) + i64::from(small(offset)));
        self.bodies.push(match row.events {
            [] => row.body.map(Body::Shared),
            [event] => Some(Body::Shared(&event.frame)),
            several => Some(Body::Joined(several.iter().flat_map(|event| event.frame.iter().copied()).collect())),
        });
        self.abouts.push(row.about);
        self.tails.push(row.tail);
        self.retries.push(row.retry);
        self.paces.push(row.paced);
        self.revisions.push(row.revision);
    }

    pub(super) fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 22] {
        [
            (&self.kinds, Type::INT2_ARRAY),
            (&self.names, Type::BYTEA_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.salts, Type::INT8_ARRAY),
            (&self.nonces, Type::BYTEA_ARRAY),
            (&self.a, Type::INT8_ARRAY),
            (&self.b, Type::INT8_ARRAY),
            (&self.c, Type::INT8_ARRAY),
            (&self.counts, Type::INT4_ARRAY),
            (&self.ats, Type::INT4_ARRAY),
            (&self.sizes, Type::INT8_ARRAY),
            (&self.bodies, Type::BYTEA_ARRAY),
            (&self.abouts, Type::BYTEA_ARRAY),
            (&self.tails, Type::BYTEA_ARRAY),
            (&self.retries, Type::INT8_ARRAY),
            (&self.paces, Type::BYTEA_ARRAY),
            (&self.revisions, Type::TEXT_ARRAY),
            (&self.event_kinds, Type::INT2_ARRAY),
            (&self.event_tags, Type::INT4_ARRAY),
            (&self.event_offsets, Type::INT4_ARRAY),
            (&self.event_lengths, Type::INT4_ARRAY),
            (&self.principals, Type::BYTEA_ARRAY),
        ]
    }
}

fn row(ask: &Ask) -> Row<'_> {
    let of = |kind, epoch: Epoch, nonce| Row { kind, epoch, nonce, ..Row::default() };
    match ask {
        Ask::Append { nonce, epoch, append } => Row {
            a: position(append.first),
            b: append.chain_before.cast_signed(),
            c: append.chain.cast_signed(),
            events: &append.events,
            about: Some(&*append.about).filter(|_| append.first == 1),
            tail: append.end.as_deref(),
            paced: append.paced.map(Paced::to_bytes),
            retry: append.paced.and_then(|paced| paced.retention_ms).map(ms),
            ..of(1, *epoch, Some(nonce))
        },
        Ask::Settle { nonce, epoch, seq } => Row { a: position(*seq), ..of(2, *epoch, Some(nonce)) },
        Ask::DropStream { nonce, epoch } => of(3, *epoch, Some(nonce)),
        Ask::DropSession { epoch } => of(4, *epoch, None),
        Ask::Release { epoch } => of(5, *epoch, None),
        Ask::Hold(hold) => {
            let seen = hold.seen.unwrap_or_default();
            let (a, b, count) = (seen.number.cast_signed(), seen.salt.cast_signed(), usize::from(hold.seen.is_some()));
            let held = Row { a, b, count, ..of(6, hold.epoch, None) };
            let Some(record) = &hold.record else { return held };
            Row {
                c: i64::from(record.list_changed.bits()),
                retry: Some(i64::from(record.retry_ms)),
                nonce: record.standalone.as_ref(),
                body: record.principal.as_ref().map(|principal| principal.as_bytes()),
                revision: record.revision.map(|revision| revision.as_str()),
                about: Some(&*record.note),
                ..held
            }
        }
        Ask::Attach(attach) => Row {
            a: position(attach.after),
            b: position(attach.limit.up_to),
            c: position(attach.limit.events as u64),
            size: position(attach.limit.bytes as u64),
            retry: attach.tag.map(|tag| i64::from(tag.cast_signed())),
            body: attach.message.as_ref().map(|message| &*message.body),
            about: attach.message.as_ref().map(|message| &*message.about),
            principals: principals(attach),
            ..of(7, counted(attach), attach.stream.as_ref())
        },
        Ask::Withdraw { nonce, end } => Row { tail: Some(end), ..of(8, Epoch::default(), Some(nonce)) },
        Ask::Take { epoch, after } => Row { a: position(*after), ..of(9, *epoch, None) },
        _ => unreachable!("it changes nothing"),
    }
}

/// What an attach says in the place of an epoch: how many readers count, and the chain of a log that it begins.
fn counted(attach: &Attach) -> Epoch {
    let chain = attach.stream.map_or(0, |nonce| Chain::start(&nonce.0).0);
    Epoch { number: u64::from(attach.counts), salt: chain }
}

/// Those whose session is found.
pub(super) fn principals(attach: &Attach) -> Vec<Option<&[u8]>> {
    let own = attach.principal.as_deref().map(str::as_bytes);
    std::iter::once(own).chain(attach.aliases.iter().map(|alias| Some(alias.as_bytes()))).collect()
}

/// A position, or a bound, as PostgreSQL has it. Event ids hold 40 bits of a position.
pub(super) fn position(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

/// Counts within one transaction.
fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
