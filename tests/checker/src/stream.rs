//! What is known of one stream: its events, its ids, its ends, and what readers were not given.

use std::collections::HashMap;
use std::fmt;

use serde_json::Value;

use crate::fact::{N, Why};

/// The place of an event in its stream; [`END`] for the response.
pub(crate) type Place = u64;
/// The place of the response: behind every event.
pub(crate) const END: Place = Place::MAX;

pub(crate) fn place(n: N) -> Place {
    match n {
        N::Event(n) => n,
        N::End => END,
    }
}

/// The event at a place, as text.
pub(crate) struct Named<'a>(pub(crate) &'a str, pub(crate) &'a str, pub(crate) Place);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(session, stream, place) = self;
        match *place {
            END => write!(f, "[[{session}/{stream}/end]]"),
            n => write!(f, "[[{session}/{stream}/{n}]]"),
        }
    }
}

/// The server's word for an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Word {
    #[default]
    None,
    Stored,
    /// It goes on before it is stored: [`Stream::settle_taken`] tells what that promises.
    Taken,
    /// It is stored, and one before it is not.
    Failed,
    Refused,
    Unsure,
}

/// Events of a stream that a server takes before the store has answered for the first of them.
const AHEAD: u64 = 128;

/// One emitted event.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    /// Which fact it was, and when. None: it was never emitted.
    pub(crate) emitted: Option<Moment>,
    pub(crate) word: Word,
    /// The last fact that spoke for it.
    pub(crate) said: u64,
    /// The word came from an owner that counts as lost.
    pub(crate) late: bool,
    pub(crate) kept: bool,
    pub(crate) is_dropped: bool,
    pub(crate) seen: bool,
    pub(crate) dumped: bool,
    pub(crate) id: Option<Box<str>>,
}

impl Emitted {
    /// Whether the store holds it, as far as anything tells.
    pub(crate) fn is_held(&self) -> bool {
        self.seen || self.dumped || self.kept || matches!(self.word, Word::Stored | Word::Failed)
    }
}

/// A point of the history: the number of its fact, and the time if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) fact: u64,
    pub(crate) at: Option<u64>,
}

/// Where a reader stands: behind the event at this place, or where nothing tells yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Behind(Place),
    /// The number of an [unknown place](Stream::unknown).
    Unknown(usize),
}

/// What an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Event(Place),
    Start(Position),
    /// An error terminal.
    Error,
}

/// Places between two events of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub(crate) connection: usize,
    /// None where the connection began at an unknown place.
    pub(crate) after: Option<Place>,
    pub(crate) before: Place,
    /// What was announced: the first position, and how many.
    pub(crate) gap: Option<(u64, u64)>,
    /// It is before an error terminal, which is this fact: what nobody had spoken for by then may be missing.
    pub(crate) error: Option<u64>,
}

/// What permits ends and losses from now on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    pub(crate) is_permitted: bool,
    pub(crate) two_ends: bool,
    loss: bool,
    /// Another may end it in its owner's place.
    pub(crate) owner: bool,
    /// What its owner had taken last may be lost with it.
    pub(crate) cut: bool,
    /// The store may fail when nobody is left to be told.
    pub(crate) unstored: bool,
    /// The store lost what the log held, and has not got it back: what it holds may be another thing.
    pub(crate) is_lost: bool,
}

impl Gone {
    pub(crate) fn add(&mut self, why: Why) {
        self.is_permitted = true;
        self.two_ends |= why.permits_two_ends();
        self.loss |= why.permits_loss() && why != Why::StoreLost;
        self.owner |= why == Why::OwnerLost;
        self.cut |= matches!(why, Why::OwnerLost | Why::Unheard);
        self.unstored |= why == Why::Unstored;
        self.is_lost |= why == Why::StoreLost;
    }

    /// Whether events may be missing.
    pub(crate) fn permits_loss(self) -> bool {
        self.loss || self.is_lost
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            is_permitted: self.is_permitted || other.is_permitted,
            two_ends: self.two_ends || other.two_ends,
            loss: self.loss || other.loss,
            owner: self.owner || other.owner,
            cut: self.cut || other.cut,
            unstored: self.unstored || other.unstored,
            is_lost: self.is_lost || other.is_lost,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) session: usize,
    pub(crate) name: Box<str>,
    pub(crate) request: Option<Value>,
    pub(crate) revision: Option<Box<str>>,
    /// From place 1 on.
    pub(crate) events: Vec<Emitted>,
    pub(crate) end: Emitted,
    pub(crate) ids: HashMap<Box<str>, Meaning>,
    /// What is known of places that were unknown: they are right before this event.
    pub(crate) unknown: Vec<Option<Place>>,
    pub(crate) dump: Option<Vec<N>>,
    pub(crate) gone: Gone,
    pub(crate) done: bool,
    /// The first connection that carried a result, and an error.
    pub(crate) result: Option<usize>,
    pub(crate) error: Option<usize>,
    /// What the first error terminal was permitted by when it was seen.
    pub(crate) error_permitted: bool,
    /// It carried events with ids that are not the test's own: positions are not the numbers of marks.
    pub(crate) has_others: bool,
    pub(crate) holes: Vec<Hole>,
    /// Between which places events were announced as missing while the log was lost.
    pub(crate) announced: Vec<(Place, Place)>,
    /// Connections that got their first bytes, the newest reader last, with when they did.
    pub(crate) readers: Vec<(usize, Moment)>,
}

impl Stream {
    pub(crate) fn is_standalone(&self) -> bool {
        self.request.is_none() && &*self.name == "standalone"
    }

