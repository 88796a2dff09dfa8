//! Where requests may come from: a check against web pages that reach a server by a name of their own (DNS rebinding).

use super::Fault;

/// The names by which a server may be asked, and the pages that may ask it. Each is written exactly as its header has
/// it. An empty list allows any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Values of `Host`, or of `:authority`.
    pub hosts: &'a [&'a str],
    /// Values of `Origin`. A request without `Origin` does not come from a page.
    pub origins: &'a [&'a str],
}

impl<'a> Allowed<'a> {
    /// Checks where a request comes from.
    ///
    /// # Errors
    /// The [`Fault`] to answer with.
    pub fn check(&self, host: Option<&'a str>, origin: Option<&'a str>) -> Result<(), Fault<'a>> {
        if !self.hosts.is_empty() && !host.is_some_and(|host| self.hosts.contains(&host)) {
            return Err(Fault::ForeignHost(host.unwrap_or("null")));
        }
        match origin.filter(|origin| !origin.is_empty()) {
            Some(origin) if !self.origins.is_empty() && !self.origins.contains(&origin) => {
                Err(Fault::ForeignOrigin(origin))
            }
            _ => Ok(()),
        }
    }
}
