//! What is held true of the core for any bytes: one function a target, which panics where something is false.
//!
//! Two things run them. `tests/replay.rs` gives each its seeds and some mutations of them, in the ordinary test run and
//! without a sanitizer. `libfuzzer/` is a cargo-fuzz project over the same functions: `make fuzz`.
//!
//! | target | its bytes are |
//! |---|---|
//! | `sse` | an event stream and where it is cut; or what is to be written, and read back |
//! | `event_id` | the text of an event id; or the parts of one, and a place to damage it |
//! | `jsonrpc` | a body, a token, an error to be written |
//! | `admission` | an HTTP request: a dialect, six lines of headers, a body |
//! | `records` | what a store gives back: replies, sealed payloads, records, addresses, tokens |
//! | `stream` | the choices of a schedule of the stream machine, against its model |
//! | `client` | the choices of a server that keeps a log, or the inputs of a client's stream as they are |
//! | `engine` | the choices of a schedule of the engine over a store that answers late and not at all |
//! | `elsewhere` | what a store says of a session and its logs that an engine serves |
//! | `task` | requests about tasks, records of tasks, or the choices of a schedule of a call that may become one |

#[macro_use]
#[path = "../../rust/kit/mod.rs"]
mod kit;

mod admission;
mod client;
mod elsewhere;
mod engine;
mod event_id;
mod jsonrpc;
mod mutate;
mod reader;
mod records;
mod sealed;
mod seeds;
mod sse;
mod stream;
mod suffix;
mod task;

#[path = "../../rust/engine/world.rs"]
mod engine_world;
#[path = "../../rust/stream/world.rs"]
mod stream_world;
#[path = "../../rust/task/world.rs"]
mod task_world;

pub use mutate::Mutator;
pub use seeds::of_vectors;

/// A function that any bytes may be given to.
#[derive(Clone, Copy)]
pub struct Target {
    /// What it is called, here and by cargo-fuzz.
    pub name: &'static str,
    /// Panics where the core does, or where what it says is false.
    pub run: fn(&[u8]),
    /// How many mutations the quick test run tries: what less than a second is enough for.
    pub mutations: u64,
}

/// All of them.
pub const TARGETS: [Target; 10] = [
    Target { name: "sse", run: sse::run, mutations: 5_000 },
    Target { name: "event_id", run: event_id::run, mutations: 5_000 },
    Target { name: "jsonrpc", run: jsonrpc::run, mutations: 5_000 },
    Target { name: "admission", run: admission::run, mutations: 5_000 },
    Target { name: "records", run: records::run, mutations: 5_000 },
    Target { name: "stream", run: stream::run, mutations: 5_000 },
    Target { name: "client", run: client::run, mutations: 5_000 },
    Target { name: "engine", run: engine::run, mutations: 500 },
    Target { name: "elsewhere", run: elsewhere::run, mutations: 1_000 },
    Target { name: "task", run: task::run, mutations: 1_000 },
];

/// The target of this name.
///
/// # Panics
/// When there is none.
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).expect("the target has a name of the list")
}
