//! One HTTP answer.

use std::cell::Cell;
use std::rc::Rc;

use napi::bindgen_prelude::{BufferSlice, Either, Env};
use napi_derive::napi;
use tailrope_core::engine::{self, Poll};
use tailrope_core::exchange::AnswerHead;

use crate::convert::{Result, internal, number};
use crate::waiters::Waiters;

/// Up to this size text crosses as a string, which costs less than a Buffer. Bytes.
const MAX_STRING_BYTES: usize = 16 << 10;

// One number instead of a property for each fact: a crossing costs more than what it asks for.
const NAMES_SESSION: u32 = 1 << 18;
const IS_REFUSAL: u32 = 1 << 19;
/// From this bit on: the seconds of `Retry-After`.
const RETRY_AFTER_BIT: u32 = 20;
const MAX_RETRY_AFTER_S: u32 = u32::MAX >> RETRY_AFTER_BIT;

/// A connection of a stream. Its writer polls it, writes what it gets, and waits for its key.
#[napi]
pub struct Connection {
    connection: engine::Connection,
    key: u32,
    waiters: Rc<Waiters>,
    head: Cell<Option<AnswerHead>>,
}

impl Connection {
    pub(crate) fn new(connection: engine::Connection, key: u32, waiters: &Rc<Waiters>) -> Self {
        Self { connection, key, waiters: Rc::clone(waiters), head: Cell::new(None) }
    }

    fn packed_head(&self) -> u32 {
        self.head.get().map_or(0, |head| {
            let kind = match head.content_type {
                None => 0,
                Some("text/event-stream") => 1,
                Some(_) => 2,
            };
            let named = if head.names_session { NAMES_SESSION } else { 0 };
            let refusal = if head.is_refusal { IS_REFUSAL } else { 0 };
            let retry_after = head.retry_after_s().unwrap_or_default().min(MAX_RETRY_AFTER_S);
            u32::from(head.status) | kind << 16 | named | refusal | retry_after << RETRY_AFTER_BIT
        })
    }
}

/// What a connection's writer has to do.
#[napi(object, object_from_js = false)]
pub struct Polled<'env> {
    /// How the answer starts: the HTTP status, and 65,536 for an event stream, 131,072 for JSON, 262,144 where it has the
    /// session id header, 524,288 where it refuses. From the 21st bit on the seconds of `Retry-After`, where it has that. 0 while
    /// the store has not said.
    pub head: u32,
    /// Write this; absent when there is nothing to write.
    pub data: Option<Either<String, BufferSlice<'env>>>,
    /// The connection ends after the data.
    pub end: bool,
    /// When the engine has to be ticked at the latest; absent where the writer does not wait, but polls again behind the data,
    /// or ends.
    pub wait_ms: Option<f64>,
}

#[napi]
impl Connection {
    /// What the waiters know it as.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What to write next, at most about `max_bytes`. What the call before gave counts as flushed.
    #[napi(catch_unwind)]
    pub fn poll<'env>(&self, env: &'env Env, max_bytes: u32) -> Result<Polled<'env>> {
        let poll = self.connection.poll(max_bytes as usize);
        if poll.head.is_some() {
            self.head.set(poll.head);
        }
        let data = if poll.is_empty() { None } else { Some(join(env, &poll)?) };
        let waits = !poll.more && poll.end.is_none();
        let wait_ms = waits.then(|| number(self.connection.wait_ms(&poll)));
        self.waiters.flush(env);
        Ok(Polled { head: self.packed_head(), data, end: poll.end.is_some(), wait_ms })
    }

    /// The peer is gone.
    #[napi(catch_unwind)]
    pub fn lost(&self, env: &Env) {
        self.connection.lost();
        self.waiters.flush(env);
    }
}

/// The chunks as one value: the one copy between the store and the socket.
fn join<'env>(env: &'env Env, poll: &Poll) -> Result<Either<String, BufferSlice<'env>>> {
    let mut bytes = Vec::with_capacity(poll.len());
    for chunk in &poll.chunks {
        bytes.extend_from_slice(chunk.as_ref());
    }
    text_or_bytes(env, bytes)
}

/// Frames, in the form that crosses at the lower cost.
pub(crate) fn text_or_bytes(env: &Env, bytes: Vec<u8>) -> Result<Either<String, BufferSlice<'_>>> {
    if bytes.len() > MAX_STRING_BYTES {
        return Ok(Either::B(BufferSlice::from_data(env, bytes).map_err(internal)?));
    }
    // Frames are written as UTF-8; if one were not, its bytes would still go out as they are.
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Either::A(text)),
        Err(error) => Ok(Either::B(BufferSlice::from_data(env, error.into_bytes()).map_err(internal)?)),
    }
}
