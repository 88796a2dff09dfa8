//! A stream machine with a model of the store, of the connections and of their clients around it.
//!
//! A schedule draws what happens: publishing, a store that answers late, out of order between reads, or not
//! at all, resumes with good and bad cursors, closes, losses, takeovers, trimming. Every output is held
//! against the model.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::stream::{
    AUTO, CloseReason, ConnectionId, Cut, Drain, EventKind, Expected, Frame, Input, Machine, NewEvent, Output, Paced,
    Pacing, Page, Refused, RejectReason, Seq, Spread, StoredEvent, StreamRules,
};

use crate::kit::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// A resume without an answer yet.
    Arriving,
    Open,
    /// Closed, rejected or lost: nothing may come any more.
    Over,
}

/// A connection, with everything that its client saw.
#[derive(Debug)]
struct Conn {
    life: Life,
    /// The position of its cursor; without one, that after which the stream was handed to nobody.
    from: Seq,
    visit: Option<u32>,
    /// Everything up to here came, or was announced as missing.
    at: Seq,
    primed: bool,
    anything: bool,
    tail: bool,
    /// The cursor's tag is of another history.
    forged: bool,
    /// The last event published before it was asked to close.
    last: Option<u64>,
    /// Its writer is going to ask for more.
    awake: bool,
}

/// An event in the model's log.
struct Kept {
    payload: Bytes,
    kind: EventKind,
}

pub(crate) struct World {
    dice: Dice,
    machine: Machine,
    rules: StreamRules,
    now: u64,
    // The store.
    log: Vec<Kept>,
    low: Seq,
    confirmed: Seq,
    appending: Option<(Seq, Vec<NewEvent>)>,
    loads: Vec<(ConnectionId, Seq, Seq)>,
    is_created: bool,
    // The writer side.
    published: u64,
    /// Tokens without an outcome, in order.
    waiting: Vec<(u64, EventKind)>,
    /// Requests of the stream without a response.
    requests: u64,
    /// Requests that only the end of the stream can speak for.
    failed: bool,
    ended: bool,
    finished: Option<Bytes>,
    forgotten: bool,
    // The reader side.
    conns: BTreeMap<ConnectionId, Conn>,
    next_conn: ConnectionId,
    active: Option<ConnectionId>,
    /// The last event that any connection was sent.
    handed: Seq,
    /// Superseded on the standalone stream, and not closed.
    parked: Vec<ConnectionId>,
    /// How many inputs the machine was given.
    pub(crate) inputs: u64,
}

const NOBODY: &str = "the connection is known";

fn tag(seq: Seq) -> u32 {
    1_000 + u32::try_from(seq).unwrap()
}

impl World {
    pub(crate) fn new(mut dice: Dice) -> Self {
        let new = !dice.one_in(5);
        let rules = StreamRules { priming: new, early_close: new, standalone: dice.one_in(3) };
        let pacing = Pacing {
            coalesce_ms: dice.below(3) * 5,
            first_comment_ms: dice.below(3) * 10,
            max_connection_ms: [0, 0, AUTO, AUTO, AUTO, 200][dice.place(6)],
            max_connection_bytes: if dice.one_in(6) { 24 } else { 0 },
            max_unconfirmed: 6,
            max_batch: 1 + usize::try_from(dice.below(4)).unwrap(),
            max_polls: 5,
            store_wait_ms: 600,
            ..Pacing::default()
        };
        let requests = if rules.standalone { 0 } else { 1 + dice.below(3) };
        let mut world = Self {
            machine: Machine::new(rules, pacing, tag(0)),
            dice,
            rules,
            now: 0,
            log: Vec::new(),
            low: 1,
            confirmed: 0,
            appending: None,
            loads: Vec::new(),
            is_created: false,
            published: 0,
            waiting: Vec::new(),
            requests,
            failed: false,
            ended: false,
            finished: None,
            forgotten: false,
            conns: BTreeMap::new(),
            next_conn: 1,
            active: None,
            handed: 0,
            parked: Vec::new(),
            inputs: 0,
        };
        if world.dice.one_in(3) {
            let retry_ms = Some(7);
            let hold_ms = if world.dice.one_in(2) { Some(world.dice.below(2) * 50) } else { None };
            let max_connection_ms = if world.dice.one_in(2) { Some(world.dice.below(2) * 100) } else { None };
            let max_connection_bytes = if world.dice.one_in(2) { Some(world.dice.below(2) * 30) } else { None };
            let paced = Paced { retry_ms, hold_ms, max_connection_ms, max_connection_bytes, ..Paced::default() };
            world.give(Input::Pace(paced)).unwrap();
        }
        if !world.rules.standalone {
            world.open();
        }
        if world.dice.one_in(2) {
            world.give(Input::Create).unwrap();
        }
        world
    }

