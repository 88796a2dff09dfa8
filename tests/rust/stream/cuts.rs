//! What an endpoint learns of what cuts its connections: the vectors of `cuts.json`, and random schedules.

use serde::Deserialize;
use tailrope_core::Ms;
use tailrope_core::stream::{Cut, Cuts, Expected};

use crate::kit::dice::{Dice, depth};
use crate::kit::vectors::vectors;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Lengths {
    age_ms: u64,
    silent_ms: u64,
}

impl From<Expected> for Lengths {
    fn from(Expected { age_ms, silent_ms }: Expected) -> Self {
        Self { age_ms, silent_ms }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// Connections are lost one after the other, each a while after the one before.
    Lost(Vec<Lengths>),
    /// The same, and this is news.
    Learns {
        of: Vec<Lengths>,
        told: Lengths,
    },
    Lived(Lengths),
    Forgets(Lengths),
    Expects(Lengths),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    steps: Vec<Step>,
}

fn lose(cuts: &mut Cuts, at: u64, Lengths { age_ms, silent_ms }: Lengths) -> Option<Expected> {
    cuts.lost(Cut { at: Ms(at), age_ms, silent_ms })
}

#[test]
fn vectors_of_what_is_learned() {
    for (name, Vector { steps }) in vectors::<Vector>(include_str!("../../vectors/cuts.json")) {
        let mut cuts = Cuts::default();
        for (number, Step { at, what }) in steps.into_iter().enumerate() {
            let mut all = |of: Vec<Lengths>| {
                let told = of.into_iter().zip(0..).filter_map(|(lost, nth)| lose(&mut cuts, at + nth * 1_000, lost));
                told.map(Lengths::from).collect::<Vec<_>>()
            };
            let place = format!("{name}, step {number}");
            match what {
                What::Lost(of) => assert_eq!(all(of), [], "{place}"),
                What::Learns { of, told } => assert_eq!(all(of), [told], "{place}"),
                What::Lived(Lengths { age_ms, silent_ms }) => assert!(!cuts.lived(age_ms, silent_ms), "{place}"),
                What::Forgets(Lengths { age_ms, silent_ms }) => assert!(cuts.lived(age_ms, silent_ms), "{place}"),
                What::Expects(expected) => assert_eq!(Lengths::from(cuts.expected(Ms(at))), expected, "{place}"),
            }
        }
    }
}

/// What is between the clients and the server.
#[derive(Clone, Copy)]
enum Road {
    Free,
    Age(u64),
    Silence(u64),
    Random(u64),
}

/// An endpoint and its clients, in virtual time.
struct Endpoint {
    cuts: Cuts,
    dice: Dice,
    now: u64,
    /// Connections that the road cut, and those that the engine closed.
    cut: u64,
    closed: u64,
}

impl Endpoint {
    fn new(seed: u64) -> Self {
        Self { cuts: Cuts::default(), dice: Dice::Seed(seed), now: 0, cut: 0, closed: 0 }
    }

    /// One connection, from its opening to its end.
    fn connection(&mut self, road: Road) {
        self.now += 500 + self.dice.below(20_000);
        let Expected { age_ms, silent_ms } = self.cuts.expected(Ms(self.now));
        // What its client wants: a call that takes so long, whose tool is silent for so long at most.
        let wanted_ms = [300, 4_000, 30_000, 400_000][self.dice.place(4)];
        let wanted_ms = 1 + self.dice.below(wanted_ms);
        let pause_ms = [2_000, 1_000_000][self.dice.place(2)];
        let pause_ms = 1 + self.dice.below(pause_ms);
        let keep_alive_ms = if silent_ms == 0 { 15_000 } else { 15_000.min(silent_ms / 2) };
        let silence_ms = pause_ms.min(keep_alive_ms);
        let late_ms = self.dice.below(40);
        let lost = match road {
            Road::Free => None,
            Road::Age(cut_ms) => {
                (cut_ms < wanted_ms).then_some((cut_ms + late_ms, self.dice.below(silence_ms.min(cut_ms) + 1)))
            }
            Road::Silence(cut_ms) if silence_ms <= cut_ms || wanted_ms <= cut_ms => None,
            Road::Silence(cut_ms) => Some((cut_ms + self.dice.below(wanted_ms - cut_ms) + late_ms, cut_ms + late_ms)),
            Road::Random(most_ms) => {
                let age_ms = self.dice.below(most_ms);
                (age_ms < wanted_ms).then_some((age_ms, self.dice.below(silence_ms.min(age_ms) + 1)))
            }
        };
        let close_ms = if age_ms == 0 { u64::MAX } else { age_ms - age_ms / 8 };
        let end_ms = lost.map_or(wanted_ms, |(age_ms, _)| age_ms);
        if close_ms < end_ms {
            self.closed += 1;
            self.now += close_ms;
            return;
        }
        self.now += end_ms;
        if let Some((age_ms, silent_ms)) = lost {
            self.cut += 1;
            self.cuts.lost(Cut { at: Ms(self.now), age_ms, silent_ms });
        } else {
            self.cuts.lived(wanted_ms, if wanted_ms > silence_ms { silence_ms } else { 0 });
        }
    }

