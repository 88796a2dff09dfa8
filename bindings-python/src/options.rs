//! The options of engines and of stores, as Python gives them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::{
    AUTO_WORD, NUMBER_OPTIONS, NumberOption, OnStoreFailure, Options, PACE_FLAGS, PACE_OPTIONS, Pace, Paces,
};
use tailrope_core::store::{Durability, EncryptionKey, StoreOptions};

use crate::convert::whole;

/// The options of an engine; what is not named keeps its default.
pub(crate) fn engine_options(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given.into_iter().flatten() {
        let name = name.extract::<String>()?;
        if name == "on_store_failure" {
            options.on_store_failure = on_store_failure(&value)?;
            continue;
        }
        if name == "identity_headers" {
            options.identity_headers = value.extract()?;
            continue;
        }
        if name == "log_calls" {
            options.log_calls = value.extract()?;
            continue;
        }
        if name == "pace" {
            options.paces = paces(&value)?;
            continue;
        }
        let (option, number) = number(&name, &value)?;
        option.set(&mut options, number);
    }
    Ok(options)
}

/// The options of a store, likewise.
pub(crate) fn store_options(given: Option<&Bound<'_, PyDict>>) -> PyResult<StoreOptions> {
    let mut options = StoreOptions::default();
    for (name, value) in given.into_iter().flatten() {
        let name = name.extract::<String>()?;
        match name.as_str() {
            "durability" => options.durability = durability(&value)?,
            "encryption_keys" => options.encryption_keys = keys(&value)?,
            _ => {
                let (option, number) = number(&name, &value)?;
                if !option.is_of_store {
                    return Err(unknown(&name));
                }
                option.set_of_store(&mut options, number);
            }
        }
    }
    Ok(options)
}

fn on_store_failure(value: &Bound<'_, PyAny>) -> PyResult<OnStoreFailure> {
    let policy = value.extract::<String>().ok().and_then(|name| OnStoreFailure::parse(&name));
    policy.ok_or_else(|| PyValueError::new_err("on_store_failure must be 'raise' or 'drop_progress'"))
}

/// Paces by the names of tools, each a dict of what it says.
fn paces(value: &Bound<'_, PyAny>) -> PyResult<Paces> {
    let mut paces = Paces::default();
    for (pattern, said) in value.cast::<PyDict>()? {
        let pattern = pattern.extract::<String>()?;
        let mut pace = Pace::default();
        for (name, value) in said.cast::<PyDict>()? {
            let name = name.extract::<String>()?;
            let wrong = |must| PyValueError::new_err(format!("{name} of the pace {pattern:?} {must}"));
            if let Some(flag) = PACE_FLAGS.iter().find(|flag| flag.name == name) {
                flag.set(&mut pace, flag.check(value.extract().ok()).map_err(wrong)?);
                continue;
            }
            let option = PACE_OPTIONS.iter().find(|option| option.name == name).ok_or_else(|| unknown(&name))?;
            option.set(&mut pace, option.check(whole(&value)).map_err(wrong)?);
        }
        let wrong = |must| PyValueError::new_err(format!("a pattern of pace {must}, not {pattern:?}"));
        paces.set(&pattern, pace).map_err(wrong)?;
    }
    Ok(paces)
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

fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<(&'static NumberOption, u64)> {
    let option = NUMBER_OPTIONS.iter().find(|option| option.name == name).ok_or_else(|| unknown(name))?;
    let text = || value.extract::<String>().ok().and_then(|text| option.of_text(&text));
    let checked = option.check(whole(value).or_else(text));
    Ok((option, checked.map_err(|must| PyValueError::new_err(format!("{name} {must}")))?))
}

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown option {name}"))
}

/// The options in force, by name.
pub(crate) fn to_dict<'py>(py: Python<'py>, options: &Options) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for option in NUMBER_OPTIONS {
        match option.get(options) {
            Some(number) => dict.set_item(option.name, number)?,
            None => dict.set_item(option.name, AUTO_WORD)?,
        }
    }
    Ok(dict)
}
