"""Waiting for a condition, with a deadline: in a test, and on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftpy.testing.process import wait_until

__all__ = ["TIMEOUT_S", "until", "wait_until"]

TIMEOUT_S = 30.0
_LOOP_POLL_S = 0.002


async def until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until `condition()` holds, while the event loop goes on."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(_LOOP_POLL_S)
