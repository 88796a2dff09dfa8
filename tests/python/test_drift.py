"""Tailrope under SDKs that differ from the one it was written for, and beside others who change them, too."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from kit.peer import counts, last_id, results
from kit.servers import SERVERS, TESTS, Server, gate
from kit.stock import LINE
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from servers.python.drift import DRIFTS
from tailrope.mcp import _seam

pytestmark = pytest.mark.ours

# What Tailrope does not need, or finds again.
HARMLESS = [
    "an argument more",
    "an attribute of another name",
    "another way to admit",
    "a function of another name",
    "a wrapped method",
    "a derived class",
    "an argument more of a method",
    "the app before the store",
    "every method wrapped",
]
# What each of the others is about, in the words of the log.
DIFFERENT = {
    "an argument that is needed": "its transport needs another",
    "a method of another name": "it has no mcp.server.streamable_http.StreamableHTTPServerTransport._handle_request",
    "an attribute of the manager of another name": "its session manager has no retry_interval",
    "an app in the class": "its session manager's class has an asgi_app of its own",
    "a manager with slots": "its session manager",
    "a class of another name": "it has no mcp.server.transport_security.TransportSecurityMiddleware",
}
KIND = SERVERS[f"mcp{LINE}"]


def test_each_drift_has_a_test() -> None:
    assert {*HARMLESS, *DIFFERENT} == set(DRIFTS)


@pytest.mark.parametrize("drift", HARMLESS)
async def test_what_tailrope_does_not_need_may_change(drift: str) -> None:
    async with Server.running(KIND, TAILROPE_TEST_DRIFT=drift) as server:
        peer = await server.peer()
        name = gate()
        reply = await peer.call("script", {"steps": ["emit 2", "close", f"gate {name}", "emit 1", "return x"]})
        events = await reply.rest()
        await server.open(name)
        again = await (await peer.resume(last_id(events))).until_terminal()
        assert counts([*events, *again]) == [1, 2, 3] and results(again) == ["x"]
        assert (await peer.delete()).status == 200
        if drift in ("a wrapped method", "a derived class"):
            # initialize, initialized, call, resume, DELETE.
            assert server.log().count("traced") == 5, server.log()
        assert "does not fit" not in server.log()


class Around:
    """What is around a method, and is no function."""

    def __init__(self, method: Any) -> None:
        self.__wrapped__ = method

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self.__wrapped__, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def function_around(method: Any) -> Any:
    @functools.wraps(method)
    def around(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return around


def stranger_around(method: Any) -> Any:
    return lambda *args, **kwargs: method(*args, **kwargs)


@pytest.mark.parametrize("around", [Around, function_around, stranger_around])
def test_whatever_may_be_around_the_managers_methods(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = [name for name, method in vars(StreamableHTTPSessionManager).items() if inspect.isfunction(method)]
    for name in wrapped:
        monkeypatch.setattr(StreamableHTTPSessionManager, name, around(vars(StreamableHTTPSessionManager)[name]))
    assert len(wrapped) > 3 and _seam.difference(explicit=True) is None


async def counted(transport: str) -> Counter[str]:
    """How often what somebody has put around each method of the SDK's transport ran."""
    options = {} if transport == "stock" else {"engine": {"prefer_resumable": False}}
    async with Server.running(KIND, options, transport, TAILROPE_TEST_DRIFT="every method wrapped") as server:
        peer, name = await server.peer(), gate()
        reply = await peer.call("script", {"steps": ["emit 2", "close", f"gate {name}", "emit 1", "return x"]})
        events = await reply.rest()
        await server.open(name)
        await (await peer.resume(last_id(events))).until_terminal()
        listening = await peer.listen()
        await peer.ask("script", {"steps": ["close_standalone", "return x"]})
        await listening.rest()
        assert (await peer.delete()).status == 200
        await server.logged("counted terminate")
        return Counter(line.split()[1] for line in server.log().splitlines() if line.startswith("counted "))


async def test_what_others_put_around_a_method_runs_as_often_as_on_stock() -> None:
    ours, theirs = await counted("tailrope"), await counted("stock")
    # The SDK looks at it when it likes.
    assert ours.pop("is_terminated") and theirs.pop("is_terminated")
    public = {name for name in vars(StreamableHTTPServerTransport) if not name.startswith("_")}
    functions = {name for name in public if callable(getattr(StreamableHTTPServerTransport, name))}
    assert set(theirs) == functions | {"_handle_request"}, "the scenario has all of them"
    # The SDK closes its standalone stream by a second of its methods.
    theirs["close_sse_stream"] -= theirs["close_standalone_sse_stream"]
    assert ours == theirs


@pytest.mark.parametrize("drift", DIFFERENT)
async def test_an_sdk_that_does_not_fit_keeps_its_own_transport(drift: str) -> None:
    # An event store of ours is behind that transport then.
    async with Server.running(KIND, {"store": "event-store"}, TAILROPE_TEST_DRIFT=drift) as server:
        peer = await server.peer()
        assert await peer.ask("echo", {"text": "served"}) == "served"
        log = server.log()
        assert log.count("ERROR:tailrope:") == 1 and DIFFERENT[drift] in log, log
        assert f"mcp {KIND.major}." in log and "supported: " in log and "cannot be resumed" in log, log
        status = await server.ctl("status")
        assert status["transport"] is None and DIFFERENT[drift] in status["notices"][0]


@pytest.mark.parametrize(
    "way", ['tailrope.install(on_unsupported="raise")', "tailrope.mcp.StreamableHTTPServerTransport"]
)
def test_where_wanted_an_sdk_that_does_not_fit_raises(way: str) -> None:
    code = f"""
import servers.python.drift, tailrope
try: {way}
except tailrope.TailropeError as error: print(error.code, error)
"""
    env = {**os.environ, "TAILROPE_TEST_DRIFT": "a method of another name"}
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("unsupported_sdk "), done.stderr
    assert DIFFERENT["a method of another name"] in done.stdout
