//! The rules of what waits, in virtual time.

mod panics;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::ask::{Ask, Fault, Kind, Op};
use super::mail::Mail;
use super::{Mailbox, Take, Turn, WakerArc, believe_later};
use crate::protocol::StreamNonce;
use crate::store::{Append, Attach, Complete, Epoch, Message, Operation, Outcome, ReadLimit, StoreError, Ticket};
use crate::stream::{EventKind, StoredEvent};
use crate::sync::{Arc, Weak};

const ALL: Take = Take { changes: true, questions: true, sessions: 9, operations: 99, bytes: 1 << 20 };
const CHANGES: Take = Take { questions: false, ..ALL };
const QUESTIONS: Take = Take { changes: false, ..ALL };
const TIMEOUT: Duration = Duration::from_secs(5);
const NONCE: StreamNonce = StreamNonce([1; 12]);

struct Nobody;

impl Complete for Nobody {
    fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {}
}

fn ticket(number: u64) -> Ticket {
    let to: Weak<dyn Complete> = Weak::<Nobody>::new();
    Ticket { to, nonce: NONCE, operation: Operation::Append, number }
}

fn epoch() -> Epoch {
    Epoch::default()
}

fn append(first: u64) -> Ask {
    Ask::Append { nonce: NONCE, epoch: epoch(), append: Append { first, ..Append::default() } }
}

fn read() -> Ask {
    Ask::Read { nonce: NONCE, after: 0, limit: ReadLimit::default() }
}

fn take() -> Ask {
    Ask::Take { epoch: epoch(), after: 0 }
}

fn withdraw() -> Ask {
    Ask::Withdraw { nonce: NONCE, end: Bytes::new() }
}

/// Leaves a message with this body.
fn post(body: Vec<u8>) -> Ask {
    let message = Some(Message { about: Bytes::new(), body: body.into() });
    Ask::Attach(Attach { stream: Some(NONCE), message, ..Attach::default() })
}

/// A mailbox and its time.
struct Case {
    mail: Mail,
    now: Instant,
    over: Vec<(u64, StoreError)>,
}

impl Case {
    fn new() -> Self {
        Self { mail: Mail::new(TIMEOUT), now: Instant::now(), over: Vec::new() }
    }

    fn ask(&mut self, session: &str, number: u64, ask: Ask) -> Result<(), StoreError> {
        self.push(session, ask, Some(ticket(number)))
    }

    fn push(&mut self, session: &str, ask: Ask, ticket: Option<Ticket>) -> Result<(), StoreError> {
        let (is_unsure, is_alone, since) = (false, false, self.now);
        self.mail.push(Op { session: session.into(), ask, ticket, is_unsure, since, is_alone })
    }

    fn take(&mut self, take: &Take) -> Vec<Op> {
        let mut over = Vec::new();
        self.mail.resume(self.now);
        let batch = self.mail.take(self.now, take, &mut over);
        self.note(over);
        batch
    }

    fn fail(&mut self, batch: Vec<Op>, kind: Kind, was_sent: bool) {
        let mut over = Vec::new();
        let fault = Fault { what: "it is away".to_owned(), kind, was_sent };
        self.mail.failed(self.now, batch, &fault, &mut over);
        self.note(over);
    }

    fn note(&mut self, over: Vec<(Op, StoreError)>) {
        self.over.extend(over.into_iter().map(|(op, error)| (number(&op), error)));
    }

