"""Pace: however many tasks are at work, they share 5 ms of each of the loop's turns."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import ref

import pytest
import uvloop

from kraftpy.server.network import long_answers
from kraftpy.server.network.long_answers import SHORT_MAX_S, SLICE_MAX_S, Pace

UNIT_S = SLICE_MAX_S / 5
Run = Callable[[Coroutine[Any, Any, None]], None]


class Clock:
    """Time passes by work alone. A probe notes how long it waits between two of its turns."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.look_s = 0.0
        self.longest_s = 0.0
        self.turns = 0
        self.finished: list[object] = []

    def read(self) -> float:
        self.now_s += self.look_s
        return self.now_s

    async def probe(self) -> None:
        before_s = self.now_s
        while True:
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, self.now_s - before_s)
            before_s = self.now_s
            self.turns += 1

    async def work(self, units: int, name: object = None, unit_s: float = UNIT_S) -> None:
        pace = Pace()
        for _ in range(units):
            await pace.keep()
            self.now_s += unit_s
        self.finished.append(name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(long_answers, "perf_counter", made.read)
    return made


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run(request: pytest.FixtureRequest) -> Run:
    def run_it(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(work, 20))

    return run_it


def test_many_at_work_take_a_slice_of_each_turn_together(run: Run, clock: Clock) -> None:
    async def many() -> None:
        probe = asyncio.ensure_future(clock.probe())
        await asyncio.gather(*(clock.work(30, name) for name in range(20)))
        probe.cancel()

    run(many())
    assert sorted(map(str, clock.finished)) == sorted(map(str, range(20)))
    # Each of two queues may have its share passed by what was begun.
    assert clock.longest_s <= SLICE_MAX_S + 2 * UNIT_S + 1e-9


def test_many_that_each_take_less_than_a_slice_share_one_too(run: Run, clock: Clock) -> None:
    async def many() -> None:
        probe = asyncio.ensure_future(clock.probe())
        await asyncio.gather(*(clock.work(1, name) for name in range(100)))
        probe.cancel()

    run(many())
    assert clock.finished == list(range(100))  # first come, first served
    assert clock.longest_s <= SLICE_MAX_S + UNIT_S + 1e-9
    # As many go on in a turn as there is time for.
    assert clock.turns <= 100 * UNIT_S / SLICE_MAX_S + 3


def test_who_is_alone_goes_on_in_the_next_turn(run: Run, clock: Clock) -> None:
    async def alone() -> None:
        probe = asyncio.ensure_future(clock.probe())
        await clock.work(50)
        probe.cancel()

    run(alone())
    slices = 50 * UNIT_S / SLICE_MAX_S
    assert slices - 2 <= clock.turns <= slices


def test_who_has_little_to_do_does_not_wait_for_all_who_have_much(run: Run, clock: Clock) -> None:
    async def little_beside_much() -> None:
        much = asyncio.gather(*(clock.work(30) for _ in range(20)))
        probe = asyncio.ensure_future(clock.probe())
        while clock.turns < 50:
            await asyncio.sleep(0)
        came_s = clock.now_s
        for _ in range(3):
            await asyncio.ensure_future(clock.work(4, unit_s=SHORT_MAX_S / 4))
        assert clock.now_s - came_s <= 6 * (SLICE_MAX_S + 2 * UNIT_S)
        probe.cancel()
        await much

    run(little_beside_much())


def test_who_has_much_to_do_goes_on_however_many_come_with_little(run: Run, clock: Clock) -> None:
    async def much_beside_little() -> None:
        much = asyncio.ensure_future(clock.work(30))
        little: list[asyncio.Future[None]] = []
        began_s = clock.now_s
        while not much.done():
            little += [asyncio.ensure_future(clock.work(1, unit_s=SHORT_MAX_S)) for _ in range(20)]
            await asyncio.sleep(0)
        assert clock.now_s - began_s <= 4 * 30 * UNIT_S
        await asyncio.gather(*little)

    run(much_beside_little())


def test_who_is_cancelled_while_it_waits_leaves_its_place(run: Run, clock: Clock) -> None:
    async def cancelled() -> None:
        tasks = [asyncio.ensure_future(clock.work(30, name)) for name in range(10)]
        await asyncio.sleep(0)
        queue = long_answers._slices[asyncio.get_running_loop()]._long
        while len(queue) < 5:
            await asyncio.sleep(0)
        waiting = list(queue.values())
        for task in waiting[0], waiting[2], waiting[-1]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        lost = [isinstance(each, asyncio.CancelledError) for each in ended]
        assert lost.count(True) == 3
        assert sorted(map(str, clock.finished)) == [str(n) for n in range(10) if not lost[n]]
        assert not queue
        await clock.work(30, "afterwards")

    run(cancelled())
    assert clock.finished[-1] == "afterwards"


def test_nothing_is_left_of_a_loop_that_ended_while_tasks_waited(run: Run, clock: Clock) -> None:
    loops: list[ref[asyncio.AbstractEventLoop]] = []
    tasks: list[asyncio.Future[None]] = []

    async def left() -> None:
        loops.append(ref(asyncio.get_running_loop()))
        tasks.extend(asyncio.ensure_future(clock.work(1_000)) for _ in range(10))
        while clock.now_s < 100.0 + 10 * SLICE_MAX_S:
            await asyncio.sleep(0)
        clock.look_s = SLICE_MAX_S  # so that one goes on in a turn while they are cancelled

    run(left())
    assert all(task.cancelled() for task in tasks)
    tasks.clear()
    gc.collect()
    assert loops[0]() is None
    ended = [its for loop, its in long_answers._slices.items() if loop.is_closed()]
    assert not any(its._short or its._long for its in ended)
