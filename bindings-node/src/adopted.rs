//! Sessions whose owner is gone, and that the host here goes on with.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use napi::bindgen_prelude::Env;
use napi_derive::napi;
use tailrope_core::engine::{self, OfferWake, SessionHandle, WeakSession};
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use crate::convert::{Result, invalid};
use crate::session::Session;
use crate::waiters::Waiters;

/// The host adopts a session of another process, should that be gone. Holds nothing of the session.
#[napi]
pub struct Offer {
    session: WeakSession,
    id: String,
    dialect: &'static Dialect,
    versions: Vec<String>,
    key: u32,
    is_over: Arc<AtomicBool>,
    waiters: Rc<Waiters>,
}

impl Offer {
    pub(crate) fn new(
        session: &SessionHandle,
        id: &str,
        dialect: &'static Dialect,
        versions: &[String],
        waiters: &Rc<Waiters>,
    ) -> Self {
        let key = waiters.key();
        let (wake, is_over) = OfferWake::new(waiters.wake(), u64::from(key));
        session.offer_adoption(Arc::new(wake), u64::from(key));
        let (session, id, waiters) = (session.downgrade(), id.to_owned(), Rc::clone(waiters));
        Self { session, id, dialect, versions: versions.to_vec(), key, is_over, waiters }
    }
}

#[napi]
impl Offer {
    /// What the waiters know it as. It is woken when `take` has something, or `isOver` has changed.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Whether it counts no more: the session is not looked at here any longer, or there is a later offer.
    #[napi(getter)]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The session, once, where it is this process's from now on.
    #[napi(catch_unwind)]
    pub fn take(&self, env: &Env) -> Option<Adopted> {
        let key = self.waiters.key();
        let take = |session: SessionHandle| session.take_adopted(self.waiters.wake(), u64::from(key));
        let adopted = self.session.upgrade().and_then(take);
        self.waiters.flush(env);
        let (dialect, waiters) = (self.dialect, Rc::clone(&self.waiters));
        adopted.map(|adopted| Adopted {
            adopted,
            id: self.id.clone(),
            dialect,
            versions: self.versions.clone(),
            key,
            waiters,
        })
    }
}

/// A session that is this process's. Its host builds the server, gives that the `replay`, and then accepts what waits; or it
/// refuses.
#[napi]
pub struct Adopted {
    adopted: engine::Adopted,
    id: String,
    dialect: &'static Dialect,
    versions: Vec<String>,
    key: u32,
    waiters: Rc<Waiters>,
}

#[napi]
impl Adopted {
    /// The session, as one that was opened here.
    #[napi]
    pub fn session(&self) -> Session {
        let (handle, id, versions) = (self.adopted.session().clone(), self.id.clone(), self.versions.clone());
        Session::new(handle, id, self.dialect, versions, self.key, &self.waiters)
    }

    /// The messages that the server is given first, in this order. Their answers go nowhere.
    #[napi(getter)]
    pub fn replay(&self) -> Vec<String> {
        self.adopted.replay().iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    /// The host cannot go on with the session: it is released, and what waits is answered with the core's `Fault`. `why` is
    /// for the server's log.
    #[napi(catch_unwind)]
    pub fn refuse(&self, env: &Env, fault: String, why: String) -> Result<()> {
        let Some(fault) = Fault::named(&fault, "") else { return Err(invalid(format!("there is no fault {fault:?}"))) };
        tracing::error!(target: "tailrope", session = %self.adopted.session().name(), why, "session not adopted");
        self.adopted.refuse(&fault.refusal(self.dialect));
        self.waiters.flush(env);
        Ok(())
    }
}
