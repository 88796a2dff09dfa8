//! What connections carry.

use tailrope_core::protocol::sse_decoder::{Event, Item};

use crate::checker::Checker;
use crate::connection::{self, Connection};
use crate::fact::{By, Probe};
use crate::mark::{Mark, marks};
use crate::stream::{END, Emitted, Hole, Meaning, Named, Place, Position, place};

/// The first revision whose answers begin with a priming event.
const PRIMING: &str = "2025-11-25";

impl Checker {
    pub(crate) fn read(&mut self, at: usize, bytes: &[u8]) {
        self.report.summary.bytes += bytes.len() as u64;
        let connection = &mut self.connections[at];
        let is_probe = connection.open.probe != Probe::Own;
        let is_stream = connection.status.is_none_or(|status| status == 200) && !connection.is_json;
        if is_probe || !is_stream {
            connection.body.extend_from_slice(bytes);
        }
        if connection.closed.is_some() && !bytes.is_empty() {
            return self.blame("I6", at, None, "bytes follow its end".to_owned());
        }
        if !is_stream {
            return;
        }
        let is_first = !connection.has_bytes && !bytes.is_empty();
        connection.note_bytes(bytes);
        connection.decoder.push(bytes);
        if let Some(stream) = connection.stream.filter(|_| is_first && !is_probe) {
            // A later one that has been closed by now has nothing that this one could take away from it.
            let is_newer = |reader: usize| reader > at && self.connections[reader].closed.is_none();
            let readers = &mut self.streams[stream].readers;
            let before = readers.iter().position(|(reader, _)| is_newer(*reader)).unwrap_or(readers.len());
            readers.insert(before, (at, self.now));
        }
        loop {
            match self.connections[at].decoder.next() {
                Ok(Some(item)) => self.item(at, item),
                Ok(None) => return,
                Err(error) => return self.blame("I3", at, None, error.to_string()),
            }
        }
    }

    fn item(&mut self, at: usize, item: Item) {
        let connection = &mut self.connections[at];
        if connection.has_terminal {
            return self.blame("I6", at, None, "something follows the end of the request".to_owned());
        }
        match item {
            Item::Retry(_) => connection.has_retry = true,
            Item::Comment(text) => {
                if let Some(gap) = connection::gap(&text) {
                    self.report.summary.gaps += 1;
                    let (first, count) = gap;
                    // One gap may be announced in pieces that join.
                    let gap = match self.connections[at].gap {
                        Some((before, of)) if before + of == first => (before, of + count),
                        Some(_) => {
                            return self.blame("I8", at, None, "two gaps that do not join are announced".to_owned());
                        }
                        None => gap,
                    };
                    self.connections[at].gap = Some(gap);
                }
            }
            Item::Cursor(_) => {
                self.begin(at, false);
                self.blame("I5", at, None, "an id without data: clients drop it".to_owned());
            }
            Item::Event(event) => self.event(at, &event),
        }
    }

    /// I5: what a connection begins with. Before 2025-11-25 nothing is asked.
    fn begin(&mut self, at: usize, is_priming: bool) {
        let connection = &mut self.connections[at];
        if std::mem::replace(&mut connection.is_opened, true) {
            if is_priming && !self.may_give(at) {
                self.blame("I5", at, None, "a second priming event".to_owned());
            }
            return;
        }
        let revision = match connection.stream {
            Some(stream) => self.streams[stream].revision.as_deref(),
            None => self.sessions[connection.session].revision.as_deref(),
        };
        if revision.is_some_and(|revision| revision >= PRIMING) && !(is_priming && connection.has_retry) {
            connection.is_unprimed = true;
        }
    }

