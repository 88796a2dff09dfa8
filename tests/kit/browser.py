"""A real browser without a window: Chromium, driven over its pipe (the DevTools protocol), with no further package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """Where the browser is; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One page in one browser. Used with `with`: the browser ends behind it."""

    def __init__(self, url: str, width: int = 1440, height: int = 900) -> None:
        self._url, self._size = url, (width, height)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.said: list[str] = []
        """What the page wrote to the console, and what it failed at."""

    def __enter__(self) -> Self:
        browser = program()
        assert browser is not None, "no Chromium is installed"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def as_three_and_four() -> None:
            # High numbers first, in case one of them is 3 or 4.
            ends = [os.dup2(theirs_in, 13), os.dup2(theirs_out, 14)]
            for number, end in zip((3, 4), ends, strict=True):
                os.dup2(end, number)

        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [browser, *flags], preexec_fn=as_three_and_four, pass_fds=(3, 4), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self._send("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.resize(*self._size)
        self.ask("Page.navigate", url=self._url)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the DevTools protocol for the page."""
        return self._send(method, params, self._session)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str, tries: int = 600, is_right: Callable[[Any], bool] = bool) -> Any:
        """Asks, in the page, until the value is as it should be."""
        look = f"new Promise((resolve) => setTimeout(() => resolve({script}), 50))"
        for _ in range(tries):
            value = self.run(look)
            if is_right(value):
                return value
        raise AssertionError(f"{script} is {value!r}; the page says {self.said}")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def resize(self, width: int, height: int) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """What its user prefers: `scheme="dark"`, `motion="reduce"`."""
        media = [{"name": f"prefers-{name}", "value": value} for name, value in features.items()]
        self.ask("Emulation.setEmulatedMedia", features=media)

    def picture(self, to: Path, **clip: float) -> None:
        """Takes a picture of what is on view, or of this part of the page."""
        area = {"clip": {"scale": 1, **clip}, "captureBeyondViewport": True} if clip else {}
        to.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png", **area)["data"]))

    def _send(self, method: str, params: dict[str, Any], session: str | None) -> dict[str, Any]:
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.said.append(event["params"]["entry"]["text"])
