//! The command `tailrope`: what it is asked, what it prints, and its exit status. tests/rust/probe.rs has `tailrope probe`.

mod command {
    mod kit;
    mod usage;
}
