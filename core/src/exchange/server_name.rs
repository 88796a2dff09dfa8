//! Which server a request is for, if no option names the server: the path of its endpoint (I7).
//!
//! The path counts as it came, undecoded, byte for byte. Routers differ in what they take for the same path, so only a path
//! that is the same for every router is taken for the same server. What a host routed by instead, such as a path that
//! middleware has rewritten, counts too.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The name of a server by the target of a request: its path, or a whole URL. `routed` is the target that was left when the
/// request was routed, if that may be another one. A framework that mounts an endpoint leaves the end of the path.
///
/// ```
/// use tailrope_core::exchange::server_name;
///
/// assert_eq!(server_name("/a/mcp?x=1", None), "/a/mcp");
/// assert_eq!(server_name("/a/mcp", Some("/mcp")), "/a/mcp");
/// assert_eq!(server_name("/mcp", Some("/tenant/mcp")), "/mcp as /tenant/mcp");
/// ```
pub fn server_name(target: &str, routed: Option<&str>) -> String {
    let whole = path_of(target);
    match routed.map(path_of) {
        Some(routed) if routed != "/" && !ends_with(&whole, &routed) => format!("{whole} as {routed}"),
        _ => whole.into_owned(),
    }
}

/// The name of a server by what ASGI says of a request: `raw_path` as it came, if the host has it, the decoded `path`, and
/// the decoded `root_path` at which the endpoint is mounted. Some hosts have `root_path` at the beginning of the others, and
/// some have not.
pub fn asgi_server_name(raw_path: Option<&[u8]>, path: &str, root_path: &str) -> String {
    let root = root_path.trim_end_matches('/');
    let whole = match raw_path.filter(|raw| !raw.is_empty()) {
        Some(raw) => escaped(path_of_bytes(raw), false),
        None => escaped(path.as_bytes(), true),
    };
    let decoded = decoded(&whole);
    let at_root = |end: &str| decoded.strip_prefix(root.as_bytes()).is_some_and(|rest| rest == end.as_bytes());
    let is_routed_so =
        decoded == path.as_bytes() || at_root(path) || path.as_bytes() == [root.as_bytes(), &decoded].concat();
    let name = match starts_with(&decoded, root.as_bytes()) {
        true => whole,
        false => escaped(root.as_bytes(), true) + &whole,
    };
    if is_routed_so { name } else { format!("{name} as {}", escaped(path.as_bytes(), true)) }
}

/// The path of a target; `/` for none. A path that begins with two slashes is a path.
fn path_of(target: &str) -> Cow<'_, str> {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]),
        _ => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    match path {
        "" => "/".into(),
        path => escaped(path.as_bytes(), false).into(),
    }
}

fn path_of_bytes(raw: &[u8]) -> &[u8] {
    raw.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default()
}

fn is_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && text.bytes().all(is_part)
}

/// Whether the path begins with these whole segments.
fn starts_with(path: &[u8], segments: &[u8]) -> bool {
    path.strip_prefix(segments).is_some_and(|rest| segments.is_empty() || rest.is_empty() || rest[0] == b'/')
}

/// Whether the path ends with these whole segments.
fn ends_with(path: &str, segments: &str) -> bool {
    segments.starts_with('/') && path.ends_with(segments)
}

/// Escapes what a target cannot have: controls, spaces and what is not ASCII. With `all` also what would be read as an escape
/// or as the end of the path, for text that was decoded.
fn escaped(bytes: &[u8], all: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        let is_special = all && matches!(byte, b'%' | b'?' | b'#' | b'"' | b'<' | b'>' | b'`' | b'{' | b'}');
        if byte.is_ascii_graphic() && !is_special {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn decoded(path: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<2>().filter(|_| *byte == b'%');
        let escape = digits.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| {
            digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u8::from_str_radix(digits, 16).ok())?
        });
        out.push(escape.unwrap_or(*byte));
        rest = if escape.is_some() { &behind[2..] } else { behind };
    }
    out
}
