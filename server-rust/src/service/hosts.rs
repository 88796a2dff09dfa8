//! The names by which a server may be asked, in `Host` or `:authority`.

use std::net::Ipv6Addr;

use http::uri::Authority;

/// The names that are served.
pub(crate) struct Hosts {
    /// Any name is served.
    are_any: bool,
    named: Vec<Name>,
}

/// A name, as it was configured.
struct Name {
    host: String,
    port: Option<u16>,
}

impl Hosts {
    /// The names of a list. If the list is empty, any name is served.
    pub(crate) fn new(allowed: &[String]) -> Self {
        let named = allowed.iter().filter_map(|name| {
            let read = read(name);
            if read.is_none() {
                tracing::error!(
                    target: "tailrope", name,
                    "allowed_hosts has an entry that is no name in `Host`, so no request matches it: write `example.com` or \
                     `example.com:8443`, without a scheme and without a path"
                );
            }
            read
        });
        Self { are_any: allowed.is_empty(), named: named.collect() }
    }

    /// Whether a request to this name is served. A name that was allowed without a port is served on any port.
    pub(crate) fn serve(&self, asked: &str) -> bool {
        self.are_any || self.named.iter().any(|allowed| allowed.is(asked))
    }
}

impl Name {
    fn is(&self, asked: &str) -> bool {
        let Some((host, rest)) = asked.split_at_checked(self.host.len()) else { return false };
        if !host.eq_ignore_ascii_case(&self.host) {
            return false;
        }
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse::<u16>().ok(),
            _ => return false,
        };
        self.port.is_none() || self.port == port
    }
}

fn read(name: &str) -> Option<Name> {
    // An IPv6 address is in brackets in `Host`, because a port could follow it.
    let name = if name.parse::<Ipv6Addr>().is_ok() { format!("[{name}]") } else { name.to_owned() };
    let name: Authority = name.parse().ok()?;
    Some(Name { host: name.host().to_owned(), port: name.port_u16() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_served_in_any_case_and_without_a_port_on_each() {
        let hosts = Hosts::new(&["Localhost", "::1", "mcp.example:8443"].map(String::from));
        for asked in ["localhost", "LOCALHOST:80", "localhost:", "[::1]", "[::1]:8080", "mcp.example:8443"] {
            assert!(hosts.serve(asked), "{asked}");
        }
        let others =
            ["", "localhos", "localhost.example", "localhost:80x", "me@localhost", "[::2]", "\u{1F980}localhost"];
        for asked in others.into_iter().chain(["mcp.example", "mcp.example:443", "mcp.example:84430"]) {
            assert!(!hosts.serve(asked), "{asked}");
        }
        assert!(Hosts::new(&[]).serve("anything"));
    }
}
