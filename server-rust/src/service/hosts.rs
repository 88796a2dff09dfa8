//! The names that a server is asked by, in `Host` or `:authority`.

use std::net::Ipv6Addr;

use http::uri::Authority;

/// The names that are served.
pub(crate) struct Hosts {
    /// Each name is served.
    are_any: bool,
    named: Vec<Authority>,
}

impl Hosts {
    /// Those of a list; any where it has none.
    pub(crate) fn new(allowed: &[String]) -> Self {
        Self { are_any: allowed.is_empty(), named: allowed.iter().filter_map(|name| read(name)).collect() }
    }

    /// Whether a request to this name is served. A name that was allowed without a port is served on each port.
    pub(crate) fn serve(&self, host: &str) -> bool {
        let is_it = |asked: &Authority, allowed: &Authority| {
            allowed.host().eq_ignore_ascii_case(asked.host())
                && allowed.port_u16().is_none_or(|port| asked.port_u16() == Some(port))
        };
        let is_named = |asked: Authority| self.named.iter().any(|allowed| is_it(&asked, allowed));
        self.are_any || host.parse().is_ok_and(is_named)
    }
}

fn read(name: &str) -> Option<Authority> {
    // An address of IPv6 has brackets where a port could follow.
    let name = if name.parse::<Ipv6Addr>().is_ok() { format!("[{name}]") } else { name.to_owned() };
    name.parse().ok()
}
