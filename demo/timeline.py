"""Prints what happened, as it happens: the server on the left, the wire in the middle, the client on the right."""

import os
import shutil
import sys
import time

LEFT_WIDTH = 30
WIRE_WIDTH = 7
TO_CLIENT, TO_SERVER, CUT = "━━━━━━▶", "◀━━━━━━", "╳"
CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Numbers:
    """A growing list of event numbers, written as ranges: `1 to 98, 105 to 110`."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []

    def add(self, number: int) -> None:
        if self._ranges and number == self._ranges[-1][1] + 1:
            self._ranges[-1][1] = number
        else:
            self._ranges.append([number, number])

    def __str__(self) -> str:
        texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in self._ranges]
        return ", ".join(texts if len(texts) <= 3 else [*texts[:2], "...", texts[-1]])

    def __bool__(self) -> bool:
        return bool(self._ranges)


class Run:
    """The events between two other rows: what the tool emitted, and what reached the client under the same `label`."""

    def __init__(self, at: float) -> None:
        self.emitted, self.received = Numbers(), Numbers()
        self.verb = "emits"
        self.label = ""
        self.colour = "green"
        self.at = at


class Timeline:
    """Rows in the order of observation. Events are gathered into one row, redrawn while it grows on a terminal."""

    def __init__(self) -> None:
        self.now = self._began = time.monotonic()  # the owner sets `now` to the time of what it is about to report
        self._is_tty = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = (self._is_tty or "FORCE_COLOR" in os.environ) and "NO_COLOR" not in os.environ
        self._run: Run | None = None
        self._drawn_at = 0.0
        self._is_open = False

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self._has_colour and colour else text

    def begin(self, title: str) -> None:
        """Print the title and the column heads; elapsed time counts from here."""
        self._began = time.monotonic()
        print(f"\n{self.paint(title, 'bold')}\n")
        print(self.paint(f"{'elapsed':>9}  {'server':<{LEFT_WIDTH}} {'wire':^{WIRE_WIDTH}}  client", "bold"))

    def restart_clock(self) -> None:
        """Let elapsed time count from what is about to be reported."""
        self._began = self.now

    def row(self, left: str = "", wire: str = "", right: str = "", colour: str = "") -> None:
        self.flush()
        print(self._line(left, wire or self._gutter(), right, colour, self.now), flush=True)

    def set_open(self, is_open: bool) -> None:
        """From the next row on, the gutter tells whether the call has a connection."""
        self.flush()
        self._is_open = is_open

    def emitted(self, number: int, verb: str = "emits") -> None:
        run = self._current("")
        run.verb = verb
        run.emitted.add(number)
        self._redraw()

    def received(self, number: int, label: str, colour: str = "green") -> None:
        run = self._current(label)
        run.colour = colour
        run.received.add(number)
        self._redraw()

    def flush(self) -> None:
        """End the current run, so that the next row has a line of its own."""
        if self._run is not None:
            print(("\r\x1b[K" if self._is_tty else "") + self._run_line(self._run), flush=True)
            self._run = None

    def _current(self, label: str) -> Run:
        if self._run is not None and label and self._run.label and self._run.label != label:
            self.flush()
        if self._run is None:
            self._run = Run(self.now)
        self._run.label = self._run.label or label
        return self._run

    def _redraw(self) -> None:
        now = time.monotonic()
        if self._is_tty and self._run is not None and now - self._drawn_at > 0.05:
            self._drawn_at = now
            # A line that wraps could not be redrawn.
            columns = shutil.get_terminal_size().columns - 1
            print("\r\x1b[K" + self._run_line(self._run, columns), end="", flush=True)

    def _run_line(self, run: Run, columns: int | None = None) -> str:
        left = f"{run.verb} {run.emitted}" if run.emitted else ""
        right = f"{run.label} {run.received}" if run.received else ""
        wire = TO_CLIENT if right else self._gutter()
        return self._line(left, wire, right, run.colour if right else "yellow", run.at, columns)

    def _gutter(self) -> str:
        return "┃" if self._is_open else "·"

    def _line(self, left: str, wire: str, right: str, colour: str, at: float, columns: int | None = None) -> str:
        elapsed = f"{at - self._began:7.2f} s"
        text = f"{left:<{LEFT_WIDTH}} {wire:^{WIRE_WIDTH}}  {right}".rstrip()
        text = text if columns is None else text[: max(0, columns - len(elapsed) - 2)]
        return f"{self.paint(elapsed, 'dim')}  {self.paint(text, colour)}"
