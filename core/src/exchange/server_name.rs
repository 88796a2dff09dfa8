//! Which server a request is for, if no option names the server: the path of its endpoint (I7).
//!
//! The path counts as it came, undecoded, byte for byte. Routers differ in what they take for the same path, so only a path
//! that is the same for every router is taken for the same server. What a host routed by instead, such as a path that
//! middleware has rewritten, counts too.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

/// What a target cannot have: besides these, what is not ASCII.
const UNSENT: &AsciiSet = &CONTROLS.add(b' ');
/// For text that was decoded: also what would be read as an escape, or as the end of the path.
const DECODED: &AsciiSet =
    &UNSENT.add(b'%').add(b'?').add(b'#').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}');

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
        Some(raw) => percent_encode(path_of_bytes(raw), UNSENT).to_string(),
        None => percent_encode(path.as_bytes(), DECODED).to_string(),
    };
    let decoded: Cow<'_, [u8]> = percent_decode_str(&whole).into();
    let at_root = |end: &str| decoded.strip_prefix(root.as_bytes()).is_some_and(|rest| rest == end.as_bytes());
    let is_routed_so =
        decoded == path.as_bytes() || at_root(path) || path.as_bytes() == [root.as_bytes(), &decoded].concat();
    let name = match starts_with(&decoded, root.as_bytes()) {
        true => whole,
        false => percent_encode(root.as_bytes(), DECODED).to_string() + &whole,
    };
    if is_routed_so { name } else { format!("{name} as {}", percent_encode(path.as_bytes(), DECODED)) }
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
        path => percent_encode(path.as_bytes(), UNSENT).into(),
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
