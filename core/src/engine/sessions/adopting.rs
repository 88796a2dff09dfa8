//! Sessions that this process adopts: the owner is gone, a message waits for it, and the host here has said that it can
//! go on with the session.
//!
//! ```text
//!   offered ──taken over──▶ held ──its record is read──▶ ready ──the host takes it──▶ taken
//!      ▲                     │                             │
//!      └──── what waited is withdrawn, the session is released
//! ```
//!
//! The view of the session takes it over as an [heir](crate::engine::sessions::heirs) does. The new owner is another
//! session object of this engine, because a view has machines that follow logs, and an owner has machines that write
//! them. The view's connections stay with the view until they end.

use bytes::Bytes;

use crate::engine::EngineError;
use crate::engine::connections::Wake;
use crate::engine::lines::log_later;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::{Cell, SESSION};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::engine::shared::{Timed, lock};
use crate::engine::stats::Counters;
use crate::exchange::{Fault, Principal};
use crate::protocol::{NotRelayed, Origin, Refusal, StreamNonce};
use crate::session::{Handshake, SynthesizedEnd};
use crate::store::{Answer, Attach, Attached, Epoch, Operation, RunningLog, SessionRecord, StoreError};
use crate::stream::{Chain, ConnectionId, Drain, Follow, Input};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// How long a host may take to build the server object of a session, in milliseconds.
const BUILD_MS: u64 = 60_000;

/// What a view knows of its session's adoption.
#[derive(Default)]
pub(crate) struct Adoption {
    /// What is woken when the session is ready. None if the host adopts no sessions.
    host: Option<(Arc<dyn Wake>, u64)>,
    takeover: Option<Takeover>,
    /// The host has the session.
    is_taken: bool,
}

/// A session that was taken over.
struct Takeover {
    epoch: Epoch,
    running: Vec<RunningLog>,
    /// What the store keeps of the session, and what its client has told. None until the store has given it.
    record: Option<(SessionRecord, Handshake)>,
    /// Its host wants to take it, and [has to wait](crate::engine::sessions::building).
    is_waiting: bool,
}

impl Adoption {
    /// Whether this process owns the session, and its host has yet to take it.
    pub(crate) fn is_pending(&self) -> bool {
        self.takeover.is_some()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Whether the host adopts sessions.
    pub(crate) fn is_offered(&self) -> bool {
        self.host.is_some()
    }

    /// The epoch of a session that its host has yet to take.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.takeover.as_ref().map(|takeover| takeover.epoch)
    }

    /// What is woken when the session is ready.
    pub(crate) fn host(&self) -> Option<(Arc<dyn Wake>, u64)> {
        self.host.clone()
    }
}

/// The wake of an [offer](SessionHandle::offer_adoption), for hosts that do not hold its session. They are woken once
/// more when the offer is over, because the session is not viewed here any longer, or because a later offer has
/// replaced it.
pub struct OfferWake {
    wake: Arc<dyn Wake>,
    key: u64,
    is_over: Arc<AtomicBool>,
}

impl OfferWake {
    /// `wake` is called with `key`. The returned flag is set when the offer is over.
    pub fn new(wake: Arc<dyn Wake>, key: u64) -> (Self, Arc<AtomicBool>) {
        let is_over = Arc::new(AtomicBool::new(false));
        (Self { wake, key, is_over: Arc::clone(&is_over) }, is_over)
    }
}

impl Wake for OfferWake {
    fn wake(&self, key: u64) {
        self.wake.wake(key);
    }
}

/// Dropped together with the view, or when a later offer replaces it.
impl Drop for OfferWake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.wake.wake(self.key);
    }
}

/// A session that this process owns from now on. The host builds its server object, gives it the
/// [replay](Self::replay), and then [accepts](SessionHandle::accept_posted) what waits. If it cannot, it
/// [refuses](Self::refuse).
#[derive(Debug)]
pub struct Adopted {
    view: Arc<Cell>,
    session: SessionHandle,
    replay: Vec<Bytes>,
}

