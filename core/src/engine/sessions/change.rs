//! A change of a session: made under its lock, with what it leaves to do when the lock is released.

use smallvec::SmallVec;

use crate::Ms;
use crate::engine::connections::Wake;
use crate::engine::lines::Later;
use crate::engine::sessions::Sent;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::shared::lock;
use crate::engine::telemetry::Observation;
use crate::protocol::StreamNonce;
use crate::session::Steps;
use crate::store::StoreError;
use crate::stream::{ConnectionId, Input};
use crate::sync::Arc;

/// A change under way.
pub(crate) struct Change<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) state: &'a mut State,
    pub(crate) now: Ms,
    /// What machines have asked for, and what is not performed yet.
    pub(crate) steps: Steps,
    pub(crate) effects: Effects,
}

/// What became of a message of this stream, by its token. A response that the store did not take is [`Sent::Dropped`]:
/// the engine answers for it, and an error would kill the SDK's session (I9).
pub(crate) type Settled = (StreamNonce, u64, Result<Sent, StoreError>);

/// What a change leaves to do.
#[derive(Default)]
pub(crate) struct Effects {
    /// Connections whose writers have something to look at.
    pub(crate) touched: SmallVec<[ConnectionId; 4]>,
    /// What became of messages.
    pub(crate) results: SmallVec<[Settled; 1]>,
    /// The host has something to look at: outcomes, or operations of its own store.
    pub(crate) tells_host: bool,
    /// The host of a view can take the session.
    pub(crate) tells_adopter: bool,
    /// A message waits for an owner that may be in this engine.
    pub(crate) tells_owner: bool,
    /// What was written, and which connections read it: for the session [beside](State::beside) this one.
    pub(crate) written: SmallVec<[StreamNonce; 1]>,
    pub(crate) read: Vec<(StreamNonce, ConnectionId)>,
    /// Another session may be adopted now.
    pub(crate) builds_next: bool,
    /// The session ends for good.
    pub(crate) ends: bool,
    /// The session is left to other processes.
    pub(crate) hands_over: bool,
    /// Wakes that are not needed any more. A host's code may run where the last one is dropped.
    pub(crate) released: SmallVec<[Arc<dyn Wake>; 1]>,
    /// What is to be logged.
    pub(crate) lines: Vec<Later>,
    /// What is to be observed.
    pub(crate) observed: Vec<Observation>,
}

impl Cell {
    /// Makes a change. When the lock is released, wakes those that have something to do, and logs.
    pub(crate) fn change<T>(&self, make: impl FnOnce(&mut Change<'_>) -> T) -> T {
        let mut state = lock(&self.state);
        let (was_writing, was_pending) = (!state.writing.is_empty(), state.adoption.is_pending());
        let mut change = Change {
            cell: self,
            state: &mut state,
            // Read under the lock, so that no change has an older time than the one before it.
            now: self.now(),
            steps: Steps::new(),
            effects: Effects::default(),
        };
        let value = make(&mut change);
        change.complete();
        let wakes = change.wakes();
        let Effects { lines, observed, tells_owner, builds_next, ends, hands_over, written, read, released, .. } =
            change.effects;
        let is_lost = state.is_fenced && !state.session.has_ended() && !std::mem::replace(&mut state.is_ending, true);
        let is_written = was_writing && state.writing.is_empty();
        let is_decided = was_pending && !state.adoption.is_pending();
        let is_unused = state.relays.take_over() && state.conns.is_empty();
        let beside = state.beside.clone().filter(|_| !written.is_empty() || !read.is_empty());
        drop(state);
        if let Some(beside) = beside.and_then(|beside| beside.upgrade()) {
            beside.hear(&written, &read);
        }
        if is_lost {
            self.end_fenced();
        }
        if hands_over {
            self.end_handed_over();
        }
        if is_written || is_decided || is_unused {
            // This may be a view that is here only for what an owner left.
            self.let_go();
        }
        if tells_owner {
            self.tell_owner();
        }
        if ends {
            self.end();
        }
        if builds_next {
            self.shared.build_next();
        }
        wakes.into_iter().for_each(|(wake, key)| wake.wake(key));
        drop(released);
        self.shared.write_lines(lines);
        self.shared.observe(observed);
        value
    }

    /// As [`change`](Self::change). In the child of a fork, returns `forked` instead.
    pub(crate) fn change_or<T>(&self, forked: T, make: impl FnOnce(&mut Change<'_>) -> T) -> T {
        if self.is_forked() { forked } else { self.change(make) }
    }
}

impl Change<'_> {
    /// Gives the machine of a stream an input. Returns whether the machine took it.
    pub(crate) fn input(&mut self, nonce: StreamNonce, input: Input) -> bool {
        self.state.session.handle(self.now, nonce, input, &mut self.steps).is_ok()
    }

    /// Does what every change ends with.
    fn complete(&mut self) {
        self.perform();
        self.take_stock();
        self.put_facts();
        self.send_json_answers();
        self.look_into_inbox();
        self.settle_senders();
        self.end_at_rest();
        self.note_records();
        let deadline = self.state.deadline(self.cell);
        if deadline < self.state.scheduled {
            // Under the session's lock, so that this does not overtake a later change.
            self.cell.shared.schedule(self.state.scheduled, deadline, self.cell.number);
            self.state.scheduled = deadline;
        }
    }

    /// The wakes to call. Writers that are awake look anyway.
    fn wakes(&mut self) -> SmallVec<[(Arc<dyn Wake>, u64); 2]> {
        let mut wakes = SmallVec::new();
        for id in &self.effects.touched {
            if let Some(conn) = self.state.conns.get_mut(id).filter(|conn| !conn.awake) {
                conn.awake = true;
                wakes.push((Arc::clone(&conn.wake), conn.key));
            }
        }
        if self.effects.tells_host {
            wakes.push(self.cell.wake.clone());
        }
        if self.effects.tells_adopter {
            wakes.extend(self.state.adoption.host());
        }
        wakes
    }
}
