//! What needs a process of its own: SQLite files while it forks, and while others are killed that write to them.

#[macro_use]
mod kit;

mod stores {
    mod sqlite {
        #[cfg(target_os = "linux")]
        mod forks;
        mod processes;
    }
}
