//! The simulated store keeps the contract that every store keeps.

use tailrope_core::store::contract;
use tailrope_simulation::place;

#[test]
fn the_simulated_store_keeps_every_rule() {
    contract::check(&|| place().0);
}

#[test]
fn the_simulated_store_keeps_the_rules_between_processes() {
    contract::check_shared(&place);
}