    /// Whether the schedule has come to the end of its choices.
    #[allow(dead_code, reason = "a schedule of a seed has a length instead")]
    pub(crate) fn is_used_up(&self) -> bool {
        self.dice.is_used_up()
    }

    fn head(&self) -> Seq {
        self.log.len() as Seq
    }

    fn is_kept(&self, seq: Seq) -> bool {
        seq >= self.low || self.log[usize::try_from(seq).unwrap() - 1].kind == EventKind::Question
    }

    fn give(&mut self, input: Input) -> Result<(), Refused> {
        self.inputs += 1;
        let mut outputs = Vec::new();
        let result = self.machine.handle(Ms(self.now), input, &mut outputs);
        assert!(result.is_ok() || outputs.is_empty(), "a refused input changes nothing");
        for output in outputs {
            self.check(output);
        }
        let open = self.conns.iter().filter(|(_, conn)| conn.life == Life::Open).map(|(id, _)| *id);
        for id in open {
            let reads = Some(id) == self.active || self.parked.contains(&id);
            assert!(reads, "I4: connection {id} is open beside the reader");
        }
        assert!(self.parked.len() <= usize::from(self.rules.standalone), "I4: one connection is parked");
        result
    }

    // What the schedule does.

    fn conn(&mut self, from: Option<(Seq, u32, bool)>) -> ConnectionId {
        let id = self.next_conn;
        self.next_conn += 1;
        let life = if from.is_some() { Life::Arriving } else { Life::Open };
        let conn = Conn {
            life,
            from: from.map_or(self.handed, |(seq, ..)| seq),
            visit: from.map(|(_, visit, _)| visit),
            at: from.map_or(self.handed, |(seq, ..)| seq),
            primed: false,
            anything: false,
            tail: false,
            forged: from.is_some_and(|(.., forged)| forged),
            last: None,
            awake: false,
        };
        self.conns.insert(id, conn);
        id
    }

    fn take_over(&mut self, id: ConnectionId) {
        if let Some(before) = self.active.replace(id) {
            // The machine has to close all but one by the end of this input.
            self.parked.push(before);
        }
        let conn = self.conns.get_mut(&id).expect(NOBODY);
        conn.life = Life::Open;
        conn.awake = true;
    }

    fn spread(&mut self) -> Spread {
        let jitter = u16::try_from(self.dice.below(1 << 16)).unwrap();
        let floor_ms = if self.dice.one_in(4) { 60_000 } else { 0 };
        let (age_ms, silent_ms) = if self.dice.one_in(4) { (150, 250) } else { (0, 0) };
        Spread { jitter, floor_ms, expected: Expected { age_ms, silent_ms } }
    }

    fn open(&mut self) {
        let id = self.conn(None);
        let spread = self.spread();
        self.take_over(id);
        self.give(Input::Open { conn: id, spread }).unwrap();
    }

    fn resume(&mut self) {
        // What a client holds is a position that some connection was sent; some cursors are worse.
        let known: Vec<Seq> =
            self.conns.values().filter(|conn| conn.primed && conn.at != Seq::MAX).map(|conn| conn.at).collect();
        let mut after = match known.len() as u64 {
            0 => 0,
            count => known[usize::try_from(self.dice.below(count)).unwrap()],
        };
        if self.dice.one_in(4) {
            after = self.dice.below(after + 1);
        }
        let forged = self.dice.one_in(12);
        if self.dice.one_in(20) {
            after = self.confirmed + 1 + self.dice.below(3);
        }
        let visit = u32::try_from(self.dice.below(4)).unwrap();
        let id = self.conn(Some((after, visit, forged)));
        let tag = Some(if forged { 7 } else { tag(after) });
        let spread = self.spread();
        self.give(Input::Resume { conn: id, after, visit, tag, spread }).unwrap();
    }

