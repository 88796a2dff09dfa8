//! How often a process asks the server until a reader that comes to it has its first event.

use super::server::{Kind, fresh};
use crate::stores::postgres::trips::resume_takes_one_round_trip;

#[test]
fn a_resume_elsewhere_has_its_first_event_after_one_round_trip() {
    resume_takes_one_round_trip(&fresh(Kind::Alone));
}
