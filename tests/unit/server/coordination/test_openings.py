"""Many tables of leases at a broker: opened some at a time, and given up some at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.core.leases.runs import ACQUIRED
from kraftpy.core.leases.state import StateAnswer
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.server.coordination import leases, led_table, led_tables, openings
from kraftpy.server.coordination.led_table import LedTable
from tests.unit.server.coordination.fake_leases import (
    GROUP,
    FakeBroker,
    FakePartition,
    FakePersister,
    Group,
    until,
)

NOT_KEPT = StateAnswer(E.INVALID_REQUEST, 0, -1, ())


class SlowPersister(FakePersister):
    """Answers no read before `answers` is set; `read_at_s` is when each came."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.read_at_s: list[float] = []

    @property
    def groups(self) -> list[str]:
        """Those of the reads."""
        return [key[0] for key, _ in self.reads]

    async def read(self, *key: Any, leader_epoch: int) -> StateAnswer:
        self.read_at_s.append(asyncio.get_running_loop().time())
        self.reads.append((key, leader_epoch))
        await self.answers.wait()
        return self.state


def slow_broker() -> tuple[FakeBroker, SlowPersister]:
    broker = FakeBroker()
    broker.share_persister = kept = SlowPersister()
    return broker, kept


def table(broker: FakeBroker, index: int = 0, group: str = GROUP) -> LedTable:
    led: Any = FakePartition(index)
    return broker.leases.table(group, led)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_358_so_many_are_opened_at_once_and_groups_take_turns() -> None:
    broker, kept = slow_broker()
    tables = [table(broker, index) for index in range(3 * openings.AT_ONCE_MAX)]
    others = [table(broker, index, "other") for index in range(4)]
    await turns()
    assert kept.groups == [GROUP] * openings.AT_ONCE_MAX
    gone = tables.pop()
    gone.close(E.NOT_LEADER_OR_FOLLOWER)
    kept.answers.set()
    await until(lambda: all(each.is_open for each in tables + others))
    assert kept.groups[openings.AT_ONCE_MAX :][:8] == [GROUP, "other"] * 4
    assert len(kept.reads) == len(tables) + 4
    await broker.leases.close()


async def test_358_what_takes_long_has_no_place_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "PLACE_S", 0.01)
    broker, kept = slow_broker()
    tables = [table(broker, index) for index in range(2 * openings.AT_ONCE_MAX)]
    await until(lambda: len(kept.reads) == len(tables))
    kept.answers.set()
    await until(lambda: all(each.is_open for each in tables))
    await broker.leases.close()


async def test_359_what_is_not_kept_is_asked_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(led_table, "NOT_KEPT_MIN_S", 0.1)
    broker, kept = slow_broker()
    kept.answers.set()
    kept.state = NOT_KEPT
    opened = table(broker)
    opened.fetches.add(lambda _: None)
    await until(lambda: len(kept.reads) == 3)
    first, second, third = kept.read_at_s
    assert second - first >= 0.07
    assert third - second >= 0.14
    kept.state = StateAnswer(E.NONE, 0, 0, ())
    await until(lambda: opened.is_open)
    await broker.leases.close()


async def test_359_what_is_not_kept_is_not_asked_again_if_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(led_table, "NOT_KEPT_MIN_S", led_table.RETRY_MAX_S)
    monkeypatch.setattr(led_table, "_spread", lambda pause_s, key: pause_s * 0.01)
    broker, kept = slow_broker()
    kept.answers.set()
    kept.state = NOT_KEPT
    unwanted = table(broker)
    await until(lambda: unwanted.closed)
    assert len(kept.reads) == 1
    assert len(broker.leases) == 0


async def test_359_a_table_that_is_not_open_gives_way_and_wakes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(led_tables, "TABLES_MAX", 2)
    broker, kept = slow_broker()
    kept.state = NOT_KEPT
    unknown = [table(broker, index, "unknown") for index in range(2)]
    woken: list[object] = []
    for each in unknown:
        each.fetches.add(woken.append)
    await until(lambda: len(kept.reads) == 2)
    with pytest.raises(KafkaError) as raised:  # what is under way may be about to open
        table(broker)
    assert raised.value.code is E.COORDINATOR_NOT_AVAILABLE
    kept.answers.set()
    await turns()
    kept.state = StateAnswer(E.NONE, 0, 0, ())
    known = table(broker)
    await until(lambda: known.is_open)
    assert [each.closed for each in unknown] == [E.NOT_LEADER_OR_FOLLOWER, None]
    assert woken == []
    assert len(broker.leases) == 2
    await broker.leases.close()


async def test_359_a_table_gives_way_also_while_it_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "AT_ONCE_MAX", 1)
    monkeypatch.setattr(led_tables, "TABLES_MAX", 2)
    broker, kept = slow_broker()
    first, second = table(broker, 0), table(broker, 1)
    await turns()
    third = table(broker, 2)
    assert second.closed
    kept.answers.set()
    await until(lambda: first.is_open and third.is_open)
    assert len(kept.reads) == 2
    await broker.leases.close()


# -- the end of sessions


async def three_of_a_group(broker: FakeBroker) -> list[Group]:
    groups = [Group(broker, 4) for _ in range(3)]
    for index, group in enumerate(groups):
        group.partition.index = index
        await group.opened()
    return groups


async def test_360_tables_are_given_up_in_turns_and_no_table_that_is_to_be_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "TOGETHER_MAX", 1)
    broker = FakeBroker()
    groups = await three_of_a_group(broker)
    tables = [group.table for group in groups]
    groups[0].begin()
    broker.leases.connection_closed("1")
    assert sum(each.closed is not None for each in tables) == 1
    left = next(each for each in tables if each.closed is None)
    again = groups[left.key.partition].table
    assert left.closed
    assert again is not left
    await until(lambda: all(each.closed for each in tables))
    assert again.closed is None
    await broker.leases.close()


async def test_360_leases_are_given_back_in_turns_and_before_a_table_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "TOGETHER_MAX", 1)
    broker = FakeBroker()
    groups = await three_of_a_group(broker)
    session = groups[0].begin()
    groups[0].begin("ben", "2")
    for group in groups:
        assert group.deal() == [(0, 3, 1)]
        session.leased_from[group.table] = None
    tables = [group.table for group in groups]
    broker.leases.end(session)
    assert [ACQUIRED in each.records_by_state() for each in tables].count(True) == 2
    for group in groups:  # its next session has begun before all of the last is given back
        assert group.deal() == []
    assert not any(ACQUIRED in each.records_by_state() for each in tables)
    await turns()
    for group in groups:
        assert group.deal() == [(0, 3, 2)]
    for group in groups:
        assert group.deal("ben") == []
    await broker.leases.close()
