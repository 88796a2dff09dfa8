//! How a task stands, as its log tells it.

use bytes::Bytes;

use crate::engine::connections::conn::PAGE_BYTES;
use crate::engine::lines::log_later;
use crate::engine::logs::reading::PAGE_EVENTS;
use crate::engine::tasks::TASK_LOG;
use crate::engine::tasks::following::sign_ms;
use crate::engine::tasks::query::{Audience, QueryChange, Stage};
use crate::store::{Answer, Attach, Attached, LogPage, Operation, Owner, ReadLimit, StoreError, StoredEvent, Ticket};
use crate::stream::{Chain, Seq};
use crate::sync::atomic::Ordering;
use crate::task::{Ask, Change, End, Task, unreadable};

/// A log that is being read.
pub(super) struct Loading {
    pub(super) ticket: Ticket,
    events: Vec<StoredEvent>,
}

/// A task in a log.
pub(super) struct View {
    pub(super) task: Task,
    /// Who writes the log; none for this process.
    pub(super) owner: Option<Owner>,
    /// Its log, which ends at this position with this running hash.
    pub(super) events: Vec<StoredEvent>,
    pub(super) head: Seq,
    pub(super) chain: u64,
}

const LIMIT: ReadLimit = ReadLimit { up_to: Seq::MAX, events: PAGE_EVENTS, bytes: PAGE_BYTES };

impl QueryChange<'_> {
    pub(super) fn load(&mut self) {
        let counts = self.counts();
        let attach = Attach {
            stream: Some(TASK_LOG),
            principal: self.query.identity(),
            tag: counts.then(|| Chain::start(&TASK_LOG.0).tag()),
            counts,
            limit: LIMIT,
            ..Attach::default()
        };
        let ticket = self.query.ticket(TASK_LOG, Operation::Attach(self.query.number));
        let answer = self.query.shared.store.attach(&self.query.name, &attach, &ticket);
        let loading = Loading { ticket, events: Vec::new() };
        match answer {
            Answer::Now(result) => self.attached(loading, result),
            Answer::Later => self.state.stage = Stage::Load(loading),
        }
    }

    /// Whether the owner has to learn that its task is asked for here: by the first look, and by some of the later ones.
    fn counts(&mut self) -> bool {
        let is_due = !matches!(self.query.audience, Audience::Client) && self.state.sign_at <= self.now;
        if is_due {
            self.state.sign_at = self.now + sign_ms(&self.query.shared);
        }
        is_due
    }

    pub(super) fn attached(&mut self, loading: Loading, result: Result<Attached, StoreError>) {
        match result {
            Ok(Attached { log: Some(log), session: Some(_), .. }) => self.read(loading, Ok(log.page)),
            Ok(Attached { is_foreign, .. }) => {
                if is_foreign {
                    self.warn_foreign();
                }
                self.unknown();
            }
            Err(_) => self.pause(),
        }
    }

    pub(super) fn read(&mut self, mut loading: Loading, result: Result<LogPage, StoreError>) {
        let Ok(mut page) = result else { return self.pause() };
        let is_progress = !page.page.events.is_empty();
        loading.events.append(&mut page.page.events);
        let last = loading.events.last().map_or(0, |event| event.seq);
        if last < page.page.head && is_progress {
            loading.ticket = self.query.ticket(TASK_LOG, Operation::Look(last));
            let key = self.query.key(TASK_LOG);
            return match self.query.shared.store.read(&key, last, LIMIT, &loading.ticket) {
                Answer::Now(result) => self.read(loading, result),
                Answer::Later => self.state.stage = Stage::Load(loading),
            };
        }
        self.loaded(loading.events, &page);
    }

    fn loaded(&mut self, events: Vec<StoredEvent>, page: &LogPage) {
        let decoded = |event: &StoredEvent| Change::decode(&Bytes::copy_from_slice(&event.frame));
        let changes: Option<Vec<Change>> = events.iter().map(decoded).collect();
        let task = match changes.map(|changes| Task::fold(&changes)) {
            Some(Ok(Some(task))) => task,
            // A store that was set back has less than its owner will write again, if that is there.
            Some(Ok(None)) if self.is_orphaned(page.owner) => return self.unknown(),
            Some(Ok(None)) => return self.pause(),
            Some(Err(_)) | None => return self.unreadable(&events),
        };
        let view = View { task, owner: page.owner, events, head: page.page.head, chain: page.chain };
        self.decide(view);
    }

    fn is_orphaned(&self, owner: Option<Owner>) -> bool {
        owner.is_some_and(|owner| owner.unseen_ms >= self.query.shared.options.owner_lost_ms)
    }

    fn unreadable(&mut self, events: &[StoredEvent]) {
        if !self.query.shared.warned_unreadable.swap(true, Ordering::Relaxed) {
            let is_newer = events.iter().any(|event| Change::is_newer(&event.frame));
            log_later!(@ self.query.name, self.lines, ERROR, [], is_newer,
                "the records of a task cannot be read here: a later release wrote them, or they are damaged. Requests about \
                 such tasks are refused. Logged once");
        }
        self.refuse(unreadable);
    }

    fn decide(&mut self, view: View) {
        let (ask, task) = (&self.query.request.ask, &view.task);
        let is_orphaned = self.is_orphaned(view.owner);
        // Its owner may not have heard from the store what is read here, and acknowledges when it has.
        let owner_answers = view.owner.is_some() && !is_orphaned;
        if task.end().is_some() {
            return match ask {
                Ask::Get => self.show(task),
                _ if owner_answers => self.post(),
                _ => self.acknowledge(),
            };
        }
        if view.owner.is_none() {
            // Where the store forgot that this process let it go.
            self.query.shared.release_again(&self.query.name);
        }
        let lost = task.owner_lost(self.query.shared.clock.unix_ms()).filter(|_| is_orphaned);
        match ask {
            Ask::Get if lost.is_none() => {
                self.follow(&view);
                self.show(&view.task);
            }
            Ask::Update(responses)
                if !owner_answers
                    && !responses.iter().any(|response| task.questions().find(&response.key).is_some()) =>
            {
                // Nothing is asked that this answers.
                self.acknowledge();
            }
            Ask::Cancel if is_orphaned => {
                let change = task.ended(self.query.shared.clock.unix_ms(), End::Cancelled);
                self.inherit(view, Some(change));
            }
            Ask::Update(_) if is_orphaned && lost.is_none() => self.inherit(view, None),
            _ if is_orphaned => self.inherit(view, lost),
            // This process owns it and does not know it: it is being taken over here, or let go.
            _ if view.owner.is_none() => self.pause(),
            _ => self.post(),
        }
    }
}
