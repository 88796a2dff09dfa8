"""Where the processor time of a call and of an event goes: what no transport can save, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass

from rows import BESIDE_STOCK, Results, value


@dataclass(frozen=True)
class Breakdown:
    """Microseconds of one call or event, taken apart."""

    title: str
    # What the HTTP server, the SDK and the tool take by themselves: the same on both sides.
    floors: list[tuple[str, float]]
    totals: dict[str, float | None]
    # Calls into the engine alone, where they can be made without the rest.
    engine: float | None

    def rest(self, side: str) -> float | None:
        total = self.totals[side]
        return None if total is None else total - sum(cost for _, cost in self.floors)

    def rows(self) -> list[tuple[str, float | None, float | None]]:
        """Each part with what it costs on stock's side and on Tailrope's."""
        found: list[tuple[str, float | None, float | None]] = [(part, cost, cost) for part, cost in self.floors]
        found.append(("the rest: transport, store, sending", self.rest("stock"), self.rest("tailrope")))
        if self.engine is not None:
            found.append(("of which the engine, called in a loop", None, self.engine))
        found.append(("in all", self.totals["stock"], self.totals["tailrope"]))
        return found


def breakdowns(language: str, results: Results) -> list[Breakdown]:
    if "parts" not in results:
        return []
    alone = results["parts"]["alone"][0]
    http = "uvicorn, bare ASGI echo" if language == "python" else "node:http, bare echo"
    call = [
        (http, value(results, "bare", "echo:16", "cpu_us") or 0.0),
        ("SDK and tool, no transport", alone["echo_us"]),
    ]
    if "schema_us" in alone:
        call.append(("schema of the request", alone["schema_us"]))
    event = [
        ("SDK and tool, no transport", alone["emit_us"]),
        ("JSON of the event", max(0.0, alone["emit_json_us"] - alone["emit_us"])),
    ]
    found = []
    for title, measure, floors, engine in (
        ("an echo call, 16 sessions", "echo:16", call, alone.get("engine_echo_us")),
        ("an emitted event", "emit", event, alone.get("engine_emit_us")),
    ):
        totals = {side: value(results, side, measure, "cpu_us") for side in BESIDE_STOCK}
        if any(totals.values()):
            found.append(Breakdown(title, floors, totals, engine))
    return found
