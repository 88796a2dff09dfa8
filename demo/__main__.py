"""Run long calls over connections that keep ending, and count what arrives.

The server's part: server and client are processes of their own. The client is the SDK's, unmodified, with a progress
callback. Between the two a tap forwards bytes and reports what it sees; nothing in the summary comes from anywhere but
these three observers.

The client's part: the same client meets a hostile server, as it is and then with Tailrope's line. The observers are
the server, which lives in this process, and the client's application.

The tasks' part: two workers share a store. The same client, of 2025-11-25, and one of 2026-07-28 that takes tasks call
the same tool, and workers are killed. The observers are those of the server's part.

The cluster's part: three nodes share a store behind nginx. They are restarted, and one is killed, under the calls of
the same two clients. The observers are the tools and the clients' applications.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import sys
from asyncio.subprocess import Process

from cluster.story import run_cluster
from hostile import Hostile, improvise
from ordeal import Ordeal
from processes import LANGUAGES, Language, free_port, read, start, stop, wait_for_server
from story import Story
from tap import Tap
from tasks.story import run_tasks

# Longer than any client waits for its call.
CLIENT_TIMEOUT_S = 90
# Its story has everything that the hostile server does; either stock client fails, each at something else.
SEED = 20
# How long the clients of the hostile server wait for news; a client that comes back has some sooner.
SILENCE_S = 4


async def run_server_part(language: Language, transport: str) -> bool:
    story = Story()
    port = free_port()
    server = await start(language, "server", "--port", str(port), "--transport", transport)
    client = await start(language, "client", "--transport", transport)
    readers = asyncio.gather(read(server, story), read(client, story))
    reporter = asyncio.create_task(story.keep_reporting())
    try:
        await wait_for_server(server, port)
        async with Tap([port], story.observer()) as tap:
            story.timeline.begin(f"{language.title}, {'Tailrope' if transport == 'tailrope' else 'stock'} transport")
            assert client.stdin is not None  # it is started with a pipe
            client.stdin.write(f"http://127.0.0.1:{tap.port}/mcp\n".encode())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.wait(), CLIENT_TIMEOUT_S)
    finally:
        await stop(client)
        await stop(server)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(readers, 5)
        reporter.cancel()
        story.report()
    return story.summary()


async def meet(client: Process, title: str, seed: int) -> Ordeal:
    """Let one client make its call to the hostile server."""
    story = Ordeal()
    reader = asyncio.create_task(read(client, story))
    reporter = asyncio.create_task(story.keep_reporting())

    def report(what: str, **fields: object) -> None:
        story.note(functools.partial(story.told, {"what": what, **fields}))

    try:
        async with Hostile(improvise(seed), report) as server:
            story.timeline.begin(title)
            assert client.stdin is not None  # it is started with a pipe
            client.stdin.write(f"{server.url}\n".encode())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.wait(), CLIENT_TIMEOUT_S)
    finally:
        await stop(client)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reader, 5)
        reporter.cancel()
        story.report()
        story.timeline.flush()
    return story


async def run_client_part(language: Language, seed: int) -> bool:
    patience = ("--silence-s", str(SILENCE_S))
    # Both start now, and wait for the address, so that nobody has to watch a start.
    clients = [await start(language, "client", *patience, *line) for line in ((), ("--line",))]
    try:
        server = f"a hostile server (seed {seed})"
        without = await meet(clients[0], f"{language.title}, stock client, {server}", seed)
        ours = await meet(clients[1], f"{language.title}, stock client with Tailrope's line, {server}", seed)
    finally:
        for client in clients:
            await stop(client)
    paint = ours.timeline.paint
    print()
    print(paint(f"without the line: {without.outcome()}", "" if without.is_whole() else "red"))
    print(paint(f"   with the line: {ours.outcome()}", "green" if ours.is_whole() else "red"))
    return ours.is_whole()


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--language", choices=(*LANGUAGES, "all"), default="all", help="default: one after the other")
    parser.add_argument(
        "--transport",
        choices=("tailrope", "stock"),
        default="tailrope",
        help="stock: the SDK's own transport with a plain in-memory event store, to see the difference",
    )
    parser.add_argument(
        "--part",
        choices=("server", "client", "tasks", "cluster"),
        help="one part alone; --transport is the server's, and the cluster has both languages",
    )
    parser.add_argument("--seed", type=int, default=SEED, help=f"of what the hostile server does; default: {SEED}")
    args = parser.parse_args()
    part = args.part or ("server" if args.transport == "stock" else None)
    # A proxy of the environment must not get between the two.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    # Rust is built by a target of its own.
    names = ["python", "node"] if args.language == "all" else [args.language]
    languages = [LANGUAGES[name] for name in names]
    try:
        if part == "cluster":
            return 0 if asyncio.run(run_cluster()) else 1
        good = []
        if part in (None, "server"):
            good += [asyncio.run(run_server_part(language, args.transport)) for language in languages]
        if part in (None, "tasks"):
            good += [asyncio.run(run_tasks(language)) for language in languages if language is not LANGUAGES["rust"]]
        if part in (None, "client"):
            good += [asyncio.run(run_client_part(language, args.seed)) for language in languages]
    except KeyboardInterrupt:
        return 130
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
