//! The native half of the Python package `tailrope`. It holds no protocol decision: every class wraps
//! a handle of `tailrope-core`, and every rule about events and cursors is in there.

mod admission;
mod adopted;
mod client;
mod client_tasks;
mod command;
mod connection;
mod convert;
mod engine;
mod fork;
mod front;
mod hook_log;
mod inbox;
mod log;
mod look_up;
mod options;
mod panics;
mod posted;
mod session;
mod store;
mod tasks;
mod telemetry;
mod waiters;

use pyo3::prelude::*;

/// Everything that the Python half imports. Free-threaded interpreters run it under the lock of the interpreter:
/// nothing was ever tested without.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::admission::{Admission, Refusal, is_resumable, is_user_member, names_user, server_name, unwritable};
    #[pymodule_export]
    use crate::adopted::{Adopted, Offer};
    #[pymodule_export]
    use crate::client::{
        ClientOptions, ClientStream, classify, client_refusal, client_takes_answer, client_takes_request,
    };
    #[pymodule_export]
    use crate::client_tasks::{ClientRepeats, FollowedCall};
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::convert::{error_codes, milliseconds};
    #[pymodule_export]
    use crate::engine::{Engine, exposition, health_json, live_answer, stats_of};
    #[pymodule_export]
    use crate::fork::{before_fork, forked};
    #[pymodule_export]
    use crate::front::{Arrival, Front};
    #[pymodule_export]
    use crate::hook_log::{HookLog, Pending};
    #[pymodule_export]
    use crate::log::set_log_level;
    #[pymodule_export]
    use crate::look_up::LookUp;
    #[pymodule_export]
    use crate::posted::Posted;
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::store::{Store, open_store};
    #[pymodule_export]
    use crate::tasks::{Relayed, TaskCall, TaskQuery, TaskRequest, TaskSubscription, announce, missing_capability};
    #[pymodule_export]
    use crate::telemetry::observe;
    #[pymodule_export]
    use crate::waiters::{Signal, Waiters};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        fork::begin();
        log::install();
        #[cfg(feature = "testing")]
        module.add_function(wrap_pyfunction!(admission::inspect_body, module)?)?;
        module.add_function(wrap_pyfunction!(tasks::is_of_message, module)?)?;
        #[cfg(feature = "testing")]
        module.add_function(wrap_pyfunction!(panics::panic_in, module)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
