//! Where events end in a stream of server-sent events that is passed on as it is, piece by piece.

/// Splits a stream into its blocks: each with the blank line that ends it.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    buffer: Vec<u8>,
    /// Up to where `buffer` has been searched for the end of a block.
    searched: usize,
    line_has_text: bool,
    /// The last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
}

impl Blocks {
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next block, once its end has come.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(byte) = self.buffer.get(self.searched) {
            self.searched += 1;
            let is_second = std::mem::take(&mut self.after_cr) && *byte == b'\n';
            match byte {
                b'\n' if is_second => {}
                b'\n' | b'\r' => {
                    self.after_cr = *byte == b'\r';
                    if !std::mem::take(&mut self.line_has_text) {
                        if self.after_cr && self.buffer.get(self.searched) == Some(&b'\n') {
                            self.searched += 1;
                            self.after_cr = false;
                        }
                        return Some(self.take_searched());
                    }
                }
                _ => self.line_has_text = true,
            }
        }
        None
    }

    /// Bytes of a block whose end has not come.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// What has come of a block whose end has not. What follows is looked at as if it had not been taken.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        self.searched = 0;
        std::mem::take(&mut self.buffer)
    }

    fn take_searched(&mut self) -> Vec<u8> {
        let rest = self.buffer.split_off(self.searched);
        self.searched = 0;
        std::mem::replace(&mut self.buffer, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_24_blocks_are_found_wherever_a_stream_is_cut() {
        let stream = b": ping\r\n\r\nevent: message\ndata: {}\n\nid: 1\rdata: a\r\rdata: b\n\ndata";
        for size in 1..stream.len() {
            let mut blocks = Blocks::default();
            let mut found: Vec<Vec<u8>> = Vec::new();
            for chunk in stream.chunks(size) {
                blocks.push(chunk);
                found.extend(std::iter::from_fn(|| blocks.next()));
            }
            assert_eq!(blocks.len(), b"data".len());
            let texts: Vec<String> = found.iter().map(|block| String::from_utf8_lossy(block).into_owned()).collect();
            // The LF of a CRLF that comes late begins the next block: an empty line more, which means nothing.
            let trimmed: Vec<&str> = texts.iter().map(|text| text.trim_matches(['\r', '\n'])).collect();
            assert_eq!(trimmed, [": ping", "event: message\ndata: {}", "id: 1\rdata: a", "data: b"], "{size}");
            assert_eq!([&*found.concat(), &*blocks.take_rest()].concat(), stream);
        }
    }
}