    fn publish(&mut self) {
        let kind = match self.dice.below(8) {
            0 => EventKind::Question,
            1 if self.requests > 0 => {
                if self.requests == 1 && !self.failed {
                    EventKind::Terminal
                } else {
                    EventKind::Answer
                }
            }
            _ => EventKind::Progress,
        };
        self.published += 1;
        let token = self.published;
        let payload = Bytes::from(token.to_be_bytes().to_vec());
        self.waiting.push((token, kind));
        let response = kind.is_response();
        let ended = self.ended;
        if response {
            self.requests -= 1;
            self.ended |= kind == EventKind::Terminal;
        }
        match self.give(Input::Publish(NewEvent { kind, payload, token })) {
            Ok(()) => assert!(!ended, "I13: nothing is taken after the end"),
            Err(refused) => {
                assert!(refused == Refused::Finished && ended || refused == Refused::Full && !response);
                self.waiting.pop();
                if response {
                    self.requests += 1;
                }
            }
        }
        self.end_failed();
    }

    /// The end of a stream whose requests are all answered speaks for those that are not.
    fn end_failed(&mut self) {
        if self.requests == 0 && self.failed && !self.ended {
            self.terminate();
        }
    }

    fn terminate(&mut self) {
        let ended = std::mem::replace(&mut self.ended, true);
        let payload = Bytes::from_static(b"synthesized");
        assert_eq!(self.give(Input::Terminate { payload }).is_err(), ended, "I13: the first end wins");
    }

    fn answer_append(&mut self, fail: bool) {
        let Some((first, events)) = self.appending.take() else { return };
        if fail {
            self.give(Input::AppendFailed).unwrap();
            self.end_failed();
            return;
        }
        assert_eq!(first, self.head() + 1, "I2: positions are dense");
        self.log.extend(events.into_iter().map(|event| Kept { payload: event.payload, kind: event.kind }));
        self.confirmed = self.head();
        self.is_created = true;
        self.give(Input::Appended).unwrap();
    }

    fn answer_load(&mut self, at: usize, fail: bool) {
        let (conn, after, up_to) = self.loads.swap_remove(at);
        if fail {
            self.give(Input::LoadFailed { conn }).unwrap();
            return;
        }
        let room = 1 + usize::try_from(self.dice.below(4)).unwrap();
        let kept = (after + 1..=up_to).filter(|seq| self.is_kept(*seq));
        let stored = |seq: Seq| {
            let Kept { payload, kind } = &self.log[usize::try_from(seq).unwrap() - 1];
            StoredEvent { seq, kind: *kind, tag: tag(seq), frame: payload.as_ref().into() }
        };
        let events = kept.take(room).map(stored).collect();
        let tag_at = (after + 1 >= self.low).then(|| tag(after));
        if let (Some(_), Some(conn)) = (tag_at, self.conns.get_mut(&conn))
            && conn.forged
            && conn.from == after
            && conn.life != Life::Over
        {
            // From here on nothing but a rejection may follow.
            conn.at = Seq::MAX;
        }
        let page = Page { events, head: self.head(), low: self.low, tag_at };
        self.give(Input::Page { conn, page }).unwrap();
    }

    fn ready(&mut self, id: ConnectionId) {
        self.conns.get_mut(&id).expect(NOBODY).awake = false;
        self.give(Input::Ready { conn: id }).unwrap();
    }

    fn lose(&mut self, id: ConnectionId) {
        self.over(id);
        self.give(Input::Lost { conn: id }).unwrap();
    }

    fn over(&mut self, id: ConnectionId) {
        let conn = self.conns.get_mut(&id).expect(NOBODY);
        assert_ne!(conn.life, Life::Over, "connection {id} ends once");
        conn.life = Life::Over;
        conn.awake = false;
        self.parked.retain(|parked| *parked != id);
        if self.active == Some(id) {
            self.active = self.parked.pop();
        }
    }

    fn tick(&mut self) {
        if self.machine.deadline() <= Ms(self.now) {
            self.give(Input::Tick).unwrap();
        }
    }

