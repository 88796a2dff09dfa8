//! Marks: what tells whose event a payload is.

use std::fmt;

use crate::fact::N;

/// `[[SESSION/STREAM/N]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    /// The test's name for the session.
    pub session: &'a str,
    /// The test's name for the stream.
    pub stream: &'a str,
    /// Which event.
    pub n: N,
}

impl fmt::Display for Mark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[[{}/{}/{}]]", self.session, self.stream, self.n)
    }
}

/// The marks in a text, in order. What only looks like one is skipped.
pub fn marks(text: &str) -> impl Iterator<Item = Mark<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find("[[")?;
            // Of three brackets the last two begin a mark.
            rest = &rest[start + 1..];
            let inner = &rest[1..];
            // A name ends at the first byte that cannot be part of one, so no text is read twice.
            let end = inner.bytes().position(|b| !is_name_byte(b) && b != b'/').unwrap_or(inner.len());
            if let Some(mark) = parse(&inner[..end]).filter(|_| inner[end..].starts_with("]]")) {
                rest = &inner[end + 2..];
                return Some(mark);
            }
        }
    })
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

fn parse(text: &str) -> Option<Mark<'_>> {
    let mut parts = text.split('/');
    let (session, stream, n) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || session.is_empty() || stream.is_empty() {
        return None;
    }
    let n = match n {
        "end" => N::End,
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => N::Event(digits.parse().ok().filter(|n| *n > 0)?),
        _ => return None,
    };
    Some(Mark { session, stream, n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_are() {
        let found: Vec<String> =
            marks(r#"{"a":"[[s/a/1]]x[[[s.1/b-2/end]]","b":[["c"]]}"#).map(|m| m.to_string()).collect();
        assert_eq!(found, ["[[s/a/1]]", "[[s.1/b-2/end]]"]);
        for none in
            ["", "[[", "[[s/a/0]]", "[[s/a]]", "[[s/a/1/2]]", "[[s//1]]", "[[s/a/+1]]", "[[s/a b/1]]", "[[s/a/1"]
        {
            assert_eq!(marks(none).count(), 0, "{none}");
        }
    }
}
