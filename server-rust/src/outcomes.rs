//! The outcomes of messages, if the event store answers later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailrope_core::engine::{EngineError, Sent};
use tailrope_core::exchange::Pause;
use tokio::sync::oneshot;

use crate::host::Host;

type Outcome = Result<(), EngineError>;

/// What was sent, and what its sender has to wait for.
pub(crate) type Sending = Result<(Sent, Pause), EngineError>;

/// The late outcomes of one session's messages.
#[derive(Default)]
pub(crate) struct Outcomes(Mutex<HashMap<u64, Slot>>);

enum Slot {
    /// The store was faster than the sender.
    Told(Outcome),
    Sender(oneshot::Sender<Outcome>),
}

impl Outcomes {
    pub(crate) fn settle(&self, outcomes: Vec<(u64, Outcome)>) {
        for (number, outcome) in outcomes {
            let mut slots = self.slots();
            match slots.remove(&number) {
                Some(Slot::Sender(sender)) => {
                    drop(slots);
                    // The sender may have stopped waiting.
                    let _ = sender.send(outcome);
                }
                _ => drop(slots.insert(number, Slot::Told(outcome))),
            }
        }
    }

    /// The outcome, if the sender has nothing to wait for.
    pub(crate) fn at_once(sending: &Sending) -> Option<Outcome> {
        match sending {
            Err(error) => Some(Err(error.clone())),
            Ok((Sent::Pending(_), _) | (_, Pause::Yield)) => None,
            Ok((_, Pause::None)) => Some(Ok(())),
        }
    }

    /// Waits until the sender may go on. Returns the outcome.
    pub(crate) async fn finish(&self, sending: Sending, host: &Arc<Host>) -> Outcome {
        if let Some(outcome) = Self::at_once(&sending) {
            return outcome;
        }
        if let (Sent::Pending(number), _) = sending? {
            host.arm_for_engine();
            return self.outcome(number).await;
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Waits for the outcome of the message with this number.
    async fn outcome(&self, number: u64) -> Outcome {
        let told = {
            let mut slots = self.slots();
            match slots.remove(&number) {
                Some(Slot::Told(outcome)) => return outcome,
                _ => {
                    let (sender, told) = oneshot::channel();
                    slots.insert(number, Slot::Sender(sender));
                    told
                }
            }
        };
        told.await.unwrap_or(Err(EngineError::SessionEnded))
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
