"""Who takes turns, and what a turn holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kraftpy.server.coordination.turns import Turns


@pytest.mark.parametrize(("slice_s", "together"), [(0.0, 1), (60.0, 3)])
async def test_so_many_go_on_in_a_turn(slice_s: float, together: int) -> None:
    turns = Turns(asyncio.get_running_loop(), slice_s)
    done: list[int] = []
    for number in range(3):
        turns.soon(lambda number=number: done.append(number))
    assert done == []
    await asyncio.sleep(0)
    assert done == [0, 1, 2][:together]
    while len(done) < 3:
        await asyncio.sleep(0)
    assert done == [0, 1, 2]


async def test_the_others_go_on_behind_one_that_fails() -> None:
    loop = asyncio.get_running_loop()
    told: list[str] = []
    loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    turns = Turns(loop, 60.0)
    done: list[str] = []

    def fail() -> None:
        raise ValueError("no")

    work: list[Callable[[], None]] = [fail, lambda: done.append("second")]
    for each in work:
        turns.soon(each)
    while not done:
        await asyncio.sleep(0)
    assert told == ["no"]
