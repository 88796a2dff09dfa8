//! What the connections of a server show of what cuts them, and what is said of it.

use crate::Ms;
use crate::engine::lines::Later;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::change::Change;
use crate::engine::shared::lock;
use crate::stream::{ConnectionId, Cut, Expected, Spread};
use crate::sync::Arc;

impl Cell {
    /// How a connection that opens now is paced.
    pub(crate) fn spread(&self, now: Ms) -> Spread {
        self.shared.spread(self.cuts.as_deref(), now)
    }
}

impl Change<'_> {
    /// A connection was lost, and its client has come back.
    pub(crate) fn was_cut(&mut self, cut: Cut) {
        let Some(cuts) = &self.cell.cuts else { return };
        if let Some(learned) = lock(cuts).lost(cut) {
            self.effects.lines.push(line_of(Arc::clone(&self.cell.server), learned));
        }
    }

    /// The writer of a connection is there: it has got as old as it is.
    pub(crate) fn has_lived(&mut self, id: ConnectionId) {
        let Some(cuts) = &self.cell.cuts else { return };
        let stream = self.state.conns.get(&id).and_then(|conn| self.state.session.stream(conn.nonce));
        let lived = stream.and_then(|stream| stream.machine.lived(id, self.now));
        if let Some((age_ms, silent_ms)) = lived
            && lock(cuts).lived(age_ms, silent_ms)
        {
            let server = Arc::clone(&self.cell.server);
            self.effects.lines.push(Later::Always(Box::new(move |_| {
                tracing::debug!(target: "tailrope", %server, "connections are not cut any more where they were");
            })));
        }
    }
}

fn line_of(server: Arc<str>, learned: Expected) -> Later {
    let Expected { age_ms, silent_ms } = learned;
    Later::Always(Box::new(move |_| match (age_ms, silent_ms) {
        (0, _) => tracing::warn!(target: "tailrope", %server, silent_ms,
            "something between the clients and this server cuts connections on which nothing has been written for about \
            silent_ms. From now on comments are written more often. Set keep_alive_ms below that time, or raise the time-out \
            of the proxy"),
        _ => tracing::warn!(target: "tailrope", %server, age_ms,
            "something between the clients and this server cuts connections when they are about age_ms old, and some clients \
            do not survive that. From now on connections are closed before, so that the clients come back. Set \
            max_connection_ms below that age, or raise the limit of the proxy"),
    }))
}