    /// I5: a log that is gone may turn out to be after the reader's position was told. Then the start of the one that is
    /// given instead has a name, too. A listener without a cursor is no exception: another process than the session's own
    /// tells it the start of the log that it knows of, while the store cannot tell whether there is one.
    fn may_give(&mut self, at: usize) -> bool {
        let connection = &self.connections[at];
        let may_be_gone = match connection.stream.filter(|_| connection.open.probe == Probe::Own) {
            Some(stream) => {
                self.streams[stream].is_standalone() && (connection.is_unsure || self.gone(stream).permits_loss())
            }
            None => connection.open.cursor.is_some(),
        };
        let connection = &mut self.connections[at];
        let is_next = !connection.is_unprimed && !connection.has_more;
        let is_given = may_be_gone && is_next && !std::mem::replace(&mut connection.is_given, true);
        if let Some(stream) = connection.stream.filter(|_| is_given) {
            // It begins anew.
            let start = Some(self.streams[stream].new_unknown());
            (connection.start, connection.position) = (start, start);
        }
        is_given
    }

    /// An answer that should have had a priming event is no error terminal either.
    fn check_primed(&mut self, at: usize) {
        if std::mem::take(&mut self.connections[at].is_unprimed) {
            self.blame("I5", at, None, "it does not begin with an id, a retry and empty data".to_owned());
        }
    }

    fn event(&mut self, at: usize, event: &Event) {
        let is_priming = event.data.is_empty() && event.id.is_some();
        self.begin(at, is_priming);
        self.connections[at].has_more |= !is_priming;
        if is_priming {
            self.check_primed(at);
            let connection = &self.connections[at];
            if let (Some(stream), Some(start), Some(id)) = (connection.stream, connection.start, &event.id) {
                self.learn(at, stream, id, Meaning::Start(start));
            }
            return;
        }
        let mut marked = false;
        for mark in marks(&event.data) {
            marked = true;
            self.check_primed(at);
            self.seen(at, mark, event.id.as_deref());
        }
        if marked {
            return;
        }
        self.report.summary.unmarked += 1;
        if self.is_error(at, &event.data) {
            return self.error_terminal(at, event.id.as_deref());
        }
        self.check_primed(at);
        if let (Some(stream), Some(_)) = (self.connections[at].stream, &event.id) {
            self.streams[stream].has_others = true;
        }
    }

    /// An id names one thing, for all connections (I2).
    fn learn(&mut self, at: usize, stream: usize, id: &str, meaning: Meaning) {
        let gone = self.gone(stream);
        let is_anew = gone.is_lost || (self.streams[stream].is_standalone() && gone.permits_loss());
        let stream = &mut self.streams[stream];
        let Some(known) = stream.ids.get(id).copied().filter(|_| !is_anew) else {
            stream.ids.insert(id.into(), meaning);
            return;
        };
        let stream = &*stream;
        let of = |meaning| match meaning {
            Meaning::Event(place) => Some(place),
            Meaning::Start(position) => stream.known(position),
            Meaning::Error => Some(END),
        };
        let held = |place| stream.event(place).is_some_and(Emitted::is_held);
        let differs = match (of(known), of(meaning)) {
            // Places with nothing stored between them are one position.
            (Some(a), Some(b)) if a != b && a.max(b) != END => (a.min(b) + 1..=a.max(b)).any(held),
            (Some(a), Some(b)) => a != b,
            _ => false,
        };
        if differs {
            self.blame("I2", at, None, format!("the id {id} named something else before"));
        }
    }

    /// An event of the test's came on a connection.
    fn seen(&mut self, at: usize, mark: Mark<'_>, id: Option<&str>) {
        self.report.summary.events += 1;
        let connection = &self.connections[at];
        let session = &self.sessions[connection.session];
        if *session.name != *mark.session {
            return self.blame("I7", at, None, format!("it carries {mark}, of another session"));
        }
        let Some(stream) = session.streams.get(mark.stream).copied() else {
            return self.blame("I1", at, None, format!("{mark} was never emitted"));
        };
        match connection.stream {
            Some(own) if own != stream => {
                return self.blame("I7", at, None, format!("it carries {mark}, of another stream"));
            }
            None if !self.streams[stream].is_standalone() => {
                return self.blame("I7", at, None, format!("it carries {mark}, which it did not ask for"));
            }
            Some(_) if connection.open.probe == Probe::Own => {}
            // Where it began is not known: whether these are the right ones, others show.
            _ => return self.check_source(at, stream, place(mark.n)),
        }
        let place = place(mark.n);
        self.check_source(at, stream, place);
        if let Some(id) = id {
            let event = self.streams[stream].event_mut(place);
            match &event.id {
                None => event.id = Some(id.into()),
                Some(known) if **known != *id => {
                    let says = format!("it has the id {id}, and had {known} before");
                    self.blame("I2", at, Some(place), says);
                }
                Some(_) => {}
            }
            self.learn(at, stream, id, Meaning::Event(place));
        }
        self.check_reader(at, stream, place);
        self.advance(at, stream, place);
        if place == END {
            self.has_all(at);
            if self.streams[stream].result.is_none() {
                self.streams[stream].result = Some(at);
                self.report.summary.results += 1;
            }
        }
    }

