//! What the SDK answers to a run, as inputs for the [`Machine`](super::Machine): one JSON body, or a stream of events.

use bytes::Bytes;

use super::machine::Input;
use crate::protocol::sse_decoder::{Decoder, Item};
use crate::protocol::{Body, Kind, jsonrpc};

/// Reads the answer of one run. See [`Input`] for what a run is.
#[derive(Debug)]
pub struct RunReader {
    run: u32,
    status: u16,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Events(Box<Decoder>),
    Whole(Vec<u8>),
}

impl RunReader {
    /// For an answer with this head. Its events have no bound: the SDK has each of them whole, and a call that never becomes a
    /// task is answered whatever its size.
    pub fn new(run: u32, status: u16, content_type: Option<&str>) -> Self {
        let form = match is_stream(content_type) {
            true => Form::Events(Box::new(Decoder::new(usize::MAX))),
            false => Form::Whole(Vec::new()),
        };
        Self { run, status, form }
    }

    /// Whether the answer is one body, which may have to be [passed on](super::Output::PassOn) as it is: the host keeps it until
    /// then.
    pub fn is_body(&self) -> bool {
        matches!(self.form, Form::Whole(_))
    }

    /// The next bytes of the answer.
    pub fn data(&mut self, chunk: &[u8]) -> Vec<Input> {
        let (run, status) = (self.run, self.status);
        let decoder = match &mut self.form {
            Form::Events(decoder) => decoder,
            Form::Whole(body) => {
                body.extend_from_slice(chunk);
                return Vec::new();
            }
        };
        decoder.push(chunk);
        let mut inputs = Vec::new();
        loop {
            match decoder.next() {
                Ok(Some(Item::Event(event))) if !event.data.is_empty() => {
                    inputs.push(Input::Message { run, message: Bytes::from(event.data.into_bytes()), is_body: false });
                }
                Ok(Some(_)) => {}
                Ok(None) => return inputs,
                Err(_) => {
                    inputs.push(Input::NotJsonRpc { run, status });
                    return inputs;
                }
            }
        }
    }

    /// Nothing more comes.
    pub fn end(self) -> Vec<Input> {
        let Self { run, status, form } = self;
        let answer = match form {
            Form::Events(_) => None,
            Form::Whole(body) => Some(match jsonrpc::read(&body) {
                Ok(Body::Single(envelope)) if matches!(envelope.kind, Kind::Response | Kind::ErrorResponse) => {
                    Input::Message { run, message: body.into(), is_body: true }
                }
                _ => Input::NotJsonRpc { run, status },
            }),
        };
        answer.into_iter().chain([Input::RunEnded { run }]).collect()
    }
}

/// Whether an answer of this content type is a stream of events.
pub(super) fn is_stream(content_type: Option<&str>) -> bool {
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(status: u16, content_type: Option<&str>, chunks: &[&str]) -> Vec<String> {
        let mut reader = RunReader::new(3, status, content_type);
        let mut inputs: Vec<Input> = chunks.iter().flat_map(|chunk| reader.data(chunk.as_bytes())).collect();
        inputs.extend(reader.end());
        let told = |input: &Input| match input {
            Input::Message { run: 3, message, is_body } => {
                format!("{}{}", if *is_body { "=" } else { "" }, message.len())
            }
            Input::NotJsonRpc { run: 3, status } => format!("no {status}"),
            Input::RunEnded { run: 3 } => "end".to_owned(),
            other => panic!("{other:?}"),
        };
        inputs.iter().map(told).collect()
    }

    #[test]
    fn t_13_an_answer_is_read_whatever_its_form() {
        let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert_eq!(inputs(200, Some("application/json"), &[&response[..9], &response[9..]]), ["=36", "end"]);
        let events = [": ping\n\nevent: message\nda", "ta: {\"a\":1}\n\nid: 1\ndata: \n\n", "data: {}\n\n"];
        assert_eq!(inputs(200, Some("Text/Event-Stream; charset=utf-8"), &events), ["7", "2", "end"]);
    }

    #[test]
    fn what_is_no_answer_of_json_rpc_is_told_by_its_status() {
        for body in [r#"{"error":"invalid_token"}"#, "", "Unauthorized", "[]", r#"{"jsonrpc":"2.0","method":"a"}"#] {
            assert_eq!(inputs(401, Some("application/json"), &[body]), ["no 401", "end"], "{body}");
        }
        assert_eq!(inputs(200, Some("text/event-stream"), &["data: "]), ["end"]);
    }
}
