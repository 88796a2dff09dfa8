//! How a worker without a thread of its own waits for what it does next.

use std::future::poll_fn;
use std::task::Poll;

use tailrope_core::store::parts::{Mailbox, Op, Take, Turn};
use tokio::time::timeout_at;

/// The next batch of a worker; none when the store is closed and nothing is left, or for too long.
pub(crate) async fn next(mailbox: &Mailbox, take: &Take) -> Option<Vec<Op>> {
    loop {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let due = match mailbox.turn(take, &waker) {
            Turn::Batch(batch) => return Some(batch),
            Turn::Over => return None,
            Turn::Wait(due) => due,
        };
        let mut was_polled = false;
        let woken = poll_fn(|_| match std::mem::replace(&mut was_polled, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        match due {
            Some(due) => drop(timeout_at(due.into(), woken).await),
            None => woken.await,
        }
    }
}
