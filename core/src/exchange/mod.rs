//! What a host does with one HTTP exchange, whichever language it is written in. Pure.

mod principal;

pub use principal::{Asker, CREDENTIAL_HEADERS};
