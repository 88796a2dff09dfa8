"""The tools of the test servers. `script` runs the steps that a test wrote down, so a test reads as its own story."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from . import acting
from .control import CONTROL
from .marked import Marked

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Script:
    """One call's steps: emit N [BYTES], burst N, note FILE [BYTES], until GATE, gate NAME, hog MS GATE, mark NAME,
    close [retry=] [hold=], close_standalone, standalone TEXT, log TEXT, changed, elicit TEXT, sample TEXT, sleep MS,
    raise TEXT, big BYTES, return TEXT, and `try` before any of them."""

    def __init__(self, ctx: Any, ops: Any) -> None:
        self.ctx, self.ops = ctx, ops
        self.sent = 0
        self.outcomes: list[str] = []
        self.result: str | None = None

    async def run(self, steps: list[str]) -> str:
        try:
            for step in steps:
                word, _, rest = step.partition(" ")
                if word == "try":
                    word, _, rest = rest.partition(" ")
                    try:
                        await self._step(word, rest)
                        self.outcomes.append("ok")
                    except Exception as fault:
                        self.outcomes.append(f"raised {type(fault).__name__}: {fault}")
                else:
                    await self._step(word, rest)
        except asyncio.CancelledError:
            CONTROL.mark(f"cancelled {steps[-1]}")
            raise
        CONTROL.mark(f"finished {steps[-1]}")
        if self.result is not None:
            return self.result
        return json.dumps(self.outcomes) if self.outcomes else "done"

    async def _step(self, word: str, rest: str) -> None:
        await getattr(self, f"_{word}")(rest)

    async def _progress(self, text: str | None = None) -> None:
        self.sent += 1
        number = self.sent
        await self.ctx.report_progress(number, None, text)

    async def _emit(self, rest: str) -> None:
        count, _, size = rest.partition(" ")
        text = "x" * int(size) if size else None
        for _ in range(int(count)):
            await self._progress(text)

    async def _burst(self, rest: str) -> None:
        # All sends are started before the first may finish; they are started in order.
        await asyncio.gather(*(self._progress() for _ in range(int(rest))))

    async def _note(self, rest: str) -> None:
        path, _, size = rest.partition(" ")
        text = "x" * int(size) if size else None
        # What a killed process wrote to a file is there: whatever is in it was sent, as far as the tool was told.
        with open(path, "ab", buffering=0) as noted:
            while True:
                await self._progress(text)
                noted.write(b"%d\n" % self.sent)

    async def _until(self, gate: str) -> None:
        while not CONTROL.is_open(gate):
            await self._progress()
            await asyncio.sleep(0.001)
        self.result = str(self.sent)

    async def _gate(self, name: str) -> None:
        await CONTROL.gate(name)

    async def _hog(self, rest: str) -> None:
        # Holds the interpreter for so long at a time, and tells how often.
        span, _, gate = rest.partition(" ")
        held = 0
        while not CONTROL.is_open(gate):
            over = time.perf_counter() + float(span) / 1000
            while time.perf_counter() < over:
                pass
            held += 1
            await asyncio.sleep(0)
        self.result = str(held)

    async def _mark(self, name: str) -> None:
        CONTROL.mark(name)

    async def _close(self, rest: str) -> None:
        options = dict(part.split("=") for part in rest.split())
        await self.ops.close(
            self.ctx,
            retry_ms=int(options["retry"]) if "retry" in options else None,
            hold_ms=int(options["hold"]) if "hold" in options else None,
        )

    async def _close_standalone(self, rest: str) -> None:
        await self.ops.close_standalone(self.ctx)

    async def _standalone(self, text: str) -> None:
        await self.ctx.session.send_log_message("info", text)

    async def _log(self, text: str) -> None:
        await self.ctx.session.send_log_message("info", text, related_request_id=self.ctx.request_id)

    async def _changed(self, rest: str) -> None:
        await self.ctx.session.send_tool_list_changed()

    async def _elicit(self, text: str) -> None:
        answer = await self.ctx.session.elicit_form(text, SCHEMA, self.ctx.request_id)
        self.result = json.dumps(answer.content, separators=(",", ":"))

    async def _sample(self, text: str) -> None:
        answer = await self.ops.sample(self.ctx, text)
        self.result = answer.content.text

    async def _sleep(self, rest: str) -> None:
        await asyncio.sleep(float(rest) / 1000)

    async def _raise(self, text: str) -> None:
        raise ValueError(text)

    async def _big(self, rest: str) -> None:
        self.result = "b" * int(rest)

    async def _return(self, text: str) -> None:
        self.result = text


def register(tool: Callable[[], Callable[[Any], Any]], context: Any, ops: Any) -> None:
    """Add the tools to a server through its `tool` decorator; `context` is the server's own context type."""

    @tool()
    async def echo(text: str) -> str:
        return text

    async def script(steps: list[str], ctx: context) -> str:
        return await Script(ctx, ops).run(steps)

    async def act(name: str, steps: list[str], ctx: context) -> str:
        return await acting.act(name, steps, ctx)

    # These three are for the load client of the benchmarks (benches/client).

    async def emit(n: int, bytes: int, ctx: context) -> str:
        for number in range(1, n + 1):
            await ctx.report_progress(number, n, "x" * bytes)
        CONTROL.mark("emitted")
        return str(n)

    async def completed() -> str:
        return str(CONTROL.marks["emitted"])

    async def poll(before: int, after: int, ctx: context) -> str:
        for number in range(1, before + after + 1):
            await ctx.report_progress(number, before + after, None)
            if number == before:
                await ops.close(ctx, None, None)
        return "done"

    # Says no type: libraries would send the text twice, as structured content, too.
    async def marked(plan: dict[str, Any], ctx: context):  # type: ignore[no-untyped-def]
        return await Marked(plan, ctx, ops).run()

    async def header(name: str, ctx: context) -> str:
        return ctx.request_context.request.headers.get(name, "")

    async def whoami(ctx: context) -> str:
        token = ops.access_token()
        return token.client_id if token is not None else "nobody"

    async def sender(ctx: context) -> str:
        """What a handler sees of its request."""
        request = ctx.request_context.request
        user, token = request.scope.get("user"), ops.access_token()
        of_request = getattr(user, "access_token", None)
        seen = {
            "method": request.method,
            "path": request.url.path,
            "body": (await request.body()).decode(),
            "is_disconnected": await request.is_disconnected(),
            "user": getattr(user, "display_name", None),
            "scopes": getattr(request.scope.get("auth"), "scopes", None),
            "claims": of_request and {**(of_request.claims or {}), "subject": of_request.subject},
            "tokens": [each and each.token for each in (of_request, token)],
            "client_id": token and token.client_id,
            "state": request.scope.get("state", {}).get("user_id"),
        }
        return json.dumps(seen)

    async def lifespan(ctx: context) -> str:
        return json.dumps(ops.lifespan(ctx))

    async def request_id(ctx: context) -> str:
        return json.dumps(ctx.request_id)

    for function in (script, act, marked, header, whoami, sender, lifespan, request_id, emit, completed, poll):
        tool()(function)