    pub(crate) fn step(&mut self) {
        match self.dice.below(20) {
            0..=4 => self.publish(),
            5..=7 => {
                let fail = self.dice.one_in(5);
                self.answer_append(fail);
            }
            8..=10 if !self.loads.is_empty() => {
                let at = usize::try_from(self.dice.below(self.loads.len() as u64)).unwrap();
                let fail = self.dice.one_in(6);
                self.answer_load(at, fail);
            }
            8..=14 => {
                let awake = |conn: &Conn| conn.awake && conn.life == Life::Open;
                let mut ids: Vec<_> = self.conns.iter().filter(|(_, conn)| awake(conn)).map(|(id, _)| *id).collect();
                if ids.is_empty() {
                    // Now and then a writer comes without having been woken.
                    ids.extend(self.active.filter(|_| self.dice.one_in(4)));
                }
                if !ids.is_empty() {
                    let at = usize::try_from(self.dice.below(ids.len() as u64)).unwrap();
                    self.ready(ids[at]);
                }
            }
            15 | 16 => {
                if self.rules.standalone && self.dice.one_in(2) {
                    self.open();
                } else if !self.forgotten {
                    self.resume();
                }
            }
            17 => {
                let alive = |conn: &Conn| conn.life != Life::Over;
                let ids: Vec<_> = self.conns.iter().filter(|(_, conn)| alive(conn)).map(|(id, _)| *id).collect();
                if !ids.is_empty() && self.dice.one_in(2) {
                    let at = usize::try_from(self.dice.below(ids.len() as u64)).unwrap();
                    self.lose(ids[at]);
                }
            }
            18 => self.control(),
            _ => {
                self.now += self.dice.below(120);
                self.tick();
            }
        }
    }

    fn control(&mut self) {
        match self.dice.below(13) {
            0..=6 => {
                let hold_ms = [None, None, Some(0), Some(40)][usize::try_from(self.dice.below(4)).unwrap()];
                let retry_ms = self.dice.one_in(3).then_some(3_000);
                let active = self.active;
                let result = self.give(Input::CloseRequested { retry_ms, hold_ms });
                if let Some(conn) = active.and_then(|id| self.conns.get_mut(&id)).filter(|_| result.is_ok()) {
                    conn.last.get_or_insert(self.published);
                }
                assert!(result.is_err() || self.rules.early_close, "W-047: old revisions are never closed early");
            }
            // Retention takes a prefix, and leaves the newest event.
            7..=9 if self.low < self.head() => self.low += self.dice.below(self.head() - self.low) + 1,
            10 if !self.rules.standalone && self.dice.one_in(3) => {
                self.requests = 0;
                self.terminate();
            }
            11 if self.dice.one_in(6) => self.give(Input::Drain(Drain::after(4_000))).unwrap(),
            12 => {
                // What is here is ended: nobody here would hear that the reader elsewhere is gone.
                self.active = None;
                self.parked.clear();
                self.give(Input::Taken).unwrap();
            }
            _ => {}
        }
    }

    // What the machine may do.

