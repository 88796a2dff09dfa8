"""Run everything, or a part of it, and print a table: python -m torture [--short] [--test T] [--server S] [--store S]

The full form takes three quarters of an hour on two cores and needs real servers:
tests/services/with redis postgres -- ... The exit status is 1 when any rule was broken by a server of ours, or a test
failed. Stock servers break rules; that is data. A test that hangs is ended after seven minutes; tests that have not
begun after 60 count as failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from torture.cell import TESTS
from torture.ending import end
from torture.hosts import MIXED, OURS, STOCK, STORES, build_rust
from torture.matrix import EVERYTHING, SLICE, Outcome, Runner, keep, load
from torture.recorder import checker
from torture.table import by_server, by_test, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a slice of everything, a few seconds each")
    parser.add_argument("--test", action="append", choices=TESTS)
    parser.add_argument("--server", action="append", choices=[*OURS, MIXED, *STOCK])
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--seed", default=str(int(time.time())), help="what chance is drawn from; the clock, otherwise")
    parser.add_argument("--seconds", type=float, help="how long each test is repeated (15)")
    parser.add_argument("--sessions", type=int, help="how many at once (30); 200 take two cores")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    parser.add_argument(
        "--results", type=Path, help="add to this file; cells that are not run now count as they are there"
    )
    parser.add_argument("--write", action="store_true", help="write docs/evidence/torture.md")
    args = parser.parse_args()
    chosen = bool(args.test or args.server or args.store)
    cells = [
        cell
        for cell in (SLICE if args.short and not chosen else EVERYTHING)
        if cell.test in (args.test or TESTS)
        and cell.server in (args.server or (*OURS, MIXED, *STOCK))
        and cell.store in (args.store or STORES)
    ]
    missing = {cell.store for cell in cells if cell.store in ("redis", "postgres")}
    missing = {store for store in missing if f"TAILROPE_TEST_{store.upper()}" not in os.environ}
    if missing:
        print(f"no server of {', '.join(sorted(missing))}: tests/services/with starts them", file=sys.stderr)
        return 2
    build_rust(cell.server for cell in cells)
    print(f"seed {args.seed}, {len(cells)} tests", flush=True)
    started, over = time.monotonic(), 0

    def tell(outcome: Outcome) -> None:
        nonlocal over
        over += 1
        minutes = (time.monotonic() - started) / 60
        print(f"[{over}/{len(cells)}, {minutes:.1f} min] {outcome.words()}", flush=True)
        if args.results is not None:
            keep(args.results, outcome)

    sizes = {"seconds": args.seconds, "sessions": args.sessions}
    runner = Runner(checker(), short=args.short, jobs=args.jobs, seed=args.seed, sizes=sizes)
    outcomes = asyncio.run(runner.run(cells, tell))
    if args.results is not None:
        found = load(args.results)
        outcomes = [found[cell.name] for cell in EVERYTHING if cell.name in found]
    print("", *by_server(outcomes), "", *by_test([each for each in outcomes if not each.cell.is_stock]), sep="\n")
    if args.write:
        write(outcomes)
    wrong = [each for each in outcomes if each.failed or not (each.is_clean or each.cell.is_stock)]
    return end("faults", [each.cell.name for each in wrong])


if __name__ == "__main__":
    sys.exit(main())
