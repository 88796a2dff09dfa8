//! Event stores by their address.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use napi::JsError;
use napi::bindgen_prelude::{AsyncTask, Either, Either3, Env, Task};
use napi_derive::napi;
use tailrope_core::store::{self, Durability, EncryptionKey, EventStore, Limits, StoreOptions};
use tailrope_stores::{OpenError, shown_address};

use crate::convert::{Result, invalid, not_opened, number_option};

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
        if tailrope_stores::is_remote(&address) {
            return Err(invalid(format!(
                "the event store {:?} is on the network, so opening it takes time: give the open store, \
                 `await openStore(address, options)`, and not its address",
                shown_address(&address)
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
        tailrope_stores::open(&self.address, &self.options)
    }

    fn store(&self, opened: Arc<dyn EventStore>) -> Store {
        let StoreOptions { limits, owner_lost_ms, .. } = self.options;
        Store { store: opened, limits, owner_lost_ms, address: shown_address(&self.address) }
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
        (_, Either3::A(value)) => {
            let (option, number) = number_option(name, &Either::A(value))?;
            if !option.is_of_store {
                return Err(invalid(format!("unknown option {name}")));
            }
            option.set_of_store(options, number);
        }
        _ => return Err(invalid(format!("{name} must be a number"))),
    }
    Ok(())
}

/// How long a process that ends waits for a store to write what it was given.
const FLUSH: Duration = Duration::from_secs(5);

/// Waits until the store has done what it was asked.
pub(crate) fn flush(store: &dyn EventStore) {
    store::flush(store, FLUSH);
}
