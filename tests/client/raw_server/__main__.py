"""Play one scenario: python -m raw_server NAME [--quiet]. Prints `READY URL`.

Then it answers lines on stdin, each with one of JSON: `record` with every request so far, `state` with its sockets and
the resumes by stream. It ends with its input. `--quiet` keeps no record of requests. NAME may be a scenario as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from .script import load
from .server import RawServer


async def main(name: str, is_quiet: bool) -> None:
    scenario = json.loads(name) if name.startswith("{") else load()[name]
    async with RawServer(scenario, note=not is_quiet) as server:
        print(f"READY {server.url}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            said = server.record() if line.strip() == "record" else server.state()
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "--quiet" in sys.argv[2:]))
