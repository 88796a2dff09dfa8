//! What the engine says where no SDK says it first.

use tailrope_core::protocol::{AcceptRule, Dialect, ErrorId, Revision, Wording};

/// Admission as the specification has it, in the words of the SDK that most clients were written against. Handlers are told of a
/// cancellation, and tell nobody that there will be no response.
pub(crate) static DIALECT: Dialect = Dialect {
    accept: AcceptRule::Wildcards,
    json_needs_event_stream: false,
    wording: Wording::TypeScript,
    initialize_once: false,
    error_id: ErrorId::Null,
    supported_versions: Some(&[
        Revision::V2024_11_05,
        Revision::V2025_03_26,
        Revision::V2025_06_18,
        Revision::V2025_11_25,
    ]),
    batches: false,
    exact_members: false,
    null_id_errors: true,
    settles_cancelled: true,
};

/// The id of a session, which nobody can guess.
///
/// # Panics
/// When the operating system has no randomness: an id that can be guessed is worse than no server.
pub(crate) fn new_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