    fn later(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

fn number(op: &Op) -> u64 {
    op.ticket.as_ref().map_or(0, |ticket| ticket.number)
}

fn numbers(batch: &[Op]) -> Vec<u64> {
    batch.iter().map(number).collect()
}

#[test]
fn a_session_has_one_batch_under_way_and_others_go_on() {
    let mut case = Case::new();
    for (number, session) in [(1, "a"), (2, "b"), (3, "a")] {
        case.ask(session, number, append(1)).unwrap();
    }
    let first = case.take(&Take { sessions: 1, ..ALL });
    assert_eq!(numbers(&first), [1, 3]);
    case.ask("a", 4, append(2)).unwrap();
    assert_eq!(numbers(&case.take(&ALL)), [2], "rule 11: the operations of one session are done one after the other");
    case.mail.done(&first);
    assert_eq!(numbers(&case.take(&ALL)), [4]);
}

#[test]
fn questions_go_to_their_own_worker_behind_the_changes_before_them() {
    let mut case = Case::new();
    let counting = Attach { stream: Some(NONCE), counts: true, ..Attach::default() };
    for (number, ask) in [(1, append(1)), (2, read()), (3, Ask::Attach(counting)), (4, read())] {
        case.ask("a", number, ask).unwrap();
    }
    case.ask("b", 5, read()).unwrap();
    let changes = case.take(&CHANGES);
    assert_eq!(numbers(&changes), [1]);
    let questions = case.take(&QUESTIONS);
    assert_eq!(numbers(&questions), [5]);
    case.mail.done(&changes);
    assert_eq!(numbers(&case.take(&CHANGES)), [0_u64; 0]);
    let questions = case.take(&QUESTIONS);
    assert_eq!(numbers(&questions), [2]);
    case.mail.done(&questions);
    let changes = case.take(&CHANGES);
    assert_eq!(numbers(&changes), [3], "an attach that counts is a change");
    case.mail.done(&changes);
    let questions = case.take(&QUESTIONS);
    assert_eq!(numbers(&questions), [4]);
    case.mail.done(&questions);
    for (number, ask) in [(6, post(Vec::new())), (7, take()), (8, withdraw())] {
        case.ask("a", number, ask).unwrap();
    }
    assert!(case.take(&QUESTIONS).is_empty());
    assert_eq!(numbers(&case.take(&CHANGES)), [6, 7, 8], "so is all that concerns a message");
}

#[test]
fn what_waits_has_a_bound_with_an_answer_and_without() {
    let mut case = Case::new();
    let frame: Arc<[u8]> = vec![b'x'; 4 << 20].into();
    let large = || Append {
        first: 1,
        events: vec![StoredEvent { seq: 1, kind: EventKind::Progress, tag: 0, frame: frame.clone() }],
        ..Append::default()
    };
    let taken = |step: &mut dyn FnMut(u64) -> Result<(), StoreError>| {
        let refused = (0..200_000).find_map(|number| Some((number, step(number).err()?)));
        let (count, error) = refused.expect("there is a bound");
        assert!(error.to_string().contains("wait already"), "{error}");
        count
    };
    let append = || Ask::Append { nonce: NONCE, epoch: epoch(), append: large() };
    assert_eq!(taken(&mut |number| case.ask("a", number, append())), 16, "64 MiB");
    assert_eq!(taken(&mut |number| case.ask("a", 16 + number, post(vec![b'x'; 1]))), 0, "a message counts");
    assert_eq!(taken(&mut |number| case.ask("a", 16 + number, read())), 65_520, "what is small goes on");
    let drop = || Ask::DropStream { nonce: NONCE, epoch: epoch() };
    assert_eq!(taken(&mut |_| case.push("a", drop(), None)), 65_536);
    // What is over leaves room.
    let batch = case.take(&ALL);
    case.mail.done(&batch);
    assert_eq!(case.push("b", drop(), None), Ok(()));
    let mut case = Case::new();
    assert_eq!(taken(&mut |number| case.ask("a", number, post(vec![b'x'; 4 << 20]))), 16, "64 MiB of messages");
    let batch = case.take(&ALL);
    case.mail.done(&batch);
    assert_eq!(case.ask("a", 17, post(vec![b'x'; 4 << 20])), Ok(()), "what is over leaves room");
}

#[test]
fn what_is_asked_of_no_session_is_behind_everything() {
    let mut case = Case::new();
    for (number, session) in [(1, "a"), (2, "b"), (3, ""), (4, "a"), (5, "")] {
        case.ask(session, number, read()).unwrap();
    }
    let batch = case.take(&ALL);
    assert_eq!(numbers(&batch), [1, 4, 2]);
    assert!(case.take(&ALL).is_empty(), "rule 11");
    case.mail.done(&batch);
    assert!(!case.mail.is_empty());
    let last = case.take(&ALL);
    assert_eq!(numbers(&last), [3, 5]);
    case.mail.done(&last);
    assert!(case.mail.is_empty());
}

#[test]
fn what_is_asked_of_no_session_is_ready_when_its_turn_comes() {
    let ends: [fn(&mut Case, Vec<Op>); 3] = [
        |case, busy| case.mail.done(&busy),
        |case, busy| case.fail(busy, Kind::Lasts, false),
        |case, busy| {
            let ticket = busy[0].ticket.clone().expect("it waits for an answer");
            case.fail(busy, Kind::Passes, false);
            case.mail.call_off("a", &ticket);
        },
    ];
    for end in ends {
        let mut case = Case::new();
        case.ask("a", 1, read()).unwrap();
        let busy = case.take(&ALL);
        case.ask("", 2, read()).unwrap();
        assert_eq!(case.mail.ready(1), 0);
        end(&mut case, busy);
        // Workers are woken for what is ready.
        assert_eq!(case.mail.ready(1), 1);
    }
}

#[test]
fn what_is_asked_of_no_session_waits_for_nothing_that_was_asked_later() {
    let mut case = Case::new();
    case.ask("a", 1, read()).unwrap();
    case.ask("b", 2, append(1)).unwrap();
    let mut busy = case.take(&ALL);
    case.ask("", 3, read()).unwrap();
    case.later(1);
    // There is always something to do.
    for number in 10..20 {
        for session in ["a", "b"] {
            case.ask(session, number, read()).unwrap();
        }
        if number == 12 {
            case.fail(busy, Kind::Passes, false);
            case.later(10);
        } else {
            case.mail.done(&busy);
        }
        busy = case.take(&ALL);
        case.later(1);
        assert_eq!(numbers(&busy).contains(&3), number == 10, "rule 11: {:?}", numbers(&busy));
    }
}

#[test]
fn what_is_called_off_is_not_done_and_not_tried_again() {
    let mut case = Case::new();
    for number in 1..=3 {
        case.ask("a", number, append(number)).unwrap();
    }
    case.mail.call_off("a", &ticket(1));
    let batch = case.take(&ALL);
    assert_eq!(numbers(&batch), [2, 3]);
    case.mail.call_off("a", &ticket(2));
    case.fail(batch, Kind::Passes, true);
    case.later(10);
    let batch = case.take(&ALL);
    assert_eq!(numbers(&batch), [3]);
    assert!(case.over.is_empty());
    case.mail.done(&batch);
    assert!(case.mail.is_empty());
}

#[test]
fn what_fails_for_a_reason_that_passes_is_tried_again_until_its_time_is_over() {
    let mut case = Case::new();
    case.ask("a", 1, append(1)).unwrap();
    case.ask("a", 2, read()).unwrap();
    case.push("a", Ask::DropStream { nonce: NONCE, epoch: epoch() }, None).unwrap();
    let (mut tries, mut last_pause) = (0, 0);
    let last = loop {
        let batch = case.take(&ALL);
        if !case.over.is_empty() {
            break batch;
        }
        assert_eq!(numbers(&batch), [1, 2, 0], "in the same order");
        assert_eq!(batch[0].is_unsure, tries > 0);
        tries += 1;
        case.fail(batch, Kind::Passes, true);
        let due = case.mail.due();
        assert!(case.take(&ALL).is_empty(), "not without a pause");
        let due = due.expect("what has no answer is tried again");
        let pause = due.duration_since(case.now).as_millis();
        assert!(pause >= last_pause, "pauses grow");
        (case.now, last_pause) = (due, pause);
        // The calls themselves take time.
        case.later(300);
    };
    assert!(tries > 5, "{tries} tries");
    assert!(matches!(case.over[0], (1, StoreError::TimedOut { after_ms: 5_000.. })), "rule 10: {:?}", case.over);
    assert_eq!(case.over[1], (2, StoreError::Failed("it is away".to_owned())));
    assert_eq!(numbers(&last), [0], "nobody would ask again for what has no answer");
    case.mail.done(&last);
    assert!(case.mail.is_empty());
}

#[test]
fn what_may_be_done_has_not_failed_when_a_later_try_is_refused() {
    let mut case = Case::new();
    case.ask("a", 1, append(1)).unwrap();
    let batch = case.take(&ALL);
    case.fail(batch, Kind::Passes, true);
    while let Some(due) = case.mail.due() {
        case.now = due;
        let batch = case.take(&ALL);
        case.fail(batch, Kind::OfOne, false);
    }
    assert!(matches!(case.over[..], [(1, StoreError::TimedOut { .. })]), "rule 10: {:?}", case.over);
}

#[test]
fn what_waited_for_too_long_is_told_without_a_try() {
    let mut case = Case::new();
    case.ask("a", 1, append(1)).unwrap();
    case.push("a", Ask::DropSession { epoch: epoch() }, None).unwrap();
    case.later(5_000);
    let batch = case.take(&ALL);
    assert_eq!(case.over, [(1, StoreError::TimedOut { after_ms: 5_000 })]);
    assert!(matches!(batch[..], [Op { ask: Ask::DropSession { .. }, .. }]), "nobody waits for it");
}

#[test]
fn what_concerns_a_message_is_not_said_to_have_failed_when_its_time_is_over() {
    for was_tried in [true, false] {
        let mut case = Case::new();
        for (number, ask) in [(1, post(b"message".to_vec())), (2, take()), (3, withdraw())] {
            case.ask("a", number, ask).unwrap();
        }
        if was_tried {
            let batch = case.take(&ALL);
            case.fail(batch, Kind::Passes, true);
        }
        case.later(5_000);
        assert!(case.take(&ALL).is_empty());
        let want = [1, 2, 3].map(|number| (number, StoreError::TimedOut { after_ms: 5_000 }));
        assert_eq!(case.over, want, "rule 10: it is asked again");
    }
}

#[test]
fn one_at_fault_harms_no_other() {
    let mut case = Case::new();
    for (number, session) in [(1, "a"), (2, "a"), (3, "b")] {
        case.ask(session, number, append(1)).unwrap();
    }
    let batch = case.take(&ALL);
    case.fail(batch, Kind::OfOne, false);
    case.ask("c", 4, append(1)).unwrap();
    let mut alone = Vec::new();
    loop {
        let batch = case.take(&ALL);
        alone.push(numbers(&batch));
        match numbers(&batch)[..] {
            [] => break,
            [2] => case.fail(batch, Kind::OfOne, false),
            _ => case.mail.done(&batch),
        }
    }
    alone.sort();
    assert_eq!(alone, [vec![], vec![1], vec![2], vec![3], vec![4]], "I9: each by itself, without a pause");
    assert_eq!(case.over, [(2, StoreError::Failed("it is away".to_owned()))]);
    assert!(case.mail.is_empty());
}

#[test]
fn what_nobody_waits_for_is_tried_until_it_is_done() {
    let mut case = Case::new();
    case.push("a", Ask::DropSession { epoch: epoch() }, None).unwrap();
    for kind in [Kind::OfOne, Kind::Lasts, Kind::Passes] {
        let batch = case.take(&ALL);
        assert_eq!(batch.len(), 1, "before {kind:?}");
        case.fail(batch, kind, false);
        assert!(case.take(&ALL).is_empty(), "not without a pause");
        case.later(60_000);
    }
    assert_eq!(case.over, []);
    let batch = case.take(&ALL);
    case.mail.done(&batch);
    assert!(case.mail.is_empty());
}

#[test]
fn what_lasts_is_told_at_once_but_not_of_what_may_be_done() {
    let mut case = Case::new();
    case.ask("a", 1, append(1)).unwrap();
    let batch = case.take(&ALL);
    case.fail(batch, Kind::Passes, true);
    case.ask("a", 2, append(2)).unwrap();
    case.later(10);
    let batch = case.take(&ALL);
    case.fail(batch, Kind::Lasts, false);
    assert_eq!(case.over, [(2, StoreError::Failed("it is away".to_owned()))], "rule 10");
    case.later(10_000);
    assert!(case.take(&ALL).is_empty());
    assert!(matches!(case.over[1], (1, StoreError::TimedOut { .. })), "{:?}", case.over);
}

#[test]
fn an_append_that_another_one_follows_was_stored() {
    let op = |number, is_unsure| Op {
        session: "a".into(),
        ask: append(number),
        ticket: Some(ticket(number)),
        is_unsure,
        since: Instant::now(),
        is_alone: false,
    };
    let said = |is_unsure: [bool; 3], outcomes: [Result<(), StoreError>; 3]| {
        let batch: Vec<Op> = (1..=3).zip(is_unsure).map(|(number, is_unsure)| op(number, is_unsure)).collect();
        let mut outcomes = outcomes.map(|result| Some(Outcome::Done(result)));
        believe_later(&batch, &mut outcomes);
        outcomes.map(|outcome| match outcome {
            Some(Outcome::Done(result)) => result,
            _ => unreachable!("they are outcomes of appends"),
        })
    };
    let late = Err(StoreError::OutOfOrder);
    assert_eq!(said([true; 3], [late.clone(), late.clone(), Ok(())]), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(said([true; 3], [Ok(()), late.clone(), late.clone()]), [Ok(()), late.clone(), late.clone()]);
    assert_eq!(said([false, true, true], [late.clone(), Ok(()), Ok(())]), [late, Ok(()), Ok(())]);
}

/// Counts how often a worker was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: WakerArc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn bell() -> (WakerArc<Bell>, Waker) {
    let bell = WakerArc::new(Bell::default());
    (WakerArc::clone(&bell), bell.into())
}

fn taken(mailbox: &Mailbox, worker: &Waker) -> Vec<Op> {
    let Turn::Batch(batch) = mailbox.turn(&ALL, worker) else { panic!("there is something to do") };
    batch
}

#[test]
fn workers_that_wait_learn_when_what_failed_is_due() {
    let mailbox = Mailbox::new(TIMEOUT, TIMEOUT);
    mailbox.push(&"a".into(), append(1), Some(&ticket(1))).unwrap();
    let batch = taken(&mailbox, Waker::noop());
    let workers = [bell(), bell()];
    for (_, worker) in &workers {
        assert!(matches!(mailbox.turn(&ALL, worker), Turn::Wait(None)));
    }
    mailbox.failed(batch, &Fault { what: "it is away".to_owned(), kind: Kind::Passes, was_sent: true });
    for (bell, worker) in &workers {
        assert!(bell.0.load(Ordering::Relaxed) > 0, "each: the other one may be busy then");
        assert!(matches!(mailbox.turn(&ALL, worker), Turn::Wait(Some(_))));
    }
}

#[test]
fn no_worker_that_is_busy_is_woken_in_place_of_one_that_waits() {
    let mailbox = Mailbox::new(TIMEOUT, TIMEOUT);
    let (busy, free) = (bell(), bell());
    for (_, worker) in [&free, &busy] {
        assert!(matches!(mailbox.turn(&ALL, worker), Turn::Wait(None)));
    }
    mailbox.push(&"a".into(), read(), Some(&ticket(1))).unwrap();
    let _batch = taken(&mailbox, &busy.1);
    mailbox.push(&"b".into(), append(1), Some(&ticket(2))).unwrap();
    assert_eq!(free.0.0.load(Ordering::Relaxed), 1);
}
