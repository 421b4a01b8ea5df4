"""Futures that tell their listener at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.server.network.prompt_future import PromptFuture, when_done
from tests import loops


@pytest.mark.parametrize(
    ("end", "at_once"),
    [
        (lambda future: future.set_result(7), True),
        (lambda future: future.set_exception(ValueError("no")), False),
        (lambda future: future.cancel(), False),
    ],
    ids=["result", "error", "cancelled"],
)
def test_a_result_is_told_at_once_and_all_else_in_the_next_turn(
    end: Callable[[PromptFuture[int]], Any], at_once: bool
) -> None:
    async def test() -> None:
        future: PromptFuture[int] = PromptFuture()
        told: list[asyncio.Future[int]] = []
        when_done(future, told.append)
        end(future)
        assert told == ([future] if at_once else [])
        await asyncio.sleep(0)
        assert told == [future], "once, and not again"
        future.cancelled() or future.exception()

    loops.run(test)


def test_who_listens_late_is_told_in_the_next_turn() -> None:
    async def test() -> None:
        future: PromptFuture[int] = PromptFuture()
        future.set_result(7)
        told: list[asyncio.Future[int]] = []
        future.listen(told.append)
        assert told == []
        await asyncio.sleep(0)
        assert told == [future]

    loops.run(test)


def test_it_can_be_waited_for_like_any_other() -> None:
    async def test() -> None:
        future: PromptFuture[int] = PromptFuture()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        assert await asyncio.wait_for(future, 5) == 7

    loops.run(test)


def test_what_the_listener_raises_is_not_for_who_gives_the_result() -> None:
    async def test() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: reported.append(c))
        future: PromptFuture[int] = PromptFuture()

        def listener(_: asyncio.Future[int]) -> None:
            raise ValueError("a bug")

        future.listen(listener)
        future.set_result(7)
        assert future.result() == 7
        assert str(reported[0]["exception"]) == "a bug"

    loops.run(test)