    pub(crate) fn event_mut(&mut self, place: Place) -> &mut Emitted {
        if place == END {
            return &mut self.end;
        }
        let at = usize::try_from(place).unwrap_or(usize::MAX);
        if self.events.len() < at {
            self.events.resize_with(at, Emitted::default);
        }
        &mut self.events[at - 1]
    }

    pub(crate) fn event(&self, place: Place) -> Option<&Emitted> {
        if place == END {
            return Some(&self.end);
        }
        self.events.get(usize::try_from(place).ok()?.checked_sub(1)?)
    }

    /// The first event between two places, both excluded, that the store kept and no bound dropped.
    pub(crate) fn retained(&self, after: Place, before: Place) -> Option<Place> {
        let places = (after + 1)..before.min(self.events.len() as Place + 1);
        places.into_iter().find(|place| self.event(*place).is_some_and(|event| event.kept && !event.is_dropped))
    }

    /// The place that a position is behind, if anything tells.
    pub(crate) fn known(&self, position: Position) -> Option<Place> {
        match position {
            Position::Behind(place) => Some(place),
            Position::Unknown(at) => self.unknown[at],
        }
    }

    /// Whether an event behind a place is one that the server did not say it could not vouch for.
    pub(crate) fn has_promised(&self, after: Place) -> bool {
        let events = self.events.iter().skip(usize::try_from(after).unwrap_or(usize::MAX));
        events.into_iter().any(|event| {
            (event.word == Word::Stored || event.seen || event.dumped || event.kept) && event.word != Word::Unsure
        })
    }

    /// The events behind a place that are stored, and that the server had spoken for before a fact.
    pub(crate) fn spoken_for(&self, after: Place, fact: u64) -> u64 {
        let events = self.events.iter().skip(usize::try_from(after).unwrap_or(usize::MAX));
        events.filter(|event| event.word == Word::Stored && event.said < fact).count() as u64
    }

    /// The first end wins: an owner whose call was ended elsewhere takes what comes later, and nobody has to get it.
    pub(crate) fn forget_late_words(&mut self) {
        for event in self.events.iter_mut().filter(|event| event.late && self.error.is_some()) {
            event.word = Word::None;
        }
    }

    /// What was taken before it was stored is stored, or may be missing: where a failure was told with one of the next
    /// events, and of the last ones where nobody was left to be told.
    ///
    /// A store fails at any event. A process that is gone leaves out nothing that something follows.
    pub(crate) fn settle_taken(&mut self, gone: Gone, tells_kept: bool) {
        let is_answered = self.result.is_some();
        let mut may_miss = if gone.unstored || (gone.cut && !is_answered) { AHEAD } else { 0 };
        let mut is_cut = !gone.unstored;
        for event in self.events.iter_mut().rev() {
            let is_held = event.is_held();
            if is_held && std::mem::take(&mut is_cut) {
                may_miss = 0;
            }
            match event.word {
                // It is the one that waited behind as many.
                Word::Failed | Word::Refused | Word::Unsure => (may_miss, is_cut) = (AHEAD + 1, false),
                Word::Taken => {
                    let may_be_missing = if tells_kept { !event.kept } else { !is_held && may_miss > 0 };
                    event.word = if may_be_missing { Word::Unsure } else { Word::Stored };
                    may_miss = may_miss.saturating_sub(1);
                    continue;
                }
                Word::None | Word::Stored => {}
            }
            if event.word == Word::Failed {
                event.word = Word::Stored;
            }
        }
    }

    pub(crate) fn new_unknown(&mut self) -> Position {
        self.unknown.push(None);
        Position::Unknown(self.unknown.len() - 1)
    }

    /// The events up to each place that the log holds for certain, and that it may hold.
    pub(crate) fn tally(&self, tells_kept: bool) -> Tally {
        let (mut certain, mut possible) = (vec![0], vec![0]);
        let (mut sure, mut may) = (0, 0);
        for event in &self.events {
            let is_certain =
                if tells_kept { event.kept } else { event.word == Word::Stored || event.seen || event.dumped };
            let is_possible = is_certain || (!tells_kept && event.emitted.is_some() && event.word != Word::Refused);
            sure += u64::from(is_certain);
            may += u64::from(is_possible);
            certain.push(sure);
            possible.push(may);
        }
        Tally { certain, possible }
    }
}

pub(crate) struct Tally {
    certain: Vec<u64>,
    possible: Vec<u64>,
}

impl Tally {
    fn at(counts: &[u64], place: Place) -> u64 {
        let at = usize::try_from(place).unwrap_or(usize::MAX).min(counts.len() - 1);
        counts[at]
    }

    /// How many events the log holds up to a place: at least, and at most.
    pub(crate) fn up_to(&self, place: Place) -> (u64, u64) {
        (Self::at(&self.certain, place), Self::at(&self.possible, place))
    }

    /// How many it holds between two places, both excluded.
    pub(crate) fn between(&self, after: Place, before: Place) -> (u64, u64) {
        let ((low_after, high_after), (low_before, high_before)) = (self.up_to(after), self.up_to(before - 1));
        (low_before.saturating_sub(low_after), high_before.saturating_sub(high_after))
    }

    /// The first place behind so many events.
    pub(crate) fn behind(&self, count: u64) -> Place {
        self.certain.partition_point(|held| *held < count) as Place + 1
    }

    /// The first place between two that the log holds for certain.
    pub(crate) fn first_between(&self, after: Place) -> Place {
        let base = Self::at(&self.certain, after);
        self.certain.partition_point(|count| *count <= base) as Place
    }
}
