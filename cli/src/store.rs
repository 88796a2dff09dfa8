//! The store that a command is given, and the session that it is asked for.

use std::borrow::Cow;

use tailrope_core::store::{SessionId, session_name};
use tailrope_core::task::{TASK_LOG, TaskId};
use tailrope_stores::inspect::{Inspect, SessionSeen, inspect};
use tailrope_stores::shown_address;

use crate::MISUSE;
use crate::terminal::Terminal;

/// A store that is looked into.
pub(crate) struct Store {
    pub(crate) inside: Box<dyn Inspect>,
    /// Its address without what is secret in it.
    pub(crate) shown: String,
}

impl Store {
    /// # Errors
    /// The address is none, or of a store that nobody can look into.
    pub(crate) fn at(address: &str) -> Result<Self, String> {
        let inside = inspect(address).map_err(|error| error.to_string())?;
        Ok(Self { inside, shown: shown_address(address) })
    }

    /// There is nothing to look at.
    pub(crate) fn refused(&self, what: &str, terminal: &mut Terminal) -> u8 {
        terminal.complain(&format!("tailrope: {}: {what}", self.shown));
        MISUSE
    }

    pub(crate) fn session(&mut self, name: &str) -> Result<Option<SessionSeen>, String> {
        self.inside.session(name, &TASK_LOG)
    }
}

/// Whether it is what a store knows a session by.
fn is_name(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What a store knows a session by that was named by its name there, or by its id and its server. The id is a credential, and
/// is not said again.
///
/// # Errors
/// There is no server, and the id is no name.
pub(crate) fn name_of<'a>(id: &'a str, server: Option<&str>) -> Result<Cow<'a, str>, &'static str> {
    let Some(server) = server else {
        return if is_name(id) { Ok(id.into()) } else { Err(NO_NAME) };
    };
    let id: Cow<'_, str> = TaskId::parse(id).map_or_else(|| id.into(), |task| task.session_id().into());
    Ok(session_name(SessionId::new(server, &id)).to_string().into())
}

const NO_NAME: &str = "this is no name of a session; with the client's id give --server NAME";

/// Said of sessions whose payloads are encrypted.
pub(crate) const SEALED: &str =
    "The store is encrypted: what is sealed stays sealed (revisions, requests, states of tasks that run).";
