//! Invariants of the stream machine over random schedules, against the model of stream_world.rs. When a
//! schedule is over the faults stop, and everything has to come to rest.
//!
//! A schedule is drawn from its seed. A failure prints it; TAILROPE_SEED repeats it.

use super::world::World;
use crate::kit::dice::{Dice, depth};

/// Runs this many schedules on all processors. Prints the seed of one that fails.
fn run(first_seed: u64, count: u64) -> u64 {
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let work = |worker: u64| {
            move || {
                let mut inputs = 0;
                for seed in (first_seed..first_seed + count).filter(|seed| seed % workers == worker) {
                    let schedule = || {
                        let mut world = World::new(Dice::Seed(seed));
                        for _ in 0..20 + seed % 60 {
                            world.step();
                        }
                        world.settle();
                        for _ in 0..3 {
                            world.read_back();
                        }
                        world.inputs
                    };
                    match std::panic::catch_unwind(schedule) {
                        Ok(count) => inputs += count,
                        Err(panic) => {
                            let text = panic.downcast_ref::<String>().cloned();
                            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                            panic!("schedule with seed {seed}: {}", text.unwrap_or_default());
                        }
                    }
                }
                inputs
            }
        };
        let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().expect("the seed is printed above")).sum()
    })
}

/// I2, I3, I4, I5, I6, I8 and I13 are asserted on every output of every schedule.
#[test]
fn i2_i3_i4_i6_i13_hold_over_random_schedules() {
    let inputs = match std::env::var("TAILROPE_SEED") {
        Ok(seed) => {
            run(seed.parse().expect("a seed is a number"), 1);
            return;
        }
        Err(_) => run(0, 20_000 * depth()),
    };
    assert!(inputs > 800_000, "the schedules are long enough to mean something: {inputs} inputs");
}
