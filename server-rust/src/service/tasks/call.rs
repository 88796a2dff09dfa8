//! Does what the engine says of a call: gives its client the answer, starts and ends its runs.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use tailrope_core::engine::{CallStep, Context, TaskCall, Wake as _};
use tailrope_core::task::{Input, Reply};
use tokio::sync::mpsc::Sender;

use super::reply::{Part, Replies, Room, replies};
use super::run::{Run, head_of_relayed, with_message};
use crate::service::application::Application;
use crate::service::endpoint::Endpoint;
use crate::signal::Signal;

pub(super) struct Caller<A: Application> {
    endpoint: Arc<Endpoint<A>>,
    call: TaskCall,
    signal: Arc<Signal>,
    /// The request with which the call came to this process, as long as that waits.
    asking: Option<Arc<Signal>>,
    /// The head of the call, or of the request with which the call came to this process.
    parts: Parts,
    replies: Option<Sender<Part>>,
    room: Room,
    runs: HashMap<u32, Run>,
    /// The runs whose end the client's leaving is not any more.
    is_linked: bool,
}

impl<A: Application> Caller<A> {
    pub(super) fn new(
        endpoint: &Arc<Endpoint<A>>,
        call: TaskCall,
        signal: Arc<Signal>,
        parts: Parts,
    ) -> (Self, Replies) {
        let (sender, receiver) = replies();
        let room = Room::of(&sender);
        let caller = Self {
            endpoint: Arc::clone(endpoint),
            call,
            signal,
            asking: None,
            parts,
            replies: Some(sender),
            room,
            runs: HashMap::new(),
            is_linked: true,
        };
        (caller, receiver)
    }

    /// Each wake-up of the call is one of this, too.
    pub(super) fn pass_wakes_to(&mut self, asking: &Arc<Signal>) {
        self.asking = Some(Arc::clone(asking));
    }

    /// Serves the call until nothing of it is left to do. `is_new` says that it begins here.
    pub(super) async fn serve(mut self, is_new: bool) {
        if is_new {
            let body = self.call.body().clone();
            self.start(0, self.parts.clone(), body);
        } else {
            (self.replies, self.is_linked) = (None, false);
        }
        while !self.call.is_over() {
            loop {
                let steps = self.call.take_steps();
                if steps.is_empty() {
                    break;
                }
                steps.into_iter().for_each(|step| self.step(step));
            }
            if let Some(asking) = &self.asking {
                asking.wake(0);
            }
            self.endpoint.host.arm_for_engine();
            let replies = self.replies.clone().filter(|_| self.is_linked);
            let gone = async {
                match replies {
                    Some(replies) => replies.closed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.signal.woken() => {}
                () = gone => {
                    self.is_linked = false;
                    self.call.input(Input::ClientGone);
                }
            }
        }
    }

    fn start(&mut self, number: u32, parts: Parts, message: Bytes) {
        let run = Run::start(&self.endpoint, &self.call, self.room.clone(), number, parts, message);
        self.runs.insert(number, run);
        self.runs.retain(|other, _| number - other < 2);
    }

    fn step(&mut self, step: CallStep) {
        match step {
            CallStep::Reply(reply) => {
                let is_end = matches!(reply, Reply::Body { .. } | Reply::End);
                self.send(Part::Reply(reply));
                if is_end {
                    self.replies = None;
                }
            }
            CallStep::PassOn => {
                let answer = self.runs.values().max_by_key(|run| run.number).and_then(Run::take_answer);
                if let Some(answer) = answer {
                    self.send(Part::PassOn(answer));
                }
                self.replies = None;
            }
            CallStep::Unlink => {
                self.is_linked = false;
                self.room.unlink();
            }
            CallStep::Disconnect { run } | CallStep::Kill { run } => {
                if let Some(run) = self.runs.get(&run) {
                    run.cancel();
                }
            }
            CallStep::Start { run, context, call, headers } => {
                let parts = match context {
                    Context::Call => self.parts.clone(),
                    Context::Request(key) => {
                        let known = self.endpoint.tasks.contexts().get(&key).cloned();
                        known.unwrap_or_else(|| self.parts.clone())
                    }
                    Context::Relayed(relayed) => head_of_relayed(&self.parts, &relayed),
                };
                self.start(run, with_message(parts, &headers), call);
            }
            // rmcp has no place where a handler's request could be taken.
            CallStep::Answer { .. } | CallStep::Refuse { .. } => {}
        }
    }

    fn send(&mut self, part: Part) {
        let is_sent = self.replies.as_ref().is_some_and(|replies| replies.try_send(part).is_ok());
        if !is_sent {
            self.replies = None;
            if std::mem::take(&mut self.is_linked) {
                // It has left, or reads too slowly: its call ends with it.
                self.call.input(Input::ClientGone);
            }
        }
    }
}
