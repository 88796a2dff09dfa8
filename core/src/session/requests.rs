//! The requests of a stream, and how far each of them is.

use smallvec::SmallVec;

use super::{Asked, Outcome, SynthesizedEnd};
use crate::protocol::RequestId;

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no response.
    Open,
    /// Its response was published, by this token, and says that the call ended so.
    Answered(u64, Outcome),
    /// It gets no response any more: the stream's end has to speak for it.
    Failed(SynthesizedEnd),
}

/// A request, and what it asked for.
#[derive(Debug)]
struct Request {
    id: RequestId,
    asked: Asked,
    state: State,
}

/// The requests that a stream was opened for. None of a stream that is known from the store only.
#[derive(Debug, Default)]
pub(super) struct Requests(SmallVec<[Request; 1]>);

impl Requests {
    /// All open.
    pub(super) fn new(requests: impl Iterator<Item = (RequestId, Asked)>) -> Self {
        Self(requests.map(|(id, asked)| Request { id, asked, state: State::Open }).collect())
    }

    /// Their ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.0.iter().map(|request| &request.id)
    }

    /// Those without a response.
    pub(super) fn open(&self) -> impl Iterator<Item = &RequestId> {
        self.0.iter().filter(|request| request.state == State::Open).map(|request| &request.id)
    }

    /// Whether the stream's end has to speak for one.
    pub(super) fn have_failed(&self) -> bool {
        self.0.iter().any(|request| matches!(request.state, State::Failed(_)))
    }

    /// The only request, where that was answered.
    pub(super) fn is_only_answered(&self) -> bool {
        matches!(&self.0[..], [Request { state: State::Answered(..), .. }])
    }

    /// The first request, and what it asked for: what log lines call the stream.
    pub(super) fn first(&self) -> Option<(&RequestId, &Asked)> {
        self.0.first().map(|request| (&request.id, &request.asked))
    }

    /// What this request asks for.
    pub(super) fn asked(&self, id: &RequestId) -> Option<&Asked> {
        self.0.iter().find(|request| request.id == *id).map(|request| &request.asked)
    }

    /// The request whose response was published by this token, and what that says.
    pub(super) fn answered(&self, token: u64) -> Option<(&RequestId, &Asked, Outcome)> {
        self.0.iter().find_map(|request| match request.state {
            State::Answered(known, outcome) if known == token => Some((&request.id, &request.asked, outcome)),
            _ => None,
        })
    }

    /// The response of an open request is published.
    pub(super) fn answer(&mut self, id: &RequestId, token: u64, outcome: Outcome) {
        let open = self.0.iter_mut().find(|request| request.state == State::Open && request.id == *id);
        if let Some(request) = open {
            request.state = State::Answered(token, outcome);
        }
    }

    /// These requests get this end: returns which, and what they asked for.
    fn fail_those(
        &mut self,
        end: SynthesizedEnd,
        are_meant: impl Fn(&RequestId, State) -> bool,
    ) -> SmallVec<[(RequestId, Asked); 1]> {
        let meant = self.0.iter_mut().filter(|request| are_meant(&request.id, request.state));
        let fail = |request: &mut Request| {
            request.state = State::Failed(end);
            (request.id.clone(), request.asked.clone())
        };
        meant.map(fail).collect()
    }

    /// An open request gets this end.
    pub(super) fn fail(&mut self, id: &RequestId, end: SynthesizedEnd) -> SmallVec<[(RequestId, Asked); 1]> {
        self.fail_those(end, |open, state| state == State::Open && open == id)
    }

    /// The request whose response was published by this token gets this end.
    pub(super) fn fail_answered(&mut self, token: u64, end: SynthesizedEnd) -> SmallVec<[(RequestId, Asked); 1]> {
        self.fail_those(end, |_, state| matches!(state, State::Answered(known, _) if known == token))
    }

    /// Every open request gets this end.
    pub(super) fn fail_open(&mut self, end: SynthesizedEnd) -> SmallVec<[(RequestId, Asked); 1]> {
        self.fail_those(end, |_, state| state == State::Open)
    }

    /// What the stream's end has to speak for.
    pub(super) fn ends(&self) -> Vec<(RequestId, SynthesizedEnd)> {
        self.ends_with(|_| None)
    }

    /// The same, with an end for each response of these tokens.
    pub(super) fn ends_with(&self, unsent: impl Fn(u64) -> Option<SynthesizedEnd>) -> Vec<(RequestId, SynthesizedEnd)> {
        let end = |state: State| match state {
            State::Open => None,
            State::Answered(token, _) => unsent(token),
            State::Failed(end) => Some(end),
        };
        self.0.iter().filter_map(|request| Some((request.id.clone(), end(request.state)?))).collect()
    }
}