impl Adopted {
    /// The session, like one that was opened here.
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// The messages that the server object is given first, in this order: those of the client that hold for the rest of
    /// the session. Their answers are [sent](SessionHandle::send) like any other, and go nowhere.
    pub fn replay(&self) -> &[Bytes] {
        &self.replay
    }

    /// Call this if the host cannot go on with the session. The session is released, and what waits gets this answer.
    pub fn refuse(&self, refusal: &Refusal) {
        self.view.change_or((), |change| change.withdraw_waiting(refusal));
        self.session.release();
    }
}

impl SessionHandle {
    /// Offers to adopt the session of this [view](crate::engine::Engine::look_up_session), in case a message comes for
    /// it when its owner is gone. `wake` is called, with `key`, when [`take_adopted`](Self::take_adopted) has
    /// something. Only the last offer counts.
    pub fn offer_adoption(&self, wake: Arc<dyn Wake>, key: u64) {
        if self.cell.is_elsewhere() {
            self.cell.change_or((), |change| {
                let Adoption { host, takeover, .. } = &mut change.state.adoption;
                change.effects.released.extend(host.replace((wake, key)).map(|(wake, _)| wake));
                change.effects.tells_adopter = takeover.as_ref().is_some_and(|takeover| takeover.record.is_some());
            });
        }
    }

    /// Takes the session, once, if this process owns it now. `wake` and `key` are as for a session that is
    /// [opened](crate::engine::Engine::open_session). A session that is not taken within `owner_lost_ms` is released.
    /// If many sessions are adopted at once, this one may have to wait: then `wake` of the
    /// [offer](Self::offer_adoption) is called again when it is its turn. When the host has taken the session, it has a
    /// minute until it has to [accept](Self::accept_posted) what waits.
    pub fn take_adopted(&self, wake: Arc<dyn Wake>, key: u64) -> Option<Adopted> {
        let view = &self.cell;
        let (takeover, principal) = view.change_or(None, |change| change.take_ready())?;
        let Takeover { epoch, running, record: Some((record, handshake)), .. } = takeover else { return None };
        view.leave_place();
        let (shared, replay) = (Arc::clone(&view.shared), handshake.replay());
        let owner = Cell::new(shared, view.names(), view.now(), principal.as_ref(), view.dialect, (wake, key));
        lock(&view.shared.timed).insert(owner.number, Timed::Session(Arc::downgrade(&owner)));
        view.change(|change| change.state.beside = Some(Arc::downgrade(&owner)));
        owner.change(|change| {
            (change.state.beside, change.state.inbox.is_closed) = (Some(Arc::downgrade(view)), true);
            change.state.timers.set(Reason::Adoption, change.now + BUILD_MS);
            change.begin_adopted(epoch, &running, (&record, handshake));
        });
        let adopted = Adopted { view: Arc::clone(view), session: Self::new(Arc::clone(&owner)), replay };
        match owner.take_place().and_then(|()| view.shared.register(&owner)) {
            Ok(None) => {
                owner.set_idle_ms(view.shared.options.session_idle_ms);
                Counters::add(&view.shared.counters.sessions_adopted, 1);
                tracing::info!(target: "tailrope", session = %view.name, "session adopted");
                return Some(adopted);
            }
            Err(EngineError::TooManySessions { .. }) => adopted.refuse(&Fault::TooManySessions.refusal(view.dialect)),
            Ok(Some(_)) | Err(_) => adopted.refuse(&view.dialect.wording.closing()),
        }
        None
    }
}

impl Cell {
    /// A message waits for the session's owner: tells the owner, if it is in this engine.
    pub(crate) fn tell_owner(&self) {
        let owner = lock(&self.shared.sessions).get(&self.name).cloned();
        if let Some(owner) = owner.filter(|owner| !owner.is_elsewhere()) {
            owner.change(|change| change.state.inbox.is_hinted = true);
        }
    }

