//! Runs the traces of `tests/vectors/stream.json` on the stream machine.
//!
//! A trace says what happens to one stream, and when, and lists every output of every step. Events
//! are known by their payload when they are published and by their position when they are read;
//! chain tags are 100 + position. What a step does not say takes the value that a well-behaved store
//! and client would give.

use std::collections::HashMap;

use crate::kit::vectors::vectors;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::stream::{
    CloseReason, ConnectionId, Cut, Drain, EventKind, Expected, Follow, Frame, Input, Machine, NewEvent, Output, Paced,
    Pacing, Page, Refused, RejectReason, Seq, Spread, StoredEvent, StreamRules,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    #[serde(default)]
    stream: StreamSpec,
    #[serde(default)]
    pacing: PacingSpec,
    steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StreamSpec {
    standalone: bool,
    /// Of a session that negotiated a revision without priming.
    old_revision: bool,
    /// The store has no log yet. Other vectors begin when it is there.
    no_log: bool,
    /// The store knows the stream already.
    follow: Option<FollowSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FollowSpec {
    head: Seq,
    finished: bool,
    tail: Option<String>,
    #[serde(default)]
    paced: PacedSpec,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PacedSpec {
    retry_ms: Option<u32>,
    hold_ms: Option<u64>,
    max_connection_ms: Option<u64>,
    max_connection_bytes: Option<u64>,
    retention_ms: Option<u64>,
    closes: u64,
    closed_at: Seq,
}

impl PacedSpec {
    fn paced(self) -> Paced {
        let Self { retry_ms, hold_ms, max_connection_ms, max_connection_bytes, retention_ms, closes, closed_at } = self;
        Paced { retry_ms, hold_ms, max_connection_ms, max_connection_bytes, retention_ms, closes, closed_at }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PacingSpec {
    retry_ms: u32,
    keep_alive_ms: u64,
    coalesce_ms: u64,
    first_comment_ms: u64,
    max_connection_ms: u64,
    max_connection_bytes: u64,
    max_unconfirmed: usize,
    max_batch: usize,
    max_polls: u32,
    store_wait_ms: u64,
    /// Of every connection; 65,535 is the most.
    jitter: u16,
    /// Of every connection, where many streams are polled.
    floor_ms: u32,
    /// At what every connection is expected to be cut.
    cut_age_ms: u64,
    cut_silent_ms: u64,
}

impl Default for PacingSpec {
    fn default() -> Self {
        let Pacing {
            retry_ms,
            keep_alive_ms,
            first_comment_ms,
            max_connection_ms,
            max_connection_bytes,
            max_unconfirmed,
            max_batch,
            max_polls,
            store_wait_ms,
            ..
        } = Pacing::default();
        Self {
            retry_ms,
            keep_alive_ms,
            coalesce_ms: 5,
            first_comment_ms,
            max_connection_ms,
            max_connection_bytes,
            max_unconfirmed,
            max_batch,
            max_polls,
            store_wait_ms,
            jitter: 0,
            floor_ms: 0,
            cut_age_ms: 0,
            cut_silent_ms: 0,
        }
    }
}

impl PacingSpec {
    fn pacing(&self) -> Pacing {
        Pacing {
            retry_ms: self.retry_ms,
            keep_alive_ms: self.keep_alive_ms,
            coalesce_ms: self.coalesce_ms,
            first_comment_ms: self.first_comment_ms,
            max_connection_ms: self.max_connection_ms,
            max_connection_bytes: self.max_connection_bytes,
            max_unconfirmed: self.max_unconfirmed,
            max_batch: self.max_batch,
            max_polls: self.max_polls,
            store_wait_ms: self.store_wait_ms,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Milliseconds; the time of the step before when it is not said.
    at: Option<u64>,
    #[serde(rename = "in")]
    input: InputSpec,
    out: Vec<Value>,
    /// The input is not taken.
    refused: Option<String>,
    /// When the machine wants to be looked at after this step; null is never.
    #[serde(default, deserialize_with = "said")]
    deadline: Option<Option<u64>>,
}

fn said<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum InputSpec {
    Open(ConnectionId),
    Resume {
        conn: ConnectionId,
        after: Seq,
        #[serde(default)]
        visit: u32,
        tag: Option<u32>,
        /// The cursor has no tag, as where the store makes the ids.
        #[serde(default)]
        untagged: bool,
    },
    Pace(PacedSpec),
    Create,
    Progress(String),
    Answer(String),
    Question(String),
    Terminal(String),
    Terminate(String),
    Appended,
    AppendFailed,
    Grown(Seq),
    /// The end, if it is not in the log.
    Ended {
        tail: Option<String>,
        /// Where it is not what the machine knows of.
        head: Option<Seq>,
    },
    Page {
        conn: ConnectionId,
        seqs: Vec<Seq>,
        /// The position that the connection read after is trimmed away.
        #[serde(default)]
        trimmed: bool,
        tag_at: Option<u32>,
        /// Where the store has not got as far as the machine knows.
        head: Option<Seq>,
    },
    LoadFailed(ConnectionId),
    Ready(ConnectionId),
    Close {
        retry_ms: Option<u32>,
        hold_ms: Option<u64>,
    },
    Drain {
        retry_ms: u32,
        spread_ms: Option<u32>,
    },
    Taken,
    Paced(PacedSpec),
    Lost(ConnectionId),
    Tick,
}

const FIRST_TAG: u32 = 100;

fn tag(seq: Seq) -> u32 {
    FIRST_TAG + u32::try_from(seq).unwrap()
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// One machine, and what is needed to write its traces shortly.
struct Trace {
    machine: Machine,
    spread: Spread,
    published: Vec<String>,
    /// Where each connection read last.
    read_after: HashMap<ConnectionId, Seq>,
    now: u64,
}

impl Trace {
    fn new(vector: &Vector) -> Self {
        let StreamSpec { standalone, old_revision, no_log, follow } = &vector.stream;
        let rules = StreamRules { priming: !old_revision, early_close: !old_revision, standalone: *standalone };
        let pacing = vector.pacing.pacing();
        let machine = match follow {
            None if *no_log => Machine::new(rules, pacing, FIRST_TAG),
            None => {
                let mut machine = Machine::new(rules, pacing, FIRST_TAG);
                machine.handle(Ms(0), Input::Create, &mut Vec::new()).unwrap();
                machine.handle(Ms(0), Input::Appended, &mut Vec::new()).unwrap();
                machine
            }
            Some(FollowSpec { head, finished, tail, paced }) => {
                let tail = tail.clone().map(Bytes::from);
                Machine::follow(
                    rules,
                    pacing,
                    FIRST_TAG,
                    Follow { head: *head, finished: *finished, tail, paced: paced.paced(), stays: false },
                )
            }
        };
        let PacingSpec { jitter, floor_ms, cut_age_ms: age_ms, cut_silent_ms: silent_ms, .. } = vector.pacing;
        let spread = Spread { jitter, floor_ms, expected: Expected { age_ms, silent_ms } };
        Self { machine, spread, published: Vec::new(), read_after: HashMap::new(), now: 0 }
    }

    fn input(&mut self, spec: &InputSpec) -> Input {
        let spread = self.spread;
        match spec {
            InputSpec::Open(conn) => Input::Open { conn: *conn, spread },
            InputSpec::Resume { conn, after, visit, tag: given, untagged } => {
                let tag = (!untagged).then(|| given.unwrap_or_else(|| tag(*after)));
                Input::Resume { conn: *conn, after: *after, visit: *visit, tag, spread }
            }
            InputSpec::Pace(paced) => Input::Pace(paced.paced()),
            InputSpec::Create => Input::Create,
            InputSpec::Progress(payload) => self.publish(EventKind::Progress, payload),
            InputSpec::Answer(payload) => self.publish(EventKind::Answer, payload),
            InputSpec::Question(payload) => self.publish(EventKind::Question, payload),
            InputSpec::Terminal(payload) => self.publish(EventKind::Terminal, payload),
            InputSpec::Terminate(payload) => Input::Terminate { payload: payload.clone().into() },
            InputSpec::Appended => Input::Appended,
            InputSpec::AppendFailed => Input::AppendFailed,
            InputSpec::Grown(head) => Input::Grown { head: *head },
            InputSpec::Ended { tail, head } => Input::Ended {
                head: head.unwrap_or_else(|| self.machine.durable()),
                tail: tail.clone().map(Into::into),
            },
            InputSpec::Page { conn, seqs, trimmed, tag_at, head } => {
                let after = self.read_after[conn];
                let event = |seq: &Seq| StoredEvent {
                    seq: *seq,
                    kind: EventKind::Progress,
                    tag: tag(*seq),
                    frame: format!("event {seq}").into_bytes().into(),
                };
                let at_least = seqs.last().copied().unwrap_or(after).max(self.machine.durable());
                let head = head.unwrap_or(at_least);
                let low = seqs.first().copied().unwrap_or(head + 1);
                let tag_at = if *trimmed { None } else { Some(tag_at.unwrap_or_else(|| tag(after))) };
                Input::Page { conn: *conn, page: Page { events: seqs.iter().map(event).collect(), head, low, tag_at } }
            }
            InputSpec::LoadFailed(conn) => Input::LoadFailed { conn: *conn },
            InputSpec::Ready(conn) => Input::Ready { conn: *conn },
            InputSpec::Close { retry_ms, hold_ms } => Input::CloseRequested { retry_ms: *retry_ms, hold_ms: *hold_ms },
            InputSpec::Drain { retry_ms, spread_ms } => {
                let drain = Drain::after(*retry_ms);
                Input::Drain(Drain { spread_ms: spread_ms.unwrap_or(drain.spread_ms), ..drain })
            }
            InputSpec::Taken => Input::Taken,
            InputSpec::Paced(paced) => Input::Paced(paced.paced()),
            InputSpec::Lost(conn) => Input::Lost { conn: *conn },
            InputSpec::Tick => Input::Tick,
        }
    }

    fn publish(&mut self, kind: EventKind, payload: &str) -> Input {
        self.published.push(payload.to_owned());
        Input::Publish(NewEvent { kind, payload: payload.to_owned().into(), token: self.published.len() as u64 })
    }

    /// What comes out of a step, whether it was refused, and the deadline after it.
    fn step(&mut self, step: &Step) -> (Vec<Value>, Option<&'static str>, Option<u64>) {
        self.now = step.at.unwrap_or(self.now).max(self.now);
        let input = self.input(&step.input);
        let mut outputs = Vec::new();
        let refused = self.machine.handle(Ms(self.now), input, &mut outputs).err().map(|refused| match refused {
            Refused::Finished => "finished",
            Refused::Full => "full",
            Refused::NotResumable => "not-resumable",
        });
        let deadline = self.machine.deadline();
        let written = outputs.iter().map(|output| self.written(output)).collect();
        (written, refused, (deadline != Ms::NEVER).then_some(deadline.0))
    }

    fn written(&mut self, output: &Output) -> Value {
        let name = |token: u64| self.published[usize::try_from(token).unwrap() - 1].clone();
        match output {
            Output::Append { first, paced } => {
                let payloads: Vec<_> = self.machine.asked().map(|event| text(&event.payload)).collect();
                let mut append = json!({"append": payloads, "first": first});
                if let Some(paced) = paced {
                    let said = [
                        ("retry_ms", paced.retry_ms.map(u64::from)),
                        ("hold_ms", paced.hold_ms),
                        ("max_connection_ms", paced.max_connection_ms),
                        ("max_connection_bytes", paced.max_connection_bytes),
                        ("retention_ms", paced.retention_ms),
                        ("closes", Some(paced.closes).filter(|closes| *closes > 0)),
                        ("closed_at", Some(paced.closed_at).filter(|seq| *seq > 0)),
                    ];
                    let said = said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
                    append["paced"] = Value::Object(said.collect());
                }
                append
            }
            Output::Stored { token } => json!({"stored": name(*token)}),
            Output::Unstored { token, seq, .. } => json!({"unstored": name(*token), "seq": seq}),
            Output::Load { conn, after, up_to } => {
                self.read_after.insert(*conn, *after);
                json!({"load": conn, "after": after, "up_to": up_to})
            }
            Output::Cut(Cut { at, age_ms, silent_ms }) => {
                json!({"cut_at": at.0, "age_ms": age_ms, "silent_ms": silent_ms})
            }
            Output::Accept { conn } => json!({"accept": conn}),
            Output::Reject { conn, why } => json!({"reject": conn, "why": match why {
                RejectReason::Complete => "complete",
                RejectReason::Unknown => "unknown",
            }}),
            Output::Send { conn, frame } => match frame {
                Frame::Priming { seq, visit, tag: primed, retry_ms } => {
                    assert!([tag(*seq), 0].contains(primed), "a priming event has the tag of its position, if any");
                    json!({"send": conn, "priming": {"seq": seq, "visit": visit}, "retry_ms": retry_ms})
                }
                Frame::Events(events) => {
                    json!({"send": conn, "events": events.iter().map(|event| event.seq).collect::<Vec<_>>()})
                }
                Frame::Gap { first, count } => json!({"send": conn, "gap": {"first": first, "count": count}}),
                Frame::Retry { ms } => json!({"send": conn, "retry_ms": ms}),
                Frame::KeepAlive => json!({"send": conn, "comment": "keep-alive"}),
                Frame::Tail(payload) => json!({"send": conn, "tail": text(payload)}),
            },
            Output::Wake { conn } => json!({"wake": conn}),
            Output::Close { conn, why } => json!({"close": conn, "why": CloseReason::as_str(*why)}),
            Output::Finish { tail } => json!({"finish": text(tail)}),
            Output::Forget => json!("forget"),
        }
    }
}

fn check(name: &str, vector: &Vector) -> Result<(), String> {
    let mut trace = Trace::new(vector);
    for (at, step) in vector.steps.iter().enumerate() {
        let (out, refused, deadline) = trace.step(step);
        let fault = |what: &str, want: String, got: String| {
            Err(format!("{name}, step {at}, {what}:\n  want {want}\n  got  {got}"))
        };
        if out != step.out {
            return fault("out", json!(step.out).to_string(), json!(out).to_string());
        }
        if refused != step.refused.as_deref() {
            return fault("refused", format!("{:?}", step.refused), format!("{refused:?}"));
        }
        if let Some(want) = step.deadline
            && want != deadline
        {
            return fault("deadline", format!("{want:?}"), format!("{deadline:?}"));
        }
    }
    Ok(())
}

#[test]
fn traces_of_the_stream_machine() {
    let mut failed = Vec::new();
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/stream.json")) {
        failed.extend(check(&name, &vector).err());
    }
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}