    fn check(&mut self, output: Output) {
        match output {
            Output::Append { first, paced } => {
                let events: Vec<_> = self.machine.asked().cloned().collect();
                assert!(self.appending.is_none(), "one append at a time");
                assert!(!events.is_empty() || !self.is_created || paced.is_some(), "an append brings something");
                assert_eq!(first, self.head() + 1, "I2: positions are dense");
                let tokens = self.waiting.iter().map(|(token, _)| *token);
                assert!(events.iter().map(|event| event.token).eq(tokens.take(events.len())), "I2: in order");
                self.appending = Some((first, events));
            }
            Output::Stored { token } => {
                assert_eq!(self.waiting.remove(0).0, token, "I2: outcomes come in order");
            }
            Output::Unstored { token, seq, kind } => {
                let (waiting, published) = self.waiting.remove(0);
                assert_eq!((waiting, seq), (token, self.head() + 1));
                match kind {
                    EventKind::Terminal => (self.ended, self.failed) = (false, true),
                    EventKind::Answer => {
                        // The terminal behind it is no terminal any more, and an end that was decided has not
                        // spoken for it.
                        (self.ended, self.failed) = (false, true);
                        for (_, kind) in &mut self.waiting {
                            *kind = if *kind == EventKind::Terminal { EventKind::Answer } else { *kind };
                        }
                    }
                    EventKind::Progress | EventKind::Question => assert_eq!(kind, published),
                }
            }
            Output::Load { conn, after, up_to } => {
                assert!(after <= up_to && up_to <= self.confirmed, "I1: only what the store confirmed is read");
                self.loads.push((conn, after, up_to));
            }
            Output::Cut(Cut { at, age_ms, silent_ms }) => {
                assert!(silent_ms <= age_ms && age_ms <= at.0 && at.0 <= self.now);
            }
            Output::Accept { conn } => {
                assert_eq!(self.conns[&conn].life, Life::Arriving);
                assert!(self.active.is_none_or(|active| active < conn), "I4: the newest reader has the stream");
                self.take_over(conn);
            }
            Output::Reject { conn, why } => {
                let complete = self.finished.is_none() && self.ended && self.conns[&conn].at == self.confirmed;
                let state = &self.conns[&conn];
                match why {
                    RejectReason::Complete => assert!(complete, "only a cursor at the terminal is complete"),
                    RejectReason::Unknown => {
                        assert!(state.forged || state.from > self.confirmed);
                    }
                }
                self.over(conn);
            }
            Output::Send { conn, frame } => self.sent(conn, frame),
            Output::Wake { conn } => self.conns.get_mut(&conn).expect(NOBODY).awake = true,
            Output::Close { conn, why } => self.closed(conn, why),
            Output::Finish { tail } => {
                assert!(self.finished.replace(tail).is_none(), "I13: one end");
                assert!(self.waiting.is_empty(), "I13: the end comes after everything published before");
            }
            Output::Forget => {
                assert!(self.conns.values().all(|conn| conn.life == Life::Over) && self.waiting.is_empty());
            }
        }
    }

    fn sent(&mut self, id: ConnectionId, frame: Frame) {
        let (active, confirmed, head) = (self.active, self.confirmed, self.head());
        let conn = self.conns.get_mut(&id).expect(NOBODY);
        assert_eq!(conn.life, Life::Open, "I4: nothing goes to connection {id}, which is over");
        assert!(!conn.tail, "I6: nothing follows the end");
        if !self.is_created && !conn.anything && frame == Frame::KeepAlive {
            // Before anything else a connection may be told that it was heard. Without priming, resumes begin so, too.
            conn.anything = !self.rules.priming && conn.visit.is_some();
            conn.awake = true;
            return;
        }
        // A resume that the store cannot answer gets its own position back, and an end is told whatever the store does.
        assert!(self.is_created || conn.visit.is_some() || self.ended, "I1: nothing is sent before the log exists");
        let first = !std::mem::replace(&mut conn.anything, true);
        assert!(!first || !self.rules.priming || matches!(frame, Frame::Priming { .. }), "I5: the first bytes");
        conn.awake = true;
        match frame {
            Frame::Priming { seq, visit, tag: primed, .. } => {
                assert!(first && self.rules.priming && (conn.forged || primed == tag(seq)));
                assert_eq!(conn.from, seq, "I5: it names the client's own position");
                assert_ne!(conn.visit, Some(visit), "I5: under another id");
                if conn.at != Seq::MAX {
                    conn.at = seq;
                }
                conn.primed = true;
            }
            Frame::Events(events) => {
                assert_eq!(active, Some(id), "I4: only the newest reader gets events");
                for event in events {
                    assert_eq!(event.seq, conn.at + 1, "I3: neither gap nor repeat");
                    assert!(event.seq <= confirmed, "I1: stored first");
                    assert_eq!(*event.frame, *self.log[usize::try_from(event.seq).unwrap() - 1].payload);
                    let token = u64::from_be_bytes(event.frame.as_ref().try_into().unwrap());
                    assert!(conn.last.is_none_or(|last| token <= last), "W-041: published after the close");
                    conn.at = event.seq;
                    self.handed = self.handed.max(event.seq);
                }
            }
            Frame::Gap { first, count } => {
                assert_eq!(active, Some(id), "I4: only the newest reader gets gaps");
                assert_eq!(first, conn.at + 1, "I8: a gap starts where something is missing");
                conn.at += count;
                assert!(conn.at <= head);
                let missing = first..first + count;
                assert!(missing.into_iter().all(|seq| !self.is_kept(seq)), "I8: what is kept is not missing");
            }
            Frame::Tail(payload) => {
                conn.tail = true;
                assert_eq!(self.finished.as_ref(), Some(&payload), "I13: the one end");
            }
            Frame::Retry { .. } | Frame::KeepAlive => {}
        }
    }

