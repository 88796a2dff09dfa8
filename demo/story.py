"""Collects what the tool, the wire and the client's application report, and draws it."""

import collections
import json

from notes import Notes
from tap import Event, Exchange, Observer
from timeline import CUT, TO_CLIENT, TO_SERVER


class Story(Notes):
    """Collects what the tool, the wire and the client's application report, and draws it."""

    def __init__(self) -> None:
        super().__init__()
        self.emitted: list[int] = []
        self.received: list[int] = []
        self.finished: str | None = None
        self.result: str | None = None
        self.tool_s = 0.0
        self.open_s = 0.0
        self.resumes = 0
        self._tool_began = 0.0
        self._opened_at: dict[int, float] = {}
        self._strays: set[int] = set()
        self._call_ids: collections.Counter[str] = collections.Counter()
        self._message_ids: collections.Counter[str] = collections.Counter()
        self._emitted_at_resume = 0
        self._has_result = False
        self._is_waiting = False  # the call's connection was closed, and the client has not come back for it
        self._revision = ""

    def observer(self) -> Observer:
        return Observer(
            lambda exchange: self.note(lambda: self.on_request(exchange)),
            lambda exchange: self.note(lambda: self.on_response(exchange)),
            lambda exchange, event: self.note(lambda: self.on_event(exchange, event)),
            lambda exchange: self.note(lambda: self.on_end(exchange)),
        )

    # The two processes.

    def told(self, fact: dict[str, object]) -> None:
        what = fact["what"]
        if what == "emit":
            self.emitted.append(int(str(fact["number"])))
            self.timeline.emitted(self.emitted[-1])
        elif what == "start":
            self._tool_began = float(str(fact["at"]))
            self.timeline.row(f"tool starts, {fact['run_s']} s of work")
        elif what == "work":
            self.timeline.row(f"file {fact['number']} takes {fact['run_s']} s")
        elif what == "close":
            self.timeline.row("tool closes the connection")
        elif what == "finish":
            self.tool_s = float(str(fact["at"])) - self._tool_began
            self.finished = str(fact["result"])
            self.timeline.row("tool ends, returns its result")
        elif what == "progress":
            self._on_progress(int(str(fact["number"])))
        elif what == "result":
            self.result = str(fact["text"])
            self.timeline.row(right=f'call returns "{self.result}"', colour="bold")
        elif what == "failure":
            self.timeline.row(right=f"call fails: {fact['text']}", colour="red")

    def _on_progress(self, number: int) -> None:
        self.received.append(number)
        is_late = self.resumes and number <= self._emitted_at_resume
        self.timeline.received(number, "replayed" if is_late else "receives")

    # The wire, as the tap decodes it.

    def on_request(self, exchange: Exchange) -> None:
        if exchange.method == "POST":
            method = json.loads(exchange.body).get("method", "")
            if method == "tools/call":
                self._opened_at[exchange.number] = 0.0
                self._revision = exchange.headers.get("mcp-protocol-version", "")
                self.timeline.row(wire=TO_SERVER, right=f"POST tools/call ({self._revision})", colour="cyan")
            elif method in ("server/discover", "initialize"):
                self.timeline.row(wire=TO_SERVER, right=f"POST {method}", colour="dim")
        elif exchange.headers.get("last-event-id") in self._call_ids:
            # Only this call's own ids count: the standalone stream resumes by the same kind of request.
            self._opened_at[exchange.number] = 0.0
            self._is_waiting = False
            self._emitted_at_resume = self.emitted[-1] if self.emitted else 0
            self.resumes += 1
            cursor = short(exchange.headers["last-event-id"])
            self.timeline.row(wire=TO_SERVER, right=f"GET, Last-Event-ID {cursor}", colour="cyan")
        elif self._is_waiting and "last-event-id" not in exchange.headers:
            self._strays.add(exchange.number)
            self.timeline.row(wire=TO_SERVER, right="GET without Last-Event-ID", colour="red")

    def on_response(self, exchange: Exchange) -> None:
        if exchange.number in self._opened_at:
            if exchange.status != 200:
                self.timeline.row(wire=TO_CLIENT, right=f"status {exchange.status}", colour="red")
                return
            self._opened_at[exchange.number] = self.timeline.now
            self.timeline.set_open(True)
        elif exchange.number in self._strays:
            self.timeline.row(wire=TO_CLIENT, right=f"status {exchange.status}, not this call's stream", colour="red")
        elif exchange.method == "POST" and exchange.status >= 400:
            self.timeline.row(wire=TO_CLIENT, right=f"status {exchange.status}", colour="dim")

    def on_event(self, exchange: Exchange, event: Event) -> None:
        if exchange.number not in self._opened_at:
            return
        if event.event_id:
            self._call_ids[event.event_id] += 1
        if event.data:
            if event.event_id:
                self._message_ids[event.event_id] += 1
            self._has_result = self._has_result or "result" in json.loads(event.data)
        elif event.event_id:
            pause = "" if event.retry_ms is None else f", retry {event.retry_ms:,} ms"
            self.timeline.row("priming event", TO_CLIENT, f"id {short(event.event_id)}{pause}")

    def on_end(self, exchange: Exchange) -> None:
        opened_at = self._opened_at.pop(exchange.number, 0.0)
        if not opened_at:
            return
        self.open_s += self.timeline.now - opened_at
        self.timeline.set_open(bool(any(self._opened_at.values())))
        self._is_waiting = not self._has_result
        after = "call complete" if self._has_result else "client waits, tool works on"
        self.timeline.row(wire=CUT, right=f"closed: {after}", colour="dim")

    def summary(self) -> bool:
        """Print the closing lines; True when nothing was lost or repeated."""
        sent = [str(number) for number in self.emitted] + ([self.finished] if self.finished is not None else [])
        got = [str(number) for number in self.received] + ([self.result] if self.result is not None else [])
        lost = collections.Counter(sent) - collections.Counter(got)
        repeated = sum((collections.Counter(got) - collections.Counter(set(got))).values())
        # What the client drops would hide here: the same event sent twice counts as repeated on the wire already.
        repeated = max(repeated, sum(count - 1 for count in self._message_ids.values()))
        in_order = self.received == sorted(self.received)
        good = bool(self.emitted) and self.finished is not None and not lost and not repeated and in_order
        # Where nothing was closed, nothing could be lost: that would show nothing.
        good = good and self.resumes > 0

        self.timeline.flush()
        paint = self.timeline.paint
        print()
        if not self.resumes:
            print("the call was never resumed")
        if lost:
            print(f"lost: {', '.join(list(lost)[:12])}{' ...' if len(lost) > 12 else ''}")
        if not in_order:
            print("events arrived out of order")
        print(
            f"one call, {self.resumes + 1} connections, {self.resumes} resumes, revision {self._revision or 'unknown'}"
        )
        print(
            paint(
                f"{len(sent):,} events emitted, {len(got):,} received, {lost.total():,} lost, {repeated:,} repeated; "
                f"connection open {self.open_s:.1f} s of the {self.tool_s:.1f} s that the tool ran",
                "green" if good else "red",
            )
        )
        return good


def short(event_id: str) -> str:
    """Enough of an event id to tell two apart: the stream's part comes first, the position's last."""
    position = event_id.partition(".")[0]
    return position if len(position) <= 16 else f"{position[:4]}..{position[-10:]}"
