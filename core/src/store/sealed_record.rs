//! The record of a session as one value, which is sealed. No I/O and no keys.

use bytes::Bytes;

use super::SessionRecord;
use crate::protocol::{ListChanged, Revision, StreamNonce};

/// The version of what [`encode`] writes.
const VERSION: u8 = 1;

/// The bytes that [`decode`] reads.
pub(super) fn encode(record: &SessionRecord) -> Vec<u8> {
    let SessionRecord { revision, principal, retry_ms, list_changed, standalone, note } = record;
    let mut out = vec![VERSION, list_changed.bits()];
    out.extend_from_slice(&retry_ms.to_be_bytes());
    let revision = revision.map(|revision| revision.as_str().as_bytes());
    let standalone = standalone.as_ref().map(|nonce| &nonce.0[..]);
    for part in [revision, principal.as_deref().map(str::as_bytes), standalone] {
        // Nothing is longer than a header. The length is written plus one, because 0 stands for none.
        let length = part.map_or(0, |part| part.len() as u32 + 1);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(part.unwrap_or_default());
    }
    out.extend_from_slice(note);
    out
}

/// Reads what [`encode`] wrote. What was sealed is what a release has written, so none is for what a later one wrote.
pub(super) fn decode(bytes: &Bytes) -> Option<SessionRecord> {
    let ([VERSION, lists], mut rest) = bytes.split_first_chunk()? else { return None };
    let retry_ms = u32::from_be_bytes(*read(&mut rest)?);
    let (revision, principal, standalone) = (part(&mut rest)?, part(&mut rest)?, part(&mut rest)?);
    let text = |part: &[u8]| std::str::from_utf8(part).ok().map(Box::<str>::from);
    Some(SessionRecord {
        revision: known(revision, |part| Revision::parse(&text(part)?))?,
        principal: known(principal, text)?,
        retry_ms,
        list_changed: ListChanged::from_bits(*lists),
        standalone: known(standalone, |part| part.try_into().ok().map(StreamNonce))?,
        note: bytes.slice_ref(rest),
    })
}

fn read<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(first)
}

/// The outer none is for bytes that cannot be read, the inner one for no part.
#[expect(clippy::option_option, reason = "what cannot be read is not what is not there")]
fn part<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let Some(length) = u32::from_be_bytes(*read(rest)?).checked_sub(1) else { return Some(None) };
    let (part, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(Some(part))
}

/// What a part says; the outer none is for one that this release does not know.
#[expect(clippy::option_option, reason = "what cannot be read is not what is not there")]
fn known<T>(part: Option<&[u8]>, read: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    part.map_or(Some(None), |part| read(part).map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written() {
        let full = SessionRecord {
            revision: Some(Revision::V2025_11_25),
            principal: Some("alice".into()),
            retry_ms: 9,
            list_changed: ListChanged { prompts: true, ..ListChanged::default() },
            standalone: Some(StreamNonce([3; 12])),
            note: "a note".into(),
        };
        let nobody = SessionRecord { principal: None, ..full.clone() };
        let nameless = SessionRecord { principal: Some("".into()), ..full.clone() };
        for record in [SessionRecord::default(), nobody, nameless, full.clone()] {
            assert_eq!(decode(&encode(&record).into()), Some(record));
        }
        let written = Bytes::from(encode(&full));
        let note = full.note.len();
        for length in 0..written.len() - note {
            assert_eq!(decode(&written.slice(..length)), None, "{length} bytes");
        }
        let newer = [&[VERSION + 1], &written[1..]].concat();
        let unknown = String::from_utf8(written.to_vec()).map(|text| text.replacen("2025-11-25", "2099-01-01", 1));
        assert_eq!((decode(&newer.into()), decode(&unknown.unwrap().into())), (None, None), "a later release wrote it");
    }
}
