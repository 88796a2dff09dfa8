//! Who sends a request.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderValue;
use http::request::Parts;
use serde_json::Value;
use tailrope_core::exchange::{Asker, CREDENTIAL_HEADERS};

/// A user's own function of the head of a request.
type Told<T> = Arc<dyn Fn(&Parts) -> Option<T> + Send + Sync>;

/// How users are told apart.
#[derive(Clone, Default)]
pub(crate) struct Naming {
    /// Names the user of a request. It decides alone.
    pub(crate) named: Option<Told<String>>,
    /// What authentication has left of the user.
    pub(crate) user: Option<Told<Value>>,
}

/// The text of a header. What is no ASCII is read as Latin-1, so that it is never taken for absent.
pub(crate) fn text(value: &HeaderValue) -> Cow<'_, str> {
    match value.to_str() {
        Ok(text) => text.into(),
        Err(_) => value.as_bytes().iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// What a request says of its sender.
pub(crate) struct Sender<'a> {
    named: Option<String>,
    user_json: Option<String>,
    credentials: Vec<(&'static str, Cow<'a, str>)>,
}

impl<'a> Sender<'a> {
    pub(crate) fn of(parts: &'a Parts, naming: &Naming) -> Self {
        let values = |name| parts.headers.get_all(name).iter().map(move |value| (name, text(value)));
        Self {
            named: naming.named.as_ref().and_then(|named| named(parts)),
            user_json: naming.user.as_ref().and_then(|user| user(parts)).map(|user| user.to_string()),
            credentials: CREDENTIAL_HEADERS.into_iter().flat_map(values).collect(),
        }
    }

    /// Does something with what the engine is to know.
    pub(crate) fn ask<T>(&self, with: impl FnOnce(Asker<'_>) -> T) -> T {
        let credentials: Vec<(&str, &str)> = self.credentials.iter().map(|(name, value)| (*name, &**value)).collect();
        let (named, user_json) = (self.named.as_deref(), self.user_json.as_deref());
        with(Asker { named, user_json, credentials: &credentials })
    }

    /// The principal; none where the request says nothing about its sender.
    pub(crate) fn principal(&self) -> Option<Box<str>> {
        self.ask(|asker| asker.principal())
    }
}
