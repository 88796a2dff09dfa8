//! One call over all its connections.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Session, Stream};
use crate::wire::{Block, Exchange, NoAnswer, Why};

/// A client comes back no later than this, whatever `retry` says, and no earlier where it says nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const MOST_CONNECTIONS: usize = 100;

/// The first of its connections is that of the POST.
pub(crate) struct Run {
    pub(crate) session: Rc<Session>,
    pub(crate) id: u64,
    connections: RefCell<Vec<Rc<Exchange>>>,
}

impl Run {
    pub(crate) fn new(session: Rc<Session>, id: u64, post: Rc<Exchange>) -> Self {
        Self { session, id, connections: RefCell::new(vec![post]) }
    }

    pub(crate) fn first(&self) -> Rc<Exchange> {
        Rc::clone(&self.connections.borrow()[0])
    }

    pub(crate) fn last(&self) -> Rc<Exchange> {
        let connections = self.connections.borrow();
        Rc::clone(&connections[connections.len() - 1])
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(crate) fn stream(&self) -> Option<Stream> {
        Some(Stream::Request(self.id))
    }

    pub(crate) fn events(&self) -> Vec<Rc<Block>> {
        self.connections.borrow().iter().flat_map(|exchange| exchange.events()).collect()
    }

    pub(crate) fn first_id(&self) -> Option<String> {
        self.events().iter().find_map(|event| event.id.clone())
    }

    pub(crate) fn last_id(&self) -> Option<String> {
        self.events().iter().rev().find_map(|event| event.id.clone())
    }

    pub(crate) fn response(&self) -> Option<Rc<Block>> {
        self.connections.borrow().iter().find_map(|exchange| exchange.response())
    }

    /// What follows the first event with an id: all that a resume from there has to give.
    pub(crate) fn messages(&self) -> Vec<Rc<Block>> {
        let after_id = self.events().into_iter().skip_while(|event| event.id.is_none()).skip(1);
        after_id.filter(|event| event.has_data()).collect()
    }

    /// Waits for an id to come back with.
    pub(crate) async fn has_id(&self) -> bool {
        let has_id = |exchange: &Exchange| exchange.is_over() || self.last_id().is_some();
        self.last().until(has_id, self.session.timeout()).await;
        self.last_id().is_some()
    }

    pub(crate) async fn resume(&self) -> Result<Rc<Exchange>, NoAnswer> {
        let exchange = self.session.get(self.last_id().as_deref(), self.stream()).await?;
        self.connections.borrow_mut().push(Rc::clone(&exchange));
        Ok(exchange)
    }

    fn retry(&self) -> Duration {
        let told = self.events().iter().rev().find_map(|event| event.retry_ms);
        Duration::from_millis(told.unwrap_or(0)).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    /// Reads to the response and comes back as often as that takes.
    ///
    /// # Errors
    /// What went wrong.
    pub(crate) async fn finish(&self, within: Duration) -> Result<(), String> {
        let end = Instant::now() + within;
        loop {
            let exchange = self.last();
            if self.count() > 1 && !exchange.is_stream() {
                let kind = if exchange.status == 200 { format!(" {}", exchange.content_type()) } else { String::new() };
                return Err(format!("a resume is answered {}{kind}", exchange.status));
            }
            let left = end.saturating_duration_since(Instant::now());
            exchange.until(|exchange| exchange.is_over() || self.response().is_some(), left).await;
            if self.response().is_some() {
                return Ok(());
            }
            if !exchange.is_over() {
                return Err("the response does not come".to_owned());
            }
            if self.last_id().is_none() {
                return Err("the connection ended before the response, and there is no id to come back with".to_owned());
            }
            if !exchange.has_news() {
                return Err("a resume is answered 200 and nothing".to_owned());
            }
            if self.count() >= MOST_CONNECTIONS {
                return Err(format!("no response after {MOST_CONNECTIONS} connections"));
            }
            sleep(self.retry()).await;
            self.resume().await.map_err(|fault| match fault.why {
                Why::Silent => format!("a resume has {fault}"),
                Why::Refused | Why::Broken => format!("a resume fails: {fault}"),
            })?;
        }
    }
}
