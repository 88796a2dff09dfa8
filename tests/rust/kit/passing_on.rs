//! Stores of tests that leave what they are not about to the store within, their field `inner`.

/// The named methods of [`EventStore`](tailrope_core::store::EventStore), as calls of the same method of `self.inner`.
macro_rules! passes_on {
    ($($method:ident)*) => { $(passes_on!(@ $method);)* };
    (@ append) => {
        passes_on!(@ fn append(now: Ms, key: &StreamKey, append: &Append, ticket: &Ticket) -> Answer<()>);
    };
    (@ read) => {
        passes_on!(@ fn read(key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<Page>);
    };
    (@ record) => { passes_on!(@ fn record(key: &StreamKey, ticket: &Ticket) -> Answer<Option<Record>>); };
    (@ put_session) => {
        passes_on!(@ fn put_session(now: Ms, session: &str, record: &SessionRecord) -> ());
    };
    (@ session) => {
        passes_on!(@ fn session(now: Ms, session: &str, ticket: &Ticket) -> Answer<Option<SessionRecord>>);
    };
    (@ claim) => { passes_on!(@ fn claim(key: &StreamKey, ticket: &Ticket) -> Answer<u64>); };
    (@ unwatch) => { passes_on!(@ fn unwatch(key: &StreamKey, watcher: &Watcher) -> ()); };
    (@ settle) => { passes_on!(@ fn settle(key: &StreamKey, seq: Seq) -> ()); };
    (@ drop_stream) => { passes_on!(@ fn drop_stream(key: &StreamKey) -> ()); };
    (@ drop_session) => { passes_on!(@ fn drop_session(session: &str) -> ()); };
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