    /// I1: where an event comes from.
    fn check_source(&mut self, at: usize, stream: usize, place: Place) {
        let is_handed_over = place == END && self.gone(stream).unstored;
        let stream = &mut self.streams[stream];
        let event = stream.event_mut(place);
        event.seen = true;
        let (emitted, kept) = (event.emitted.is_some(), event.kept);
        if !emitted {
            self.blame("I1", at, Some(place), "it was never emitted".to_owned());
        } else if self.tells_kept && !kept && !is_handed_over {
            self.blame("I1", at, Some(place), "it was sent before the store had it".to_owned());
        }
    }

    /// I4: whose reader this still is.
    fn check_reader(&mut self, at: usize, stream: usize, place: Place) {
        let stream = &self.streams[stream];
        if stream.is_standalone() {
            return;
        }
        let this = &self.connections[at];
        let emitted = stream.event(place).and_then(|event| event.emitted);
        let is_lost = stream.gone.or(self.sessions[stream.session].gone).permits_loss();
        let wrong = stream.readers.iter().skip_while(|(reader, _)| *reader != at).skip(1).find(|(reader, since)| {
            let newer = &self.connections[*reader].open;
            let is_elsewhere = newer.elsewhere || newer.process != this.open.process;
            let gave_up = self.connections[*reader].closed.is_some() && !self.connections[*reader].has_more;
            let refused = is_lost && self.connections[*reader].has_terminal && self.connections[*reader].last.is_none();
            match emitted {
                // The store could not tell in time whether it was valid, or told that it is not.
                _ if gave_up || refused => false,
                Some(emitted) if is_elsewhere => {
                    matches!((emitted.at, since.at), (Some(at), Some(since)) if at > since + self.fence_ms)
                }
                Some(emitted) if newer.in_flight => emitted.fact > since.fact,
                // Which of the two is the reader may not be known yet when the newer one is told its position, and
                // does not matter where the stream has its end.
                Some(emitted)
                    if !self.connections[*reader].has_more
                        || self.connections[*reader].has_terminal
                        || stream.end.emitted.is_some() =>
                {
                    emitted.fact > since.fact
                }
                _ => true,
            }
        });
        match wrong.map(|(newer, _)| *newer) {
            // Its cursor may not be checked yet. That is known when this one has all, or at the end.
            Some(newer) if !self.connections[newer].has_more => self.connections[at].early.push((place, newer)),
            Some(newer) => self.blame_reader(at, place, newer),
            None => {}
        }
    }

    pub(crate) fn blame_reader(&mut self, at: usize, place: Place, newer: usize) {
        let says = format!("it comes here after {} has taken the stream over", self.connections[newer].open.connection);
        self.blame("I4", at, Some(place), says);
    }

    /// I4: a connection that has the end of its stream while a later reader has nothing left nothing to take over.
    fn has_all(&mut self, at: usize) {
        self.connections[at].has_terminal = true;
        let mut early = std::mem::take(&mut self.connections[at].early);
        early.retain(|(_, newer)| self.connections[*newer].has_more);
        self.connections[at].early = early;
    }

