//! Which owners of sessions give signs of life. Their beats are looked at beside everything that the store is asked, so that
//! no answer waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Value, cmd};
use tailrope_core::Ms;
use tailrope_core::store::parts::{Fault, Sightings, beat_ms};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::nodes::lasting;
use super::slots::slot_of;
use super::worker::{CLOSED, Core, GARBLED};

/// An owner is looked for until no answer has named it for so long. That bounds how many are known.
const NAMED: Duration = Duration::from_secs(120);
/// How many beats one command asks for at most.
const AT_ONCE: usize = 1_000;

struct Known {
    /// When an answer last named it.
    named: Instant,
    /// A look is under way.
    is_asked: bool,
    unseen_ms: u64,
}

struct State {
    known: HashMap<Box<str>, Known>,
    sightings: Sightings,
    is_blind: bool,
}

pub(super) struct Owners {
    state: Mutex<State>,
    /// An answer named one that was not known.
    named: Notify,
    /// What the times of looks are counted from.
    began: Instant,
}

impl Owners {
    pub(super) fn new(owner_lost_ms: u64) -> Self {
        let state = State { known: HashMap::new(), sightings: Sightings::new(owner_lost_ms), is_blind: false };
        Self { state: Mutex::new(state), named: Notify::new(), began: Instant::now() }
    }

    /// For how many milliseconds an owner, which an answer names, is known to give no sign; for ever when it said that it is
    /// closed.
    pub(super) fn unseen_ms(&self, owner: &str) -> u64 {
        let now = Instant::now();
        let mut state = self.lock();
        if let Some(known) = state.known.get_mut(owner) {
            known.named = now;
            return known.unseen_ms;
        }
        state.known.insert(owner.into(), Known { named: now, is_asked: false, unseen_ms: 0 });
        self.named.notify_one();
        0
    }

    /// Whether one of those that answers have named lately is not known to be lost.
    pub(super) fn has_living(&self, owner_lost_ms: u64) -> bool {
        self.lock().known.values().any(|known| known.unseen_ms < owner_lost_ms)
    }

    /// Those to look for now.
    fn due(&self) -> Vec<Box<str>> {
        let mut state = self.lock();
        state.known.retain(|_, known| known.named.elapsed() < NAMED);
        let due = state.known.iter_mut().filter(|(_, known)| !known.is_asked && known.unseen_ms < u64::MAX);
        due.map(|(owner, known)| {
            known.is_asked = true;
            owner.clone()
        })
        .collect()
    }

    /// A look found this sign of an owner; true where the server has none.
    fn saw(&self, owner: &str, sign: &Value) -> bool {
        let now = Ms(self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        let said = if let Value::BulkString(said) = sign { Some(&said[..]) } else { None };
        let mut state = self.lock();
        let unseen_ms = if said == Some(CLOSED.as_bytes()) {
            u64::MAX
        } else {
            let count = said.and_then(|said| std::str::from_utf8(said).ok()?.parse().ok());
            state.sightings.saw(owner, count, now)
        };
        state.sighted(owner, unseen_ms);
        state.is_blind = false;
        said.is_none()
    }

    /// These could not be looked for. Until they can, nothing is known of them.
    fn saw_nothing(&self, owners: &[Box<str>], fault: &Fault) {
        let mut state = self.lock();
        owners.iter().for_each(|owner| state.sighted(owner, 0));
        if !std::mem::replace(&mut state.is_blind, true) {
            tracing::warn!(target: "tailrope", what = fault.what, "event store cannot look for owners");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn sighted(&mut self, owner: &str, unseen_ms: u64) {
        if let Some(known) = self.known.get_mut(owner) {
            (known.is_asked, known.unseen_ms) = (false, unseen_ms);
        }
    }
}

/// The task: looks for the owners that answers named, as often as this store object gives a sign itself. Never ends.
pub(super) async fn run(core: Arc<Core>) {
    let pause = Duration::from_millis(beat_ms(core.owner_lost_ms));
    // A server of a cluster takes no command with keys of several slots.
    let size = if core.nodes.is_cluster() { 1 } else { AT_ONCE };
    loop {
        for some in core.owners.due().chunks(size) {
            // A server that does not answer keeps nobody from looking at another one.
            tokio::spawn(look(Arc::clone(&core), some.to_vec()));
        }
        let _ = timeout(pause, core.owners.named.notified()).await;
        core.pulse.saw_company(core.owners.has_living(core.owner_lost_ms));
    }
}

async fn look(core: Arc<Core>, owners: Vec<Box<str>>) {
    let Some(first) = owners.first() else { return };
    let keys: Vec<String> = owners.iter().map(|owner| core.tags.owner(owner)).collect();
    let question = cmd("MGET").arg(keys).to_owned();
    // Where a server takes no writes, signs that stand still prove nothing.
    if let Err(fault) = lost_sign(&core, first).await {
        return core.owners.saw_nothing(&owners, &fault);
    }
    let signs = match core.nodes.call(slot_of(first), &question, core.limit()).await {
        Ok(Value::Array(signs)) if signs.len() == owners.len() => signs,
        Ok(_) => return core.owners.saw_nothing(&owners, &lasting(GARBLED)),
        Err(fault) => return core.owners.saw_nothing(&owners, &fault),
    };
    for (owner, sign) in owners.iter().zip(signs) {
        if core.owners.saw(owner, &sign) {
            let _ = lost_sign(&core, owner).await;
        }
    }
}

/// Where the server has no sign of an owner, it lost it. Of an owner that is gone the next looks find this one, which stands still.
async fn lost_sign(core: &Core, owner: &str) -> Result<(), Fault> {
    let sign = core.sign(owner, "0").arg("NX").to_owned();
    core.nodes.call(slot_of(owner), &sign, core.limit()).await.map(|_| ())
}
