//! Counts what is allocated: how much of the process is held, whatever the allocator keeps for later.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same, and it came from there.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that Rust code has allocated and not freed.
pub(crate) fn held() -> u64 {
    HELD.load(Ordering::Relaxed) as u64
}

/// The same of SQLite, which allocates for itself.
pub(crate) fn held_by_sqlite() -> u64 {
    // SAFETY: it may be called at any time.
    let bytes = unsafe { rusqlite::ffi::sqlite3_memory_used() };
    bytes.max(0).cast_unsigned()
}
