//! The client's half of a stream: against a server that keeps a log nothing is lost, repeated or kept waiting; whatever
//! else comes, it ends in order and holds no more than it may.

use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::client::{Failure, Input, Message, Opening, Options, ResumableStream, Step, Token};
use tailrope_core::protocol::RequestId;

use crate::kit::dice::Dice;
use crate::reader::Reader;

pub(crate) fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    if mode & 1 == 0 {
        Honest::new(Dice::of(bytes)).run();
    } else {
        hostile(Reader::new(bytes));
    }
}

/// A server that keeps a log and answers every cursor with what follows it, however its connections end.
struct Honest {
    dice: Dice,
    log: Vec<String>,
    /// How its ids are written, before the position.
    prefix: &'static str,
    retry_ms: Option<u64>,
    primes: bool,
    line_end: &'static str,
    /// What is not told yet of the connection that is open.
    bytes: Vec<u8>,
    is_open: bool,
    /// Up to where the log has grown.
    visible: usize,
    now: u64,
    delivered: Vec<String>,
    failure: Option<Failure>,
    finished: bool,
}

impl Honest {
    fn new(mut dice: Dice) -> Self {
        let requests = 1 + dice.place(2);
        let events = dice.place(14);
        // Some of them are alike: what they say does not tell them apart.
        let event = |at: usize| json!({"jsonrpc": "2.0", "method": "n", "params": {"at": at % 3}}).to_string();
        let mut log: Vec<String> = (0..events).map(event).collect();
        for request in 0..requests {
            let at = if request + 1 == requests { log.len() } else { dice.place(log.len() + 1) };
            log.insert(at, json!({"jsonrpc": "2.0", "id": request, "result": {}}).to_string());
        }
        Self {
            log,
            prefix: ["", "a,", "%c3 ", "1_"][dice.place(4)],
            retry_ms: [None, Some(0), Some(40), Some(3_000)][dice.place(4)],
            primes: dice.one_in(2),
            line_end: ["\n", "\r\n", "\r"][dice.place(3)],
            bytes: Vec::new(),
            is_open: true,
            visible: 0,
            now: 0,
            delivered: Vec::new(),
            failure: None,
            finished: false,
            dice,
        }
    }

    fn run(mut self) {
        let requests = self.log.iter().filter(|event| event.contains("result")).count();
        let requests: Vec<RequestId> = (0..requests).map(|id| RequestId::Integer(id.to_string().into())).collect();
        let options = Options { max_attempts: None, give_up_after_ms: None, ..Options::default() };
        let mut steps = Vec::new();
        let mut stream = ResumableStream::new(Ms(0), Opening::Posted(requests), options, &mut steps);
        assert!(steps.is_empty(), "a posted stream is open");
        self.write(None);
        for _ in 0..400 {
            if stream.is_done() {
                break;
            }
            self.now += self.dice.below(64);
            self.visible = (self.visible + self.dice.place(3)).min(self.log.len());
            // When the choices are used up the connections last, and everything is there.
            if self.dice.is_used_up() {
                self.visible = self.log.len();
            }
            if self.is_open {
                self.connection(&mut stream);
            } else {
                self.connect(&mut stream);
            }
        }
        self.check(&stream);
    }

    /// The suffix after a position, as far as the log has grown.
    fn write(&mut self, cursor: Option<&str>) {
        let after = match cursor {
            None => 0,
            Some(id) => {
                let position = id.strip_prefix(self.prefix).expect("a cursor is an id that was sent");
                let position: usize = position.parse().expect("a cursor is an id that was sent");
                // Some servers go back to what they know to have been read.
                if self.dice.below(4) == 3 { position.saturating_sub(self.dice.place(4)) } else { position }
            }
        };
        let end = self.line_end;
        let retry = self.retry_ms.map_or(String::new(), |retry_ms| format!("retry: {retry_ms}{end}"));
        let mut text = String::new();
        if self.primes || cursor.is_none() {
            text = format!("id: {}{after}{end}{retry}data:{end}{end}: hello{end}{end}", self.prefix);
        }
        for at in after..self.visible {
            text.push_str(&format!("id: {}{}{end}data: {}{end}{end}", self.prefix, at + 1, self.log[at]));
        }
        self.bytes = text.into_bytes();
    }

