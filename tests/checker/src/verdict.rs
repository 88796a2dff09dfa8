//! What only the whole history tells.

use crate::checker::Checker;
use crate::probes;
use crate::report::Report;
use crate::stream::{END, Hole, Named, Place, Stream, Tally, Word, place};

impl Checker {
    /// The verdict on everything that was told.
    pub fn finish(mut self) -> Report {
        let tells_kept = self.tells_kept;
        for (at, announced_last) in self.announced_last().into_iter().enumerate() {
            self.streams[at].forget_late_words();
            let gone = self.gone(at);
            self.streams[at].settle_taken(gone, tells_kept);
            let tally = self.streams[at].tally(tells_kept);
            let mut holes = std::mem::take(&mut self.streams[at].holes);
            for hole in &holes {
                self.check_hole(at, hole, &tally);
            }
            self.check_words(at);
            self.check_dump(at);
            self.check_ends(at);
            holes.extend(announced_last.into_iter().filter_map(|mut hole| {
                let (first, count) = hole.gap?;
                hole.before = tally.behind(first + count - 1);
                Some(hole)
            }));
            holes.iter().for_each(|hole| self.check_gap(at, hole, &tally));
            if self.streams[at].done {
                self.check_losses(at, &holes);
            }
        }
        for at in 0..self.connections.len() {
            for (place, newer) in std::mem::take(&mut self.connections[at].early) {
                self.blame_reader(at, place, newer);
            }
            let connection = &self.connections[at];
            if connection.has_terminal && connection.closed.is_none() {
                self.blame("I6", at, None, "it is open after the end of its request".to_owned());
            }
            if self.connections[at].is_unprimed {
                self.blame("I5", at, None, "it does not begin with an id, a retry and empty data".to_owned());
            }
        }
        for (at, says) in probes::differing(&self.connections) {
            self.blame("I7", at, None, says);
        }
        self.report.summary.streams = self.streams.len() as u64;
        self.report
    }

    /// What connections announced before nothing else came, for each stream.
    fn announced_last(&self) -> Vec<Vec<Hole>> {
        let mut last: Vec<Vec<Hole>> = Vec::new();
        last.resize_with(self.streams.len(), Vec::new);
        for (at, connection) in self.connections.iter().enumerate() {
            if let (Some(stream), Some(position), Some(_)) = (connection.stream, connection.position, connection.gap) {
                let after = self.streams[stream].known(position);
                let (gap, error) = (connection.gap, None);
                last[stream].push(Hole { connection: at, after, before: END, gap, error });
            }
        }
        last
    }

    /// I3, I8: what lies between two events of a connection.
    fn check_hole(&mut self, at: usize, hole: &Hole, tally: &Tally) {
        let Hole { connection, after, before, gap, error } = *hole;
        let stream = &self.streams[at];
        let gone = self.gone(at);
        let Some(after) = after else {
            // Only the announcement tells where the connection began.
            if let Some((first, count)) = gap.filter(|_| !stream.has_others && !gone.permits_loss()) {
                let (low, high) = tally.up_to(before - 1);
                if count == 0 || first == 0 || !(low..=high).contains(&(first + count - 1)) {
                    let says = format!("the gap of {count} from {first} on does not end before it");
                    self.blame("I8", connection, Some(before), says);
                }
            }
            return;
        };
        let (mut low, high) = tally.between(after, before);
        if let Some(error) = error {
            low = low.min(stream.spoken_for(after, error));
        }
        match gap {
            // Nobody knew of those when the end was made up: no later event had told that the log goes on behind them.
            None if error.is_some() && !stream.has_promised(after) => {}
            None if low > 0 => {
                let first = tally.first_between(after);
                let session = &self.sessions[stream.session].name;
                let says = format!("{} is missing before it ({low} in all)", Named(session, &stream.name, first));
                self.blame("I3", connection, Some(before), says);
            }
            None => {}
            Some(_) if stream.has_others => {}
            Some((first, count)) => {
                let (low_first, high_first) = tally.up_to(after);
                let says = if count == 0 || !(low..=high).contains(&count) {
                    format!("a gap of {count} is announced, and {low} are missing")
                } else if !(low_first + 1..=high_first + 1).contains(&first) {
                    format!("the gap is said to begin at {first}, and begins at {}", low_first + 1)
                } else {
                    return;
                };
                self.blame("I8", connection, Some(before), says);
            }
        }
    }

