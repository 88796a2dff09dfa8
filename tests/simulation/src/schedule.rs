//! What a seed decides: a place, and a list of decisions. Any part of the list is a schedule, too.

use tailrope_core::store::MAX_INBOX_MESSAGES;

use crate::dice::Dice;
use crate::tasks::{self, TaskDecision};

/// The place where a schedule happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    pub(crate) sessions: u64,
    /// The sessions' revision has no priming events, and no early close.
    pub(crate) is_old: bool,
    /// Operations of the store wait for a decision.
    pub(crate) is_slow: bool,
    /// Hosts take what is relayed when a decision says so.
    pub(crate) is_busy: bool,
    /// Hosts adopt sessions.
    pub(crate) adopts: bool,
    /// What is abandoned is called off.
    pub(crate) calls_off: bool,
    pub(crate) store_timeout_ms: u64,
    /// Of each node.
    pub(crate) owner_lost_ms: [u64; 3],
    pub(crate) retention_ms: u64,
    /// How long the name of a session that had several owners stays taken.
    pub(crate) max_age_ms: u64,
    pub(crate) max_events: u64,
    /// Messages that may wait for a session's owner.
    pub(crate) max_inbox: u64,
    pub(crate) max_batch: u64,
    pub(crate) max_connection_bytes: u64,
    /// How late hints may be.
    pub(crate) hint_ms: u64,
    /// How much of a stream one poll takes, in bytes.
    pub(crate) page_bytes: u64,
    /// Calls have a pace.
    pub(crate) is_paced: bool,
}

impl Setup {
    /// Two nodes, and a store that trims nothing.
    pub(crate) fn roomy() -> Self {
        Self {
            seed: 0,
            nodes: 2,
            sessions: 0,
            is_old: false,
            is_slow: false,
            is_busy: false,
            adopts: false,
            calls_off: true,
            store_timeout_ms: 0,
            owner_lost_ms: [10_000; 3],
            retention_ms: 600_000,
            max_age_ms: 3_600_000,
            max_events: usize::MAX as u64,
            max_inbox: MAX_INBOX_MESSAGES as u64,
            max_batch: 256,
            max_connection_bytes: 0,
            hint_ms: 0,
            page_bytes: 65_536,
            is_paced: false,
        }
    }
}

/// One thing that happens. The numbers are taken modulo what there is when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Call {
        session: u64,
        node: u64,
    },
    Notify {
        stream: u64,
        count: u64,
    },
    Ask {
        stream: u64,
    },
    /// The client answers a question, at this process.
    Settle {
        stream: u64,
        node: u64,
    },
    /// The client sends a notification.
    Tell {
        session: u64,
        node: u64,
    },
    /// The client sends more notifications than a busy host takes.
    Flood {
        session: u64,
        node: u64,
    },
    /// The client cancels a request.
    Revoke {
        stream: u64,
        node: u64,
    },
    /// The client ends its session.
    Delete {
        session: u64,
        node: u64,
    },
    /// The host takes what was relayed to a session.
    Serve {
        session: u64,
    },
    Respond {
        stream: u64,
    },
    Broadcast {
        session: u64,
    },
    Listen {
        session: u64,
        node: u64,
    },
    /// From the id that came last (`back` 0), or from one before.
    Resume {
        stream: u64,
        node: u64,
        back: u64,
    },
    Probe {
        stream: u64,
        node: u64,
    },
    CloseConnection {
        stream: u64,
        retry_ms: u32,
        hold_ms: Option<u64>,
    },
    Cancel {
        stream: u64,
    },
    EndSession {
        session: u64,
    },
    /// The connection breaks, with so many bytes of what is under way still arriving.
    Lose {
        connection: u64,
        bytes: u64,
    },
    Stall {
        connection: u64,
    },
    Deliver {
        connection: u64,
    },
    /// An operation of the store that waits.
    Do {
        node: u64,
        pick: u64,
    },
    DoAll {
        node: u64,
    },
    /// The first operation of each node, and so on: they get in each other's way.
    DoInTurns,
    Fail {
        node: u64,
        pick: u64,
    },
    /// Done, and the answer is a time-out.
    Unheard {
        node: u64,
        pick: u64,
    },
    /// The answer is a time-out, and whether it is done shows later.
    Overdue {
        node: u64,
        pick: u64,
    },
    /// Done, and the answer comes later.
    Hold {
        node: u64,
        pick: u64,
    },
    Release {
        node: u64,
    },
    /// The store of a node waits, answers at once, or fails.
    Mode {
        node: u64,
        mode: u64,
    },
    Partition {
        node: u64,
    },
    Heal {
        node: u64,
    },
    Pause {
        node: u64,
    },
    Wake {
        node: u64,
    },
    /// The process is gone; so many of its operations are done all the same.
    Crash {
        node: u64,
        done: u64,
    },
    /// The process goes away in order: 0 closes, 1 releases.
    Leave {
        node: u64,
        how: u64,
    },
    /// The process of a session lets it go, and others each serve a reader of it.
    Orphan {
        session: u64,
    },
    /// The process of a session stands still, another one has the session and crashes, and the store forgets that.
    Forget {
        session: u64,
        node: u64,
    },
    Drain {
        node: u64,
        retry_ms: u32,
    },
    RollBack {
        stream: u64,
        by: u64,
    },
    Hint {
        pick: u64,
        twice: bool,
    },
    Advance {
        ms: u64,
    },
    /// Nobody can ask the store for so long; or nobody runs. Meanwhile a handler that runs sends.
    Outage {
        stream: u64,
        ms: u64,
        is_suspended: bool,
    },
    /// See [`TaskDecision`].
    Task(TaskDecision),
    /// A node's wall clock is set.
    SetClock {
        node: u64,
        ms: u64,
        is_back: bool,
    },
}

