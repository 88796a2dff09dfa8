//! Where messages are written.

use std::cell::RefCell;

use bytes::Bytes;

/// Bytes that a thread keeps for writing its next message.
const KEPT_BYTES: usize = 16 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What was written, in a block of its own size: to grow one while it is written takes longer.
///
/// # Errors
/// As of `write`.
pub(crate) fn written<E>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Bytes, E> {
    // A thread that ends has none.
    let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    scratch.clear();
    let written = write(&mut scratch).map(|()| Bytes::copy_from_slice(&scratch));
    if scratch.capacity() <= KEPT_BYTES {
        let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
    }
    written
}
