//! Who sends a request.

use std::sync::Arc;

use http::request::Parts;
use tailrope_core::exchange::{Asker, CREDENTIAL_HEADERS};

/// Names the user of a request.
pub(crate) type Naming = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// What a request says of its sender.
pub(crate) struct Sender<'a> {
    named: Option<String>,
    credentials: Vec<(&'a str, &'a str)>,
}

impl<'a> Sender<'a> {
    pub(crate) fn of(parts: &'a Parts, naming: Option<&Naming>) -> Self {
        let values =
            |name| parts.headers.get_all(name).iter().filter_map(move |value| Some((name, value.to_str().ok()?)));
        let credentials = CREDENTIAL_HEADERS.into_iter().flat_map(values).collect();
        Self { named: naming.and_then(|naming| naming(parts)), credentials }
    }

    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { named: self.named.as_deref(), user_json: None, credentials: &self.credentials }
    }

    /// The principal; none where the request says nothing about its sender.
    pub(crate) fn principal(&self) -> Option<Box<str>> {
        self.asker().principal()
    }
}
