//! What the engine observes, on its way to OpenTelemetry. It waits with the log's lines, and goes when they do.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::{self, Attribute, Observation, Observer, Spanned, Value, boundaries};

/// Whether the program has set OpenTelemetry up.
static WANTED: AtomicBool = AtomicBool::new(false);

pub(crate) struct Telemetry;

impl Observer for Telemetry {
    fn wants(&self) -> bool {
        WANTED.load(Ordering::Relaxed)
    }

    fn take(&self, observation: Observation) {
        crate::log::keep(observation);
    }
}

/// The engines of this process are observed from now on. Gives the bounds of the histograms, in seconds.
#[pyfunction]
pub(crate) fn observe() -> Vec<f64> {
    WANTED.store(true, Ordering::Relaxed);
    boundaries()
}

/// What the span of a call is to say: its session and its request, as `_telemetry.observed` has them, a name, and attributes.
pub(crate) type CallSpan<'py> = ((String, String), String, Bound<'py, PyDict>);

pub(crate) fn call_span(py: Python<'_>, span: Option<engine::CallSpan>) -> PyResult<Option<CallSpan<'_>>> {
    let to_python = |engine::CallSpan { session, request, name, attributes: all }| {
        Ok((((*session).to_owned(), request), name, attributes(py, &all)?))
    };
    span.map(to_python).transpose()
}

fn attributes<'py>(py: Python<'py>, attributes: &[Attribute]) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, value) in attributes {
        match value {
            Value::Text(text) => all.set_item(name, text)?,
            Value::Number(number) => all.set_item(name, number)?,
        }
    }
    Ok(all)
}

/// Gives one to the Python half.
pub(crate) fn hand_over(py: Python<'_>, observation: &Observation) -> PyResult<()> {
    let Observation { span, instrument, duration_ms, error, attributes: of_span, dimensions } = observation;
    let (call, under) = match span {
        Some(Spanned::Call { session, request }) => (Some((&**session, &**request)), None),
        Some(Spanned::Under(parent, name)) => (None, Some((parent.as_str(), *name))),
        None => (None, None),
    };
    let told = (
        call,
        under,
        *instrument,
        *duration_ms,
        error.as_deref(),
        attributes(py, of_span)?,
        attributes(py, dimensions)?,
    );
    py.import(intern!(py, "tailrope._telemetry"))?.call_method1(intern!(py, "observed"), told)?;
    Ok(())
}
