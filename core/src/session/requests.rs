//! The requests of a stream, and how far each of them is.

use smallvec::SmallVec;

use super::SynthesizedEnd;
use crate::protocol::RequestId;

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no response.
    Open,
    /// Its response was published, by this token.
    Answered(u64),
    /// It gets no response any more: the stream's end has to speak for it.
    Failed(SynthesizedEnd),
}

/// The requests that a stream was opened for. None of a stream that is known from the store only.
#[derive(Debug, Default)]
pub(super) struct Requests(SmallVec<[(RequestId, State); 1]>);

impl Requests {
    /// All open.
    pub(super) fn new(ids: &[RequestId]) -> Self {
        Self(ids.iter().map(|id| (id.clone(), State::Open)).collect())
    }

    /// Their ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.0.iter().map(|(id, _)| id)
    }

    /// Those without a response.
    pub(super) fn open(&self) -> impl Iterator<Item = &RequestId> {
        self.0.iter().filter(|(_, state)| *state == State::Open).map(|(id, _)| id)
    }

    /// Whether the stream's end has to speak for one.
    pub(super) fn have_failed(&self) -> bool {
        self.0.iter().any(|(_, state)| matches!(state, State::Failed(_)))
    }

    /// The only request, where that was answered.
    pub(super) fn is_only_answered(&self) -> bool {
        matches!(self.0[..], [(_, State::Answered(_))])
    }

    /// The response of an open request is published.
    pub(super) fn answer(&mut self, id: &RequestId, token: u64) {
        self.change(State::Answered(token), |(open, state)| *state == State::Open && open == id);
    }

    /// An open request gets this end.
    pub(super) fn fail(&mut self, id: &RequestId, end: SynthesizedEnd) {
        self.change(State::Failed(end), |(open, state)| *state == State::Open && open == id);
    }

    /// The request whose response was published by this token gets this end. Whether there is one.
    pub(super) fn fail_answered(&mut self, token: u64, end: SynthesizedEnd) -> bool {
        self.change(State::Failed(end), |(_, state)| *state == State::Answered(token))
    }

    /// Every open request gets this end.
    pub(super) fn fail_open(&mut self, end: SynthesizedEnd) {
        let open = self.0.iter_mut().filter(|(_, state)| *state == State::Open);
        open.for_each(|(_, state)| *state = State::Failed(end));
    }

    /// What the stream's end has to speak for.
    pub(super) fn ends(&self) -> Vec<(RequestId, SynthesizedEnd)> {
        self.ends_with(|_| None)
    }

    /// The same, with an end for each response of these tokens.
    pub(super) fn ends_with(&self, unsent: impl Fn(u64) -> Option<SynthesizedEnd>) -> Vec<(RequestId, SynthesizedEnd)> {
        let end = |state: State| match state {
            State::Open => None,
            State::Answered(token) => unsent(token),
            State::Failed(end) => Some(end),
        };
        self.0.iter().filter_map(|(id, state)| Some((id.clone(), end(*state)?))).collect()
    }

    fn change(&mut self, to: State, is_it: impl Fn(&(RequestId, State)) -> bool) -> bool {
        let found = self.0.iter_mut().find(|request| is_it(request));
        found.map(|(_, state)| *state = to).is_some()
    }
}
