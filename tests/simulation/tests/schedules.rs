//! Seeded schedules, judged by the checker.
//!
//! TAILROPE_SCHEDULES is how many, TAILROPE_SEED the first of them: with TAILROPE_SCHEDULES=1 it repeats a failure.

use std::collections::BTreeMap;

use tailrope_simulation::{Schedule, run, shrink};

/// As many as `make test` has time for; `make test-full` and `make simulate` run more. They reach all of [`REACHED`].
const SCHEDULES: u64 = 5_000;
/// The same for [`TASKS_REACHED`].
const TASK_SCHEDULES: u64 = 2_000;

/// What schedules have to reach: a simulation that does not get there tests nothing.
const REACHED: [&str; 88] = [
    "adoptions that a host refused",
    "answers_unasked",
    "answers relayed",
    "answers that were held back",
    "appends fenced",
    "appends that were stored before",
    "appends to a log that was set back",
    "calls that were not relayed",
    "cancellations relayed",
    "clocks set",
    "closes of readers elsewhere",
    "closes_asked",
    "closes_complete",
    "closes_drain",
    "closes_ended",
    "closes_fault",
    "closes_limit",
    "closes_polled",
    "connections that broke",
    "crashes",
    "crashes with appends under way",
    "departures",
    "drains",
    "ends lost by the store",
    "errors seen",
    "events seen",
    "events_missed",
    "events_unstored",
    "failures told to a later sender",
    "floods",
    "gaps seen",
    "heirs that came second",
    "holds lost by the store",
    "hosts that take no more",
    "inboxes that were full",
    "logs ended by heirs",
    "logs expired",
    "logs lost by the store",
    "logs restored",
    "logs set back",
    "logs trimmed",
    "logs_lost",
    "messages posted",
    "messages taken",
    "messages that came before",
    "messages that ran ahead",
    "messages told again",
    "messages withdrawn",
    "messages withdrawn too late",
    "messages_late",
    "notifications relayed",
    "operations abandoned",
    "operations that are overdue",
    "operations that failed",
    "operations that were done unheard",
    "outages",
    "owners spared by those who look",
    "partitions",
    "pauses",
    "probes",
    "readers elsewhere that were closed",
    "relayed calls that began",
    "relayed calls that were refused",
    "relayed messages that came",
    "requests cancelled",
    "requests relayed",
    "requests that no inbox had room for",
    "results seen",
    "resumes",
    "resumes_accepted",
    "resumes_complete",
    "resumes_lost",
    "sessions found",
    "sessions ended",
    "sessions ended from elsewhere",
    "sessions set back",
    "sessions that their owners have again",
    "sessions taken over",
    "sessions that earlier hosts have again",
    "sessions that ended because another process has them",
    "sessions_adopted",
    "sessions_handed_over",
    "sessions_taken_over",
    "slow readers of a store that is set back",
    "streams_opened",
    "suspensions",
    "takeovers",
    "takeovers_elsewhere",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn every_schedule_keeps_the_invariants() {
    judge(Schedule::new, "every_schedule_keeps", (SCHEDULES, &REACHED));
}

/// Runs the schedules of many seeds. So many of them have to reach this.
fn judge(schedule: fn(u64) -> Schedule, test: &str, (enough, reached): (u64, &[&str])) {
    let first = number("TAILROPE_SEED").unwrap_or(0);
    let count = number("TAILROPE_SCHEDULES").unwrap_or(enough);
    let mut coverage: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in first..first + count {
        let schedule = schedule(seed);
        let outcome = run(&schedule);
        if !outcome.is_clean() {
            let short = shrink(&schedule);
            let told = short.told(&run(&short));
            let again = format!("cargo test -p tailrope-simulation --test schedules {test}");
            panic!("{told}\nAgain: TAILROPE_SEED={seed} TAILROPE_SCHEDULES=1 {again}");
        }
        for (what, count) in outcome.coverage {
            *coverage.entry(what).or_default() += count;
        }
    }
    if count >= enough {
        let missed: Vec<&str> =
            reached.iter().copied().filter(|what| coverage.get(what).copied().unwrap_or_default() == 0).collect();
        assert!(missed.is_empty(), "no schedule reached {missed:?}: {coverage:#?}");
    }
}

/// What schedules of tasks have to reach.
const TASKS_REACHED: [&str; 17] = [
    "calls that became tasks",
    "calls that were answered",
    "cancellations acknowledged",
    "crashes",
    "departures",
    "drains",
    "messages posted",
    "messages withdrawn",
    "polls",
    "requests about tasks that waited in vain",
    "rounds",
    "tasks set back",
    "tasks that go on elsewhere",
    "tasks that have their end",
    "tasks_lost",
    "tasks_adopted",
    "updates acknowledged",
];

#[test]
fn every_schedule_of_tasks_keeps_the_rules_of_tasks() {
    judge(Schedule::of_tasks, "every_schedule_of_tasks", (TASK_SCHEDULES, &TASKS_REACHED));
}

#[test]
fn a_seed_gives_the_same_history_each_time() {
    let told = |seed| {
        let outcome = run(&Schedule::new(seed));
        serde_json::to_string(&outcome.facts).expect("facts are JSON")
    };
    for seed in 0..100 {
        assert_eq!(told(seed), told(seed), "seed {seed}");
    }
}
