"""Runs a plan with the official Python client of the installed line: client.py [--line JSON] URL PLAN

Without URL and PLAN it takes orders on stdin, {"name", "url", "plan"}, one JSON object in a line, runs them side by
side and prints each report, with its name, when it is done; it ends with its input. With --line, the client has our
HTTP transport, with these options. A plan:

    calls      [{"stream"} or {"stream", "tool", "arguments"}], each with "at_ms", or "after" (a stream, whose call is
               over then), and "cancel_after_ms" (counted from its first progress notification)
    limit_ms   what is still waiting then is reported as such
    logs       how many log notifications to wait for
    settle_ms  how long to stay afterwards, so that what the client still asks for can be seen
    legacy     do not negotiate a revision that has no resumption
    close_after_ms  close the client so long after the first progress notification, whatever happens

The report: `revision`; `calls`, by stream {"result"} or {"failure"} or {"error"} or {"cancelled"} or {"waiting"},
with `at_ms`; `progress`, by stream, `logs` and `asked` in order; `closed_ms`, how long closing took; `fault`, what
broke the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from connect import connected, sampled

LIMIT_MS = 5_000
SETTLE_MS = 300
CLOSE_S = 60


class Run:
    """One plan, with a client of its own."""

    def __init__(self, url: str, plan: dict[str, Any], line: dict[str, Any] | None) -> None:
        self.url, self.plan, self.line = url, plan, line
        self.started = time.monotonic()
        self.report: dict[str, Any] = {"calls": {}, "progress": {}, "logs": [], "asked": []}
        self.heard = asyncio.Event()
        streams = [call["stream"] for call in plan.get("calls", [])]
        self.begun = {name: asyncio.Event() for name in streams}
        self.over = {name: asyncio.Event() for name in streams}
        self.any_begun = asyncio.Event()

    def now_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1_000)

    async def on_log(self, params: Any) -> None:
        self.report["logs"].append(params.data)
        self.heard.set()

    async def on_ask(self, context: Any, params: Any) -> Any:
        text = params.messages[0].content.text
        self.report["asked"].append(text)
        return sampled(f"re: {text}")

    async def call(self, client: Any, call: dict[str, Any]) -> None:
        name = call["stream"]
        if "after" in call:
            await self.over[call["after"]].wait()
        await asyncio.sleep(call.get("at_ms", 0) / 1_000)
        seen = self.report["progress"].setdefault(name, [])

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(int(progress))
            self.begun[name].set()
            self.any_begun.set()

        arguments = call.get("arguments", {"stream": name})
        asking = asyncio.ensure_future(
            client.call_tool(call.get("tool", "run"), arguments, progress_callback=on_progress)
        )
        try:
            if "cancel_after_ms" in call:
                await self.begun[name].wait()
                await asyncio.wait([asking], timeout=call["cancel_after_ms"] / 1_000)
                if not asking.done():
                    asking.cancel()
                    await asyncio.wait([asking])
                    await client.abandon()
            outcome = told(await asking)
        except asyncio.CancelledError:
            outcome = {"cancelled": True} if asking.cancelled() and "cancel_after_ms" in call else {"waiting": True}
            asking.cancel()
        except Exception as fault:
            outcome = {"error": str(fault)}
        self.report["calls"][name] = {**outcome, "at_ms": self.now_ms()}
        self.over[name].set()

    async def stay(self, client: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for call in self.plan.get("calls", []):
                group.create_task(self.call(client, call))
        while len(self.report["logs"]) < self.plan.get("logs", 0):
            self.heard.clear()
            await self.heard.wait()

    async def close_early(self) -> None:
        if "close_after_ms" not in self.plan:
            await asyncio.Event().wait()
        await self.any_begun.wait()
        await asyncio.sleep(self.plan["close_after_ms"] / 1_000)

    async def stay_within(self, client: Any) -> None:
        """Until the plan is done, its limit, or its early end."""
        tasks = [asyncio.create_task(self.stay(client)), asyncio.create_task(self.close_early())]
        limit_s = self.plan.get("limit_ms", LIMIT_MS) / 1_000
        try:
            await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await asyncio.sleep(self.plan.get("settle_ms", SETTLE_MS) / 1_000)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def run(self) -> dict[str, Any]:
        closing = time.monotonic()
        try:
            is_legacy = self.plan.get("legacy", False)
            async with connected(self.url, self.line, self.on_log, self.on_ask, is_legacy) as client:
                self.report["revision"] = client.revision
                await self.stay_within(client)
                closing = time.monotonic()
        except Exception as fault:
            self.report["fault"] = f"{type(fault).__name__}: {fault}"
        self.report["closed_ms"] = round((time.monotonic() - closing) * 1_000)
        return self.report


def told(result: Any) -> dict[str, str]:
    failed = getattr(result, "isError", False) or getattr(result, "is_error", False)
    return {"failure" if failed else "result": result.content[0].text}


async def bounded(order: dict[str, Any], line: dict[str, Any] | None) -> dict[str, Any]:
    run = Run(order["url"], order["plan"], line)
    limit_s = order["plan"].get("limit_ms", LIMIT_MS) / 1_000 + CLOSE_S
    try:
        return await asyncio.wait_for(run.run(), limit_s)
    except TimeoutError:
        return {**run.report, "fault": f"not closed after {CLOSE_S} s"}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--line", type=json.loads, metavar="OPTIONS")
    parser.add_argument("url", nargs="?")
    parser.add_argument("plan", nargs="?", type=json.loads)
    args = parser.parse_args()
    if args.url is not None:
        print(json.dumps(await bounded({"url": args.url, "plan": args.plan}, args.line), indent=2))
        return

    async def answer(order: dict[str, Any]) -> None:
        report = await bounded(order, args.line)
        print(json.dumps({"name": order["name"], **report}), flush=True)

    tasks = set()
    while text := await asyncio.to_thread(sys.stdin.readline):
        task = asyncio.create_task(answer(json.loads(text)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main())
