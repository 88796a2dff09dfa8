//! Lines that come again and again: of each kind a few are written, and the others are counted.

use std::collections::BTreeMap;

use crate::Ms;
use crate::sync::Arc;

/// Writes a line. It holds everything that the line says, but how many like it were not written before.
pub(crate) type Line = Box<dyn FnOnce(Option<u64>) + Send>;

/// How many lines of a kind are written in each interval.
pub(crate) const BURST: u32 = 3;

/// For so long, in milliseconds, further lines of a kind are counted.
pub(crate) const INTERVAL_MS: u64 = 60_000;

/// For so many users or sessions the lines are counted by themselves. Those of further ones are counted together.
const MAX_WHOSE: usize = 100;

/// A line of a kind that comes again, and how many of its kind are written in each interval.
pub(crate) struct Bounded {
    pub(crate) kind: &'static str,
    /// Whose line it is, where one user or session is not to hide the lines of the others.
    pub(crate) whose: Option<Arc<str>>,
    pub(crate) burst: u32,
    pub(crate) line: Line,
}

#[derive(Default)]
pub(crate) struct Repeats(BTreeMap<(&'static str, Option<Arc<str>>), Kind>);

#[derive(Default)]
struct Kind {
    since: Ms,
    written: u32,
    /// The last line that was not written, and how many were not.
    unwritten: Option<(Line, u64)>,
}

impl Kind {
    fn is_over(&self, now: Ms) -> bool {
        self.since + INTERVAL_MS <= now
    }
}

impl Repeats {
    /// Takes a line. Gives it back if it is to be written now, with the number of lines that were not written before it.
    pub(crate) fn take(&mut self, now: Ms, bounded: Bounded) -> Option<(Line, Option<u64>)> {
        let Bounded { kind, whose, burst, line } = bounded;
        let mut key = (kind, whose);
        if key.1.is_some()
            && !self.0.contains_key(&key)
            && self.0.keys().filter(|(_, whose)| whose.is_some()).count() >= MAX_WHOSE
        {
            key.1 = None;
        }
        let kind = self.0.entry(key).or_insert_with(|| Kind { since: now, ..Kind::default() });
        let mut before = None;
        if kind.is_over(now) {
            before = kind.unwritten.take().map(|(_, count)| count);
            (kind.since, kind.written) = (now, 0);
        }
        if kind.written < burst {
            kind.written += 1;
            return Some((line, before));
        }
        let count = kind.unwritten.take().map_or(0, |(_, count)| count);
        kind.unwritten = Some((line, count + 1));
        None
    }

    /// The last line of each kind whose interval is over, with the number of those that were not written.
    pub(crate) fn due(&mut self, now: Ms) -> Vec<(Line, Option<u64>)> {
        self.0.retain(|(_, whose), kind| whose.is_none() || kind.unwritten.is_some() || !kind.is_over(now));
        self.unwritten(now, |kind| kind.is_over(now))
    }

    /// The same, of each kind: its process may end.
    pub(crate) fn all(&mut self, now: Ms) -> Vec<(Line, Option<u64>)> {
        self.unwritten(now, |_| true)
    }

    fn unwritten(&mut self, now: Ms, is_due: impl Fn(&Kind) -> bool) -> Vec<(Line, Option<u64>)> {
        let due = self.0.values_mut().filter(|kind| is_due(kind)).filter_map(|kind| {
            let (line, count) = kind.unwritten.take()?;
            (kind.since, kind.written) = (now, 1);
            Some((line, Some(count)))
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_lines_that_come_again_a_few_are_written_and_the_others_are_counted() {
        let mut repeats = Repeats::default();
        let mut take = |at, kind| {
            let bounded = Bounded { kind, whose: None, burst: 2, line: Box::new(|_| {}) };
            repeats.take(Ms(at), bounded).map(|(_, before)| before)
        };
        assert_eq!([1, 2, 3, 4].map(|at| take(at, "a")), [Some(None), Some(None), None, None]);
        assert_eq!(take(5, "b"), Some(None), "kinds are counted by themselves");
        assert_eq!(take(1 + INTERVAL_MS, "a"), Some(Some(2)), "the next one says how many were not written");
        assert_eq!([2, 3].map(|at| take(at + INTERVAL_MS, "a")), [Some(None), None]);
        let due =
            |repeats: &mut Repeats, at| repeats.due(Ms(at)).into_iter().map(|(_, count)| count).collect::<Vec<_>>();
        assert_eq!(due(&mut repeats, 2 * INTERVAL_MS), []);
        assert_eq!(due(&mut repeats, 1 + 2 * INTERVAL_MS), [Some(1)], "nothing came, and it is said all the same");
        assert_eq!(due(&mut repeats, 9 * INTERVAL_MS), []);
    }

    #[test]
    fn nobody_hides_the_lines_of_others_and_what_waits_is_told_at_the_end() {
        let mut repeats = Repeats::default();
        let mut take = |at, whose: usize| {
            let whose = Some(format!("{whose}").into());
            repeats.take(Ms(at), Bounded { kind: "a", whose, burst: 1, line: Box::new(|_| {}) }).is_some()
        };
        assert_eq!([take(1, 0), take(1, 0), take(1, 1)], [true, false, true]);
        assert!((2..MAX_WHOSE).all(|whose| take(2, whose)), "each has its own");
        assert_eq!([take(3, MAX_WHOSE), take(3, MAX_WHOSE + 1)], [true, false], "further ones are counted together");
        assert_eq!(repeats.all(Ms(4)).len(), 2);
        assert_eq!((repeats.all(Ms(5)).len(), repeats.due(Ms(INTERVAL_MS * 9)).len()), (0, 0));
        assert_eq!(repeats.0.len(), 1, "who is quiet is forgotten");
    }
}