    /// I8: what is announced as missing is missing. Only an observer that sees into the store can tell.
    fn check_gap(&mut self, at: usize, hole: &Hole, tally: &Tally) {
        let Hole { connection, after, before, gap, .. } = *hole;
        let Some((first, _)) = gap.filter(|_| self.tells_kept && !self.gone(at).permits_loss()) else { return };
        let after = after.unwrap_or_else(|| tally.behind(first.saturating_sub(1)) - 1);
        if let Some(place) = self.streams[at].retained(after, before) {
            let says = "it is said to be missing, and no bound has dropped it".to_owned();
            self.blame("I8", connection, Some(place), says);
        }
    }

    /// I1: what the server said of events.
    fn check_words(&mut self, at: usize) {
        for place in places(&self.streams[at]) {
            let Some(event) = self.streams[at].event(place) else { continue };
            if event.word == Word::Refused && (event.seen || event.dumped) {
                let says = if event.seen { "it was refused, and sent" } else { "it was refused, and is in the store" };
                self.blame_stream("I1", at, Some(place), says.to_owned());
            }
        }
    }

    /// I1, I2: the log.
    fn check_dump(&mut self, at: usize) {
        let Some(dump) = self.streams[at].dump.take() else { return };
        if let Some(pair) = dump.windows(2).find(|pair| pair[0] >= pair[1]) {
            let says = format!("the log has it right after {}", pair[0]);
            self.blame_stream("I2", at, Some(place(pair[1])), says);
        }
        let low = dump.first().map_or(END, |n| place(*n));
        for place in places(&self.streams[at]) {
            let Some(event) = self.streams[at].event(place) else { continue };
            if event.dumped && event.emitted.is_none() {
                self.blame_stream("I1", at, Some(place), "the store has it, and nobody emitted it".to_owned());
            } else if event.seen && !event.dumped && event.word == Word::None && place > low {
                self.blame_stream("I1", at, Some(place), "it was sent, and the store does not have it".to_owned());
            }
        }
    }

    /// I13: an error has a cause, and a reader that has everything has an end.
    fn check_ends(&mut self, at: usize) {
        let stream = &self.streams[at];
        let is_cause = matches!(stream.end.word, Word::Refused | Word::Unsure) || stream.error_permitted;
        if let Some(error) = stream.error.filter(|_| !is_cause) {
            self.blame("I13", error, None, "the request ends with an error that nothing explains".to_owned());
        }
        let stream = &self.streams[at];
        if let (Some(result), Some(error)) = (stream.result, stream.error)
            && !self.gone(at).two_ends
        {
            let (first, second) = (result.min(error), result.max(error));
            let says = format!("the request had another end on {}", self.connections[first].open.connection);
            self.blame("I13", second, None, says);
        }
        let stream = &self.streams[at];
        let has_end = stream.result.is_some() || stream.error.is_some();
        if stream.done && stream.request.is_some() && !has_end && !self.gone(at).permits_loss() {
            self.blame_stream("I13", at, None, "the request has no end".to_owned());
        }
    }

    /// I3: a reader that has everything has every event, or knows that it is missing.
    fn check_losses(&mut self, at: usize, holes: &[Hole]) {
        if self.gone(at).permits_loss() {
            return;
        }
        let stream = &self.streams[at];
        let len = stream.events.len();
        let mut announced = vec![0_i64; len + 2];
        let told = holes.iter().filter(|hole| hole.gap.is_some()).map(|hole| (hole.after.unwrap_or(0), hole.before));
        for (after, before) in told.chain(stream.announced.iter().copied()) {
            let first = usize::try_from(after + 1).unwrap_or(usize::MAX).min(len + 1);
            let last = usize::try_from(before).unwrap_or(usize::MAX).min(len + 1);
            announced[first] += 1;
            announced[last] -= 1;
        }
        // Where its first reader began, nobody knows.
        let first = stream.events.iter().position(|event| event.seen).unwrap_or(len);
        let first = if stream.is_standalone() { first } else { 0 };
        let mut over = 0;
        let mut lost = Vec::new();
        for (n, event) in stream.events.iter().enumerate() {
            over += announced[n + 1];
            if event.word == Word::Stored && !event.seen && over == 0 && n >= first {
                lost.push(n as Place + 1);
            }
        }
        if stream.end.word == Word::Stored && !stream.end.seen && stream.error.is_none() && stream.request.is_some() {
            lost.push(END);
        }
        for place in lost {
            self.blame_stream("I3", at, Some(place), "lost: it was stored, and no connection got it".to_owned());
        }
    }
}

fn places(stream: &Stream) -> impl Iterator<Item = Place> + use<> {
    (1..=stream.events.len() as Place).chain([END])
}
