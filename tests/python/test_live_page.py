"""The live page in a real browser: what it shows while connections are closed and lost, calls resume and end, and a
process is killed; and that everybody can read it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from kit import browser
from kit.browser import Browser
from tailrope.testing import Server, open_session, serve

pytestmark = [pytest.mark.ours, pytest.mark.full, pytest.mark.one_line]

SERVER = Path(__file__).parent / "live_server.py"
SECRET = "what only the payload says"
USER = "<b>Alice</b> of Acme"
HEADERS = {"x-log-user": USER}

# Each text with the colour behind it: the ratio that WCAG 2 wants to be 4.5 at least.
CONTRASTS = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  const behind = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const element of document.querySelectorAll('body *')) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '');
    if (!says || element.closest('script, style, noscript') || element.offsetParent === null) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
    const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    found[`${getComputedStyle(element).color} on ${behind(element)}`] = ratio;
  }
  return found;
})()"""


@pytest.fixture(autouse=True)
def has_browser() -> None:
    if browser.program() is None:
        pytest.skip("no Chromium is installed")


def row(page: Browser, table: str, tool: str) -> str:
    """What a row says: its cells, and what its time line shows."""
    found = f"[...document.querySelectorAll('#{table} tbody tr')].find((row) => row.innerText.includes('{tool}'))"
    script = f"((row) => row && row.innerText + ' | ' + row.querySelector('svg')?.getAttribute('aria-label'))({found})"
    return str(page.run(script) or "")


async def shows(page: Browser, table: str, tool: str, *texts: str) -> None:
    """Waits until a row has all these texts."""
    seen = ""
    for _ in range(300):
        seen = row(page, table, tool)
        if all(text in seen for text in texts):
            return
        # The clients of the test need their turn, too: a connection is cut in it.
        await asyncio.sleep(0.1)
    raise AssertionError(f"{texts} in {seen!r}; {page.said}")


def url(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


async def test_the_page_shows_closes_losses_resumes_ends_and_a_process_that_is_killed(tmp_path: Path) -> None:
    env = {"STORE": f"sqlite:{tmp_path / 'events.db'}"}
    async with serve(str(SERVER), env=env) as first, serve(str(SERVER), env=env) as second:
        with Browser(url(first, "/live")) as page, Browser(url(second, "/live?a=b")) as other:
            page.wait("document.querySelector('#status').innerText === 'serving'")
            other.wait("document.querySelector('#status').innerText === 'serving'")
            session = await open_session(url(first, "/mcp"), headers=HEADERS)
            # There is an engine from the first session on, and it remembers what happens from the first look at it on.
            page.wait("document.querySelector('#sessions tbody tr') !== null")
            call = await session.call("works", {"text": SECRET})
            await call.until_closed()
            await shows(page, "calls", "works", USER, "closed", "1 connection, the last one closed by its tool")
            await call.resume()
            await call.cut(1)
            await shows(page, "calls", "works", "lost", "2 connections, 1 resume, the last one lost")
            await call.resume()
            await shows(page, "calls", "works", "connected", "3 connections, 2 resumes, the last one open")
            await (await session.call("fails", {"text": SECRET})).collect(read_again=False)
            await shows(page, "ended", "fails", "tool error", USER)
            page.wait("document.querySelector('#feed').innerText.includes('lost works')")
            tiles = page.text("#tiles").split("\n")
            assert [tiles[tiles.index(name) + 1] for name in ("Server closes", "Lost", "Resumed")] == ["1", "1", "2"]
            for shown in (page, other):
                assert SECRET not in str(shown.run("document.documentElement.outerHTML"))

            await first.kill()
            page.wait("/^no answer for/.test(document.querySelector('#status').innerText)")
            assert "! " in str(page.run("document.title"))
            await call.resume(at=url(second, "/mcp"))
            await call.collect(read_again=False)
            await shows(other, "ended", "#", "owner gone")
            assert page.said == [said for said in page.said if "ERR_" in said] and other.said == []


@contextmanager
def balanced(servers: list[Server]) -> Iterator[str]:
    """The page, from the next one that answers. In threads: the browser keeps the loop of the test."""
    turns = itertools.count()

    class Balancer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            for _ in servers:
                with contextlib.suppress(httpx.HTTPError):
                    answer = httpx.get(url(servers[next(turns) % len(servers)], self.path))
                    self.send_response(answer.status_code)
                    self.send_header("content-type", answer.headers["content-type"])
                    self.end_headers()
                    self.wfile.write(answer.content)
                    return
            self.send_error(502)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Balancer) as listens:
        threading.Thread(target=listens.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listens.server_port}/live"
        listens.shutdown()


