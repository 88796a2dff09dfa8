//! One answer, which is read whether somebody waits for it or not, so that two connections can be compared by time.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::Connection;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::blocks::{Block, Blocks, Message, parsed};
use super::tls::Socket;

const MOST_BYTES: usize = 32 << 20;

/// How the body of an answer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// More may come, or we cut it: that leaves it as it was.
    Open,
    /// It is complete.
    End,
    Broken,
    /// We cut it, and what is there counts as all that came.
    Cut,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) status: u16,
    /// By name, in lower case; of several values the last.
    headers: Vec<(String, String)>,
    blocks: RefCell<Vec<Rc<Block>>>,
    response: RefCell<Option<Rc<Block>>>,
    body: RefCell<Vec<u8>>,
    state: Cell<State>,
    changed: Notify,
    cut: Notify,
}

impl Exchange {
    pub(super) fn new(answer: &Response<Incoming>) -> Self {
        let named = answer.headers().keys().filter_map(|name| {
            let value = answer.headers().get_all(name).iter().next_back()?;
            Some((name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).trim().to_owned()))
        });
        let mut headers: Vec<_> = named.collect();
        headers.sort();
        Self {
            status: answer.status().as_u16(),
            headers,
            blocks: RefCell::default(),
            response: RefCell::default(),
            body: RefCell::default(),
            state: Cell::new(State::Open),
            changed: Notify::new(),
            cut: Notify::new(),
        }
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn content_type(&self) -> String {
        let whole = self.header("content-type").unwrap_or_default();
        whole.split(';').next().unwrap_or_default().trim().to_lowercase()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.status == 200 && self.content_type() == "text/event-stream"
    }

    pub(crate) fn state(&self) -> State {
        self.state.get()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state() != State::Open
    }

    pub(crate) fn has_response(&self) -> bool {
        self.response.borrow().is_some()
    }

    pub(crate) fn response(&self) -> Option<Rc<Block>> {
        self.response.borrow().clone()
    }

    /// Events and comments, in the order in which they came.
    pub(crate) fn blocks(&self) -> Ref<'_, Vec<Rc<Block>>> {
        self.blocks.borrow()
    }

    pub(crate) fn events(&self) -> Vec<Rc<Block>> {
        self.blocks().iter().filter(|block| block.is_event()).cloned().collect()
    }

    pub(crate) fn has_event(&self) -> bool {
        self.blocks().iter().any(|block| block.is_event())
    }

    /// Whether an event came that tells a client something.
    pub(crate) fn has_news(&self) -> bool {
        self.blocks().iter().any(|block| block.id.is_some() || block.has_data())
    }

    pub(crate) fn first_id(&self) -> Option<String> {
        self.blocks().iter().find_map(|block| block.id.clone())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body.borrow()).into_owned()
    }

    /// A whole JSON body, or the response that a stream carries.
    pub(crate) fn json(&self) -> Message {
        let found = if self.is_stream() {
            self.response().and_then(|block| block.message.clone())
        } else {
            parsed(&self.body.borrow())
        };
        found.unwrap_or_default()
    }

    /// Waits until the condition holds, for so long; whether it does.
    pub(crate) async fn until(&self, condition: impl Fn(&Self) -> bool, within: Duration) -> bool {
        let end = Instant::now() + within;
        while !condition(self) {
            if timeout_at(end, self.changed.notified()).await.is_err() {
                return condition(self);
            }
        }
        true
    }

    /// Waits for the response or the end.
    pub(crate) async fn answered(&self, within: Duration) {
        self.until(|exchange| exchange.is_over() || exchange.has_response(), within).await;
    }

    pub(crate) async fn over(&self, within: Duration) {
        self.until(Self::is_over, within).await;
    }

    /// Resets the connection, as a path that dies.
    pub(crate) fn cut(&self) {
        self.cut.notify_one();
    }

    /// As if the connection had died right behind this block: what came with it in one piece counts as lost.
    pub(crate) fn forget_after(&self, index: usize) {
        self.blocks.borrow_mut().truncate(index + 1);
        self.response.replace(None);
        self.state.set(State::Cut);
    }

    fn take(&self, piece: &[u8], blocks: &mut Blocks, taken: &mut usize) -> Option<()> {
        *taken += piece.len();
        if *taken > MOST_BYTES {
            return None;
        }
        if !self.is_stream() {
            self.body.borrow_mut().extend_from_slice(piece);
            return Some(());
        }
        let keep = |block: Block| {
            let block = Rc::new(block);
            if block.is_response() && !self.has_response() {
                self.response.replace(Some(Rc::clone(&block)));
            }
            self.blocks.borrow_mut().push(block);
        };
        blocks.push(piece, keep).ok()
    }

    /// Reads to the end, or until it is cut.
    pub(super) async fn read<S: Socket>(
        self: Rc<Self>,
        mut connection: Connection<TokioIo<S>, Full<Bytes>>,
        mut body: Incoming,
        mut is_driven: bool,
    ) {
        let (mut blocks, mut taken) = (Blocks::new(MOST_BYTES), 0);
        let state = loop {
            tokio::select! {
                biased;
                () = self.cut.notified() => {
                    if is_driven {
                        connection.into_parts().io.into_inner().reset_on_close();
                    }
                    return;
                }
                _ = &mut connection, if is_driven => is_driven = false,
                frame = body.frame() => match frame {
                    None => break State::End,
                    Some(Err(_)) => break State::Broken,
                    Some(Ok(frame)) => {
                        let piece = frame.into_data().unwrap_or_default();
                        if self.take(&piece, &mut blocks, &mut taken).is_none() {
                            break State::Broken;
                        }
                        self.changed.notify_waiters();
                    }
                },
            }
        };
        if self.state() == State::Open {
            self.state.set(state);
        }
        self.changed.notify_waiters();
    }
}
