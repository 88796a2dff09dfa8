"""One call over many resumes, with the official client: soak.py [--line OPTIONS] URL EVERY

The call's progress is looked at every EVERY notifications: bytes that the language holds after a collection, resident
bytes and open descriptors. Prints {"held": [...], "rss": [...], "descriptors": [...], "progress": how many came, in
order or not at all, "result" or "error"}.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from connect import connected

PAGE = os.sysconf("SC_PAGE_SIZE")
# The interpreter counts its blocks, not their bytes; most are about so large.
BLOCK = 100


async def nothing(*_: Any) -> None:
    pass


async def main(args: argparse.Namespace) -> None:
    report: dict[str, Any] = {"held": [], "rss": [], "descriptors": [], "progress": 0}

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert progress == report["progress"] + 1, f"{progress} after {report['progress']}"
        report["progress"] += 1
        if report["progress"] % args.every == 0:
            gc.collect()
            report["held"].append(sys.getallocatedblocks() * BLOCK)
            report["rss"].append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE)
            report["descriptors"].append(len(os.listdir("/proc/self/fd")))

    async with connected(args.url, args.line, nothing, nothing) as client:
        try:
            result = await client.call_tool("run", {"stream": "a"}, progress_callback=on_progress)
            report["result"] = result.content[0].text
        except Exception as fault:
            report["error"] = str(fault)
    print(json.dumps(report))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--line", type=json.loads)
    parser.add_argument("url")
    parser.add_argument("every", type=int)
    asyncio.run(main(parser.parse_args()))
