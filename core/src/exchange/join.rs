//! One JSON body for the requests of one POST.

use crate::protocol::RequestId;

/// Collects the answers to the requests of a POST. One answer is the body as it is. Several are an array in the order
/// of the requests, as the SDKs write them.
#[derive(Debug)]
pub struct Join {
    parts: Vec<(RequestId, Option<Vec<u8>>)>,
}

impl Join {
    /// For a POST that carries these requests.
    pub fn new(requests: &[RequestId]) -> Self {
        Self { parts: requests.iter().map(|request| (request.clone(), None)).collect() }
    }

    /// The request, if there is only one.
    pub fn only(&self) -> Option<&RequestId> {
        self.parts.first().filter(|_| !self.is_array()).map(|(request, _)| request)
    }

    /// Whether the body is an array.
    pub fn is_array(&self) -> bool {
        self.parts.len() > 1
    }

    /// Notes the answer to a request. Returns the body, if no other answer is missing.
    pub fn answer(&mut self, request: &RequestId, answer: Vec<u8>) -> Option<Vec<u8>> {
        if !self.is_array() {
            return Some(answer);
        }
        if let Some((_, part)) = self.parts.iter_mut().find(|(id, part)| id == request && part.is_none()) {
            *part = Some(answer);
        }
        let parts = self.parts.iter().map(|(_, part)| part.as_deref()).collect::<Option<Vec<&[u8]>>>()?;
        let mut body = vec![b'['];
        body.extend(parts.join(&b','));
        body.push(b']');
        Some(body)
    }
}
