"""Waiting with others for one task, as requests do for a topic or a connection that they all need.

Rules: one who goes away doesn't take the task from the others. When the task itself is given up,
because the broker stops, those who wait are told so by an error: they aren't cancelled.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def await_shared(task: asyncio.Task[T], given_up: Exception) -> T:
    """The task's result. Raises what it raises, and `given_up` if it was cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not task.cancelled() or (current is not None and current.cancelling()):
            raise
        raise given_up from None