impl Decision {
    /// Whether owners may be taken for gone because of it.
    pub(crate) fn harms_owners(self) -> bool {
        matches!(
            self,
            Self::Partition { .. }
                | Self::Pause { .. }
                | Self::Crash { .. }
                | Self::Leave { .. }
                | Self::Drain { .. }
                | Self::Mode { .. }
                | Self::Outage { .. }
        )
    }
}

/// What a seed decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) setup: Setup,
    pub(crate) decisions: Vec<Decision>,
}

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let pick = |dice: &mut Dice, from: &[u64]| from[dice.below(from.len() as u64) as usize];
        let setup = Setup {
            seed,
            nodes: pick(&mut dice, &[1, 2, 2, 3]),
            sessions: pick(&mut dice, &[1, 1, 2]),
            is_old: dice.one_in(8),
            is_slow: !dice.one_in(3),
            is_busy: dice.one_in(3),
            adopts: dice.one_in(2),
            calls_off: dice.one_in(2),
            store_timeout_ms: pick(&mut dice, &[0, 80, 1_000, 30_000]),
            owner_lost_ms: [(); 3].map(|()| pick(&mut dice, &[5_000, 10_000, 30_000])),
            retention_ms: pick(&mut dice, &[2_000, 60_000, 600_000, 600_000]),
            max_age_ms: pick(&mut dice, &[60_000, 3_600_000]),
            max_events: pick(&mut dice, &[3, 8, 1_000, 1_000]),
            max_inbox: pick(&mut dice, &[2, 20, 1_000]),
            max_batch: pick(&mut dice, &[1, 3, 256]),
            max_connection_bytes: pick(&mut dice, &[0, 0, 0, 400]),
            hint_ms: pick(&mut dice, &[0, 20, 500, 20_000]),
            page_bytes: pick(&mut dice, &[200, 65_536]),
            is_paced: seed.is_multiple_of(3),
        };
        let length = 20 + dice.below(100);
        // Faults and departures are rare in some schedules, so that others see long quiet ones.
        let faults = dice.below(4);
        let decisions = (0..length).map(|_| decide(&mut dice, faults)).collect();
        Self { setup, decisions }
    }

    /// A schedule of calls that become tasks.
    pub fn of_tasks(seed: u64) -> Self {
        let Self { mut setup, .. } = Self::new(seed);
        // Records of tasks are few, and all of them are needed.
        (setup.sessions, setup.is_busy, setup.is_paced, setup.max_events) = (1, false, false, 1_000);
        // An owner answers from memory until the others may take it for gone, by its own option.
        setup.owner_lost_ms = [setup.owner_lost_ms[0]; 3];
        let mut dice = Dice::new(seed ^ 0x7A5C);
        let (length, faults) = (20 + dice.below(100), dice.below(4));
        let decisions = (0..length).map(|_| decide_of_tasks(&mut dice, faults)).collect();
        Self { setup, decisions }
    }
}

