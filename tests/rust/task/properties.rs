//! Invariants of calls that may become tasks, over random schedules: what world.rs asserts after every input. A failure prints
//! the seed of its schedule; TAILROPE_SEED repeats it.

use std::collections::HashMap;
use std::panic::catch_unwind;

use super::world::World;
use crate::kit::dice::{Dice, depth};

fn run(seed: u64) -> World {
    let schedule = || {
        let mut world = World::new(Dice::Seed(seed));
        for _ in 0..10 + seed % 50 {
            world.step();
        }
        world.settle();
        world
    };
    catch_unwind(schedule).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        panic!("schedule with seed {seed}: {}", text.unwrap_or_default());
    })
}

#[test]
fn t_15_t_16_t_20_t_21_hold_over_random_schedules() {
    if let Ok(seed) = std::env::var("TAILROPE_SEED") {
        run(seed.parse().expect("a seed is a number"));
        return;
    }
    let (mut inputs, mut ends) = (0, HashMap::<_, u64>::new());
    for seed in 0..2_000 * depth() {
        let world = run(seed);
        inputs += world.inputs;
        world.ends.into_iter().for_each(|(end, count)| *ends.entry(end).or_default() += count);
    }
    assert!(inputs > 50_000, "the schedules are long enough to mean something: {inputs} inputs");
    assert!(["completed", "failed", "cancelled"].iter().all(|end| ends[end] > 100), "they end in every way: {ends:?}");
}
