//! Numbers from a seed.

use std::sync::Mutex;

use tailrope_core::engine::RandomSource;

use crate::node_store::lock;

/// A stream of numbers that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// The randomness of an engine.
pub(crate) struct Seeded(Mutex<Dice>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(Dice::new(seed)))
    }
}

impl RandomSource for Seeded {
    fn fill(&self, block: &mut [u8]) {
        let mut dice = lock(&self.0);
        for bytes in block.chunks_mut(8) {
            bytes.copy_from_slice(&dice.next().to_le_bytes()[..bytes.len()]);
        }
    }
}
