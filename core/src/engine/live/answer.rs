//! The answer to a request for the page: the page itself, or what it shows.

use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use crate::protocol::base64url;

/// The page: one file that needs nothing else.
const PAGE: &str = include_str!("page.html");

/// With this in the query of its own address the page asks for snapshots.
const SNAPSHOT: &str = "snapshot";

/// An answer about the engines of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers, but for the length of its body.
    pub headers: Vec<(&'static str, String)>,
    /// Its body; none goes out for HEAD.
    pub body: String,
}

/// The answer to a request with this method and this query. `snapshots` gives those of the engines of the process: see
/// [`Engine::live_snapshot`](crate::engine::Engine::live_snapshot).
///
/// Its sender sees who calls what, so a host lets only operators send it.
pub fn live_answer(method: &str, query: Option<&str>, snapshots: impl FnOnce() -> Vec<String>) -> LiveAnswer {
    let answer = |status, content_type: &str, body: String| LiveAnswer {
        status,
        headers: vec![
            ("content-type", content_type.to_owned()),
            ("cache-control", "no-store".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
        ],
        body,
    };
    if !matches!(method, "GET" | "HEAD") {
        let mut refused = answer(405, "text/plain; charset=utf-8", "Method Not Allowed\n".to_owned());
        refused.headers.push(("allow", "GET, HEAD".to_owned()));
        return refused;
    }
    if asks_for_snapshot(query) {
        let text = format!(r#"{{"engines":[{}]}}"#, snapshots().join(","));
        return answer(200, "application/json", text);
    }
    let mut page = answer(200, "text/html; charset=utf-8", PAGE.to_owned());
    page.headers.push(("content-security-policy", policy().to_owned()));
    page.headers.push(("referrer-policy", "no-referrer".to_owned()));
    page
}

fn asks_for_snapshot(query: Option<&str>) -> bool {
    let members = query.unwrap_or_default().split('&');
    members.map(|member| member.split_once('=').map_or(member, |(name, _)| name)).any(|name| name == SNAPSHOT)
}

/// Only the page's own script and style may run, and only its own origin is asked.
fn policy() -> &'static str {
    static POLICY: OnceLock<String> = OnceLock::new();
    POLICY.get_or_init(|| {
        let (style, script) = (hash_of("<style>", "</style>"), hash_of("<script>", "</script>"));
        format!(
            "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        )
    })
}

fn hash_of(begin: &str, end: &str) -> String {
    let inside = PAGE.split_once(begin).and_then(|(_, behind)| behind.split_once(end)).map_or("", |(inside, _)| inside);
    let mut text = String::from("sha256-");
    base64url::encode(&Sha256::digest(inside), |part| {
        text.extend(part.iter().map(|byte| match byte {
            b'-' => '+',
            b'_' => '/',
            other => char::from(*other),
        }));
    });
    text + "="
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(answer: &'a LiveAnswer, name: &str) -> Option<&'a str> {
        answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }

    #[test]
    fn the_page_needs_nothing_but_itself() {
        let page = live_answer("GET", None, || unreachable!("the page shows nothing yet"));
        assert_eq!((page.status, header(&page, "content-type")), (200, Some("text/html; charset=utf-8")));
        for outside in ["http://", "https://", "src=", "<link", "@import", "url(", "style=\"", "onclick", "innerHTML"] {
            assert!(!page.body.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
        assert_eq!((page.body.matches("<style>").count(), page.body.matches("<script>").count()), (1, 1));
        let policy = header(&page, "content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn snapshots_are_of_all_engines_and_nothing_else_is_answered() {
        let answer =
            live_answer("GET", Some("theme=dark&snapshot=1"), || vec!["{}".to_owned(), r#"{"a":1}"#.to_owned()]);
        assert_eq!((answer.status, &*answer.body), (200, r#"{"engines":[{},{"a":1}]}"#));
        assert_eq!(header(&answer, "cache-control"), Some("no-store"));
        let refused = live_answer("POST", Some("snapshot"), || unreachable!("it is refused"));
        assert_eq!((refused.status, header(&refused, "allow")), (405, Some("GET, HEAD")));
    }
}
