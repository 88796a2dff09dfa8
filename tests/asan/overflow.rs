//! Reads behind what it has allocated as soon as a process loads it. A run that does not see this sees nothing.

use std::hint::black_box;

extern "C" fn overflow() {
    let bytes = black_box(vec![7_u8; 16]);
    // SAFETY: none. It is the fault that has to be found.
    black_box(unsafe { *bytes.as_ptr().add(black_box(16)) });
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = overflow;