    /// As many connections of it. How many are cut, beyond one in ten minutes, and how many closed.
    fn on(&mut self, road: Road, count: u64) -> (u64, u64) {
        let since = self.now;
        (self.cut, self.closed) = (0, 0);
        (0..count).for_each(|_| self.connection(road));
        (self.cut.saturating_sub((self.now - since) / 600_000), self.closed)
    }
}

fn schedules() -> impl Iterator<Item = u64> {
    0..100 * depth()
}

#[test]
fn without_cuts_nothing_is_closed() {
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        assert_eq!(endpoint.on(Road::Free, 500), (0, 0), "seed {seed}");
        assert_eq!(endpoint.cuts.expected(Ms(endpoint.now)), Expected::default(), "seed {seed}");
    }
}

#[test]
fn cuts_at_an_age_are_learned_and_forgotten_again() {
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        let cut_ms = 1_200 + endpoint.dice.below(60_000);
        endpoint.on(Road::Age(cut_ms), 200);
        let Expected { age_ms, .. } = endpoint.cuts.expected(Ms(endpoint.now));
        // It may be the connection's turn to see whether it is still cut.
        assert!(age_ms == 0 || (cut_ms..cut_ms + 40).contains(&age_ms), "seed {seed}: {age_ms} of {cut_ms}");
        let (cut, closed) = endpoint.on(Road::Age(cut_ms), 200);
        assert!(cut <= 2 && closed > 20, "seed {seed}: {cut} are cut, {closed} closed");
        endpoint.on(Road::Free, 200);
        assert_eq!(endpoint.on(Road::Free, 200), (0, 0), "seed {seed}");
    }
}

#[test]
fn another_age_is_learned_in_place_of_the_first() {
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        for cut_ms in [60_000, 15_000, 3_000, 15_000, 60_000] {
            endpoint.on(Road::Age(cut_ms), 400);
            let (cut, closed) = endpoint.on(Road::Age(cut_ms), 200);
            assert!(cut <= 2 && closed > 10, "seed {seed}: {cut} are cut at {cut_ms}, {closed} closed");
        }
    }
}

#[test]
fn cuts_of_the_silent_close_nothing() {
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        let cut_ms = 1_500 + endpoint.dice.below(10_000);
        let (_, closed) = endpoint.on(Road::Silence(cut_ms), 200);
        let (cut, closed_later) = endpoint.on(Road::Silence(cut_ms), 200);
        assert!(cut <= 2, "seed {seed}: {cut} are cut");
        assert_eq!((closed, closed_later), (0, 0), "seed {seed}");
    }
}

#[test]
fn random_cuts_close_nothing() {
    let mut learned = 0;
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        let most_ms = 5_000 + endpoint.dice.below(60_000);
        let (cut, closed) = endpoint.on(Road::Random(most_ms), 100);
        assert!(cut > 10, "seed {seed}");
        learned += u64::from(closed > 0);
    }
    // Four lengths may be alike by chance.
    assert!(learned * 50 <= 100 * depth(), "{learned} schedules have closed connections");
}

#[test]
fn what_is_lost_at_one_moment_has_one_cause() {
    for seed in schedules() {
        let mut endpoint = Endpoint::new(seed);
        for _ in 0..3 {
            endpoint.now += 60_000;
            for _ in 0..20 {
                let at = endpoint.now + endpoint.dice.below(200);
                endpoint.cuts.lost(Cut { at: Ms(at), age_ms: 30_000, silent_ms: 100 });
            }
        }
        assert_eq!(endpoint.cuts.expected(Ms(endpoint.now)), Expected::default(), "seed {seed}");
    }
}
