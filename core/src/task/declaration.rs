//! Which requests take part in tasks: what a request declares, what the server announces, and what becomes of each request.
//!
//! A declaration counts for the request that has it and for no other (T-01).

use bytes::Bytes;

use super::json::{known_member, member, object, text, with_member, with_value};
pub use crate::protocol::TASKS_EXTENSION as EXTENSION;
use crate::protocol::jsonrpc::{self, MISSING_CLIENT_CAPABILITY};
use crate::protocol::{Body, CLIENT_CAPABILITIES, Kind, Refusal, Revision};

const EXTENSION_NAME: [&str; 1] = [EXTENSION];
const VERSION_NAME: [&str; 1] = ["io.modelcontextprotocol/protocolVersion"];
const CAPABILITIES_NAME: [&str; 1] = [CLIENT_CAPABILITIES];

/// Whether a request declares the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// With an object.
    Yes,
    /// It does not name it.
    No,
    /// It names it, and not with an object. The SDKs refuse such a request in their own words.
    Malformed,
}

/// What a request of 2026-07-28 says of itself, in `params._meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMeta {
    /// The revision that it speaks; none where that is absent or not a text.
    pub version: Option<String>,
    /// It says what its client can do.
    pub has_capabilities: bool,
    /// Whether it declares the extension.
    pub declared: Declared,
}

impl RequestMeta {
    /// Of a request with these `params`, which are JSON. None where there is no `_meta`, or it is not an object.
    pub fn of(params: &str) -> Option<Self> {
        let meta = member(params, &["_meta"])?.get();
        if !meta.starts_with('{') {
            return None;
        }
        let capabilities = member(meta, &CAPABILITIES_NAME);
        let declared = match capabilities {
            None => Declared::No,
            Some(capabilities) => match known_member(capabilities.get(), &["extensions"]) {
                None if !capabilities.get().starts_with('{') => Declared::Malformed,
                None => Declared::No,
                Some(extensions) => match member(extensions.get(), &EXTENSION_NAME) {
                    Some(value) if value.get().starts_with('{') => Declared::Yes,
                    None if extensions.get().starts_with('{') => Declared::No,
                    Some(_) | None => Declared::Malformed,
                },
            },
        };
        let version = member(meta, &VERSION_NAME).and_then(text);
        Some(Self { version, has_capabilities: capabilities.is_some(), declared })
    }
}

/// The tasks that a `subscriptions/listen` with these `params` wants to hear of; none where it does not speak of tasks (T-24).
pub fn subscribed_tasks(params: &str) -> Option<Vec<String>> {
    let notifications = member(params, &["notifications"])?;
    let ids = known_member(notifications.get(), &["taskIds"])?;
    // What is no list of texts names no task, and is a request for tasks all the same.
    Some(serde_json::from_str(ids.get()).unwrap_or_default())
}

/// The acknowledgement of a `subscriptions/listen`, as the SDK wrote it, with the tasks that were agreed to (T-24).
pub fn with_subscribed_tasks(acknowledgement: &str, tasks: &[&str]) -> Option<String> {
    let params = member(acknowledgement, &["params"])?;
    let ids = serde_json::Value::from(tasks).to_string();
    match known_member(params.get(), &["notifications"]) {
        None => Some(with_member(acknowledgement, params, "notifications", &format!(r#"{{"taskIds":{ids}}}"#))),
        Some(notifications) => match member(notifications.get(), &["taskIds"]) {
            Some(old) => Some(with_value(acknowledgement, old, &ids)),
            None if !notifications.get().starts_with('{') => None,
            None => Some(with_member(acknowledgement, notifications, "taskIds", &ids)),
        },
    }
}

/// What is known of a POST when it is decided what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The revision that it speaks.
    pub revision: Option<Revision>,
    /// What kind of message it is.
    pub kind: Kind,
    /// Its method; empty for an answer.
    pub method: String,
    /// The tool that it calls.
    pub tool: Option<String>,
    /// Whether it declares the extension.
    pub declared: Declared,
    /// A `subscriptions/listen` that speaks of tasks.
    pub names_tasks: bool,
}

impl Posted {
    /// Reads the message of a POST with this version header. None for what is no single message: that is for the SDK to refuse.
    pub fn read(version: Option<&str>, body: &[u8]) -> Option<Self> {
        let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return None };
        let params = std::str::from_utf8(body.get(envelope.params)?).ok()?;
        let meta = RequestMeta::of(params);
        let method = envelope.method.unwrap_or_default();
        let version = version.or_else(|| meta.as_ref()?.version.as_deref());
        Some(Self {
            revision: version.and_then(Revision::parse),
            kind: envelope.kind,
            names_tasks: method == LISTEN && subscribed_tasks(params).is_some(),
            method,
            tool: envelope.fields.tool_name.as_deref().map(ToOwned::to_owned),
            declared: meta.as_ref().map_or(Declared::No, |meta| meta.declared),
        })
    }

    /// Whether it asks about a task.
    pub fn is_about_task(&self) -> bool {
        matches!(&*self.method, GET | UPDATE | CANCEL)
    }
}

/// What the server does with long calls.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Policy {
    /// Calls of the tool may become tasks.
    pub offers: bool,
    /// The tool can only be called by clients that take tasks (T-04).
    pub requires: bool,
    /// Clients are steered to a revision that can resume.
    pub steers: bool,
    /// The host makes tasks itself: see [`Announcement::ByHost`].
    pub stands_aside: bool,
}

