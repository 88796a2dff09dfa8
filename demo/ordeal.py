"""Collects what the hostile server and the client's application report of one call, draws it, and says how it ended."""

from collections import Counter

from hostile import FILES
from notes import Notes
from timeline import CUT, TO_CLIENT, TO_SERVER

# Timers of Node may be early by one, and both clocks are rounded.
CLOCK_S = 0.002


class Ordeal(Notes):
    """One call to the hostile server."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []
        self.result: str | None = None
        self.failure: str | None = None
        self.calls = 0
        self.resumes = 0
        self.early = 0
        self._finished: str | None = None

    def told(self, fact: dict[str, object]) -> None:
        getattr(self, f"_on_{fact.pop('what')}")(**{name: value for name, value in fact.items() if name != "at"})

    # The server.

    def _on_call(self, revision: str) -> None:
        if not self.calls:
            self.timeline.restart_clock()
        self.calls += 1
        self.timeline.row(wire=TO_SERVER, right=f"POST tools/call ({revision})", colour="cyan")
        self.timeline.set_open(True)

    def _on_resume(self, cursor: str, away_s: float, asked_s: float) -> None:
        self.resumes += 1
        is_early = away_s < asked_s - CLOCK_S
        self.early += is_early
        waited = f"waited {away_s:.2f} s" + (f" of {asked_s:.2f} s" if is_early else "")
        colour = "red" if is_early else "cyan"
        self.timeline.row(wire=TO_SERVER, right=f"{waited}: GET, Last-Event-ID {cursor}", colour=colour)
        self.timeline.set_open(True)

    def _on_send(self, number: int) -> None:
        self.timeline.emitted(number, "sends")

    def _on_close(self, retry_ms: int) -> None:
        self._ends(f"closes, retry {retry_ms} ms")

    def _on_reset(self, number: int, retry_ms: int) -> None:
        self._ends(f"resets amid {number}, retry {retry_ms} ms")

    def _on_empty(self) -> None:
        self._ends("has nothing yet, closes")

    def _on_refuse(self, retry_after_s: int | None) -> None:
        pause = "" if retry_after_s is None else f", Retry-After: {retry_after_s}"
        self._ends("refuses", TO_CLIENT, f"status 503{pause}")

    def _on_vanish(self) -> None:
        self._ends("resets before an answer")

    def _on_finish(self, result: str) -> None:
        self._finished = result
        self.timeline.row("sends the result", TO_CLIENT)
        self.timeline.set_open(False)

    def _ends(self, left: str, wire: str = CUT, right: str = "") -> None:
        self.timeline.row(left, wire, right, "yellow")
        self.timeline.set_open(False)

    # The client's application.

    def _on_progress(self, number: int) -> None:
        label, colour = ("receives again", "red") if number in self.received else ("receives", "green")
        self.received.append(number)
        self.timeline.received(number, label, colour)

    def _on_result(self, text: str) -> None:
        self.result = text
        self.timeline.row(right=f'call returns "{text}"', colour="bold")

    def _on_failure(self, text: str) -> None:
        self.failure = text
        self.timeline.row(right=f"call fails: {text}", colour="red")

    def is_whole(self) -> bool:
        """Whether a hostile server was met, and nothing was lost, repeated, or asked for too early."""
        expected = list(range(1, FILES + 1))
        is_complete = self.received == expected and self.result is not None and self.result == self._finished
        # Where nothing was ended, nothing could be lost: that would show nothing.
        return is_complete and self.calls == 1 and self.resumes > 0 and not self.early

    def outcome(self) -> str:
        """One line: what the application got, and how its call ended."""
        got = Counter(self.received)
        facts = [f"{len(got)} of {FILES} events"]
        if lost := FILES - len(got):
            facts.append(f"{lost} lost")
        if repeated := got.total() - len(got):
            facts.append(f"{repeated} repeated")
        if not lost and not repeated:
            facts.append("each once")
            facts.append("in order" if self.received == sorted(self.received) else "out of order")
        if self.calls > 1:
            facts.append(f"the call was sent {self.calls} times")
        facts.append(f"came back {self.resumes} times, {f'{self.early} of them' if self.early else 'never'} too early")
        return f"{', '.join(facts)}; {self._end()}"

    def _end(self) -> str:
        if self.result is not None:
            return f'the call returned "{self.result}"'
        return "the call has no end" if self.failure is None else f"the call failed: {self.failure}"
