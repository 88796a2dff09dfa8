//! Values and errors between Python and the core; nothing else converts.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString};
use tailrope_core::ErrorCode;
use tailrope_core::engine::EngineError;
use tailrope_core::protocol::{Dialect, RequestId};
use tailrope_stores::OpenError;

import_exception!(tailrope._errors, TailropeError);

/// The codes of the errors that this package raises.
#[pyfunction]
pub(crate) fn error_codes() -> Vec<&'static str> {
    use ErrorCode::{Internal, InvalidArgument, NativeMissing};
    // In the place of these Python has exceptions of its own: ValueError, TypeError, ImportError.
    let of_node = |code: &ErrorCode| matches!(code, Internal | InvalidArgument | NativeMissing);
    ErrorCode::ALL.iter().filter(|code| !of_node(code)).map(|code| code.as_str()).collect()
}

/// An engine error as a Python exception with its code.
pub(crate) fn to_py_err(error: &EngineError) -> PyErr {
    raised(error.to_string(), error.code(), None)
}

/// The same for a store that cannot be opened.
pub(crate) fn not_opened(error: &OpenError) -> PyErr {
    raised(error.to_string(), error.code(), None)
}

/// `status` is that of the HTTP answer which says so.
pub(crate) fn raised(text: String, code: ErrorCode, status: Option<u16>) -> PyErr {
    TailropeError::new_err((text, code.as_str(), status))
}

/// A JSON-RPC id: an integer of any size, or a string. `1` and `"1"` are two ids.
pub(crate) fn request_id(value: &Bound<'_, PyAny>) -> PyResult<RequestId> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(RequestId::text_id(text.to_str()?));
    }
    if value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>() {
        if let Ok(small) = value.extract::<i64>() {
            return Ok(RequestId::integer(small));
        }
        let digits = value.str()?;
        return RequestId::from_json(digits.to_str()?)
            .ok_or_else(|| PyTypeError::new_err("the request id is not an integer"));
    }
    Err(PyTypeError::new_err("a request id is an int or a str"))
}

/// The id as Python has it.
pub(crate) fn request_id_to_py<'py>(py: Python<'py>, id: &RequestId) -> PyResult<Bound<'py, PyAny>> {
    match id {
        RequestId::Text(text) => Ok(PyString::new(py, text).into_any()),
        RequestId::Integer(digits) => match digits.parse::<i64>() {
            Ok(small) => Ok(small.into_pyobject(py)?.into_any()),
            Err(_) => py.get_type::<PyInt>().call1((&**digits,)),
        },
    }
}

/// The value of an option: a whole number that is not negative. `True` is none, though Python counts it as 1.
pub(crate) fn whole(value: &Bound<'_, PyAny>) -> Option<u64> {
    if value.is_instance_of::<PyBool>() { None } else { value.extract().ok() }
}

/// A duration that a function is given, in milliseconds. Longer ones end at the longest.
#[pyfunction]
pub(crate) fn milliseconds(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    let wrong = || PyValueError::new_err(format!("{name} must be a whole number that is not negative"));
    let given = value.map(|value| whole(value).ok_or_else(wrong)).transpose()?;
    Ok(given.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)))
}

/// JSON text, as `bytes` or `str`.
pub(crate) fn payload<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    let text = value.cast::<PyString>().map_err(|_| PyTypeError::new_err("a payload is bytes or str"))?;
    Ok(text.to_str()?.as_bytes())
}

/// The SDK line whose answers are given: the major version of the `mcp` package.
pub(crate) fn dialect(major: u8) -> PyResult<&'static Dialect> {
    match major {
        1 => Ok(&Dialect::MCP_PYTHON_1),
        2 => Ok(&Dialect::MCP_PYTHON_2),
        other => Err(PyTypeError::new_err(format!("mcp {other}.x is not known"))),
    }
}
