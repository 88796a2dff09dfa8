//! A session that lives in another process, or lived in one.

use std::rc::Rc;

use napi::bindgen_prelude::{Either, Env};
use napi_derive::napi;
use tailrope_core::engine;
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use crate::admission::Refusal;
use crate::convert::{Result, to_js_error};
use crate::session::Session;
use crate::waiters::Waiters;

/// The look-up of a session in the store.
#[napi]
pub struct LookUp {
    look_up: engine::LookUp,
    id: String,
    dialect: &'static Dialect,
    versions: Vec<String>,
    key: u32,
    waiters: Rc<Waiters>,
}

impl LookUp {
    pub(crate) fn new(
        look_up: engine::LookUp,
        id: String,
        dialect: &'static Dialect,
        versions: Vec<String>,
        key: u32,
        waiters: &Rc<Waiters>,
    ) -> Self {
        Self { look_up, id, dialect, versions, key, waiters: Rc::clone(waiters) }
    }
}

#[napi]
impl LookUp {
    /// What the waiters know it as.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The answer when the store cannot tell.
    #[napi(getter)]
    pub fn refusal(&self) -> Refusal {
        Refusal::new(&Fault::SessionUnread.refusal(self.dialect), self.dialect)
    }

    /// The `Session`; false when it is not known, or somebody else's; nothing while the store has not
    /// told. Throws when it could not.
    #[napi(catch_unwind)]
    pub fn take(&self, env: &Env) -> Result<Option<Either<Session, bool>>> {
        let taken = self.look_up.take();
        self.waiters.flush(env);
        Ok(match taken.transpose().map_err(|error| to_js_error(&error))? {
            None => None,
            Some(None) => Some(Either::B(false)),
            Some(Some(handle)) => {
                let (id, versions) = (self.id.clone(), self.versions.clone());
                Some(Either::A(Session::new(handle, id, self.dialect, versions, self.key, &self.waiters)))
            }
        })
    }
}
