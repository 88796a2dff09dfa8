//! Waiting until a store has done what it was asked.

use std::time::Duration;

use super::{Answer, Attach, Complete, EventStore, Operation, Outcome, Ticket};
use crate::protocol::StreamNonce;
use crate::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

/// A question whose answer comes behind everything that was asked before (rule 11 of stores).
#[derive(Default)]
struct Behind {
    answered: Mutex<bool>,
    told: Condvar,
}

impl Complete for Behind {
    fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }
}

/// Waits until the store has done what it was asked, for a process that ends; at most `wait`.
pub fn flush(store: &dyn EventStore, wait: Duration) {
    let behind = Arc::new(Behind::default());
    let to: Weak<dyn Complete> = Arc::downgrade(&(Arc::clone(&behind) as Arc<dyn Complete>));
    let ticket = Ticket { to, nonce: StreamNonce::NONE, operation: Operation::Attach(0), number: 0 };
    if matches!(store.attach("", &Attach::default(), &ticket), Answer::Later) {
        let answered = behind.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = behind.told.wait_timeout_while(answered, wait, |answered| !*answered);
        if waited.is_ok_and(|(_, late)| late.timed_out()) {
            tracing::warn!(target: "tailrope", "the event store did not write everything before the process ended");
        }
    }
}
