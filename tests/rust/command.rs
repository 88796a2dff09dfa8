//! The command `tailrope`: what it is asked, what it prints, and its exit status. tests/rust/probe.rs has `tailrope probe`.

#[macro_use]
mod kit;

mod command {
    mod demo;
    mod doctor;
    mod ending;
    mod inside;
    mod many;
    mod rights;
    mod running;
    mod secrets;
    mod server;
    mod usage;
}
