//! The stream machine, against the model of its store, its connections and their clients.

use crate::kit::dice::Dice;
use crate::stream_world::World;

/// Steps of one schedule.
const MAX_STEPS: u32 = 400;

pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new(Dice::of(bytes));
    for _ in 0..MAX_STEPS {
        if world.is_used_up() {
            break;
        }
        world.step();
    }
    world.settle();
    for _ in 0..3 {
        world.read_back();
    }
}
