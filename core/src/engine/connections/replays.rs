//! Answers with what the host's own store replayed. Those events are outside of the window, so they are written with
//! the ids and payloads that the store gave.

use crate::engine::connections::conn::{Phase, Position, Reading};
use crate::engine::lines::log_later;
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::exchange::AnswerHead;
use crate::protocol::sse;
use crate::store::{HostReplay, HostStore, OwnIds};
use crate::stream::{CloseReason, ConnectionId};

impl Change<'_> {
    pub(crate) fn ask_replay(&mut self, host: &HostStore, last_event_id: &str, id: ConnectionId) {
        let number = host.replay(&self.cell.name, last_event_id, id);
        self.enter(id, Phase::Replaying(number));
        self.state.timers.set(Reason::Replay(number), self.cell.due_after(self.now));
        self.effects.tells_host = true;
    }

    pub(crate) fn take_replay(&mut self, number: u64, replay: Result<HostReplay, String>) {
        let Some(host) = self.cell.shared.store.own_ids().and_then(OwnIds::host) else { return };
        let Some(id) = host.take_replay(number) else { return };
        self.enter(id, Phase::Reading(Reading::default()));
        match replay {
            Ok(replay) => self.answer_replayed(id, host, &replay),
            Err(error) => {
                // The client keeps its cursor, waits its retry and asks again.
                log_later!(self, WARN, [], %error, "event store did not replay");
                let mut bytes = Vec::new();
                self.write_echo(id, &mut bytes);
                self.answer(id, AnswerHead::EVENT_STREAM, bytes);
                self.close(id, CloseReason::Fault);
            }
        }
    }

    fn answer_replayed(&mut self, id: ConnectionId, host: &HostStore, replay: &HostReplay) {
        // A name of another session's stream is no stream here: look-ups are by session and nonce (I7).
        let nonce = replay.stream.as_deref().and_then(|name| HostStore::stream_of(&self.cell.name, name));
        let Some(nonce) = nonce else { return self.answer_unknown(id) };
        let record = host.window(&self.cell.key(nonce));
        let low = record.as_ref().map_or(0, |known| known.page.low);
        // The window knows ids that are cursors into it, the one before its first event included.
        let located = |id: &str| host.locate(&self.cell.name, id).filter(|(stream, _)| *stream == nonce);
        let mut before_window =
            self.state.conns.get_mut(&id).map(|c| std::mem::take(&mut c.after_opening)).unwrap_or_default();
        let mut overlap = None;
        let mut last = None;
        for (event_id, payload) in &replay.events {
            let event_id = event_id.as_deref().filter(|event_id| sse::is_valid_event_id(event_id));
            last = event_id.map(|event_id| (event_id, located(event_id)));
            overlap = last.and_then(|(_, position)| position).filter(|(_, seq)| *seq >= low);
            if overlap.is_some() {
                break;
            }
            // Primings are positions, never messages (F-28).
            let Some(payload) = payload.as_deref().filter(|payload| *payload != b"{}") else { continue };
            match event_id {
                Some(event_id) => {
                    let write_id = |out: &mut Vec<u8>| out.extend_from_slice(event_id.as_bytes());
                    sse::write_message(&mut before_window, write_id, payload);
                }
                None => sse::write_anonymous(&mut before_window, payload),
            }
        }
        if before_window.len() > self.cell.shared.options.limits.max_bytes_per_stream {
            return self.answer_unknown(id);
        }
        // The window continues a replay that reaches into it, or ends right before it.
        let joins = low <= 1 || overlap.is_some() || matches!(last, Some((_, Some(_))));
        if record.is_some() && !joins {
            let Some((last_event_id, _)) = last else { return self.answer_unknown(id) };
            // The window has moved on while the host replayed. The host has to replay what is between them, too.
            if let Some(conn) = self.state.conns.get_mut(&id) {
                conn.after_opening = before_window;
            }
            return self.ask_replay(host, last_event_id, id);
        }
        let (after, head, finished) = match (&record, overlap) {
            (Some(known), Some((_, seq))) => (seq.saturating_sub(1), known.page.head, known.is_finished),
            (Some(known), None) => (known.page.low.saturating_sub(1), known.page.head, known.is_finished),
            (None, _) => (0, 0, true),
        };
        if finished && after == head {
            if before_window.is_empty() {
                return self.answer_unknown(id);
            }
            let mut bytes = Vec::new();
            self.write_echo(id, &mut bytes);
            bytes.append(&mut before_window);
            return self.finish(id, AnswerHead::EVENT_STREAM, bytes);
        }
        if let Some(conn) = self.state.conns.get_mut(&id) {
            conn.nonce = nonce;
            conn.after_opening = before_window;
        }
        self.resume_log(id, Position::of_cursor(nonce, after, 0, None));
    }

    /// Writes the client's own cursor with a `retry`, if its revision has priming events.
    fn write_echo(&mut self, conn: ConnectionId, out: &mut Vec<u8>) {
        if !self.state.session.rules().priming {
            return;
        }
        if let Some(echo) = self.state.conns.get_mut(&conn).and_then(|conn| conn.echo.take()) {
            let retry_ms = self.state.session.retry_ms();
            sse::write_priming(out, |bytes| bytes.extend_from_slice(echo.as_bytes()), Some(retry_ms));
        }
    }
}
