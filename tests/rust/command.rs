//! The command `tailrope`: what it is asked, what it prints, and its exit status. tests/rust/probe.rs has `tailrope probe`.

#[path = "kit/folder.rs"]
mod folder;

mod command {
    mod doctor;
    mod inside;
    mod kit;
    mod many;
    mod secrets;
    mod usage;
}