    /// I2, I3, I8: the next event of a connection.
    fn advance(&mut self, at: usize, stream: usize, place: Place) {
        let connection = &mut self.connections[at];
        let gap = connection.gap.take();
        let last = connection.last.replace(place);
        let position = connection.position.replace(Position::Behind(place)).unwrap_or(Position::Behind(0));
        if let Some(last) = last.filter(|last| *last >= place) {
            let session = &self.sessions[connection.session].name;
            let says = format!("it comes after {}", Named(session, &self.streams[stream].name, last));
            return self.blame("I2", at, Some(place), says);
        }
        let is_anew = self.gone(stream).is_lost;
        let stream = &mut self.streams[stream];
        let after = stream.known(position);
        if is_anew {
            // Where the log comes back, what it has dropped by then is missing all the same.
            stream.announced.extend(gap.map(|_| (after.unwrap_or(0), place)));
            return;
        }
        if let (None, None, Position::Unknown(unknown)) = (after, gap, position) {
            stream.unknown[unknown] = Some(if place == END { stream.events.len() as Place } else { place - 1 });
        }
        match after {
            Some(after) if after >= place => {
                self.blame("I3", at, Some(place), "it is not after the connection's cursor".to_owned());
            }
            None if gap.is_none() => {}
            Some(after) if after + 1 == place && gap.is_none() => {}
            after => stream.holes.push(Hole { connection: at, after, before: place, gap, error: None }),
        }
    }

    /// Whether a payload without a mark is the error that ends the connection's request; where that is not
    /// known, of any.
    fn is_error(&self, at: usize, data: &str) -> bool {
        if !data.contains("\"error\"") {
            return false;
        }
        let connection = &self.connections[at];
        let stream = connection.stream.filter(|_| connection.open.probe == Probe::Own);
        let request = stream.map(|stream| self.streams[stream].request.as_ref());
        let message: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
        message.get("error").is_some() && request.is_none_or(|request| message.get("id") == request)
    }

    fn error_terminal(&mut self, at: usize, id: Option<&str>) {
        self.has_all(at);
        let connection = &mut self.connections[at];
        connection.is_unprimed = false;
        let gap = connection.gap.take();
        let (Some(stream), Some(position), Probe::Own) =
            (connection.stream, connection.position, connection.open.probe)
        else {
            return;
        };
        if let Some(id) = id {
            self.learn(at, stream, id, Meaning::Error);
        }
        let (gone, fact) = (self.gone(stream), self.now.fact);
        let is_judged = !gone.permits_loss() && !self.connections[at].is_unsure;
        let stream = &mut self.streams[stream];
        if stream.error.is_none() {
            stream.error = Some(at);
            stream.error_permitted = gone.is_permitted;
            self.report.summary.errors += 1;
        }
        // What was stored before comes before it.
        let after = stream.known(position).filter(|after| *after != END);
        if after.is_some() && is_judged {
            stream.holes.push(Hole { connection: at, after, before: END, gap, error: Some(fact) });
        }
    }

    pub(crate) fn close(&mut self, at: usize, by: By, clean: bool) {
        let connection = &mut self.connections[at];
        if connection.closed.is_some() {
            return;
        }
        let is_whole = is_whole(connection);
        connection.closed = Some((by, clean));
        let body = if connection.is_json && connection.status == Some(200) && connection.open.probe == Probe::Own {
            std::mem::take(&mut connection.body)
        } else {
            Vec::new()
        };
        let body = String::from_utf8_lossy(&body);
        let mut marked = false;
        for mark in marks(&body) {
            marked = true;
            self.seen(at, mark, None);
        }
        if !marked && self.is_error(at, &body) {
            self.error_terminal(at, None);
        }
        if by != By::Server {
            return;
        }
        if self.connections[at].has_terminal && !clean {
            self.blame("I6", at, None, "it is cut off after the end of its request".to_owned());
        }
        if clean && !is_whole {
            self.blame("I3", at, None, "it ends inside an event".to_owned());
        }
    }
}

fn is_whole(connection: &Connection) -> bool {
    connection.is_json || !connection.has_bytes || connection.last_bytes == *b"\n\n"
}
