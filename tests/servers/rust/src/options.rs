//! The options of a test server, as those of the other languages have them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tailrope_server::store::{EncryptionKey, StoreOptions, open};
use tailrope_server::{Engine, Options as EngineOptions};

use tailrope_core::engine::{NUMBER_OPTIONS, OnStoreFailure, PACE_OPTIONS, Pace, Paces};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Options {
    /// Options of the engine and of its store, by name.
    pub(crate) engine: Map<String, Value>,
    /// Of the event store.
    pub(crate) address: String,
    pub(crate) retry_ms: u32,
    idle_s: Option<f64>,
    /// The least level of what the engine logs to standard error.
    pub(crate) log: String,
    pub(crate) max_request_body_size: Option<usize>,
    /// Against foreign hosts and origins.
    pub(crate) guard: bool,
    /// Events of a stream that a store of the tests' own keeps; the engine's have bounds of theirs.
    pub(crate) cap: Option<usize>,
    /// Said with the transport.
    stock: bool,
    pub(crate) json_response: bool,
    /// The header `x-test-name` names the user, and what `x-test-user` says in JSON is what authentication left.
    pub(crate) own_auth: bool,
    /// It answers at every path.
    pub(crate) any_path: bool,
    /// Each user has a token, which the host verifies.
    pub(crate) auth: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Map::new(),
            address: "memory:".to_owned(),
            retry_ms: 20,
            idle_s: None,
            log: "warn".to_owned(),
            max_request_body_size: None,
            guard: false,
            cap: None,
            stock: false,
            json_response: false,
            own_auth: false,
            any_path: false,
            auth: false,
        }
    }
}

impl Options {
    /// Further headers that are relayed.
    pub(crate) fn relayed_headers(&self) -> Vec<String> {
        let names = self.engine.get("relayed_headers").and_then(Value::as_array).into_iter().flatten();
        names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }

    /// Whether clients of 2026-07-28 fall back.
    pub(crate) fn prefers_resumable(&self) -> bool {
        self.engine.get("prefer_resumable").and_then(Value::as_bool).unwrap_or(true)
    }

    pub(crate) fn idle(&self) -> Option<Duration> {
        self.idle_s.map(Duration::from_secs_f64)
    }

    /// The engine, with its store.
    pub(crate) fn engine(&self) -> Result<Engine, String> {
        let mut store = StoreOptions::default();
        let mut engine = EngineOptions::default();
        engine.pacing.retry_ms = self.retry_ms;
        if let Some(idle) = self.idle() {
            engine.session_idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        }
        for (name, value) in &self.engine {
            if let Some(option) = NUMBER_OPTIONS.iter().find(|option| option.name == name) {
                let text = || value.as_str().and_then(|text| option.of_text(text));
                let number = option.check(value.as_u64().or_else(text)).map_err(|why| format!("{name} {why}"))?;
                option.set(&mut engine, number);
                if option.is_of_store {
                    option.set_of_store(&mut store, number);
                }
                continue;
            }
            if name == "pace" {
                engine.paces = paces(value)?;
                continue;
            }
            if matches!(&**name, "prefer_resumable" | "relayed_headers") {
                continue;
            }
            if name == "encryption_keys" {
                let keys =
                    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(EncryptionKey::from_hex);
                store.encryption_keys = keys.collect::<Option<_>>().ok_or("an encryption key is no key")?;
                continue;
            }
            match (&**name, value.as_str().and_then(OnStoreFailure::parse)) {
                ("on_store_failure", Some(policy)) => engine.on_store_failure = policy,
                _ => return Err(format!("the Rust servers have no option {name} = {value}")),
            }
        }
        if self.address != "memory:" {
            engine.store = Some(open(&self.address, &store).map_err(|error| error.to_string())?);
        }
        Ok(Engine::new(engine))
    }
}

/// Paces by the names of tools, each with what it says.
fn paces(by_name: &Value) -> Result<Paces, String> {
    let mut paces = Paces::default();
    for (pattern, said) in by_name.as_object().into_iter().flatten() {
        let mut pace = Pace::default();
        for (name, value) in said.as_object().into_iter().flatten() {
            let option = PACE_OPTIONS.iter().find(|option| option.name == name);
            let option = option.ok_or_else(|| format!("a pace has no option {name}"))?;
            option.set(&mut pace, option.check(value.as_u64()).map_err(|why| format!("{name} {why}"))?);
        }
        paces.set(pattern, pace).map_err(|why| format!("a pattern of pace {why}"))?;
    }
    Ok(paces)
}
