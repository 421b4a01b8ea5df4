"""Offsets partitions that this broker follows are read along, and taken over as they are."""

from __future__ import annotations

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_batch
from kraftpy.server.coordination import runtime
from tests.unit.server.coordination.fake_groups import (
    PARTITIONS,
    FakeHost,
    accounted,
    answer,
    record,
    soon,
)

INDEX = partition_for("g", PARTITIONS)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "READ_ALONG_INTERVAL_S", 0.001)


class Follower:
    """A broker that follows the partition of "g", whose leader wrote these offsets of it."""

    def __init__(self, *offsets: int, **settings: str) -> None:
        self.host = FakeHost(**settings)
        self.log = self.host.replicas
        self.host.lead(*range(PARTITIONS))
        self.log.lose(INDEX)
        self.host.groups.refresh()
        self.write(*offsets)
        self.host.groups.start()

    def write(self, *offsets: int) -> None:
        for offset in offsets:
            self.log.put_copy(INDEX, build_batch([record("g", offset)]))

    def knows(self, offset: int) -> bool:
        found = [m.offsets.get("g", "t", 0) for m in self.host.groups.warm_machines()]
        return any(committed is not None and committed.offset == offset for committed in found)

    async def take_over(self) -> list[int]:
        """Where the partition was read from once it was led here, while it's loaded."""
        self.log.reads.clear()
        self.log.regain(INDEX)
        self.host.groups.refresh()
        await self.host.groups.coordinator_of("g", self.host.loop.time() + 5)
        return [offset for index, offset in self.log.reads if index == INDEX]

    async def stop(self) -> None:
        await self.host.groups.stop()


async def test_who_takes_over_reads_only_what_is_new() -> None:
    follower = Follower(*range(1, 21))
    await soon(lambda: follower.knows(20))
    follower.write(21)
    await soon(lambda: follower.knows(21))
    assert await follower.take_over() == [21]  # behind 21 batches
    assert follower.host.offset() == 21
    assert await answer(follower.host.commit(30))
    assert follower.host.offset() == 30
    await follower.stop()


async def test_what_came_since_it_was_read_is_read_when_it_is_taken_over() -> None:
    follower = Follower(1)
    await soon(lambda: follower.knows(1))
    follower.log.put_copy(INDEX, build_batch([record("g", 2)]))
    assert await follower.take_over() == [1, 2]
    assert follower.host.offset() == 2
    await follower.stop()


async def test_another_log_than_was_read_is_read_anew() -> None:
    """An unclean election took back what was committed."""
    follower = Follower(1, 2)
    await soon(lambda: follower.knows(2))
    follower.log.copies[INDEX] = bytearray()
    follower.log.ends[INDEX] = 0
    follower.log.is_other_log = True
    follower.write(1)
    await soon(lambda: follower.knows(1))
    follower.log.copies[INDEX] = bytearray()
    follower.log.ends[INDEX] = 0
    follower.log.is_other_log = True
    follower.log.put_copy(INDEX, build_batch([record("g", 7)]))
    assert await follower.take_over() == [0, 1]
    assert follower.host.offset() == 7
    await follower.stop()


async def test_one_that_is_led_no_more_is_followed_from_its_start() -> None:
    follower = Follower(1)
    await soon(lambda: follower.knows(1))
    await follower.take_over()
    await answer(follower.host.commit(2))
    follower.log.lose(INDEX)
    follower.host.groups.refresh()
    with pytest.raises(KafkaError) as raised:
        follower.host.offset()
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    await soon(lambda: follower.knows(2))
    await follower.take_over()
    assert follower.host.offset() == 2
    await follower.stop()


async def test_what_can_not_be_read_is_left_to_who_leads_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower(1)
    follower.log.copies[INDEX][-1] ^= 0xFF
    await soon(lambda: "isn't read along here" in caplog.text)
    assert not follower.log.refusals
    follower.log.copies[INDEX][-1] ^= 0xFF
    assert (await follower.take_over())[0] == 0
    assert follower.host.offset() == 1
    assert caplog.text.count("isn't read along here") == 1
    await follower.stop()


async def test_nothing_is_read_along_if_it_is_switched_off() -> None:
    follower = Follower(1, **{"offsets.warm.replicas": "false"})
    assert list(follower.host.groups.warm_machines()) == []
    assert (await follower.take_over())[0] == 0
    assert follower.host.offset() == 1
    await follower.stop()


async def test_what_is_gone_is_not_followed_any_more() -> None:
    follower = Follower(1)
    await soon(lambda: follower.knows(1))
    del follower.log.copies[INDEX]
    follower.host.groups.refresh()
    assert list(follower.host.groups.warm_machines()) == []
    await follower.stop()


@pytest.mark.parametrize("how", ["gone", "taken"])
async def test_what_nobody_takes_takes_no_memory(how: str) -> None:
    follower = Follower()
    for batch in accounted():
        follower.log.put_copy(INDEX, batch)
    await soon(lambda: follower.host.group_bytes > 0)
    if how == "taken":  # by who leads no more before all that is committed is known
        follower.log.unsettled = []
        follower.log.regain(INDEX)
        follower.host.groups.refresh()
        del follower.log.led[INDEX]
    else:
        del follower.log.copies[INDEX]
    follower.host.groups.refresh()
    await soon(lambda: follower.host.group_bytes == 0)
    await follower.stop()
