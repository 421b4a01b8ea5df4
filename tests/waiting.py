"""Waiting for a condition, with a deadline: in a test, and on its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 30.0
_POLL_S = 0.01
_LOOP_POLL_S = 0.002


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> float:
    """Waits until `condition()` holds; how long that took, in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)
    return time.monotonic() - started


async def until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until `condition()` holds, while the event loop goes on."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(_LOOP_POLL_S)
