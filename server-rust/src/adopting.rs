//! Adopts sessions: if the process of a session is gone, the session goes on here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tailrope_core::engine::{Adopted, OfferWake, SessionHandle};
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use crate::hearing::Ears;
use crate::host::Host;
use crate::service::{Handlers, parts};
use crate::signal::Signal;
use crate::table::Table;

/// Adopts sessions of other processes.
pub(crate) trait Adopt: Send + Sync + 'static {
    /// The handlers of one session.
    type Session: Handlers;

    fn host(&self) -> &Arc<Host>;

    /// Makes the handlers of a session, which a request to this path has brought here.
    fn begin(&self, session: &SessionHandle, ears: &Ears, path: &str) -> io::Result<Arc<Self::Session>>;

    /// The sessions that are served here.
    fn table(&self) -> &Table<Self::Session>;
}

/// Offers to adopt the session of this view. If its process is gone when a message comes for it, the engine takes the
/// session over, and it goes on here. `path` is that of the request that is being served.
pub(crate) fn offer<A: Adopt>(adopter: &Arc<A>, view: &SessionHandle, path: &str) {
    let signal = Signal::new();
    let (wake, is_over) = OfferWake::new(signal.clone(), 0);
    view.offer_adoption(Arc::new(wake), 0);
    let (adopter, view, path) = (Arc::downgrade(adopter), view.downgrade(), Box::<str>::from(path));
    tokio::spawn(async move {
        loop {
            signal.woken().await;
            let (Some(adopter), Some(view)) = (adopter.upgrade(), view.upgrade()) else { return };
            let ears = Arc::new(Ears::default());
            if let Some(adopted) = view.take_adopted(ears.clone(), 0) {
                return go_on(&*adopter, &adopted, &ears, &path);
            }
            if is_over.load(Ordering::Acquire) {
                return;
            }
        }
    });
}

/// Makes the handlers of an adopted session and replays to them what its client has told. Then accepts the requests
/// that wait for them.
fn go_on(adopter: &impl Adopt, adopted: &Adopted, ears: &Ears, path: &str) {
    let session = adopted.session();
    let handlers = match adopter.begin(session, ears, path) {
        Ok(handlers) => handlers,
        Err(error) => {
            tracing::error!(target: "tailrope", %error, "a session was not adopted: the server's factory failed");
            adopted.refuse(&Fault::Internal.refusal(&Dialect::NEUTRAL));
            return adopter.table().tell();
        }
    };
    for body in adopted.replay() {
        // The headers of the original HTTP request are not kept.
        match handlers.read_body(parts(&*handlers, []), body) {
            Ok(message) => handlers.replay(message),
            Err(why) => tracing::warn!(target: "tailrope", why, "a session's handlers are not told all again"),
        }
    }
    adopter.table().insert(handlers);
    session.accept_posted();
    adopter.host().arm_for_engine();
}