/// Of what happens to stores and processes in other schedules, and of tasks.
fn decide_of_tasks(dice: &mut Dice, faults: u64) -> Decision {
    loop {
        let decision = decide(dice, faults);
        let is_of_world = matches!(
            decision,
            Decision::Do { .. }
                | Decision::DoAll { .. }
                | Decision::DoInTurns
                | Decision::Fail { .. }
                | Decision::Unheard { .. }
                | Decision::Overdue { .. }
                | Decision::Hold { .. }
                | Decision::Release { .. }
                | Decision::Mode { .. }
                | Decision::Partition { .. }
                | Decision::Heal { .. }
                | Decision::Pause { .. }
                | Decision::Wake { .. }
                | Decision::Crash { .. }
                | Decision::Leave { .. }
                | Decision::Drain { .. }
                | Decision::Hint { .. }
                | Decision::Advance { .. }
                | Decision::Outage { .. }
        );
        if is_of_world {
            return decision;
        }
        if dice.one_in(2) {
            return tasks::decide(dice);
        }
    }
}

fn decide(dice: &mut Dice, faults: u64) -> Decision {
    let (a, b, c) = (dice.next() >> 40, dice.next() >> 40, dice.next() >> 40);
    let is_fault = dice.below(12) < faults;
    if is_fault {
        return match dice.below(28) {
            0..=4 => Decision::Fail { node: a, pick: b },
            5..=7 => Decision::Unheard { node: a, pick: b },
            8..=9 => Decision::Overdue { node: a, pick: b },
            10..=12 => Decision::Hold { node: a, pick: b },
            13 => Decision::Mode { node: a, mode: b },
            14 => Decision::Partition { node: a },
            15 => Decision::Heal { node: a },
            16 => Decision::Pause { node: a },
            17 => Decision::Wake { node: a },
            18..=19 => Decision::Crash { node: a, done: b },
            20 if c.is_multiple_of(3) => Decision::Orphan { session: a },
            20 => Decision::Leave { node: a, how: b },
            21 => Decision::Drain { node: a, retry_ms: 500 },
            22 if c.is_multiple_of(4) => Decision::Forget { session: a, node: b },
            22 => Decision::RollBack { stream: a, by: b },
            23 if c.is_multiple_of(2) => Decision::EndSession { session: a },
            23 => Decision::Delete { session: a, node: b },
            24..=26 => Decision::Outage { stream: a, ms: 4_000 + b % 16_000, is_suspended: c.is_multiple_of(3) },
            _ => {
                let ms = [2_000, 30_000, 3_600_000, 86_400_000][(b % 4) as usize];
                Decision::SetClock { node: a, ms, is_back: c.is_multiple_of(2) }
            }
        };
    }
    match dice.below(71) {
        0..=3 => Decision::Call { session: a, node: b },
        4..=13 => Decision::Notify { stream: a, count: if dice.one_in(4) { 1 + b % 12 } else { 1 } },
        14 => Decision::Ask { stream: a },
        15 | 64 => Decision::Settle { stream: a, node: b },
        65..=66 => Decision::Tell { session: a, node: b },
        67 => Decision::Revoke { stream: a, node: b },
        70 if c.is_multiple_of(4) => Decision::Flood { session: a, node: b },
        68..=69 => Decision::Serve { session: a },
        16..=19 => Decision::Respond { stream: a },
        20..=22 => Decision::Broadcast { session: a },
        23..=24 => Decision::Listen { session: a, node: b },
        25..=33 => Decision::Resume { stream: a, node: b, back: if dice.one_in(3) { c } else { 0 } },
        34 => Decision::Probe { stream: a, node: b },
        35 => {
            let hold_ms = [None, Some(0), Some(30)][(b % 3) as usize];
            Decision::CloseConnection { stream: a, retry_ms: 200 + (c % 3_000) as u32, hold_ms }
        }
        36 => Decision::Cancel { stream: a },
        37..=40 => Decision::Lose { connection: a, bytes: b % 600 },
        41 => Decision::Stall { connection: a },
        42..=43 => Decision::Deliver { connection: a },
        44..=49 => Decision::Do { node: a, pick: b },
        50..=51 => Decision::DoAll { node: a },
        52 => Decision::DoInTurns,
        53 => Decision::Release { node: a },
        54..=55 => Decision::Hint { pick: a, twice: b.is_multiple_of(2) },
        56..=61 => Decision::Advance { ms: b % 60 },
        62 => Decision::Advance { ms: 1_000 + b % 3_000 },
        _ => Decision::Advance { ms: 5_000 + b % 20_000 },
    }
}
