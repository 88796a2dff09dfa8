//! One HTTP answer.

use std::cell::Cell;
use std::rc::Rc;

use napi::bindgen_prelude::{BufferSlice, Either, Either3, Env};
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

// What a writer does that does not wait.
const POLLS_AGAIN: f64 = -1.0;
const ENDS: f64 = -2.0;

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

#[napi]
impl Connection {
    /// What the waiters know it as.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What to write next, at most about `max_bytes`. What the call before gave counts as flushed.
    ///
    /// A list, which costs less than an object. First how the answer starts: the HTTP status, and 65,536 for an event stream,
    /// 131,072 for JSON, 262,144 where it has the session id header, 524,288 where it refuses; from the 21st bit on the seconds
    /// of `Retry-After`, where it has that; 0 while the store has not said. Then in how many milliseconds the engine has to be
    /// ticked at the latest, if the writer waits; -1 if it polls again behind the data; -2 if the connection ends behind the data.
    /// Then the data, where there is some.
    #[napi(catch_unwind)]
    pub fn poll<'env>(&self, env: &'env Env, max_bytes: u32) -> Result<Vec<Either3<f64, String, BufferSlice<'env>>>> {
        let poll = self.connection.poll(max_bytes as usize);
        if poll.head.is_some() {
            self.head.set(poll.head);
        }
        let wait = match (poll.end, poll.more) {
            (Some(_), _) => ENDS,
            (None, true) => POLLS_AGAIN,
            (None, false) => number(self.connection.wait_ms(&poll)),
        };
        let mut polled = vec![Either3::A(f64::from(self.packed_head())), Either3::A(wait)];
        if !poll.is_empty() {
            polled.push(match join(env, &poll)? {
                Either::A(text) => Either3::B(text),
                Either::B(bytes) => Either3::C(bytes),
            });
        }
        self.waiters.flush(env);
        Ok(polled)
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
