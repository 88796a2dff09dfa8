//! Runs `tests/vectors/task_views.json`: the records of a task, and what clients read of it, byte by byte.

use bytes::Bytes;
use serde::Deserialize;
use tailrope_core::protocol::{RequestId, hex};
use tailrope_core::task::{
    Born, CallHeaders, Change, End, Response, TASK_ID_BYTES, Task, TaskId, What, acknowledged, created, detailed,
    notification,
};

use crate::kit::vectors::vectors;

const UNIX_MS: u64 = 1_795_832_278_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    /// With times after the first, in milliseconds, and what of each record comes behind its time, in hexadecimal digits.
    changes: Vec<(u64, WhatSpec, String)>,
    #[serde(default)]
    at: u64,
    #[serde(default = "one")]
    request: String,
    created: Option<String>,
    get: Option<String>,
    notification: Option<String>,
    round: Option<String>,
    /// When it may be forgotten, and the time before that.
    ttl_ms: Option<u64>,
    /// What becomes of it when its process is gone; null: it goes on.
    #[serde(default, deserialize_with = "said")]
    owner_lost: Option<Option<String>>,
}

fn one() -> String {
    "1".to_owned()
}

fn said<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum WhatSpec {
    Created { limit_ms: Option<u64>, retention_ms: u64, call: String, headers: Option<Vec<(String, String)>> },
    Message(String),
    Round { asked: Vec<(String, String)>, state: Option<String> },
    Asked(u64, String),
    Withdrawn(u64),
    Answered(Vec<(String, String)>),
    Completed(String),
    Failed(String),
    Cancelled,
}

pub(super) fn what(spec: WhatSpec, born: Born) -> What {
    let ended = |end| What::Ended(end, born);
    match spec {
        WhatSpec::Created { limit_ms, retention_ms, call, headers } => {
            let headers = headers.unwrap_or_default();
            let headers = CallHeaders::of(headers.iter().map(|(name, value)| (&**name, &**value)));
            What::Created { limit_ms, retention_ms, call: call.into(), headers }
        }
        WhatSpec::Message(message) => What::Message(message.into()),
        WhatSpec::Round { asked, state } => What::Round {
            asked: asked.into_iter().map(|(key, request)| (key.into(), request.into())).collect(),
            state: state.map(Into::into),
        },
        WhatSpec::Asked(ask, request) => What::Asked { ask, request: request.into() },
        WhatSpec::Withdrawn(ask) => What::Withdrawn { ask },
        WhatSpec::Answered(responses) => {
            let response = |(key, value): (String, String)| Response { key: key.into(), value: value.into() };
            What::Answered(responses.into_iter().map(response).collect())
        }
        WhatSpec::Completed(result) => ended(End::Completed(result.into())),
        WhatSpec::Failed(error) => ended(End::Failed(error.into())),
        WhatSpec::Cancelled => ended(End::Cancelled),
    }
}

fn utf8(bytes: Bytes) -> String {
    String::from_utf8(bytes.into()).unwrap()
}

#[test]
fn t_09_to_t_14_t_18_views() {
    let id = TaskId::new(&[0; TASK_ID_BYTES]);
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/task_views.json")) {
        let mut changes = Vec::new();
        let mut born = Born { created_at: 0, retention_ms: 0 };
        for (at, spec, record) in vector.changes {
            if let WhatSpec::Created { retention_ms, .. } = spec {
                born = Born { created_at: UNIX_MS + at, retention_ms };
            }
            let change = Change { at: UNIX_MS + at, what: what(spec, born) };
            let bytes = change.encode();
            // Behind the version, the kind and the time; and behind what an end repeats of the creation.
            let mut rest = 10;
            if matches!(change.what, What::Ended(..)) {
                rest = 26;
                assert_eq!(bytes[10..18], born.created_at.to_be_bytes(), "{name}");
                assert_eq!(bytes[18..26], born.retention_ms.to_be_bytes(), "{name}");
                let alone = Task::fold([&change]).unwrap().unwrap();
                assert_eq!((alone.created_at(), alone.end().is_some()), (born.created_at, true), "{name}");
            }
            assert_eq!(format!("{}{}", hex(&bytes[..2]), hex(&bytes[rest..])), record, "{name}");
            assert_eq!(bytes[2..10], change.at.to_be_bytes(), "{name}");
            assert_eq!(Change::decode(&bytes), Some(change.clone()), "{name}");
            for end in 0..bytes.len() {
                assert_eq!(Change::decode(&bytes.slice(..end)), None, "{name}: cut at {end}");
            }
            changes.push(change);
        }
        let task = Task::fold(&changes).unwrap().unwrap();
        let (at, request) = (UNIX_MS + vector.at, RequestId::from_json(&vector.request).unwrap());
        let check = |want: Option<String>, said: &dyn Fn() -> Bytes| {
            if let Some(want) = want {
                assert_eq!(utf8(said()), want, "{name}");
            }
        };
        check(vector.created, &|| created(&request, &id, &task, at));
        check(vector.get, &|| detailed(&request, &id, &task, at));
        check(vector.notification, &|| notification(&request, &id, &task, at));
        check(vector.round, &|| task.round_call().unwrap());
        if let Some(ttl_ms) = vector.ttl_ms {
            assert_eq!(task.ttl_ms(), Some(ttl_ms), "{name}");
        }
        if let Some(want) = vector.owner_lost {
            let lost = task.owner_lost(at);
            let error = lost.map(|change| match change.what {
                What::Ended(End::Failed(error), _) => utf8(error),
                _ => panic!("{name}: it fails"),
            });
            assert_eq!(error, want, "{name}");
        }
    }
}

#[test]
fn t_10_an_acknowledgement_says_nothing_else() {
    for id in ["0", "-5", "\"s\"", "9007199254740992", "\"12\""] {
        let said = utf8(acknowledged(&RequestId::from_json(id).unwrap()));
        assert_eq!(said, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete"}}}}"#));
    }
}

#[test]
fn t_16_records_that_no_release_wrote_are_none() {
    let change = Change { at: 1, what: What::Withdrawn { ask: 1 } };
    let record = change.encode();
    assert!(!Change::is_newer(&record));
    let mut newer = record.to_vec();
    newer[0] += 1;
    assert!(Change::is_newer(&newer));
    for bytes in [newer, [&record[..], b"\0"].concat(), [&[1, 0], &record[2..]].concat(), Vec::new()] {
        assert_eq!(Change::decode(&bytes.into()), None);
    }
    assert!(Task::new(&change).is_err() && Task::fold([&change]).is_err());
    assert_eq!(Task::fold([]), Ok(None));
}
