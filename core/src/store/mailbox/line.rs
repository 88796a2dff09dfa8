//! What waits in order for a store, of which anything can be called off in constant time.

use std::collections::{HashMap, VecDeque};

use crate::store::Name;

/// A queue. What was called off leaves an empty place, and places that are empty go when they are the most.
pub(super) struct Line<T> {
    places: VecDeque<Option<T>>,
    /// The number of the first place.
    first: u64,
    /// Where those stand that can be called off.
    named: HashMap<Name, u64>,
    count: usize,
    /// How often something was moved to another place.
    #[cfg(test)]
    moves: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            places: VecDeque::new(),
            // There is room before the first: what comes back goes there.
            first: u64::MAX / 2,
            named: HashMap::new(),
            count: 0,
            #[cfg(test)]
            moves: 0,
        }
    }
}

impl<T> Line<T> {
    /// Adds something at the end. With a name it can be called off.
    pub(super) fn push(&mut self, item: T, name: Option<Name>) {
        if let Some(name) = name {
            self.named.insert(name, self.first + self.places.len() as u64);
        }
        self.places.push_back(Some(item));
        self.count += 1;
    }

    /// Puts something before everything.
    pub(super) fn push_front(&mut self, item: T, name: Option<Name>) {
        self.first -= 1;
        if let Some(name) = name {
            self.named.insert(name, self.first);
        }
        self.places.push_front(Some(item));
        self.count += 1;
    }

    /// The first.
    pub(super) fn front(&mut self) -> Option<&T> {
        while self.places.front().is_some_and(Option::is_none) {
            self.places.pop_front();
            self.first += 1;
        }
        self.places.front().and_then(Option::as_ref)
    }

    /// Takes the first; `name` says what it was added with.
    pub(super) fn pop(&mut self, name: impl Fn(&T) -> Option<Name>) -> Option<T> {
        loop {
            let place = self.places.pop_front()?;
            self.first += 1;
            let Some(item) = place else { continue };
            if let Some(name) = name(&item) {
                self.named.remove(&name);
            }
            self.count -= 1;
            return Some(item);
        }
    }

    /// Takes what has this name, if it waits.
    pub(super) fn call_off(&mut self, name: Name) -> Option<T> {
        let at = self.named.remove(&name)?.checked_sub(self.first)?;
        let item = self.places.get_mut(usize::try_from(at).ok()?)?.take()?;
        self.count -= 1;
        self.close_up();
        Some(item)
    }

    fn close_up(&mut self) {
        const SOME: usize = 64;
        if self.places.len() < SOME || self.places.len() / 2 < self.count {
            return;
        }
        let mut ahead = 0;
        let mut moved: Vec<u64> = Vec::with_capacity(self.places.len());
        for place in &self.places {
            moved.push(self.first + ahead);
            ahead += u64::from(place.is_some());
        }
        for place in self.named.values_mut() {
            if let Some(to) = usize::try_from(*place - self.first).ok().and_then(|at| moved.get(at)) {
                *place = *to;
            }
        }
        #[cfg(test)]
        {
            self.moves += self.places.len();
        }
        self.places.retain(Option::is_some);
    }

    /// How much waits.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: &u64) -> Option<Name> {
        (!number.is_multiple_of(3)).then_some(Name(1, *number))
    }

    fn all(line: &mut Line<u64>) -> Vec<u64> {
        std::iter::from_fn(|| line.pop(name)).collect()
    }

    #[test]
    fn what_is_called_off_is_not_given_and_the_rest_keeps_its_order() {
        let mut line = Line::default();
        (0..1_000).for_each(|number| line.push(number, name(&number)));
        for number in (0..1_000).filter(|number| number % 5 != 0) {
            assert_eq!(line.call_off(Name(1, number)), name(&number).map(|_| number));
            assert_eq!(line.call_off(Name(1, number)), None, "once");
            assert_eq!(line.call_off(Name(2, number)), None, "another engine's");
        }
        line.push_front(3_000, None);
        line.push(1_001, name(&1_001));
        assert_eq!(line.pop(name), Some(3_000));
        let want: Vec<u64> = (0..1_000).filter(|number| number % 5 == 0 || number % 3 == 0).collect();
        assert_eq!(line.len(), want.len() + 1);
        assert_eq!(all(&mut line), [&want[..], &[1_001]].concat());
        assert!(line.is_empty());
    }

    #[test]
    fn calling_off_moves_each_of_what_waits_a_bounded_number_of_times() {
        const COUNT: u64 = 50_000;
        let mut line = Line::default();
        (0..COUNT).for_each(|number| line.push(number, Some(Name(1, number))));
        // Each is asked again when it is called off, as the engine does, twice over.
        for number in 0..2 * COUNT {
            assert_eq!(line.call_off(Name(1, number)), Some(number));
            line.push(number + COUNT, Some(Name(1, number + COUNT)));
            assert!(line.places.len() <= 2 * line.len() + 64, "places that are empty do not pile up");
        }
        assert!(line.moves <= 8 * COUNT as usize, "{} moves", line.moves);
    }
}
