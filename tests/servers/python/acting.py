"""A tool that does what a test orders while it runs: `act`. The steps of tests/vectors are played with it."""

from __future__ import annotations

import asyncio
from typing import Any

from .control import CONTROL, rejected

ENDS = ("respond",)


async def act(name: str, steps: list[str], ctx: Any) -> str:
    """Do `steps` at once, then what comes as orders for `name`, until it says `respond`."""
    for step in steps:
        await perform(step, ctx)
        if step in ENDS:
            return name
    orders: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()
    CONTROL.actors[name] = orders
    CONTROL.mark(f"acting {name}")
    try:
        while True:
            step, done = await orders.get()
            try:
                outcome = await perform(step, ctx)
            except Exception as fault:
                done.set_result(rejected(fault))
                continue
            done.set_result({"outcome": outcome})
            if step in ENDS:
                return name
    finally:
        del CONTROL.actors[name]


async def perform(step: str, ctx: Any) -> Any:
    """One step: `standalone TEXT`, `related TYPE:ID TEXT`, `close [retry=] [hold=]`, `close_standalone`, `respond`."""
    import tailrope

    word, _, rest = step.partition(" ")
    if word == "standalone":
        return await ctx.session.send_log_message("info", rest)
    if word == "related":
        typed, _, text = rest.rpartition(" ")
        kind, _, value = typed.partition(":")
        return await ctx.session.send_log_message("info", text, related_request_id=int(value) if kind == "n" else value)
    if word in ("close", "close_standalone"):
        options = {f"{key}_ms": int(value) for key, value in (part.split("=") for part in rest.split())}
        close = tailrope.close_sse_stream if word == "close" else tailrope.close_standalone_sse_stream
        return await close(getattr(ctx, "raw", ctx), **options)
    if word in ENDS:
        return None
    raise KeyError(step)
