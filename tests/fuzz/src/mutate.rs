//! Mutations of seeds, without coverage: what an ordinary test run tries.

/// Makes one input after the other out of seeds. The same seeds give the same inputs, everywhere.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    max_bytes: usize,
}

/// What parsers are likely to stumble over.
const TOKENS: [&[u8]; 48] = [
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\0",
    b":",
    b": ",
    b"id: ",
    b"id:",
    b"data: ",
    b"data:",
    b"event: ",
    b"retry: ",
    b": gap 1 1",
    b"\xEF\xBB\xBF",
    b"\xC2\x85",
    b"\xE2\x80\xA8",
    b"\xFF",
    b"\xED\xA0\x80",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"null",
    b"true",
    b"0",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"1.5",
    b"\"jsonrpc\":\"2.0\"",
    b"\"id\":1",
    b"\"method\":\"ping\"",
    b"\"params\":{}",
    b"\"result\":{}",
    b"\"error\":{}",
    b"*-1\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b":9223372036854775807\r\n",
    b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
    b"\0\0\0\0\0\0\0\0",
    b"%",
];

impl Mutator {
    /// No input is longer than this.
    pub fn new(seed: u64, max_bytes: usize) -> Self {
        Self { state: seed, max_bytes }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("it is below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    /// One of the seeds, changed in a few places.
    pub fn mutate(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let at = self.below(seeds.len());
        let mut bytes = seeds.get(at).cloned().unwrap_or_default();
        for _ in 0..=self.below(6) {
            self.change(&mut bytes, seeds);
        }
        bytes.truncate(self.max_bytes);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(16)).min(bytes.len());
        match self.below(10) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, self.byte()),
            3 => {
                let token = TOKENS[self.below(TOKENS.len())];
                drop(bytes.splice(at..at, token.iter().copied()));
            }
            4 => {
                let token = TOKENS[self.below(TOKENS.len())];
                drop(bytes.splice(at..end, token.iter().copied()));
            }
            5 => {
                // A part again.
                let part = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, part));
            }
            6 => {
                // A part of another seed, to its end.
                let other = &seeds[self.below(seeds.len())];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            7 => {
                // More choices.
                for _ in 0..=self.below(48) {
                    let byte = self.byte();
                    bytes.push(byte);
                }
            }
            _ => {
                let (byte, bit) = (self.byte(), self.below(8));
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = if byte & 1 == 0 { byte } else { *changed ^ (1 << bit) };
                }
            }
        }
    }
}