    /// Tells the host once more that the session can be taken, if it waits for that. Returns whether it does.
    pub(crate) fn tell_again(&self) -> bool {
        self.change(|change| {
            let takeover = change.state.adoption.takeover.as_mut();
            let is_waiting = takeover.is_some_and(|takeover| std::mem::take(&mut takeover.is_waiting));
            change.effects.tells_adopter = is_waiting;
            is_waiting
        })
    }

    /// Takes what the session beside this one has written, and which connections read it there.
    pub(crate) fn hear(&self, written: &[StreamNonce], read: &[(StreamNonce, ConnectionId)]) {
        self.change(|change| {
            written.iter().for_each(|nonce| change.look_because_of_a_hint(*nonce));
            for (nonce, reader) in read {
                let stream = change.state.session.stream(*nonce);
                let is_older = stream.and_then(|stream| stream.machine.connection()).is_some_and(|conn| conn < *reader);
                change.supersede_older(*nonce, *reader);
                if is_older {
                    change.input(*nonce, Input::Taken);
                }
            }
        });
    }

    /// Whether this is not where the session is found: another process has it, or another session object here has
    /// adopted it.
    pub(crate) fn is_replaced(&self) -> bool {
        let state = lock(&self.state);
        state.is_fenced || state.adoption.is_taken
    }
}

