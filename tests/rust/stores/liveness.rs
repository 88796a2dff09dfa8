//! When the owner of a session counts as gone: only what was seen of it in looks that had an answer says so (O14).

use tailrope_core::Ms;
use tailrope_core::store::{Sightings, beat_ms};

const LOST: u64 = 10_000;

#[test]
fn o14_an_owner_is_lost_after_four_looks_over_the_whole_time() {
    let mut sightings = Sightings::new(LOST);
    let looks = [0, 3_000, 6_000, 9_000, 9_999, 10_000].map(|at| sightings.saw("a", Some(7), Ms(at)));
    assert_eq!(looks, [0, 3_000, 6_000, 9_000, 9_999, LOST]);
    let slow = [0, 4_000, 8_000, 12_000].map(|at| sightings.saw("b", Some(7), Ms(at)));
    assert!(slow[2] < LOST && slow[3] >= LOST, "{slow:?}");
    assert_eq!(sightings.saw("a", Some(8), Ms(20_000)), 0, "it is back");
    assert_eq!(sightings.saw("a", Some(8), Ms(21_000)), 1_000, "and its time begins anew");
}

#[test]
fn o14_a_pause_of_any_length_counts_for_one_look() {
    let mut sightings = Sightings::new(LOST);
    sightings.saw("a", Some(7), Ms(0));
    assert!(sightings.saw("a", Some(7), Ms(3_600_000)) < LOST / 2);
    assert!(sightings.saw("a", Some(7), Ms(7_200_000)) < LOST);
    assert_eq!(sightings.saw("a", Some(8), Ms(7_200_001)), 0);
}

#[test]
fn o14_an_owner_that_would_wait_long_for_others_is_not_lost_to_one_that_waits_less() {
    let mut sightings = Sightings::new(LOST);
    let pause_ms = beat_ms(100 * LOST);
    let unseen = (0..20 * LOST).step_by(500).map(|at| sightings.saw("a", Some(at / pause_ms), Ms(at))).max();
    assert!(unseen < Some(LOST), "O14 (R-S6): {unseen:?}");
}

#[test]
fn o14_a_count_that_is_not_there_proves_nothing() {
    let mut sightings = Sightings::new(LOST);
    for at in (0..10 * LOST).step_by(1_000) {
        assert_eq!(sightings.saw("a", None, Ms(at)), 0);
    }
    for at in (0..2 * LOST).step_by(1_000) {
        sightings.saw("a", Some(1), Ms(at));
    }
    assert_eq!(sightings.saw("a", None, Ms(2 * LOST)), 0);
    assert_eq!(sightings.saw("a", Some(1), Ms(2 * LOST + 1)), 0, "what was seen before does not count");
}

#[test]
fn o14_a_count_that_is_smaller_is_a_sign_too() {
    let mut sightings = Sightings::new(LOST);
    sightings.saw("a", Some(900), Ms(0));
    assert_eq!(sightings.saw("a", Some(1), Ms(3_000)), 0, "a store that was set back");
}

#[test]
fn o14_looks_out_of_order_count_nothing_twice() {
    let mut sightings = Sightings::new(LOST);
    let looks = [0, 2_000, 1_000, 2_000].map(|at| sightings.saw("a", Some(7), Ms(at)));
    assert_eq!(looks, [0, 2_000, 2_000, 2_000]);
}
