//! When a handler that sends lets the writers of connections run. Time is what the host says it is.

use tailrope_core::exchange::{Pause, Turns};
use tailrope_core::store::Limits;

fn turns(max_events: usize, max_bytes: usize) -> Turns {
    Turns::new(max_events, max_bytes)
}

/// The pauses of a handler that sends `bytes` every `step_us`, in a turn that began a moment ago.
fn pauses(turns: &mut Turns, count: usize, bytes: usize, step_us: u64) -> Vec<usize> {
    let mut since_us = 0;
    let mut at = Vec::new();
    for event in 1..=count {
        since_us += step_us;
        match turns.sent(bytes, since_us / 1_000) {
            Pause::None => {}
            Pause::Yield => {
                at.push(event);
                since_us = 0;
            }
        }
    }
    at
}

#[test]
fn f_46_a_handler_that_sends_without_a_pause_yields() {
    let limits = Limits::default();
    let mut turns = turns(limits.max_events_per_stream, limits.max_bytes_per_stream);
    assert_eq!(pauses(&mut turns, 300, 10, 1), [128, 256], "after so many events");
    assert_eq!(pauses(&mut turns, 200 - 44, 10, 0), [128 - 44], "the count begins anew with each");
    let mut turns = self::turns(limits.max_events_per_stream, limits.max_bytes_per_stream);
    assert_eq!(pauses(&mut turns, 10, 20 << 10, 1), [4, 8], "after so many bytes");
    let mut turns = self::turns(limits.max_events_per_stream, limits.max_bytes_per_stream);
    assert_eq!(pauses(&mut turns, 100, 10, 30), [34, 68], "after so long");
}

#[test]
fn f_46_a_reader_has_its_turn_before_the_log_is_full() {
    assert_eq!(pauses(&mut turns(40, 8 << 20), 25, 10, 0), [10, 20], "a quarter of the events");
    assert_eq!(pauses(&mut turns(10_000, 4_000), 5, 500, 0), [2, 4], "a quarter of the bytes");
    assert_eq!(pauses(&mut turns(1, 8 << 20), 2, 10, 0), [1, 2]);
}
