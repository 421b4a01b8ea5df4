"""The event loop of tests: uvloop, as in a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def run(test: Callable[[], Coroutine[Any, Any, None]], timeout_s: float = 60) -> None:
    """Run an async test; an unhandled exception in a callback fails it."""
    unhandled: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: unhandled.append(c))
        async with asyncio.timeout(timeout_s):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert not unhandled, unhandled