    fn closed(&mut self, id: ConnectionId, why: CloseReason) {
        let conn = &self.conns[&id];
        match why {
            CloseReason::Complete => {
                assert!(self.ended && self.waiting.is_empty());
                assert_eq!(conn.at, self.confirmed, "I6: complete means all of it");
                assert_eq!(conn.tail, self.finished.is_some(), "I13: the end was told");
            }
            CloseReason::Superseded => assert_ne!(self.active, Some(id)),
            CloseReason::Asked | CloseReason::Polled | CloseReason::Limit => {
                assert!(self.rules.early_close, "W-047");
                assert!(conn.primed || conn.at == Seq::MAX || self.active != Some(id), "W-041: it holds an id");
            }
            CloseReason::Drain => assert!(self.rules.early_close || self.rules.standalone),
            CloseReason::Fault | CloseReason::Ended => {}
            other => panic!("{other:?} has no rule"),
        }
        self.over(id);
    }

    /// The faults are over: everything that was begun comes to its end.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "it never comes to rest");
            if self.appending.is_some() {
                self.answer_append(false);
            } else if !self.loads.is_empty() {
                self.answer_load(0, false);
            } else if let Some(id) = self.conns.iter().find(|(_, conn)| conn.awake).map(|(id, _)| *id) {
                self.ready(id);
            } else if self.is_due() {
                let due = self.machine.deadline();
                // A keep-alive, seconds away, would hide a wake-up that was lost.
                assert!(due <= Ms(self.now + 1_000), "a connection waits for nothing");
                self.now = self.now.max(due.0);
                self.tick();
            } else {
                break;
            }
        }
        assert!(self.waiting.is_empty(), "every event has its outcome");
        assert_eq!(self.machine.unconfirmed(), 0);
        let open = self.conns.iter().filter(|(_, conn)| conn.life != Life::Over);
        for (id, conn) in open {
            assert_eq!(conn.life, Life::Open, "every resume has its answer");
            assert!(!self.ended, "I6: the end ends connection {id}");
            if self.active == Some(*id) {
                assert_eq!(conn.at, self.confirmed, "connection {id} has everything");
            }
        }
        let waits = self.active.is_some() || !self.parked.is_empty();
        assert_eq!(waits, self.machine.deadline() != Ms::NEVER, "who waits has a deadline");
        assert!(self.machine.deadline() > Ms(self.now), "nothing is due any more");
    }

    /// Whether time has to go on: for the first bytes, for a read to be tried again, or for a close.
    fn is_due(&self) -> bool {
        let waits = |conn: &Conn| !conn.anything || conn.at < self.confirmed || self.ended;
        self.machine.deadline() <= Ms(self.now) || self.active.is_some_and(|id| waits(&self.conns[&id]))
    }

    /// One more client asks for everything that is left after some position, and comes back when it is
    /// closed early.
    pub(crate) fn read_back(&mut self) {
        if self.forgets_cursors() {
            return;
        }
        let mut after = self.dice.below(self.confirmed + 1);
        loop {
            let id = self.conn(Some((after, 0, false)));
            self.give(Input::Resume { conn: id, after, visit: 0, tag: Some(tag(after)), spread: Spread::default() })
                .unwrap();
            self.settle();
            let conn = &self.conns[&id];
            let at_terminal = self.ended && self.finished.is_none() && after == self.confirmed;
            if conn.at == self.confirmed {
                let over = conn.life == Life::Over;
                assert!(over || !self.ended, "I6: the end ends the replay too");
                assert!(at_terminal || conn.tail == self.finished.is_some(), "I13: the end stays readable");
                return;
            }
            assert!(conn.life == Life::Over && conn.at > after, "I3: nothing but a close interrupts the suffix");
            after = conn.at;
        }
    }

    /// A client of an old revision has a cursor only when it was sent an event.
    fn forgets_cursors(&self) -> bool {
        self.confirmed == 0 && !self.rules.priming
    }
}
