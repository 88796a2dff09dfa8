//! A service behind a front: the host of the front's tests. It does in Rust what hosts in other languages do.

use std::io;
use std::sync::{Arc, OnceLock};

use tailrope_core::engine::SessionHandle;

use crate::adopting::Adopt as _;
use crate::front::{Arrival, Asked, Front, FrontOptions, FrontTerms};
use crate::service::endpoint::Endpoint;
use crate::service::{Application, Handlers, TailropeService};
use crate::signal::Signal;

/// The front of an endpoint, and the path at which clients ask it, if that is not the one that the service sees.
#[derive(Default)]
pub(super) struct Behind(OnceLock<(Arc<Front>, Option<String>)>);

impl Behind {
    /// Hands a session over that is served at this path, if there is a front.
    pub(super) fn hand_over<A: Application>(&self, endpoint: &Endpoint<A>, session: &SessionHandle, path: &str) {
        let Some((front, public)) = self.0.get() else { return };
        let config = &endpoint.config;
        if config.identity.asks() {
            return;
        }
        let mut terms = FrontTerms::new(public.as_deref().unwrap_or(path));
        let ports = config.allowed_hosts.iter().map(|host| format!("{host}:*"));
        terms.json_response = config.json_response;
        terms.allowed_hosts =
            (!config.allowed_hosts.is_empty()).then(|| config.allowed_hosts.iter().cloned().chain(ports).collect());
        terms.allowed_origins = (!config.allowed_origins.is_empty()).then(|| config.allowed_origins.clone());
        terms.max_body_bytes = config.max_body_bytes;
        front.serve(session, terms);
    }
}

impl<A: Application> TailropeService<A> {
    /// Starts a front whose application this service is, on the current runtime. `path` is where clients ask for it, if a
    /// router hides that.
    ///
    /// # Errors
    /// The front does not start.
    #[doc(hidden)]
    pub fn behind(&self, options: FrontOptions, path: Option<&str>) -> io::Result<Arc<Front>> {
        let signal = Signal::new();
        let front = Arc::new(Front::start(self.engine().clone(), options, signal.clone(), 0)?);
        let _ = self.0.behind.0.set((Arc::clone(&front), path.map(str::to_owned)));
        let (weak, endpoint) = (Arc::downgrade(&front), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            loop {
                signal.woken().await;
                let (Some(front), Some(endpoint)) = (weak.upgrade(), endpoint.upgrade()) else { return };
                for arrival in front.take() {
                    tokio::spawn(dispatch(Arc::clone(&endpoint), arrival));
                }
            }
        });
        Ok(front)
    }
}

async fn dispatch<A: Application>(endpoint: Arc<Endpoint<A>>, arrival: Arrival) {
    let session = match &arrival {
        Arrival::Idle(session) => {
            return if !session.is_elsewhere() {
                session.end()
            };
        }
        Arrival::Call(call) => call.session(),
        Arrival::Message(message) => message.session(),
    };
    // An arrival that is dropped is declined.
    let Some(handlers) = endpoint.table().here(session.id()) else { return };
    handlers.room().await;
    let read = |asked: &Asked| handlers.read_body(asked.parts().clone(), asked.body()).ok();
    match arrival {
        Arrival::Call(call) => {
            if let Some(message) = read(&call)
                && call.open()
            {
                handlers.call(message);
            }
        }
        Arrival::Message(asked) => {
            if let Some(message) = read(&asked)
                && handlers.take(asked.admission(), message)
            {
                asked.accept();
            }
        }
        Arrival::Idle(_) => {}
    }
}