    /// Some of the bytes come; then the connection goes on, is closed, or breaks.
    fn connection(&mut self, stream: &mut ResumableStream) {
        let mut steps = Vec::new();
        let count = if self.dice.one_in(3) { self.bytes.len() } else { self.dice.place(self.bytes.len() + 1) };
        let arrives: Vec<u8> = self.bytes.drain(..count).collect();
        let jitter = u32::try_from(self.dice.below(1 << 32)).expect("it is below 2^32");
        stream.handle(Ms(self.now), jitter, Input::Bytes(&arrives), &mut steps);
        self.perform(&mut steps);
        let input = match self.dice.below(4) {
            0 => Input::End,
            1 => Input::Broken,
            _ if self.bytes.is_empty() => Input::End,
            _ => return,
        };
        self.bytes.clear();
        self.is_open = false;
        stream.handle(Ms(self.now), jitter, input, &mut steps);
        self.perform(&mut steps);
        let told = stream.retry_ms().unwrap_or(0);
        assert!(stream.is_done() || stream.deadline() >= Ms(self.now + told), "W-043: not before its time");
    }

    fn connect(&mut self, stream: &mut ResumableStream) {
        let mut steps = Vec::new();
        let due = stream.deadline();
        assert_ne!(due, Ms::NEVER, "it comes back");
        self.now = self.now.max(due.0);
        if let Some(before) = due.0.checked_sub(1) {
            stream.handle(Ms(before), 0, Input::Tick, &mut steps);
            assert!(steps.is_empty(), "it does not come before its time: {steps:?}");
        }
        stream.handle(Ms(self.now), 0, Input::Tick, &mut steps);
        let [Step::Connect { last_event_id: cursor }] = &steps[..] else { panic!("{steps:?}") };
        let cursor = cursor.clone();
        assert_eq!(cursor.as_deref(), Some(stream.cursor()));
        steps.clear();
        let head = |status, content_type| Input::Head { status, content_type, retry_after_ms: None };
        let is_used_up = self.dice.is_used_up();
        let answer = match self.dice.below(8) {
            0 if !is_used_up => Input::Broken,
            1 => head(503, None),
            2 => head(409, Some("application/json")),
            _ => head(200, Some("text/event-stream; charset=utf-8")),
        };
        self.is_open = matches!(answer, Input::Head { status: 200, .. });
        stream.handle(Ms(self.now), 7, answer, &mut steps);
        self.perform(&mut steps);
        if self.is_open {
            self.write(cursor.as_deref());
        }
    }