impl Change<'_> {
    /// Whether this view may take its session over for its host.
    pub(crate) fn may_adopt(&self) -> bool {
        let Adoption { host, is_taken, .. } = &self.state.adoption;
        host.is_some() && !is_taken
    }

    /// This process owns the session now. Its record is read again, because the owner before may have changed it since
    /// the look-up.
    pub(crate) fn took_over(&mut self, epoch: Epoch, running: Vec<RunningLog>) {
        self.state.adoption.takeover = Some(Takeover { epoch, running, record: None, is_waiting: false });
        self.cell.shared.is_back(&self.cell.name);
        let attach = Attach { principal: self.state.identity(), ..Attach::default() };
        let ticket = self.cell.ticket(SESSION, Operation::Attach(0));
        match self.cell.shared.store.attach(&self.cell.name, &attach, &ticket) {
            Answer::Now(result) => self.record_read(result),
            Answer::Later => self.wait(ticket),
        }
    }

    /// The store has told what is kept of a session that was taken over, or could not.
    pub(crate) fn record_read(&mut self, result: Result<Attached, StoreError>) {
        let wording = self.cell.dialect.wording;
        let Some(takeover) = &mut self.state.adoption.takeover else { return };
        let record = match result {
            Ok(Attached { session: Some(record), .. }) => record,
            Ok(_) => return self.not_adopted(&wording.session_ended()),
            Err(error) => {
                log_later!(self, WARN, [], %error, "session not adopted");
                return self.not_adopted(&wording.not_relayed(NotRelayed::NotStored));
            }
        };
        if Handshake::is_newer(&record.note) {
            log_later!(
                self,
                WARN,
                [],
                "session not adopted: a later release wrote what its client told, and can go on"
            );
            return self.not_adopted(&wording.not_relayed(NotRelayed::NotBegun));
        }
        let Some(handshake) = Handshake::decode(&record.note).filter(|handshake| !handshake.replay().is_empty()) else {
            log_later!(self, WARN, [], "session not adopted: what its client told is not kept");
            return self.not_adopted(&wording.session_ended());
        };
        takeover.record = Some((record, handshake));
        let due = self.now + self.cell.shared.options.owner_lost_ms;
        self.state.timers.set(Reason::Adoption, due);
        self.wait_for_owner(due);
        self.effects.tells_adopter = true;
    }

    /// The host did not take the session in time, or does not serve it yet.
    pub(crate) fn adoption_is_due(&mut self) {
        if !self.cell.is_elsewhere() {
            return self.leave_unbuilt();
        }
        log_later!(self, WARN, [], "session not adopted: its host did not take it in time");
        self.not_adopted(&self.cell.dialect.wording.not_relayed(NotRelayed::NotBegun));
    }

    /// The session is not adopted: another process may take it.
    fn not_adopted(&mut self, refusal: &Refusal) {
        let Some(Takeover { epoch, running, .. }) = self.state.adoption.takeover.take() else { return };
        self.state.timers.clear(Reason::Adoption);
        self.effects.builds_next = true;
        self.withdraw_waiting(refusal);
        self.leave_to_others(epoch, &running);
    }

    /// Leaves a session that the host has taken and is not ready to serve.
    fn leave_unbuilt(&mut self) {
        if self.state.inbox.is_closed && self.state.is_open() {
            log_later!(self, ERROR, [], "session not adopted: its server was not ready within a minute");
            self.cell.keep_logs();
            self.state.is_ending = true;
            self.effects.hands_over = true;
        }
    }

    /// The host is ready, or the session ends. Returns whether the host was not ready before.
    pub(crate) fn end_building(&mut self) -> bool {
        let is_over = std::mem::take(&mut self.state.inbox.is_closed);
        if is_over {
            self.state.timers.clear(Reason::Adoption);
            self.cell.shared.end_building();
            self.effects.builds_next = true;
        }
        is_over
    }

    /// The view goes. A session that its host has not taken is [released](Cell::renounce) with it.
    pub(crate) fn end_adoption(&mut self) {
        self.cell.renounce(self.state);
        let over = std::mem::take(&mut self.state.adoption);
        self.effects.released.extend(over.host.map(|(wake, _)| wake));
    }

    fn take_ready(&mut self) -> Option<(Takeover, Option<Principal>)> {
        let takeover = self
            .state
            .adoption
            .takeover
            .as_mut()
            .filter(|takeover| takeover.record.is_some() && !takeover.is_waiting)?;
        if self.cell.shared.check().is_err() {
            self.not_adopted(&self.cell.dialect.wording.closing());
            return None;
        }
        if !self.cell.shared.may_build(self.cell) {
            takeover.is_waiting = true;
            return None;
        }
        let takeover = self.state.adoption.takeover.take()?;
        self.state.timers.clear(Reason::Adoption);
        self.state.adoption.is_taken = true;
        // The owner is this process now, and known to be alive.
        self.wait_for_owner(self.now + BUILD_MS);
        if let Some(standalone) = self.state.session.standalone() {
            self.send_to_owner(standalone);
        }
        Some((takeover, self.state.principal.clone()))
    }

    /// Lets the client of the standalone stream come back to the session object that has adopted this one: any stream
    /// may end a standalone connection (W-055).
    pub(crate) fn send_to_owner(&mut self, standalone: StreamNonce) {
        let drain = Drain::after(self.state.session.retry_ms());
        self.input(standalone, Input::Drain(drain));
    }

    /// Goes on where the owner before has left the session.
    fn begin_adopted(
        &mut self,
        epoch: Epoch,
        running: &[RunningLog],
        (record, handshake): (&SessionRecord, Handshake),
    ) {
        let SessionRecord { revision, retry_ms, list_changed, standalone, .. } = *record;
        self.state.epoch = epoch;
        self.state.session.assume(revision, retry_ms, list_changed, None);
        self.state.session.adopt(handshake);
        self.state.facts_put = Some(self.state.session.facts());
        match running.iter().find(|log| Some(log.nonce) == standalone) {
            Some(&RunningLog { nonce, head, chain, .. }) => {
                let follow = Follow { head, ..Follow::default() };
                self.state.session.follow(self.now, nonce, (Origin::Standalone, None), Chain(chain), follow);
                self.state.session.set_standalone(Some(nonce));
                self.watch(nonce);
            }
            None => {
                // The standalone stream had a name at most, and no log.
                let nonce = standalone.unwrap_or_else(|| self.cell.shared.nonce());
                self.state.session.standalone_or(self.now, nonce, &mut self.steps);
                self.opened(nonce);
                self.input(nonce, Input::Create);
            }
        }
        running.iter().for_each(|log| self.end_running(epoch, (log, SynthesizedEnd::OwnerLost)));
        // The store may have been set back after it told what ran, and before it had a watcher here to tell.
        self.state.wants_stock = true;
    }
}
