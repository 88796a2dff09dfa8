//! Stores of tests that leave what they are not about to the store within, their field `inner`.

/// The named methods of [`EventStore`](tailrope_core::store::EventStore), as calls of the same method of `self.inner`.
macro_rules! passes_on {
    ($($method:ident)*) => { $(passes_on!(@ $method);)* };
    (@ hold) => {
        passes_on!(@ fn hold(session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>>);
    };
    (@ append) => {
        passes_on!(@ fn append(now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()>);
    };
    (@ attach) => {
        passes_on!(@ fn attach(session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached>);
    };
    (@ read) => {
        passes_on!(@ fn read(key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage>);
    };
    (@ take) => {
        passes_on!(@ fn take(session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<tailrope_core::store::Mail>>);
    };
    (@ withdraw) => {
        passes_on!(@ fn withdraw(now: Ms, key: &StreamKey, end: &bytes::Bytes, ticket: &Ticket) -> Answer<bool>);
    };
    (@ release) => { passes_on!(@ fn release(session: &str, epoch: Epoch) -> ()); };
    (@ unwatch) => { passes_on!(@ fn unwatch(session: &str, watcher: &Watcher) -> ()); };
    (@ settle) => { passes_on!(@ fn settle(key: &StreamKey, epoch: Epoch, seq: Seq) -> ()); };
    (@ drop_stream) => { passes_on!(@ fn drop_stream(key: &StreamKey, epoch: Epoch) -> ()); };
    (@ drop_session) => { passes_on!(@ fn drop_session(session: &str, epoch: Epoch) -> ()); };
    (@ sweep) => { passes_on!(@ fn sweep(now: Ms) -> Ms); };
    (@ usage) => { passes_on!(@ fn usage() -> Usage); };
    (@ answers_elsewhere) => { passes_on!(@ fn answers_elsewhere() -> bool); };
    (@ outlives_process) => { passes_on!(@ fn outlives_process() -> bool); };
    (@ fn $method:ident($($name:ident: $type:ty),*) -> $answer:ty) => {
        fn $method(&self, $($name: $type),*) -> $answer {
            self.inner.$method($($name),*)
        }
    };
}
