//! Runs `tests/vectors/refusals.json`: what the engine refuses after admission, in each SDK's words.

use std::sync::Arc;

use crate::kit::common::{Answered, Bench, NEW, call, call_json, id, notify, read_now, slow};
use crate::kit::vectors::{BySdk, vectors};
use serde::Deserialize;
use serde_json::Value;
use tailrope_core::engine::{Connection, NoWake, Options, SessionHandle};
use tailrope_core::protocol::{Dialect, Refusal, RequestId};
use tailrope_core::store::{HostReplay, HostStore, Limits};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    given: Situation,
    want: BySdk<Want>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Situation {
    CursorOfAnotherForm,
    CursorWithoutAName,
    CursorUnknownToTheHostStore,
    CallWithAnIdInFlight,
    CallAfterTheEnd,
    CallForJsonAfterTheEnd,
    GetAfterTheEnd,
    ResumeAfterTheEnd,
    ResumeThatOutlivesTheSession,
    CallForJsonThatOutlivesTheSession,
    CallToAClosedEngine,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Want {
    status: u16,
    code: i32,
    message: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
}

/// Tells null from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What the engine answered: at once, or on a connection.
enum Answer {
    Refused(Refusal),
    Read(Answered),
}

impl Answer {
    fn of(answer: Result<Connection, Refusal>, bench: &Bench) -> Self {
        match answer {
            Err(refusal) => Self::Refused(refusal),
            Ok(connection) => Self::Read(bench.read(&connection)),
        }
    }

    fn check(self, want: &Want, dialect: &Dialect, dialects_own_id: &Value) {
        let (status, body) = match self {
            Self::Refused(refusal) => (refusal.status, refusal.body(dialect)),
            Self::Read(answered) => {
                assert_eq!(answered.content_type, Some("application/json"));
                assert!(answered.end.is_some(), "the answer ends");
                (answered.status.unwrap(), answered.text.into_bytes())
            }
        };
        let id = want.id.as_ref().unwrap_or(dialects_own_id);
        let error = serde_json::json!({"code": want.code, "message": want.message});
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, body), (want.status, serde_json::json!({"jsonrpc": "2.0", "id": id, "error": error})));
    }
}

fn resumed(session: &SessionHandle, last_event_id: &str) -> Result<Connection, Refusal> {
    session.resume(last_event_id, None, Arc::new(NoWake), 0)
}

/// A session that has ended.
fn ended(bench: &Bench, dialect: &'static Dialect) -> SessionHandle {
    let session = bench.session_of("s", NEW, dialect);
    session.end();
    session
}

fn answer(situation: Situation, dialect: &'static Dialect) -> Answer {
    let (bench, store) = slow(Options::default());
    let open = || bench.session_of("s", NEW, dialect);
    let wake = Arc::new(NoWake);
    let refused = match situation {
        Situation::CursorOfAnotherForm => resumed(&open(), "_GET_stream"),
        Situation::CursorWithoutAName => {
            let session = open();
            let batch = session.call(&[id(1), id(2)], None, wake, 0).unwrap();
            let mut cursor = bench.read(&batch).last_id();
            cursor.replace_range(5..6, if &cursor[5..6] == "A" { "B" } else { "A" });
            resumed(&session, &cursor)
        }
        Situation::CursorUnknownToTheHostStore => return answer_of_a_host_store(dialect),
        Situation::CallWithAnIdInFlight => {
            let session = open();
            let _first = session.call(&[RequestId::text_id("a")], None, wake, 0).unwrap();
            let again = session.call_json(&[RequestId::text_id("a")], None, Arc::new(NoWake), 0).unwrap_err();
            let both = session.call(&[id(7), RequestId::text_id("a")], None, Arc::new(NoWake), 0).unwrap_err();
            assert_eq!(again, both, "however the answer is to come");
            assert_eq!(session.in_flight(), 1);
            Err(again)
        }
        Situation::CallAfterTheEnd => ended(&bench, dialect).call(&[id(1)], None, wake, 0),
        Situation::CallForJsonAfterTheEnd => ended(&bench, dialect).call_json(&[id(1)], None, wake, 0),
        Situation::GetAfterTheEnd => ended(&bench, dialect).listen(wake, 0),
        Situation::ResumeAfterTheEnd => resumed(&ended(&bench, dialect), "_GET_stream"),
        Situation::ResumeThatOutlivesTheSession => {
            let session = open();
            let first = call(&session, 1);
            let cursor = bench.read(&first).last_id();
            notify(&session, 1, "a").unwrap();
            drop(first);
            store.set(true, false);
            let waiting = resumed(&session, &cursor);
            session.end();
            waiting
        }
        Situation::CallForJsonThatOutlivesTheSession => {
            let session = open();
            let waiting = call_json(&session, 1);
            session.end();
            Ok(waiting)
        }
        Situation::CallToAClosedEngine => {
            let session = open();
            bench.engine.mark_forked();
            session.call(&[id(1)], None, wake, 0)
        }
    };
    Answer::of(refused, &bench)
}

fn answer_of_a_host_store(dialect: &'static Dialect) -> Answer {
    let limits = Limits::default();
    let bench = Bench::new(Options { store: Some(Arc::new(HostStore::new(limits))), ..Options::default() });
    let session = bench.session_of("s", NEW, dialect);
    let waiting = resumed(&session, "e1").unwrap();
    assert_eq!(read_now(&waiting).status, None, "the host is asked");
    let replays = session.take_operations();
    session.replayed(replays[0].number, Ok(HostReplay::default()));
    Answer::of(Ok(waiting), &bench)
}

#[test]
fn refusals_after_admission_are_in_the_words_of_the_sessions_sdk() {
    let mut failed = Vec::new();
    for (name, Vector { given, want }) in vectors(include_str!("../../vectors/refusals.json")) {
        let lines: [(&'static Dialect, &Want, Value); 5] = [
            (&Dialect::MCP_PYTHON_1, &want.python, "server-error".into()),
            (&Dialect::MCP_PYTHON_2, &want.python, Value::Null),
            (&Dialect::MCP_TYPESCRIPT_1, &want.typescript, Value::Null),
            (&Dialect::MCP_TYPESCRIPT_2, &want.typescript, Value::Null),
            (&Dialect::NEUTRAL, &want.typescript, Value::Null),
        ];
        for (dialect, want, dialects_own_id) in lines {
            let check = || answer(given, dialect).check(want, dialect, &dialects_own_id);
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err() {
                failed.push(format!("{name}, {:?}, id {dialects_own_id}", dialect.wording));
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
