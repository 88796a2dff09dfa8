//! Runs the traces of `tests/vectors/client.json` on the client's half of a stream.

use crate::kit::vectors::vectors;
use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::client::{Input, Opening, Options, ResumableStream, Step, Token};
use tailrope_core::protocol::RequestId;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    stream: StreamSpec,
    #[serde(default)]
    options: OptionsSpec,
    steps: Vec<StepSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum StreamSpec {
    Requests(Vec<Value>),
    Standalone,
    Cursor(String),
    Saved(String),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OptionsSpec {
    max_delay_ms: Option<u64>,
    max_attempts: Option<u32>,
    give_up_after_ms: Option<u64>,
    max_silence_ms: Option<u64>,
    max_event_bytes: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepSpec {
    at: u64,
    #[serde(default)]
    jitter: u32,
    #[serde(rename = "in")]
    input: InputSpec,
    out: Vec<Value>,
    /// When the stream wants to be looked at after this step; null is never.
    #[serde(default, deserialize_with = "said")]
    deadline: Option<Option<u64>>,
    cursor: Option<String>,
    attempts: Option<u32>,
    /// Those without an answer.
    requests: Option<Vec<Value>>,
}

fn said<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum InputSpec {
    /// Shows what a stream says when it is made.
    Start,
    Head(HeadSpec),
    Text(String),
    End,
    Broken,
    Cancelled(Value),
    Abort,
    Tick,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadSpec {
    status: u16,
    #[serde(default = "event_stream")]
    content_type: Option<String>,
    retry_after_ms: Option<u64>,
}

#[allow(clippy::unnecessary_wraps, reason = "the default of a field that may be null")]
fn event_stream() -> Option<String> {
    Some("text/event-stream".to_owned())
}

fn request(id: &Value) -> RequestId {
    RequestId::from_json(&id.to_string()).unwrap()
}

fn written(step: &Step) -> Value {
    match step {
        Step::Connect { last_event_id } => json!({"connect": last_event_id}),
        Step::Opened => json!("opened"),
        Step::Deliver(message) => match &message.event {
            Some(event) => json!({"deliver": message.data, "event": event}),
            None => json!({"deliver": message.data}),
        },
        Step::Gap { first, count } => json!({"gap": [first, count]}),
        Step::CursorLost => json!("cursor_lost"),
        Step::Disconnect => json!("disconnect"),
        Step::Finished => json!("finished"),
        Step::Failed(failure) => json!({"failed": failure.code().as_str()}),
    }
}

fn opened(vector: &Vector) -> (ResumableStream, Vec<Step>) {
    let opening = match &vector.stream {
        StreamSpec::Requests(ids) => Opening::Posted(ids.iter().map(request).collect()),
        StreamSpec::Standalone => Opening::Standalone,
        StreamSpec::Cursor(cursor) => Opening::Continued(cursor.clone()),
        StreamSpec::Saved(text) => {
            let token = Token::parse(text).unwrap();
            assert_eq!(token.to_string(), *text, "a token reads as it was written");
            Opening::Saved(token)
        }
    };
    let OptionsSpec { max_delay_ms, max_attempts, give_up_after_ms, max_silence_ms, max_event_bytes } = vector.options;
    let default = Options::default();
    let options = Options {
        max_delay_ms: max_delay_ms.unwrap_or(default.max_delay_ms),
        max_attempts: max_attempts.or(default.max_attempts),
        give_up_after_ms: give_up_after_ms.or(default.give_up_after_ms),
        max_silence_ms: max_silence_ms.or(default.max_silence_ms),
        max_event_bytes: max_event_bytes.unwrap_or(default.max_event_bytes),
        ..default
    };
    let mut steps = Vec::new();
    let stream = ResumableStream::new(Ms(0), opening, options.checked().unwrap(), &mut steps);
    (stream, steps)
}

fn check(name: &str, vector: &Vector, chunk: usize) -> Result<(), String> {
    let (mut stream, mut first) = opened(vector);
    for (at, step) in vector.steps.iter().enumerate() {
        let mut steps = Vec::new();
        let mut handle = |input: Input<'_>| stream.handle(Ms(step.at), step.jitter, input, &mut steps);
        match &step.input {
            InputSpec::Start => steps.append(&mut first),
            InputSpec::Head(HeadSpec { status, content_type, retry_after_ms }) => handle(Input::Head {
                status: *status,
                content_type: content_type.as_deref(),
                retry_after_ms: *retry_after_ms,
            }),
            InputSpec::Text(text) => text.as_bytes().chunks(chunk).for_each(|bytes| handle(Input::Bytes(bytes))),
            InputSpec::End => handle(Input::End),
            InputSpec::Broken => handle(Input::Broken),
            InputSpec::Cancelled(id) => handle(Input::Cancelled(request(id))),
            InputSpec::Abort => handle(Input::Abort),
            InputSpec::Tick => handle(Input::Tick),
        }
        let fault = |what: &str, want: String, got: String| {
            Err(format!("{name}, step {at}, {what}:\n  want {want}\n  got  {got}"))
        };
        let out: Vec<Value> = steps.iter().map(written).collect();
        if out != step.out {
            return fault("out", json!(step.out).to_string(), json!(out).to_string());
        }
        let deadline = (stream.deadline() != Ms::NEVER).then_some(stream.deadline().0);
        if let Some(want) = step.deadline.filter(|want| *want != deadline) {
            return fault("deadline", format!("{want:?}"), format!("{deadline:?}"));
        }
        if let Some(want) = step.cursor.as_deref().filter(|want| *want != stream.cursor()) {
            return fault("cursor", want.to_owned(), stream.cursor().to_owned());
        }
        if let Some(want) = step.attempts.filter(|want| *want != stream.attempts()) {
            return fault("attempts", want.to_string(), stream.attempts().to_string());
        }
        if let Some(want) = &step.requests {
            let want: Vec<RequestId> = want.iter().map(request).collect();
            if want != stream.requests() {
                return fault("requests", format!("{want:?}"), format!("{:?}", stream.requests()));
            }
        }
    }
    assert!(first.is_empty(), "{name} does not look at how it starts");
    Ok(())
}

#[test]
fn traces_of_the_clients_half() {
    let mut failed = Vec::new();
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/client.json")) {
        // However the bytes are cut.
        for chunk in [usize::MAX, 7, 1] {
            failed.extend(check(&name, &vector, chunk).err().map(|fault| format!("in chunks of {chunk}: {fault}")));
        }
    }
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn tokens_that_are_not_ours_are_refused() {
    for text in [
        "",
        "{}",
        "t",
        r#"{"tailrope":2,"lastEventId":"a","requests":[]}"#,
        r#"{"tailrope":1,"lastEventId":"","requests":[]}"#,
        r#"{"tailrope":1,"lastEventId":"a\nb","requests":[]}"#,
        r#"{"tailrope":1,"lastEventId":"a","requests":[1.5]}"#,
        r#"{"tailrope":1,"lastEventId":"a","requests":[null]}"#,
        r#"{"tailrope":1,"lastEventId":"a","requests":[],"sessionId":"s\r\nx: y"}"#,
        r#"{"tailrope":1,"lastEventId":"a","requests":[],"else":1}"#,
    ] {
        assert!(Token::parse(text).is_err(), "{text}");
    }
}

#[test]
fn options_out_of_range_are_named() {
    let default = Options::default;
    for (options, name) in [
        (Options { growth: 0.5, ..default() }, "growth"),
        (Options { growth: f64::NAN, ..default() }, "growth"),
        (Options { jitter: -0.1, ..default() }, "jitter"),
        (Options { jitter: f64::INFINITY, ..default() }, "jitter"),
        (Options { max_event_bytes: 0, ..default() }, "max_event_bytes"),
        (Options { max_silence_ms: Some(0), ..default() }, "max_silence_ms"),
    ] {
        assert_eq!(options.checked().unwrap_err().name, name);
    }
}
