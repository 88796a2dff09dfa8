//! Base64url without padding (RFC 4648, section 5), canonical in both directions.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const INVALID: u8 = 0xFF;

const VALUES: [u8; 256] = {
    let mut values = [INVALID; 256];
    let mut value = 0;
    while value < 64 {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
};

/// Twelve bytes are exactly sixteen characters, so halves of an event id can be encoded apart.
pub(super) fn encode_12(bytes: &[u8; 12]) -> [u8; 16] {
    let mut text = [0; 16];
    let (quads, _) = text.as_chunks_mut();
    let (triples, _) = bytes.as_chunks();
    quads.iter_mut().zip(triples).for_each(|(four, triple)| *four = quad(*triple));
    text
}

/// Gives the characters of some bytes, a few at a time.
pub(crate) fn encode(bytes: &[u8], mut put: impl FnMut(&[u8])) {
    for group in bytes.chunks(3) {
        let mut padded = [0; 3];
        padded[..group.len()].copy_from_slice(group);
        put(&quad(padded)[..=group.len()]);
    }
}

fn quad([first, second, third]: [u8; 3]) -> [u8; 4] {
    let bits = u32::from_be_bytes([0, first, second, third]);
    [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift) as usize & 63])
}

/// Decodes into the front of `out` and returns the number of bytes. `None` when a character is not
/// of the alphabet, when unused bits are set, or when `out` is too short.
pub(crate) fn decode(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    for group in text.chunks(4) {
        let mut bits = 0;
        for (index, character) in group.iter().enumerate() {
            let value = VALUES[*character as usize];
            if value == INVALID {
                return None;
            }
            bits |= u32::from(value) << (18 - 6 * index);
        }
        // A group of n characters carries n - 1 bytes; a single character carries nothing.
        let count = group.len() - 1;
        if count == 0 || bits & (0x00FF_FFFF >> (8 * count)) != 0 {
            return None;
        }
        out.get_mut(length..length + count)?.copy_from_slice(&bits.to_be_bytes()[1..=count]);
        length += count;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts() {
        for (bytes, text) in [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xFB\xFF", "-_8")] {
            let mut out = Vec::new();
            encode(bytes, |characters| out.extend_from_slice(characters));
            assert_eq!(out, text.as_bytes());
            let mut decoded = [0; 8];
            assert_eq!(decode(text.as_bytes(), &mut decoded), Some(bytes.len()));
            assert_eq!(&decoded[..bytes.len()], bytes);
        }
        assert_eq!(&encode_12(b"foofoofoofoo"), b"Zm9vZm9vZm9vZm9v");
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in ["A", "Zh", "Zm9", "Zg==", "Zm9v\n", "Zm+v", "Zm/v"] {
            assert_eq!(decode(text.as_bytes(), &mut [0; 8]), None, "{text}");
        }
        assert_eq!(decode(b"Zm9v", &mut [0; 2]), None);
    }
}