async def test_the_page_puts_processes_together_and_says_which_is_silent(tmp_path: Path) -> None:
    env = {"STORE": f"sqlite:{tmp_path / 'events.db'}"}
    async with serve(str(SERVER), env=env) as first, serve(str(SERVER), env=env) as second:
        with balanced([first, second]) as both, Browser(both) as page:
            session = await open_session(url(first, "/mcp"), headers=HEADERS)
            page.wait("document.querySelector('#sessions tbody tr') !== null")
            call = await session.call("works", {"text": SECRET})
            await call.until_closed()
            # It has an engine, at which the page looks, before the client comes there.
            await open_session(url(second, "/mcp"), headers=HEADERS)
            page.wait("/^2 processes$/.test(document.querySelector('#process').innerText)")
            await call.resume(at=url(second, "/mcp"))
            await shows(page, "calls", "works", "read at another process", "the last one open")
            spans = "document.querySelectorAll('#calls tbody tr').length === 1 && "
            page.wait(
                spans + "document.querySelectorAll('#calls tbody rect.past, #calls tbody rect.open').length === 2"
            )
            await first.kill()
            page.wait("document.querySelector('#feed').innerText.includes('is silent')")
            page.wait("document.querySelector('#process').innerText === '1 process, 1 silent'")
            assert page.text("#status") == "serving"
            await call.collect(read_again=False)
            await shows(page, "ended", "#", "owner gone")


async def test_everybody_can_read_and_use_the_page(tmp_path: Path) -> None:
    async with serve(str(SERVER), env={"STORE": "memory:"}) as served:
        session = await open_session(url(served, "/mcp"), headers=HEADERS)
        call = await session.call("works", {"text": SECRET})
        await call.until_closed()
        with Browser(url(served, "/live")) as page:
            await shows(page, "calls", "works", "no connection")
            await (await session.call("fails", {"text": SECRET})).collect(read_again=False)
            await shows(page, "ended", "fails", "tool error")
            for scheme in ("light", "dark"):
                page.prefer(**{"color-scheme": scheme})
                contrasts: dict[str, float] = page.run(CONTRASTS)
                assert len(contrasts) > 5
                assert {pair: ratio for pair, ratio in contrasts.items() if ratio < 4.5} == {}
            still = "getComputedStyle(document.querySelector('#status'), '::before').animationName"
            assert page.run(still) == "beat"
            page.prefer(**{"reduced-motion": "reduce"})
            assert page.run(still) == "none"

            def press(key: str) -> Any:
                for kind in ("keyDown", "keyUp"):
                    page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9)
                return page.run("document.activeElement.id")

            assert [press("Tab") for _ in range(5)] == ["filter", "window", "pause", "calls", "ended"]
            assert page.run("document.querySelector('#said').getAttribute('aria-live')") == "polite"
            # What moves is not read out: only that one line is.
            assert page.run("document.querySelectorAll('[aria-live], [role=status], [role=log]').length") == 1
            for table in ("calls", "ended"):
                rows = page.run(f"document.querySelectorAll('#{table} tbody tr').length")
                assert page.run(f"document.querySelectorAll('#{table} tbody th[scope=row]').length") == rows > 0
            page.run("filter.value = 'nobody'")
            page.run("filter.dispatchEvent(new Event('input'))")
            assert "No call matches." in page.text("#calls")
            async with httpx.AsyncClient() as client:
                policy = (await client.get(url(served, "/live"))).headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy and page.said == []