/// What becomes of a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// As if there were no tasks: it goes to its session, or to the SDK.
    Pass,
    /// It is [steered](Refusal::steered) to a revision that can resume.
    Steer,
    /// To the SDK. Its answer announces the extension: [`announce`].
    Discover,
    /// To the SDK, and the call may become a task.
    Call,
    /// It is about a task: [`read_request`](super::read_request).
    Task,
    /// To the SDK, and notifications of tasks are put between those of the SDK.
    Listen,
    /// [`missing_capability`].
    Undeclared,
}

impl Route {
    /// Its name, the same in every language.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Steer => "steer",
            Self::Discover => "discover",
            Self::Call => "call",
            Self::Task => "task",
            Self::Listen => "listen",
            Self::Undeclared => "undeclared",
        }
    }
}

/// What becomes of a POST. Tasks mean nothing before 2026-07-28 (T-08).
pub fn route(posted: &Posted, policy: Policy) -> Route {
    let speaks_of_tasks = posted.revision.is_some_and(|revision| !revision.rules().sessions);
    if !speaks_of_tasks || posted.kind != Kind::Request {
        return Route::Pass;
    }
    let otherwise = match posted.declared {
        Declared::No if policy.steers => Route::Steer,
        _ => Route::Pass,
    };
    let is_about_task = posted.is_about_task();
    match (&*posted.method, posted.declared) {
        _ if policy.stands_aside => {
            if is_about_task {
                Route::Pass
            } else {
                otherwise
            }
        }
        _ if is_about_task => Route::Task,
        (LISTEN, Declared::Yes) if posted.names_tasks => Route::Listen,
        (LISTEN, Declared::No) if posted.names_tasks => Route::Undeclared,
        (CALL, Declared::Yes) if policy.offers || policy.requires => Route::Call,
        (CALL, Declared::No) if policy.requires => Route::Undeclared,
        (DISCOVER, _) if otherwise == Route::Pass => Route::Discover,
        _ => otherwise,
    }
}

pub(super) const GET: &str = "tasks/get";
pub(super) const UPDATE: &str = "tasks/update";
pub(super) const CANCEL: &str = "tasks/cancel";
const CALL: &str = "tools/call";
const LISTEN: &str = "subscriptions/listen";
const DISCOVER: &str = "server/discover";

/// The answer to a request that has to declare the extension and does not (T-04, T-05).
pub fn missing_capability() -> Refusal {
    let data = format!(r#"{{"requiredCapabilities":{{"extensions":{{"{EXTENSION}":{{}}}}}}}}"#);
    let refusal = Refusal::new(400, MISSING_CLIENT_CAPABILITY, format!("The client has to declare {EXTENSION}"));
    Refusal { data: Some(data), ..refusal }
}

/// What the server's answer to `server/discover` says of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The answer with the extension (T-02).
    Added(Bytes),
    /// The host has named the extension: it makes tasks itself, and nothing of this module is for it.
    ByHost,
    /// It is no answer that could name it, for example an error.
    Unchanged,
}

/// Adds the extension to the server's answer to `server/discover`.
pub fn announce(answer: &[u8]) -> Announcement {
    std::str::from_utf8(answer).ok().and_then(announced).unwrap_or(Announcement::Unchanged)
}

fn announced(answer: &str) -> Option<Announcement> {
    let added = |text: String| Some(Announcement::Added(text.into()));
    let extension = format!(r#"{{"{EXTENSION}":{{}}}}"#);
    let extensions = format!(r#"{{"extensions":{extension}}}"#);
    let result = object(member(answer, &["result"])?)?;
    let capabilities = match member(result.get(), &["capabilities"]) {
        None => return added(with_member(answer, result, "capabilities", &extensions)),
        Some(null) if null.get() == "null" => return added(with_value(answer, null, &extensions)),
        Some(capabilities) => object(capabilities)?,
    };
    let named = match member(capabilities.get(), &["extensions"]) {
        None => return added(with_member(answer, capabilities, "extensions", &extension)),
        Some(null) if null.get() == "null" => return added(with_value(answer, null, &extension)),
        Some(named) => object(named)?,
    };
    match member(named.get(), &EXTENSION_NAME) {
        None => added(with_member(answer, named, EXTENSION, "{}")),
        Some(_) => Some(Announcement::ByHost),
    }
}
