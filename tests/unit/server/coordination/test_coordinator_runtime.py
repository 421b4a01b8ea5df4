"""What any coordinator gets of its runtime, shown by counters over two logs that the test holds.

The group coordinator's tests show the rest: loading in turns, doubt, the clock, the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.counters.coordinator import COUNTS_TOPIC, LIMITS_TOPIC, PARTITIONS, Counters
from tests.counters.machine import REPEAT_MS, Mirror
from tests.unit.server.coordination.fake_log import FakeLog

KEY = "k"
INDEX = partition_for(KEY, PARTITIONS)


class FakeLogs:
    """Both topics' logs, each asked by its name."""

    def __init__(self) -> None:
        self.of = {topic: FakeLog(topic) for topic in (COUNTS_TOPIC, LIMITS_TOPIC)}

    def __getattr__(self, name: str) -> Any:
        return lambda topic, *arguments: getattr(self.of[topic], name)(topic, *arguments)


class FakeHost:
    """As much of a broker as the runtime knows."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id = 1
        self.avoided: frozenset[int] = frozenset()
        self.replicas: Any = FakeLogs()
        self.counts, self.limits = self.replicas.of.values()
        partitions = {index: SimpleNamespace(leader=1) for index in range(PARTITIONS)}
        topics = dict.fromkeys((COUNTS_TOPIC, LIMITS_TOPIC), SimpleNamespace(partitions=partitions))
        self.metadata: Any = SimpleNamespace(topics=topics)
        self.controller: Any = None
        self.ahead_ms = 0
        self.messages: list[Mirror] = []
        self.counters = Counters(self, self.messages.append, replicas=1, limits=True)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000) + self.ahead_ms

    def lead(self, *logs: FakeLog) -> None:
        for log in logs:
            for index in range(PARTITIONS):
                log.led.setdefault(index, bytearray())
        self.counters.refresh()

    def follow(self, log: FakeLog) -> dict[int, bytearray]:
        """Another broker leads the topic now; what was in it."""
        led, log.led = log.led, {}
        self.counters.refresh()
        return led

    async def loaded(self) -> None:
        await self.counters.coordinator_of(KEY, self.loop.time() + 5)


def leading() -> FakeHost:
    """A host that leads all partitions of both logs."""
    host = FakeHost()
    host.lead(host.counts, host.limits)
    return host


async def answer(result: Any) -> tuple[ErrorCode, int]:
    error, value = await result if isinstance(result, Awaitable) else result
    return error, value


def refusal(request: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        request()
    return raised.value.code


async def test_both_logs_are_loaded_the_first_one_first() -> None:
    host = leading()
    assert await answer(host.counters.limit(KEY, 3)) == (ErrorCode.NONE, 3)
    assert await answer(host.counters.add(KEY, 2)) == (ErrorCode.NONE, 2)
    assert await answer(host.counters.add(KEY, 2)) == (ErrorCode.POLICY_VIOLATION, -1)
    led = host.follow(host.counts)
    assert refusal(lambda: host.counters.get(KEY)) is ErrorCode.NOT_COORDINATOR
    host.counts.led = led
    host.counters.refresh()
    assert refusal(lambda: host.counters.get(KEY)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    size_bytes = len(host.counts.led[INDEX]) + len(host.limits.led[INDEX])
    seen = []
    while progress := [each for each in host.counters.loading() if each.partition == INDEX]:
        seen += progress
        await asyncio.sleep(0)
    first_bytes = len(host.counts.led[INDEX])
    assert [each[1:] for each in dict.fromkeys(seen)] == [
        (0, 0, size_bytes),
        (1, first_bytes, size_bytes),
        (2, size_bytes, size_bytes),
    ]
    assert host.counters.get(KEY) == 2
    assert await answer(host.counters.add(KEY, 2)) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await answer(host.counters.add(KEY, 1)) == (ErrorCode.NONE, 3)


async def test_who_leads_the_first_log_waits_for_the_second() -> None:
    host = FakeHost()
    host.lead(host.counts)
    await host.counters.coordinator_of(KEY, host.loop.time())
    assert refusal(lambda: host.counters.add(KEY, 1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    host.lead(host.limits)
    await host.loaded()
    assert await answer(host.counters.add(KEY, 1)) == (ErrorCode.NONE, 1)
    led = host.follow(host.limits)
    assert refusal(lambda: host.counters.add(KEY, 1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    host.limits.led = led
    host.counters.refresh()
    await host.loaded()
    assert host.counters.get(KEY) == 1


async def test_another_epoch_of_the_second_log_loads_both_again() -> None:
    host = leading()
    machines = dict(host.counters.machines())
    host.counters.leads_changed(LIMITS_TOPIC)
    assert dict(host.counters.machines()) == machines
    host.limits.epochs[INDEX] = 1
    host.counters.leads_changed("another topic")
    assert dict(host.counters.machines()) == machines
    host.counters.leads_changed(LIMITS_TOPIC)
    await host.loaded()
    again = dict(host.counters.machines())
    assert [index for index in again if again[index] is not machines[index]] == [INDEX]


async def test_each_log_has_an_order_of_its_own() -> None:
    host = leading()
    host.counts.holds = host.limits.holds = True
    counted = host.counters.add(KEY, 1)
    limited = [host.counters.limit(KEY, most) for most in (5, 6)]
    host.limits.release(1)
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in limited)
    host.limits.release(0)
    assert [await answer(each) for each in limited] == [(0, 5), (0, 6)]
    assert not counted.done(), "nothing of the one log waits for the other"
    host.counts.release(0)
    assert await answer(counted) == (ErrorCode.NONE, 1)


async def test_disorder_in_one_log_loads_again_when_both_are_quiet() -> None:
    host = leading()
    await answer(host.counters.limit(KEY, 9))
    partition = host.counters._partitions[INDEX]
    host.counts.holds = True
    counted = host.counters.add(KEY, 1)
    host.limits.ends[INDEX] = 0
    assert await answer(host.counters.limit(KEY, 8)) == (ErrorCode.NOT_COORDINATOR, -1)
    assert await answer(counted) == (ErrorCode.NOT_COORDINATOR, -1)
    await asyncio.sleep(0.01)
    assert not partition.closed, "the count may still come, and would be missed"
    assert refusal(lambda: host.counters.get(KEY)) is ErrorCode.NOT_COORDINATOR
    host.counts.release(0)
    await asyncio.sleep(0)
    assert partition.closed
    await host.loaded()
    assert host.counters.get(KEY) == 1


async def test_messages_go_out_when_their_cause_is_committed() -> None:
    host = leading()
    host.counts.holds = True
    counted = host.counters.add(KEY, 4)
    await asyncio.sleep(0.01)
    assert host.messages == []
    host.counts.release(0)
    await answer(counted)
    assert host.messages == [Mirror(KEY, 4, 0)]
    while len(host.messages) < 3:  # it asks again
        await asyncio.sleep(REPEAT_MS / 1000)
    assert set(host.messages) == {Mirror(KEY, 4, 0)}
    await answer(host.counters.confirm(Mirror(KEY, 4, 0)))
    host.messages.clear()
    await asyncio.sleep(2 * REPEAT_MS / 1000)
    assert host.messages == []
    host.counts.epochs[INDEX] = 1
    host.counters.refresh()
    await host.loaded()
    assert host.messages == [Mirror(KEY, 4, 1)], "nobody knows that it was confirmed"
    await answer(host.counters.confirm(Mirror(KEY, 4, 0)))
    while len(host.messages) < 2:  # of the machine before
        await asyncio.sleep(REPEAT_MS / 1000)
    host.follow(host.counts)
    host.messages.clear()
    await asyncio.sleep(2 * REPEAT_MS / 1000)
    assert host.messages == []


async def test_replies_later() -> None:
    host = leading()
    waits = [host.counters.wait(KEY, 1, timeout_ms) for timeout_ms in (10_000, 20, 10_000)]
    assert await answer(waits[1]) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    machine = dict(host.counters.machines())[INDEX]
    waits[2].cancel()
    await asyncio.sleep(0)
    assert list(machine._waits) == [waits[0]], "who goes away is abandoned"
    await answer(host.counters.add(KEY, 1))
    assert await answer(waits[0]) == (ErrorCode.NONE, 1)
    assert host.counters.wait(KEY, 1, 10_000) == (ErrorCode.NONE, 1), "at once, without a future"


async def test_a_clock_that_is_set_ends_no_wait() -> None:
    host = leading()
    wait, short_wait = (host.counters.wait(KEY, 1, timeout_ms) for timeout_ms in (10_000, 20))
    host.ahead_ms = 3_600_000
    assert await answer(short_wait) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert not wait.done()
    assert await answer(host.counters.add(KEY, 1)) == await answer(wait) == (ErrorCode.NONE, 1)


async def test_the_timeout_of_a_write_ends_the_wait_alone() -> None:
    host = leading()
    host.counters.write_timeout_ms = 20
    host.limits.holds = True
    late = host.counters.limit(KEY, 0)
    assert await answer(late) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert await answer(host.counters.add(KEY, 1)) == (ErrorCode.NONE, 1)
    host.limits.release(0)
    await asyncio.sleep(0)
    assert await answer(host.counters.add(KEY, 1)) == (ErrorCode.POLICY_VIOLATION, -1)


async def test_what_all_are_to_do_waits_for_those_that_load() -> None:
    def forget_all(machine: Any, now_ms: int) -> Any:
        calls.append(machine)
        return machine.forget_all("")

    calls: list[Any] = []
    host = leading()
    keys = [f"{KEY}-{number}" for number in range(20)]
    for key in keys:
        await answer(host.counters.add(key, 1))
    host.counts.epochs[INDEX] = 1
    host.counters.refresh()
    host.counters.on_all(forget_all)
    host.counters.on_all(forget_all)
    assert len(calls) == 2 * (PARTITIONS - 1)
    await host.loaded()
    machines = dict(host.counters.machines())
    assert calls[2 * (PARTITIONS - 1) :] == [machines[INDEX]], "each thing once"
    assert {host.counters.get(key) for key in keys} == {0}


async def test_what_is_done_again_and_again_ends_with_the_coordinator() -> None:
    async def work() -> None:
        done.append(host.loop.time())

    done: list[float] = []
    host = leading()
    host.counters.every(lambda: 0.01, work)
    parked = host.counters.wait(KEY, 1, 10_000)
    while len(done) < 3:
        await asyncio.sleep(0.01)
    await host.counters.stop()
    assert await answer(parked) == (ErrorCode.NOT_COORDINATOR, -1)
    count = len(done)
    await asyncio.sleep(0.05)
    assert len(done) == count
    host.counters.refresh()
    assert list(host.counters.machines()) == []


async def test_a_damaged_second_log_keeps_the_partition_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = leading()
    await answer(host.counters.limit(KEY, 1))
    host.limits.led[INDEX][-1] ^= 0xFF
    host.counts.epochs[INDEX] = 1
    with caplog.at_level(logging.ERROR):
        host.counters.refresh()
        await host.loaded()
    assert refusal(lambda: host.counters.get(KEY)) is ErrorCode.NOT_COORDINATOR
    assert (host.counts.refusals, host.limits.refusals) == ([], [(INDEX, 0)])
    assert f"coordinator-failed partition={LIMITS_TOPIC}-{INDEX} offset=0" in caplog.text
