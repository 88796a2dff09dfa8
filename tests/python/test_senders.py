"""Senders: places in a session's inbox, cancelled requests, messages that nobody can write. No sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import OPEN, Asgi, note, outgoing, request, transport, until
from tailrope.mcp import _sdk
from tailrope.mcp._streams import MAX_INBOX, Inbox

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


async def test_a_cancelled_sender_passes_its_place_on() -> None:
    inbox = Inbox()
    for number in range(MAX_INBOX):
        await inbox.put(outgoing(note(number)))
    waiting = [asyncio.ensure_future(inbox.put(outgoing(note(number)))) for number in range(MAX_INBOX + 1)]
    await asyncio.sleep(0)
    for task in waiting[:-1]:
        task.cancel()
    await asyncio.sleep(0)
    for _ in range(MAX_INBOX):
        await inbox.receive()
    async with asyncio.timeout(60):
        await waiting[-1]


async def test_a_sender_that_is_cancelled_when_it_was_woken_wakes_the_next() -> None:
    inbox = Inbox()
    for number in range(MAX_INBOX):
        await inbox.put(outgoing(note(number)))
    first, second = (asyncio.ensure_future(inbox.put(outgoing(note(number)))) for number in range(2))
    await asyncio.sleep(0)
    await inbox.receive()
    first.cancel()
    async with asyncio.timeout(60):
        await second


async def test_i13_a_request_that_is_cancelled_before_anybody_saw_it_gets_its_end() -> None:
    """As middleware does that cancels the application when its client has left."""
    async with transport() as (made, inbox, _outbox):
        for number in range(MAX_INBOX):
            await inbox.put(outgoing(note(number)))
        call = Asgi(made, "POST", request(1))
        await asyncio.sleep(0.02)
        assert made._tailrope._session.in_flight == 1
        call.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call.task
        assert made._tailrope._session.in_flight == 0
        await inbox.receive()
        again = Asgi(made, "POST", request(1))
        await asyncio.sleep(0.02)
        assert made._tailrope._session.in_flight == 1, again.sent
        again.task.cancel()


async def test_f22_a_client_that_leaves_in_its_own_message_is_no_fault() -> None:
    async with transport() as (made, _inbox, _outbox):
        posted = Asgi(made, "POST", request(1))
        posted._read = True
        posted.left.set()
        await posted.task
        assert not posted.sent and made._tailrope._session.in_flight == 0


async def test_a_message_waits_for_room_before_it_is_accepted() -> None:
    async with transport() as (made, inbox, _outbox):
        for number in range(MAX_INBOX):
            await inbox.put(outgoing(note(number)))
        posted = Asgi(made, "POST", note(1))
        await asyncio.sleep(0.02)
        assert not posted.sent, "202 says that it is taken"
        await inbox.receive()
        await posted.task
        assert posted.status == 202


async def test_a_message_of_a_session_that_has_ended_is_not_accepted() -> None:
    async with transport() as (made, _inbox, _outbox):
        pass
    posted = Asgi(made, "POST", note(1))
    await posted.task
    assert posted.status == 404


async def test_a_transport_that_is_not_connected_says_so() -> None:
    made = tailrope.mcp.StreamableHTTPServerTransport("s1")
    with pytest.raises((ValueError, RuntimeError), match="connect"):
        await Asgi(made, "POST", OPEN).task


async def test_f50_a_request_that_settled_without_a_response_holds_no_session() -> None:
    async with transport(idle_timeout=100) as (made, inbox, _outbox):
        call = Asgi(made, "POST", request(1))
        item = await inbox.receive()
        await until(lambda: call.sent)
        call.left.set()
        await call.task
        session = made._tailrope._session
        assert session.idle_in_ms() > 3_000_000
        if _sdk.MAJOR >= 2:
            await item.metadata.on_request_unanswered()
            assert session.idle_in_ms() <= 100_000


async def test_i13_a_response_that_cannot_be_written_is_answered_with_an_error() -> None:
    """Text with a lone surrogate, as file names have it, is no JSON. The SDK's sending must not raise (I9)."""
    async with transport() as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        item = outgoing({"jsonrpc": "2.0", "id": 1, "result": {"text": "x"}})
        _sdk.unwrap(item.message).result["text"] = "\udc80"
        await outbox.send(item)
        async with asyncio.timeout(60):
            await call.task
        answer = json.loads(call.body.decode().split("data: ")[-1])
        assert answer["id"] == 1 and answer["error"]["code"] == -32603


async def test_a_notification_that_cannot_be_written_raises_in_its_handler() -> None:
    async with transport() as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        item = outgoing({"jsonrpc": "2.0", "method": "notifications/x", "params": {"text": "x"}}, 1)
        _sdk.unwrap(item.message).params["text"] = "\udc80"
        with pytest.raises(ValueError):
            await outbox.send(item)
        call.task.cancel()


class Refusing(Asgi):
    """A GET before a host or middleware that cannot send its first event."""

    def __init__(self, made: Any, fault: Exception) -> None:
        self._fault = fault
        super().__init__(made, "GET")

    async def _send(self, part: dict[str, Any]) -> None:
        await super()._send(part)
        if part["type"] == "http.response.body":
            raise self._fault


@pytest.mark.parametrize(("fault", "tells"), [(ConnectionResetError(), False), (OSError("closed"), True)])
async def test_f22_a_host_that_cannot_send_any_more_is_no_fault(fault: Exception, tells: bool) -> None:
    async with transport() as (made, _inbox, _outbox):
        listening = Refusing(made, fault)
        if tells:
            listening.left.set()
        async with asyncio.timeout(60):
            await listening.task
        assert len(listening.sent) == 2


async def test_a_fault_of_middleware_that_sends_is_raised() -> None:
    async with transport() as (made, _inbox, _outbox):
        listening = Refusing(made, PermissionError("the log of requests"))
        async with asyncio.timeout(60):
            with pytest.raises(PermissionError):
                await listening.task
