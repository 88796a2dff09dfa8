//! The options of engines and of stores, as Python gives them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::Options;
use tailrope_core::store::{Durability, EncryptionKey, Limits, StoreOptions};

/// The options of an engine; what is not named keeps its default.
pub(crate) fn engine_options(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given.into_iter().flatten() {
        let name = name.extract::<String>()?;
        let number = number(&name, &value)?;
        let Options { limits, owner_lost_ms, .. } = &mut options;
        if !set_store_number(limits, owner_lost_ms, &name, number) && !set_engine_number(&mut options, &name, number)? {
            return Err(unknown(&name));
        }
    }
    Ok(options)
}

/// The options of a store, likewise.
pub(crate) fn store_options(given: Option<&Bound<'_, PyDict>>) -> PyResult<StoreOptions> {
    let mut options = StoreOptions::default();
    for (name, value) in given.into_iter().flatten() {
        let name = name.extract::<String>()?;
        let StoreOptions { limits, owner_lost_ms, .. } = &mut options;
        if name == "durability" {
            options.durability = durability(&value)?;
        } else if name == "encryption_keys" {
            options.encryption_keys = keys(&value)?;
        } else if !is_of_store(&name) {
            return Err(unknown(&name));
        } else {
            set_store_number(limits, owner_lost_ms, &name, number(&name, &value)?);
        }
    }
    Ok(options)
}

fn is_of_store(name: &str) -> bool {
    set_store_number(&mut Limits::default(), &mut 0, name, 1)
}

fn durability(value: &Bound<'_, PyAny>) -> PyResult<Durability> {
    match value.extract::<String>().as_deref() {
        Ok("process") => Ok(Durability::Process),
        Ok("power") => Ok(Durability::Power),
        _ => Err(PyValueError::new_err("durability must be 'process' or 'power'")),
    }
}

/// What was given is secret also where it is wrong.
fn keys(value: &Bound<'_, PyAny>) -> PyResult<Vec<EncryptionKey>> {
    let wrong = || PyValueError::new_err("encryption_keys must be keys of 64 hexadecimal digits each");
    let given = value.extract::<Vec<String>>().map_err(|_| wrong())?;
    let keys: Option<Vec<EncryptionKey>> = given.iter().map(|key| EncryptionKey::from_hex(key)).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(wrong)
}

fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let invalid = |_| PyValueError::new_err(format!("{name} must be a whole number that is not negative"));
    let number = value.extract::<u64>().map_err(invalid)?;
    // Zero means "off" where there is something to switch off; a bound of nothing would serve nobody.
    let may_be_zero = ["keep_alive_ms", "max_connection_ms", "max_connection_bytes", "store_wait_ms", "retry_ms"];
    if number == 0 && !may_be_zero.contains(&name) {
        return Err(PyValueError::new_err(format!("{name} must be at least 1")));
    }
    Ok(number)
}

/// Whether a store has this option.
fn set_store_number(limits: &mut Limits, owner_lost_ms: &mut u64, name: &str, number: u64) -> bool {
    let size = usize::try_from(number).unwrap_or(usize::MAX);
    match name {
        "max_events_per_stream" => limits.max_events_per_stream = size,
        "max_bytes_per_stream" => limits.max_bytes_per_stream = size,
        "max_bytes_per_session" => limits.max_bytes_per_session = size,
        "max_bytes" => limits.max_bytes = size,
        "max_event_bytes" => limits.max_event_bytes = size,
        "retention_ms" => limits.retention_ms = number,
        "max_age_ms" => limits.max_age_ms = number,
        "owner_lost_ms" => *owner_lost_ms = number,
        _ => return false,
    }
    true
}

/// Whether only an engine has this option.
fn set_engine_number(options: &mut Options, name: &str, number: u64) -> PyResult<bool> {
    let size = usize::try_from(number).unwrap_or(usize::MAX);
    let small = u32::try_from(number);
    match name {
        "retry_ms" => options.pacing.retry_ms = small.map_err(|_| PyValueError::new_err("retry_ms is too large"))?,
        "keep_alive_ms" => options.pacing.keep_alive_ms = number,
        "max_connection_ms" => options.pacing.max_connection_ms = number,
        "max_connection_bytes" => options.pacing.max_connection_bytes = number,
        "store_wait_ms" => options.pacing.store_wait_ms = number,
        "store_timeout_ms" => options.store_timeout_ms = number,
        "max_sessions" => options.max_sessions = size,
        "max_detached_ms" => options.max_detached_ms = number,
        "warn_event_bytes" => options.warn_event_bytes = size,
        _ => return Ok(false),
    }
    Ok(true)
}

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown option {name}"))
}

/// The options in force, by name.
pub(crate) fn to_dict<'py>(py: Python<'py>, options: &Options) -> PyResult<Bound<'py, PyDict>> {
    let Options { pacing, limits, max_sessions, max_detached_ms, store_timeout_ms, .. } = options;
    let dict = PyDict::new(py);
    dict.set_item("retry_ms", pacing.retry_ms)?;
    dict.set_item("keep_alive_ms", pacing.keep_alive_ms)?;
    dict.set_item("max_connection_ms", pacing.max_connection_ms)?;
    dict.set_item("max_connection_bytes", pacing.max_connection_bytes)?;
    dict.set_item("store_wait_ms", pacing.store_wait_ms)?;
    dict.set_item("store_timeout_ms", *store_timeout_ms)?;
    dict.set_item("max_events_per_stream", limits.max_events_per_stream)?;
    dict.set_item("max_bytes_per_stream", limits.max_bytes_per_stream)?;
    dict.set_item("max_bytes_per_session", limits.max_bytes_per_session)?;
    dict.set_item("max_bytes", limits.max_bytes)?;
    dict.set_item("max_event_bytes", limits.max_event_bytes)?;
    dict.set_item("retention_ms", limits.retention_ms)?;
    dict.set_item("max_age_ms", limits.max_age_ms)?;
    dict.set_item("owner_lost_ms", options.owner_lost_ms)?;
    dict.set_item("max_sessions", max_sessions)?;
    dict.set_item("max_detached_ms", max_detached_ms)?;
    dict.set_item("warn_event_bytes", options.warn_event_bytes)?;
    Ok(dict)
}
