//! Which known fault the engine has in this process. Only in the copy that `tests/mutants/run` makes.

use std::sync::OnceLock;

/// Whether the engine has the fault that `TAILROPE_MUTANT` names.
pub(crate) fn is(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("TAILROPE_MUTANT").ok()).as_deref() == Some(name)
}
