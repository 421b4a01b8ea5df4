"""Headless Chromium over its DevTools pipe: pages as a browser makes them, and its complaints.

Only what the tests need: load a page at a size, run a script in it, picture it. It speaks JSON with
the browser over two pipes (--remote-debugging-pipe), so there is no port and nothing to install
beside Chromium itself.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 30.0


class ChromiumError(Exception):
    """The browser didn't do what was asked."""


class ThrownError(ChromiumError):
    """What the page was asked threw."""


def program() -> str | None:
    """Where it is, None if it isn't there."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one tab. `complaints` are errors, and what a page wrote to the console."""

    def __init__(self, folder: Path) -> None:
        self.complaints: list[str] = []
        self._folder = folder
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self._buffer = b""

    def __enter__(self) -> Chromium:
        binary = program()
        assert binary is not None
        there, self._to = os.pipe()
        self._from, back = os.pipe()
        command = [
            binary,
            "--headless=new",
            "--no-sandbox",  # tests may run as root, in containers
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
            "about:blank",
        ]

        def wire() -> None:
            """It reads from descriptor 3 and writes to 4."""
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (there, back)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            command,
            preexec_fn=wire,  # noqa: PLW1509 - tests have no other threads that matter to a fork
            close_fds=False,  # all but these two close by themselves
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    # -- the protocol

    def call(self, method: str, **params: Any) -> Any:
        """What a method of the DevTools protocol answers."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ChromiumError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], left_s)[0]:
                raise ChromiumError("the browser doesn't answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise ChromiumError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Page.loadEventFired":
                self._events.append(event)

    # -- what tests do

    def size(self, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        """From now on pages are so large, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Loads a page; returns when it is there."""
        self._events.clear()
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise ChromiumError(f"{url}: {answer['errorText']}")
        deadline = time.monotonic() + TIMEOUT_S
        while not self._events:
            self._note(self._next(deadline))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise ThrownError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = TIMEOUT_S) -> Any:
        """The value of an expression once it is true.

        One that throws isn't true yet: while a page is being left, elements are missing.
        """

        def value() -> Any:
            try:
                return self.run(expression)
            except ThrownError:
                return None

        return wait_for(value, expression, timeout_s)

    def picture(self, file: Path, height_max: int = 20_000) -> None:
        """A PNG of all of the page, or of so much of it."""
        height = min(self.run("document.documentElement.scrollHeight"), height_max)
        width = self.run("innerWidth")
        data = self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
        )["data"]
        file.write_bytes(base64.b64decode(data))


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The value of a condition once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise ChromiumError(f"it didn't happen: {what}")
        time.sleep(0.05)
    return value