    fn perform(&mut self, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            assert!(!self.finished && self.failure.is_none(), "nothing comes after the end: {step:?}");
            match step {
                Step::Deliver(Message { event: None, data }) => self.delivered.push(data),
                Step::Finished => self.finished = true,
                Step::Failed(failure) => self.failure = Some(failure),
                Step::Disconnect => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn check(&self, stream: &ResumableStream) {
        assert!(self.log.starts_with(&self.delivered), "I3: {:?} of {:?}", self.delivered, self.log);
        match &self.failure {
            None => {
                assert!(self.finished, "it comes to its end: {stream:?}");
                assert_eq!(self.delivered, self.log, "I3: nothing is lost");
            }
            // The first connection may break before its first id is read.
            Some(Failure::NotResumable) => assert!(self.delivered.is_empty() && stream.cursor().is_empty()),
            Some(failure) => panic!("{failure}"),
        }
    }
}

/// Whatever comes, in any order.
fn hostile(mut reader: Reader<'_>) {
    let how = reader.u8();
    let max_event_bytes = if how & 8 == 0 { 1 << 20 } else { 1 + usize::from(reader.u8()) };
    let options = Options {
        max_event_bytes,
        max_attempts: if how & 16 == 0 { Some(100) } else { None },
        give_up_after_ms: (how & 32 == 0).then_some(600_000),
        max_silence_ms: (how & 64 == 0).then_some(300_000),
        ..Options::default()
    };
    let request = |kind: u8, name: u8| match kind & 1 {
        0 => RequestId::integer(i64::from(name % 4)),
        _ => RequestId::text_id(&(name % 4).to_string()),
    };
    let opening = match how & 3 {
        0 => Opening::Posted((0..how >> 2 & 1).chain([1]).map(|at| request(how >> 7, at)).collect()),
        1 => Opening::Standalone,
        2 => Opening::Continued(reader.text().replace(|c: char| c.is_control(), "")),
        _ => match Token::parse(&reader.text()) {
            Ok(token) => Opening::Saved(token),
            Err(_) => Opening::Posted(Vec::new()),
        },
    };
    let mut watch = Watch { is_connected: matches!(opening, Opening::Posted(_)), ..Watch::default() };
    let (mut now, mut steps) = (0, Vec::new());
    let mut stream = ResumableStream::new(Ms(now), opening, options, &mut steps);
    watch.see(&stream, &mut steps);
    for _ in 0..300 {
        if reader.is_empty() {
            break;
        }
        now = now.saturating_add(u64::from(reader.u8()));
        let was_done = stream.is_done();
        let (kind, jitter) = (reader.u8(), reader.u32());
        match kind % 8 {
            0 | 1 => {
                let bytes = reader.bytes();
                watch.given += bytes.len();
                stream.handle(Ms(now), jitter, Input::Bytes(bytes), &mut steps);
            }
            end @ (2 | 3) => {
                watch.is_connected = false;
                let input = if end == 2 { Input::End } else { Input::Broken };
                stream.handle(Ms(now), jitter, input, &mut steps);
            }
            4 => {
                const STATUSES: [u16; 16] =
                    [200, 200, 200, 200, 204, 400, 401, 403, 404, 405, 408, 409, 429, 500, 503, 0];
                const TYPES: [Option<&str>; 4] =
                    [Some("text/event-stream"), Some("Text/Event-Stream ; x"), Some("application/json"), None];
                let (status, content_type) = (reader.u8(), reader.u8());
                let head = Input::Head {
                    status: STATUSES[usize::from(status % 16)],
                    content_type: TYPES[usize::from(content_type % 4)],
                    retry_after_ms: (content_type & 4 != 0).then(|| u64::from(reader.u32())),
                };
                stream.handle(Ms(now), jitter, head, &mut steps);
            }
            5 => stream.handle(Ms(now), jitter, Input::Cancelled(request(kind >> 3, reader.u8())), &mut steps),
            6 => {
                if stream.deadline() != Ms::NEVER && kind & 16 == 0 {
                    now = now.max(stream.deadline().0);
                }
                stream.handle(Ms(now), jitter, Input::Tick, &mut steps);
                watch.see(&stream, &mut steps);
                // A silent connection is let go of, and the next may be due at once.
                stream.handle(Ms(now), jitter, Input::Tick, &mut steps);
                assert!(kind & 16 != 0 || stream.deadline() > Ms(now) || now == u64::MAX, "a tick does what was due");
            }
            _ if kind & 0x38 == 0x38 => stream.handle(Ms(now), jitter, Input::Abort, &mut steps),
            _ => {}
        }
        assert!(!was_done || steps.is_empty(), "nothing comes after the end: {steps:?}");
        watch.see(&stream, &mut steps);
        if let Some(token) = stream.token() {
            assert_eq!(Token::parse(&token.to_string()), Ok(token), "W-113: what is saved reads back");
        }
    }
    stream.handle(Ms(now), 0, Input::Abort, &mut steps);
    assert!(stream.is_done() && stream.token().is_none());
}

/// What whoever drives a stream sees of it.
#[derive(Default)]
struct Watch {
    is_connected: bool,
    is_over: bool,
    /// Bytes that came, and that were handed on.
    given: usize,
    delivered: usize,
}

impl Watch {
    /// Takes what is to be done.
    fn see(&mut self, stream: &ResumableStream, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            assert!(!self.is_over, "nothing comes after the end: {step:?}");
            match step {
                Step::Connect { last_event_id } => {
                    assert!(!std::mem::replace(&mut self.is_connected, true), "one connection at a time");
                    let id = last_event_id.unwrap_or_default();
                    assert!(!id.contains(['\r', '\n', '\0']) && id == stream.cursor(), "W-066: a header can carry it");
                }
                Step::Disconnect => self.is_connected = false,
                Step::Deliver(message) => {
                    assert!(!message.data.is_empty());
                    self.delivered += message.data.len();
                    let mut frame = Vec::new();
                    message.write_frame(&mut frame);
                    assert!(frame.ends_with(b"\n\n"));
                }
                Step::Finished | Step::Failed(_) => self.is_over = true,
                Step::Opened | Step::Gap { .. } | Step::CursorLost => {}
            }
        }
        assert_eq!(self.is_over || stream.is_done(), stream.is_done());
        // A byte that is not UTF-8 becomes three.
        assert!(self.delivered <= 3 * self.given, "nothing comes that was not sent");
        if !stream.is_done() && stream.deadline() == Ms::NEVER {
            assert!(self.is_connected, "who waits for nothing has a connection");
        }
    }
}
