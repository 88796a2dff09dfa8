//! A request that another process relayed to a session of this one.

use std::rc::Rc;

use napi::bindgen_prelude::Env;
use napi_derive::napi;
use tailrope_core::engine;
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use crate::admission::Admission;
use crate::convert::{Result, invalid};
use crate::session::Session;
use crate::waiters::Waiters;

/// A relayed request. Its host settles it: by a refused `admit` or `begin`, by `begin` of a call, `done` of messages
/// without an answer, `refuse`, or the end of the session.
#[napi]
pub struct Posted {
    posted: engine::Posted,
    dialect: &'static Dialect,
    waiters: Rc<Waiters>,
}

impl Posted {
    pub(crate) fn new(posted: engine::Posted, dialect: &'static Dialect, waiters: &Rc<Waiters>) -> Self {
        Self { posted, dialect, waiters: Rc::clone(waiters) }
    }
}

#[napi]
impl Posted {
    /// The body as text: `admit` refuses bytes that are none.
    #[napi(getter)]
    pub fn body(&self) -> String {
        String::from_utf8_lossy(self.posted.relayed().body()).into_owned()
    }

    /// The headers that travelled, each name in lower case and followed by its value.
    #[napi(getter)]
    pub fn headers(&self) -> Vec<String> {
        self.posted.relayed().headers().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]).collect()
    }

    /// What the other process's SDK knows of the sender.
    #[napi(getter)]
    pub fn auth_json(&self) -> Option<&str> {
        self.posted.relayed().auth()
    }

    /// Examines the request: an `Admission`, or nothing when it is refused.
    #[napi(catch_unwind)]
    pub fn admit(&self, env: &Env, session: &Session, json_response: bool) -> Option<Admission> {
        let admitted = session.on_terms(json_response, |terms| self.posted.admit(terms));
        self.waiters.flush(env);
        admitted.map(Admission)
    }

    /// Puts the requests of a call in flight. False when it is refused, and not to be dispatched.
    #[napi(catch_unwind)]
    pub fn begin(&self, env: &Env, admission: &Admission) -> bool {
        let begun = self.posted.begin(&admission.0);
        self.waiters.flush(env);
        begun
    }

    /// The handlers have been given messages without an answer.
    #[napi(catch_unwind)]
    pub fn done(&self, env: &Env) {
        self.posted.done();
        self.waiters.flush(env);
    }

    /// The host does not take the request: see the core's `Fault`.
    #[napi(catch_unwind)]
    pub fn refuse(&self, env: &Env, fault: String) -> Result<()> {
        let Some(fault) = Fault::named(&fault, "") else { return Err(invalid(format!("there is no fault {fault:?}"))) };
        self.posted.refuse(&fault.refusal(self.dialect));
        self.waiters.flush(env);
        Ok(())
    }
}
