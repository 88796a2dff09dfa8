//! What is probed, and how.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{Scheme, Uri};
use serde_json::{Map, Value};

use crate::words::words;

const MOST_MS: u64 = 3_600_000;

/// An option was given what it does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// One probe of one server.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) tool: Option<String>,
    pub(crate) arguments: Option<Map<String, Value>>,
    pub(crate) timeout: Duration,
    pub(crate) idle: Duration,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
    pub(crate) requires_resumable: bool,
}

impl Options {
    /// # Errors
    /// It is no address of a server.
    pub fn new(url: &str) -> Result<Self, UsageError> {
        let uri = url.parse().ok().filter(|uri: &Uri| {
            let scheme = uri.scheme();
            (scheme == Some(&Scheme::HTTP) || scheme == Some(&Scheme::HTTPS))
                && uri.host().is_some_and(|it| !it.is_empty())
        });
        Ok(Self {
            uri: uri.ok_or_else(|| UsageError::new("give one URL, http:// or https://"))?,
            headers: HeaderMap::new(),
            tool: None,
            arguments: None,
            timeout: Duration::from_millis(5_000),
            idle: Duration::from_millis(20_000),
            only: Vec::new(),
            skip: Vec::new(),
            requires_resumable: false,
        })
    }

    /// Sets one option of the command line: its name as it is there, and its value.
    ///
    /// # Errors
    /// There is no such option, or it takes no such value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), UsageError> {
        match name {
            "--tool" => self.tool = Some(value.to_owned()),
            "--arguments" => self.arguments = Some(arguments(value)?),
            "--header" => {
                let (name, value) = header(value)?;
                self.headers.insert(name, value);
            }
            "--timeout-ms" => self.timeout = milliseconds(name, value)?,
            "--idle-ms" => self.idle = milliseconds(name, value)?,
            "--only" => self.only.extend(names(value)?),
            "--skip" => self.skip.extend(names(value)?),
            "--require" if value == "resumable" => self.requires_resumable = true,
            "--require" => return Err(UsageError::new("--require takes resumable, and nothing else")),
            _ => return Err(UsageError::new(format!("no option {name}"))),
        }
        Ok(())
    }

    /// Whether what was set goes together.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<(), UsageError> {
        if self.tool.is_none() && self.arguments.is_some() {
            return Err(UsageError::new("--arguments needs --tool"));
        }
        Ok(())
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|known| known == name);
        (self.only.is_empty() || has(&self.only)) && !has(&self.skip)
    }

    /// The address without what may be secret in it.
    pub(crate) fn shown_url(&self) -> String {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit('@').next().unwrap_or_default();
        format!("{}://{host}{}", self.uri.scheme_str().unwrap_or_default(), self.uri.path())
    }
}

fn arguments(text: &str) -> Result<Map<String, Value>, UsageError> {
    serde_json::from_str(text).map_err(|_| UsageError::new("--arguments is a JSON object"))
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), UsageError> {
    // The value may be a secret, so it is not said again.
    let wrong = || UsageError::new("--header is 'NAME: VALUE'");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name = name.trim().parse().map_err(|_| wrong())?;
    let mut value = HeaderValue::from_bytes(value.trim().as_bytes()).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn milliseconds(name: &str, text: &str) -> Result<Duration, UsageError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let ms = text.parse().ok().filter(|ms| is_number && (1..=MOST_MS).contains(ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| UsageError::new(format!("{name} is a number of milliseconds, up to {MOST_MS}")))
}

fn names(text: &str) -> Result<Vec<String>, UsageError> {
    let known: Vec<&str> = words().checks.iter().map(|check| check.name.as_str()).collect();
    let wanted: Vec<&str> = text.split(',').filter(|name| !name.is_empty()).collect();
    if let Some(name) = wanted.iter().find(|name| !known.contains(name)) {
        return Err(UsageError::new(format!("no check {name}: there are {}", known.join(", "))));
    }
    Ok(wanted.into_iter().map(str::to_owned).collect())
}
