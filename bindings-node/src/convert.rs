//! Values and errors between JavaScript and the core; nothing else converts.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use napi::Status;
use napi::bindgen_prelude::Either;
use napi_derive::napi;
use tailrope_core::ErrorCode;
use tailrope_core::engine::{EngineError, NUMBER_OPTIONS, NumberOption, PACE_FLAGS, PACE_OPTIONS, Pace, Paces};
use tailrope_core::protocol::{Dialect, RequestId};
use tailrope_stores::OpenError;

/// What a native function throws: an `Error` whose `code` is stable and the same in every language.
#[derive(Debug)]
pub struct Code(&'static str);

impl AsRef<str> for Code {
    fn as_ref(&self) -> &str {
        self.0
    }
}

impl From<Status> for Code {
    fn from(_: Status) -> Self {
        Self(ErrorCode::Internal.as_str())
    }
}

pub(crate) type Error = napi::Error<Code>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The codes of the errors that this package throws.
#[allow(unreachable_pub, dead_code, reason = "it is exported to JavaScript alone")]
#[napi]
pub fn error_codes() -> Vec<&'static str> {
    ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::NotAsyncio).map(|code| code.as_str()).collect()
}

/// What the caller gave is not usable.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code(ErrorCode::InvalidArgument.as_str()), message.into())
}

/// A failure of the system, with the code that Node has for it.
pub(crate) fn of_system(error: &io::Error, message: String) -> Error {
    let code = match error.kind() {
        io::ErrorKind::AddrInUse => "EADDRINUSE",
        io::ErrorKind::AddrNotAvailable => "EADDRNOTAVAIL",
        io::ErrorKind::PermissionDenied => "EACCES",
        _ => ErrorCode::Internal.as_str(),
    };
    Error::new(Code(code), message)
}

/// A failure of Node-API itself.
pub(crate) fn internal(error: napi::Error) -> Error {
    Error::new(Code(ErrorCode::Internal.as_str()), error.reason.clone())
}

/// An engine error with its code.
pub(crate) fn to_js_error(error: &EngineError) -> Error {
    Error::new(Code(error.code().as_str()), spelled(error.to_string()))
}

/// Why there is no such event store, with its code.
pub(crate) fn not_opened(error: &OpenError) -> Error {
    Error::new(Code(error.code().as_str()), spelled(error.to_string()))
}

/// A JSON-RPC id as JavaScript has it: a number or a string. `1` and `"1"` are two ids.
pub(crate) type JsRequestId = Either<f64, String>;

/// Integers beyond this lose digits in JavaScript.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

pub(crate) fn request_id(value: JsRequestId) -> Result<RequestId> {
    match value {
        Either::A(number) if number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER => {
            Ok(RequestId::integer(number as i64))
        }
        Either::A(_) => Err(invalid("a request id is a safe integer or a string")),
        Either::B(text) => Ok(RequestId::text_id(&text)),
    }
}

/// JSON text.
pub(crate) fn payload(value: String) -> Bytes {
    Bytes::from(value.into_bytes())
}

/// Counts and durations are numbers in JavaScript, exact far beyond what occurs.
pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

/// The value of an option: a whole number that is not negative. Larger ones end at the largest.
pub(crate) fn whole(value: f64) -> Option<u64> {
    (value >= 0.0 && value.fract() == 0.0).then_some(value as u64)
}

/// The option of this name, and the number that it is to have.
pub(crate) fn number_option(name: &str, value: &Either<f64, String>) -> Result<(&'static NumberOption, u64)> {
    let unknown = || invalid(format!("unknown option {name}"));
    let option = NUMBER_OPTIONS.iter().find(|option| camel_case(option.name) == name).ok_or_else(unknown)?;
    let checked = option.check(match value {
        Either::A(value) => whole(*value),
        Either::B(text) => option.of_text(text),
    });
    Ok((option, checked.map_err(|must| invalid(format!("{name} {must}")))?))
}

/// What paces say, by the names of tools.
pub(crate) type PacesByName = HashMap<String, HashMap<String, Either<f64, bool>>>;

/// The paces of an engine.
pub(crate) fn paces(by_name: PacesByName) -> Result<Paces> {
    let mut paces = Paces::default();
    for (pattern, said) in by_name {
        let mut pace = Pace::default();
        for (name, value) in said {
            let unknown = || invalid(format!("unknown option {name} of the pace '{pattern}'"));
            let wrong = |must| invalid(format!("{name} of the pace '{pattern}' {must}"));
            let (number, is_set) = match value {
                Either::A(number) => (whole(number), None),
                Either::B(is_set) => (None, Some(is_set)),
            };
            if let Some(flag) = PACE_FLAGS.iter().find(|flag| camel_case(flag.name) == name) {
                flag.set(&mut pace, flag.check(is_set).map_err(wrong)?);
                continue;
            }
            let option = PACE_OPTIONS.iter().find(|option| camel_case(option.name) == name).ok_or_else(unknown)?;
            option.set(&mut pace, option.check(number).map_err(wrong)?);
        }
        let wrong = |must| invalid(format!("a pattern of pace {must}, not '{pattern}'"));
        paces.set(&pattern, pace).map_err(wrong)?;
    }
    Ok(paces)
}

/// A name of the core as JavaScript spells it.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

/// The options that are no numbers, and those of `drain()`, as the core names them.
const OTHER_OPTIONS: [&str; 9] = [
    "encryption_keys",
    "identity_headers",
    "on_adopted",
    "on_store_failure",
    "prefer_resumable",
    "relayed_headers",
    "server_name",
    "spread_ms",
    "within_ms",
];

fn is_option(name: &str) -> bool {
    let numbers = NUMBER_OPTIONS.iter().map(|option| option.name);
    let mut of_paces = PACE_OPTIONS.iter().map(|option| option.name).chain(PACE_FLAGS.iter().map(|flag| flag.name));
    OTHER_OPTIONS.iter().copied().chain(numbers).any(|known| known == name) || of_paces.any(|known| known == name)
}

/// A text of the core for people who write JavaScript: options are spelled as they have them. What stands before `=`, as fields
/// in lines of the log and options in addresses do, has one spelling in all languages.
pub(crate) fn spelled(text: String) -> String {
    if !text.contains('_') {
        return text;
    }
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut told = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(start);
        let (word, after) = from.split_at(from.find(|letter| !is_of_name(letter)).unwrap_or(from.len()));
        told += before;
        if is_option(word) && !after.starts_with('=') {
            told += &camel_case(word)
        } else {
            told += word
        }
        rest = after;
    }
    told + rest
}

/// The SDK line whose answers are given: 1 is `@modelcontextprotocol/sdk`, 2 `@modelcontextprotocol/server`.
pub(crate) fn dialect(major: u32) -> Result<&'static Dialect> {
    match major {
        1 => Ok(&Dialect::MCP_TYPESCRIPT_1),
        2 => Ok(&Dialect::MCP_TYPESCRIPT_2),
        other => Err(invalid(format!("MCP SDK {other}.x is not known"))),
    }
}
