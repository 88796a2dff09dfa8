//! Where a random schedule takes its choices from: a seed, or the bytes that a fuzzer gives.
/// Choices of one schedule.
pub(crate) enum Dice {
    /// SplitMix64: small, and the same everywhere.
    Seed(u64),
    /// The choices themselves. When they are used up every further one is 0.
    Bytes {
        /// All of them.
        bytes: Vec<u8>,
        /// How many were used.
        at: usize,
    },
}

impl Dice {
    /// The choices are these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::Bytes { bytes: bytes.to_vec(), at: 0 }
    }

    /// Whether no choice is left. A seed has any number of them.
    pub(crate) fn is_used_up(&self) -> bool {
        matches!(self, Self::Bytes { bytes, at } if *at >= bytes.len())
    }

    /// A number below the bound, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        match self {
            Self::Seed(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                (mixed ^ (mixed >> 31)) % bound
            }
            Self::Bytes { bytes, at } => {
                // As few bytes as the choice needs, so that a change of one byte is a change of one choice.
                let count = ((u64::BITS - (bound - 1).leading_zeros()) as usize).div_ceil(8);
                let mut number = 0;
                for _ in 0..count {
                    number = number << 8 | u64::from(bytes.get(*at).copied().unwrap_or(0));
                    *at += 1;
                }
                number % bound
            }
        }
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A place in a list of this many, of which there is at least one.
    pub(crate) fn place(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("it is below a usize")
    }
}

/// How many times as much random work as the quick test run does: TAILROPE_DEPTH, which `make test-full` sets.
pub(crate) fn depth() -> u64 {
    std::env::var("TAILROPE_DEPTH").map_or(1, |depth| depth.parse().expect("TAILROPE_DEPTH is a number"))
}
