//! The engine over a memory store that answers late, out of order and not at all, and what every connection was sent.

use crate::engine_world::World;
use crate::kit::dice::Dice;

/// Steps of one schedule.
const MAX_STEPS: u32 = 250;

pub(crate) fn run(bytes: &[u8]) {
    let mut dice = Dice::of(bytes);
    let calls_off = dice.one_in(2);
    let mut world = World::new(dice, calls_off);
    for _ in 0..MAX_STEPS {
        if world.is_used_up() {
            break;
        }
        world.step();
    }
    world.settle();
    world.check();
    world.close();
}
