//! What nobody has any more (rule 8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Caller, Event, Log, progress};
use crate::Ms;
use crate::store::{Attach, Epoch, EventStore, Hold, SessionRecord};

/// How long a store may take for what is due.
const PATIENCE: Duration = Duration::from_secs(60);

/// Checks that a session which its owner let go of, and nobody takes over, goes with everything that it has, and no earlier than
/// after `max_age_ms`. `make` gives two store objects of one empty place with that
/// [bound](crate::store::Limits::max_age_ms). `pass` lets milliseconds pass by the clock of the place.
///
/// # Panics
/// When the store breaks the rule.
pub fn check_released(
    make: &dyn Fn() -> (Arc<dyn EventStore>, Arc<dyn EventStore>),
    max_age_ms: u64,
    pass: &dyn Fn(u64),
) {
    let (a, b) = make();
    let (owner, other) = (Caller::new(&*a, Ms(0)), Caller::new(&*b, Ms(0)));
    let event: Event = progress("a");
    let mut logs: Vec<Log> = ["left", "taken over", "owned"].map(|session| owner.open(session, 1)).into();
    logs.iter_mut().for_each(|log| owner.push(log, std::slice::from_ref(&event)));
    other.post(&Log::new("left", 2), b"message").expect("it waits");
    for session in ["left", "taken over"] {
        a.release(session, owner.epoch);
    }
    // Answered after everything that was asked before (rule 11), so that no time passes before the release.
    owner.attach("", &Attach::default());
    let epoch = Epoch { number: owner.epoch.number + 1, salt: 9 };
    let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
    other.try_hold("taken over", &hold).expect("rule 12: it is taken over");
    pass(max_age_ms / 2);
    let is_there = |log: &Log| other.session(&log.key.session, None) == Some(SessionRecord::default());
    assert!(logs.iter().all(is_there), "rule 8: what was let go of stays for a while");
    pass(max_age_ms);
    let began = Instant::now();
    while is_there(&logs[0]) || other.log(&logs[0]).is_some() {
        assert!(began.elapsed() < PATIENCE, "rule 8 (O16): what nobody takes over goes in the end");
        std::thread::sleep(Duration::from_millis(20));
        // Where the time of the place does not pass by itself.
        pass(1);
    }
    assert!(logs[1..].iter().all(is_there), "rule 8: and nothing that has an owner");
    a.drop_session("owned", owner.epoch);
    b.drop_session("taken over", epoch);
    other.assert_usage("rule 8 (O16)", |usage| (usage.sessions, usage.streams, usage.bytes) == (0, 0, 0));
}
