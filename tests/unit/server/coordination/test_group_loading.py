"""What the group coordinator loads of its topic, when, and when again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_batch
from kraftpy.server.coordination import loading
from tests.unit.server.coordination.fake_groups import (
    PARTITIONS,
    FakeHost,
    accounted,
    answer,
    coordinated,
    errors,
    record,
    soon,
    topic,
)


async def test_offsets_that_do_not_rise_make_the_partition_load_again() -> None:
    host = coordinated()
    await answer(host.commit(1)), await answer(host.commit(2))
    host.replicas.ends[partition_for("g", PARTITIONS)] = 0
    commit = host.commit(3)
    assert errors(await answer(commit)) == [ErrorCode.NOT_COORDINATOR]
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() == 2  # the log's last readable word, not a guess


async def test_what_was_committed_is_loaded_again() -> None:
    host = coordinated()
    for number in range(50):
        await answer(host.commit(number, group=f"g-{number}"))
        await answer(host.commit(number + 1, group=f"g-{number}"))
    host.replicas.led, led = {}, host.replicas.led
    host.groups.refresh()
    host.replicas.led = led
    host.groups.refresh()
    with pytest.raises(KafkaError) as raised:
        host.offset("g-7")
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError):
        list(host.groups.list_groups([], []))
    for number in range(50):
        await host.groups.coordinator_of(f"g-{number}", host.loop.time() + 5)
    assert [host.offset(f"g-{number}") for number in range(50)] == list(range(1, 51))


async def test_a_long_load_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_REPORT_INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    host.replicas.put(index, build_batch([record("g", offset) for offset in range(3)]))
    host.lead(index)
    size = len(host.replicas.led[index])
    before = list(host.groups.loading())
    await asyncio.sleep(0)  # one batch in each turn
    after = list(host.groups.loading())
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert before == [(index, 0, 0, size)]
    assert after == [(index, 3, size, size)]
    assert after[0].percent == 100
    assert list(host.groups.loading()) == []
    assert "loading, 100 % of 0 MB: 3 records, 1 committed offsets so far" in caplog.text


async def test_records_that_can_not_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    _, key, value, _ = record("g", 9)
    assert value is not None
    host.replicas.put(index, build_batch([record("g", 1), (0, b"\0\1junk", b"x", [])]))
    host.replicas.put(index, build_batch([(0, None, b"", []), (0, key, value[:-1], [])]))
    host.replicas.put(index, build_batch([(0, b"\0\x63", b"a newer kind", [])]))
    transactional = build_batch(
        [record("g", 8)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    host.replicas.put(index, transactional)
    host.lead(index)
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() == 1
    assert [entry.levelname for entry in caplog.records].count("ERROR") == 1
    assert "skipped the record at offset 1: " in caplog.text
    # The transactional one is pending.
    assert "records=2 skipped=4" in caplog.text


async def test_a_damaged_batch_keeps_the_partition_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    host.replicas.put(index, build_batch([record("g", 1)]))
    host.replicas.led[index][-1] ^= 0xFF
    host.lead(*range(PARTITIONS))
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    with pytest.raises(KafkaError) as raised:
        host.offset()
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    assert list(host.groups.list_groups([], [])) == []
    assert host.replicas.refusals == [(index, 0)]
    assert "coordinator-failed partition=" in caplog.text


async def test_a_partition_that_is_lost_while_it_loads() -> None:
    host = FakeHost()
    host.replicas.led[0] = bytearray()
    for _ in range(3):
        host.replicas.put(0, build_batch([record("g", 1)]))
    host.lead(0)
    host.replicas.led = {}
    host.groups.refresh()
    await asyncio.sleep(0.01)  # an exception of a piece to come would fail the test


async def test_a_topic_deleted_while_its_offsets_load() -> None:
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    host.replicas.put(index, build_batch([record("g", 1)]))
    host.lead(index)
    host.groups.topic_deleted("t")
    with pytest.raises(KafkaError) as refused:
        host.offset()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    await soon(lambda: host.offset() is None)
    # The log says so too: what is loaded next time doesn't bring the offset back.
    host.groups.topic_deleted(OFFSETS_TOPIC)
    host.groups.refresh()
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() is None


async def test_a_topic_deleted_while_nobody_coordinated() -> None:
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    host.replicas.put(index, build_batch([record("g", 1)]))
    del host.metadata.topics["t"]
    host.lead(index)
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    host.metadata.topics["t"] = topic(3)
    await soon(lambda: host.offset() is None)


async def test_one_piece_is_loaded_in_a_turn_however_many_partitions_there_are() -> None:
    host = FakeHost()
    for index in range(PARTITIONS):
        host.replicas.led[index] = bytearray()
        for _ in range(3):
            host.replicas.put(index, build_batch([record("g", 1)]))
    host.lead(*range(PARTITIONS))
    records = []
    while loading := list(host.groups.loading()):
        records.append([progress.records for progress in loading])
        await asyncio.sleep(0)
    sums = [sum(each) for each in records if len(each) == PARTITIONS]
    assert sums == list(range(3 * PARTITIONS + 1))
    assert all(max(each) - min(each) <= 1 for each in records[: len(sums)])  # in turn


async def test_nothing_is_loaded_before_it_is_known_what_is_committed() -> None:
    """docs/rules.md, rules 9 and 32."""
    host = FakeHost()
    host.replicas.unsettled = []
    host.lead(*range(PARTITIONS))
    await asyncio.sleep(0.01)
    with pytest.raises(KafkaError) as raised:
        host.offset()
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for settled in host.replicas.unsettled:
        settled(True)
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() is None


async def test_another_epoch_loads_again() -> None:
    """Somebody else may have led, and written, in between (rule 20)."""
    host = coordinated()
    await answer(host.commit(7))
    index = partition_for("g", PARTITIONS)
    host.replicas.put(index, build_batch([record("g", 9)]))
    host.groups.refresh()
    assert host.offset() == 7
    host.replicas.epochs[index] = 1
    host.groups.refresh()
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() == 9


async def test_a_machine_in_doubt_is_loaded_again_when_its_appends_have_ended() -> None:
    def committed(*arguments: object) -> None:
        raise IndexError("a bug")

    host = coordinated()
    host.replicas.holds = True
    commits = [host.commit(offset) for offset in (1, 2, 3)]
    await soon(lambda: len(host.replicas.held) == 3)
    partition = host.groups._partitions[partition_for("g", PARTITIONS)]
    assert partition.machine is not None
    partition.machine.committed = committed  # type: ignore[method-assign, assignment]
    host.replicas.release(0)
    codes = [errors(await answer(commit)) for commit in commits[1:]]
    assert codes == [[ErrorCode.NOT_COORDINATOR]] * 2
    with pytest.raises(KafkaError) as raised:
        host.offset()
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    host.groups.topic_deleted("other")
    host.replicas.release(1)
    await asyncio.sleep(0.01)
    assert not partition.closed  # the last commit may still come, and would be missed
    host.replicas.release(2)
    await soon(lambda: partition.closed)
    await host.groups.coordinator_of("g", host.loop.time() + 5)
    assert host.offset() == 3


@pytest.mark.parametrize("how", ["lost", "damaged"])
async def test_what_was_read_of_a_partition_that_is_not_served_takes_no_memory(how: str) -> None:
    host = FakeHost()
    index = partition_for("g", PARTITIONS)
    host.replicas.led[index] = bytearray()
    for batch in (*accounted(), *[build_batch([record("g", 2)])] * 20):
        host.replicas.put(index, batch)
    host.lead(index)
    while not host.group_bytes:  # a piece in each turn
        await asyncio.sleep(0)
    assert list(host.groups.loading())
    if how == "lost":
        host.replicas.led.clear()
        host.groups.refresh()
    else:
        host.replicas.read_error = KafkaError(ErrorCode.CORRUPT_MESSAGE)
    await soon(lambda: host.group_bytes == 0)
