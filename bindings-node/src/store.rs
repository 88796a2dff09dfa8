//! Event stores by their address.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use napi::JsError;
use napi::bindgen_prelude::{AsyncTask, Either3, Env, Task};
use napi_derive::napi;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    self, Answer, Complete, Durability, EncryptionKey, EventStore, Limits, OpenError, Operation, Outcome, StoreOptions,
    Ticket,
};

use crate::convert::{Result, invalid, not_opened, size, whole};

/// What an option of a store may be.
type Value = Either3<f64, String, Vec<String>>;

/// An open event store. Several engines may use it.
#[napi]
pub struct Store {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) limits: Limits,
    pub(crate) owner_lost_ms: u64,
    address: String,
}

#[napi]
impl Store {
    /// Opens the store at an address, at once: one over the network is refused, for this thread would wait for it.
    /// Options are the bounds and `ownerLostMs`, whole numbers that are not negative, `durability` and
    /// `encryptionKeys`; unknown names throw.
    #[napi(constructor)]
    pub fn new(address: String, options: HashMap<String, Value>) -> Result<Self> {
        if store::is_remote(&address) {
            return Err(invalid(format!(
                "the event store {:?} is on the network, so opening it takes time: give the open store, \
                 `await openStore(address, options)`, and not its address",
                store::shown_address(&address)
            )));
        }
        let opening = Opening::new(address, options)?;
        let opened = opening.open().map_err(|error| not_opened(&error))?;
        Ok(opening.store(opened))
    }

    /// As the constructor, on a thread of its own: every address is taken.
    #[napi]
    pub fn open(address: String, options: HashMap<String, Value>) -> Result<AsyncTask<Opening>> {
        Ok(AsyncTask::new(Opening::new(address, options)?))
    }

    /// The address without what is secret in it.
    #[napi(getter)]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// A store that is to be opened.
pub struct Opening {
    address: String,
    options: StoreOptions,
}

impl Opening {
    fn new(address: String, options: HashMap<String, Value>) -> Result<Self> {
        let mut chosen = StoreOptions::default();
        for (name, value) in options {
            set_option(&mut chosen, &name, value)?;
        }
        Ok(Self { address, options: chosen })
    }

    fn open(&self) -> std::result::Result<Arc<dyn EventStore>, OpenError> {
        store::open(&self.address, &self.options)
    }

    fn store(&self, opened: Arc<dyn EventStore>) -> Store {
        let StoreOptions { limits, owner_lost_ms, .. } = self.options;
        Store { store: opened, limits, owner_lost_ms, address: store::shown_address(&self.address) }
    }
}

impl Task for Opening {
    // An error of the task itself has no code of ours.
    type Output = std::result::Result<Arc<dyn EventStore>, OpenError>;
    type JsValue = Store;

    fn compute(&mut self) -> napi::Result<Self::Output> {
        Ok(self.open())
    }

    fn resolve(&mut self, env: Env, opened: Self::Output) -> napi::Result<Store> {
        match opened {
            Ok(opened) => Ok(self.store(opened)),
            Err(error) => Err(napi::Error::from(JsError::from(not_opened(&error)).into_unknown(env))),
        }
    }
}

fn set_option(options: &mut StoreOptions, name: &str, value: Value) -> Result<()> {
    match (name, value) {
        ("durability", Either3::B(word)) if word == "process" => options.durability = Durability::Process,
        ("durability", Either3::B(word)) if word == "power" => options.durability = Durability::Power,
        ("durability", _) => return Err(invalid("durability must be 'process' or 'power'")),
        ("encryptionKeys", value) => {
            let Either3::C(keys) = value else { return Err(invalid("encryptionKeys must be a list of strings")) };
            let parsed: Option<Vec<EncryptionKey>> = keys.iter().map(|key| EncryptionKey::from_hex(key)).collect();
            // What was given is secret also where it is wrong.
            let parsed = parsed.filter(|keys| !keys.is_empty());
            options.encryption_keys =
                parsed.ok_or_else(|| invalid("encryptionKeys must be at least one key of 64 hexadecimal digits"))?;
        }
        ("ownerLostMs", Either3::A(value)) => options.owner_lost_ms = whole(name, value, false)?,
        (_, Either3::A(value)) => {
            if !set_limit(&mut options.limits, name, whole(name, value, false)?) {
                return Err(invalid(format!("unknown option {name}")));
            }
        }
        _ => return Err(invalid(format!("{name} must be a number"))),
    }
    Ok(())
}

/// Sets the bound of this name. False when there is none.
pub(crate) fn set_limit(limits: &mut Limits, name: &str, number: u64) -> bool {
    match name {
        "maxEventsPerStream" => limits.max_events_per_stream = size(number),
        "maxBytesPerStream" => limits.max_bytes_per_stream = size(number),
        "maxBytesPerSession" => limits.max_bytes_per_session = size(number),
        "maxBytes" => limits.max_bytes = size(number),
        "maxEventBytes" => limits.max_event_bytes = size(number),
        "retentionMs" => limits.retention_ms = number,
        "maxAgeMs" => limits.max_age_ms = number,
        _ => return false,
    }
    true
}

/// How long a process that ends waits for a store to write what it was given.
const FLUSH: Duration = Duration::from_secs(5);

/// A question whose answer comes behind everything that was asked before (rule 11 of stores).
#[derive(Default)]
struct Behind {
    answered: Mutex<bool>,
    told: Condvar,
}

impl Complete for Behind {
    fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }
}

/// Waits until the store has done what it was asked.
pub(crate) fn flush(store: &dyn EventStore) {
    let behind = Arc::new(Behind::default());
    let to: Weak<dyn Complete> = Arc::downgrade(&(Arc::clone(&behind) as Arc<dyn Complete>));
    let ticket = Ticket { to, nonce: StreamNonce([0; 12]), operation: Operation::Session, number: 0 };
    if matches!(store.session(Ms(0), "", &ticket), Answer::Later) {
        let answered = behind.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = behind.told.wait_timeout_while(answered, FLUSH, |answered| !*answered);
        if waited.is_ok_and(|(_, late)| late.timed_out()) {
            tracing::warn!(target: "tailrope", "the event store did not write everything before the process ended");
        }
    }
}
