"""The shell of the transaction coordinator, over a log and leaders that the test holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.coordination import partition_for
from kraftpy.core.transactions import Markers, Wish
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import split_batches
from kraftpy.server.coordination import partition, transaction_markers
from tests.unit.server.coordination.fake_transactions import (
    ID,
    LOCAL,
    PARTITIONS,
    FakeHost,
    leading,
    topic,
)


async def test_a_transaction_from_its_begin_to_its_end() -> None:
    host = leading()
    producer = await host.open()
    assert producer == (1000, 0)
    assert await host.coordinator.admit(ID, producer, [LOCAL, ("b", 0)], adds=False) == [
        E.NONE,
        E.TRANSACTION_ABORTABLE,
    ]
    answer = await host.coordinator.end(ID, producer, 2, is_commit=True)
    assert answer == (E.NONE, 1000, 1)
    await host.reach("CompleteCommit")
    (local, to_local), (remote, to_remote) = sorted(host.written, key=lambda each: each[0])
    assert (local, remote) == (1, 2)
    for request, index in ((to_local, 0), (to_remote, 1)):
        (marker,) = request.markers
        assert (marker.producer_id, marker.producer_epoch) == (1000, 1)
        assert marker.transaction_result
        assert [(each.name, each.partition_indexes) for each in marker.topics] == [("a", [index])]
    assert len(host.coordinator._markers) == 0


@pytest.mark.parametrize(
    "failure",
    [E.NOT_LEADER_OR_FOLLOWER, ConnectionLostError("gone"), KafkaError(E.INVALID_REQUEST)],
)
async def test_markers_go_out_until_they_are_there(failure: Exception | E) -> None:
    host = leading()
    producer = await host.open()
    host.errors = [failure] * 4
    await host.coordinator.end(ID, producer, 2, is_commit=False)
    await host.reach("CompleteAbort")
    assert len(host.written) == 6


async def test_who_has_not_heard_of_the_quorum_admits_nobody() -> None:
    """Another coordinator may have ended what it believes to be open."""
    host = leading()
    producer = await host.open()
    host.in_touch = False
    for adds in (False, True):
        with pytest.raises(KafkaError) as raised:
            await host.coordinator.admit(ID, producer, [LOCAL], adds=adds)
        assert raised.value.code is E.NOT_COORDINATOR


async def test_markers_wait_for_a_leader() -> None:
    host = leading()
    producer = await host.open()
    host.metadata.topics["a"] = topic(-1, -1)
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    await asyncio.sleep(0.05)
    assert host.written == []
    host.metadata.topics["a"] = topic(2, 2)
    host.coordinator.leads_changed("a")
    await host.reach("CompleteCommit")
    assert [node for node, _ in host.written] == [2]


async def test_a_topic_that_is_deleted_needs_no_markers() -> None:
    host = leading()
    producer = await host.open()
    host.metadata.topics["a"] = topic(-1, -1)
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    del host.metadata.topics["a"]
    host.coordinator.topic_changed("a")
    await host.reach("CompleteCommit")
    assert host.written == []


async def test_the_next_coordinator_goes_on() -> None:
    host = leading()
    producer = await host.open()
    host.metadata.topics["a"] = topic(-1, -1)
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    led, host.replicas.led = host.replicas.led, {}
    host.coordinator.refresh()
    assert len(host.coordinator._markers) == 0
    with pytest.raises(KafkaError) as raised:
        host.state()
    assert raised.value.code is E.NOT_COORDINATOR
    host.metadata.topics["a"] = topic(1, 2)
    host.coordinator.leads_changed("a")
    await asyncio.sleep(0.05)
    assert host.written == []
    host.replicas.led = led
    host.replicas.epochs = dict.fromkeys(range(PARTITIONS), 5)
    host.coordinator.refresh()
    await host.coordinator.coordinator_of(ID, host.loop.time() + 5)
    await host.reach("CompleteCommit")
    assert {request.markers[0].coordinator_epoch for _, request in host.written} == {5}


async def test_a_transaction_is_aborted_when_its_time_is_over() -> None:
    host = leading()
    answer = await host.init(timeout_ms=30)
    producer = answer.producer_id, answer.producer_epoch
    await host.coordinator.add_partitions(ID, producer, [LOCAL], 2)
    await host.reach("CompleteAbort")
    ended = await host.coordinator.end(ID, producer, 2, is_commit=True)
    assert ended.error is E.INVALID_TXN_STATE


async def test_what_is_over_is_counted_by_its_result() -> None:
    host = leading()
    numbers = host.coordinator.numbers
    producer = await host.open()
    host.ahead_ms = 3000
    host.errors = [E.NOT_LEADER_OR_FOLLOWER] * 4
    await host.coordinator.end(ID, producer, 0, is_commit=True)
    assert not any(numbers.ended.values())
    await host.reach("CompleteCommit")
    assert numbers.ended == {"committed": 1, "aborted": 0, "timed_out": 0, "fenced": 0}
    assert 3 <= numbers.durations.sum < 4
    assert 0 < numbers.markers.sum < 1
    await host.coordinator.add_partitions(ID, producer, [LOCAL], 0)
    await host.coordinator.end(ID, producer, 0, is_commit=False)
    await host.reach("CompleteAbort")
    await host.open()
    await host.init()
    answer = await host.init("u", timeout_ms=30)
    await host.coordinator.add_partitions("u", (answer.producer_id, 0), [LOCAL], 0)
    async with asyncio.timeout(5):
        while not numbers.ended["timed_out"]:
            await asyncio.sleep(0.001)
    assert numbers.ended == dict.fromkeys(("committed", "aborted", "timed_out", "fenced"), 1)
    assert numbers.durations.count == numbers.markers.count == 4


async def test_late_transactions_are_told_once_in_each_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = leading()

    async def told() -> list[str]:
        caplog.clear()
        await host.coordinator.look_for_late()
        return [each.getMessage() for each in caplog.records if "transaction-late" in each.message]

    producer = await host.open()
    host.metadata.topics["a"] = topic(1, -1)
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    host.ahead_ms = 60_000
    assert await told() == []
    host.ahead_ms = 70_500
    (text,) = await told()
    assert f"transactional_id={ID} producer=1000 epoch=1 state=PrepareCommit seconds=70." in text
    assert await told() == []
    host.metadata.topics["a"] = topic(1, 2)
    host.coordinator.leads_changed("a")
    await host.reach("CompleteCommit")
    assert await told() == []
    assert host.coordinator._late == set()


async def test_very_many_that_end_at_once_end_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_markers, "TOLD_TOGETHER", 2)
    host = leading()
    host.block_size = 100
    names = [f"t-{number}" for number in range(9)]
    for name in names:
        answer = await host.init(name)
        await host.coordinator.add_partitions(name, (answer.producer_id, 0), [LOCAL], 0)
    told: list[int] = []
    written = host.coordinator._markers._written

    def counted(markers: Markers) -> None:
        told[-1] += 1
        written(markers)

    tell = host.coordinator._markers._tell
    monkeypatch.setattr(host.coordinator._markers, "_written", counted)
    monkeypatch.setattr(host.coordinator._markers, "_tell", lambda: (told.append(0), tell()))
    host.metadata.topics["a"] = topic(-1, -1)
    for name in names:
        producer_id = host.coordinator.describe(name).producer_id
        await host.coordinator.end(name, (producer_id, 0), 0, is_commit=True)
    del host.metadata.topics["a"]
    host.coordinator.topic_changed("a")
    async with asyncio.timeout(5):
        while sum(told) < len(names):
            await asyncio.sleep(0.001)
    assert [count for count in told if count] == [2, 2, 2, 2, 1]


async def test_a_newcomer_waits_for_the_abort() -> None:
    host = leading()
    await host.open()
    assert await host.init() == (E.NONE, 1000, 2)
    assert {request.markers[0].producer_epoch for _, request in host.written} == {1}


async def test_ids_come_from_the_blocks_of_the_broker() -> None:
    host = leading()
    answers = await asyncio.gather(*(host.init(f"t-{number}") for number in range(25)))
    assert {answer.error for answer in answers} == {E.NONE}
    assert len({answer.producer_id for answer in answers}) == 25
    assert host.blocks == 3


@pytest.mark.parametrize("is_too_large", [False, True])
async def test_what_is_written_in_a_turn_of_the_loop_is_one_batch(is_too_large: bool) -> None:
    host = leading()
    host.block_size = 100
    if is_too_large:
        host.replicas.batch_max_bytes = 200
    await host.init()
    names = [f"t-{number}" for number in range(100)]
    together = [name for name in names if partition_for(name, PARTITIONS) == 0]
    before = len(host.replicas.led[0])
    answers = await asyncio.gather(*map(host.init, together))
    assert {answer.error for answer in answers} == {E.NONE}
    batches = list(split_batches(host.replicas.led[0][before:]))
    assert len(together) > 10
    assert len(batches) == (len(together) if is_too_large else 1)
    assert {host.coordinator.describe(name).state.label for name in together} == {"Empty"}


async def test_a_batch_has_so_many_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "GATHERED_MAX", 4)
    host = leading()
    host.block_size = 100
    await host.producer_ids.ready()
    names = [name for name in map(str, range(60)) if partition_for(name, PARTITIONS) == 1][:10]
    answers = await asyncio.gather(*map(host.init, names))
    assert {answer.error for answer in answers} == {E.NONE}
    counts = [header.records_count for _, header in split_batches(host.replicas.led[1])]
    assert counts == [4, 4, 2]


async def test_what_was_gathered_goes_with_the_partition() -> None:
    host = leading()
    await host.producer_ids.ready()
    wish = Wish(60_000, None)
    asked = host.coordinator.write(
        ID, lambda machine, token, now_ms: machine.init_producer_id(token, ID, wish, now_ms)
    )
    host.replicas.epochs = dict.fromkeys(range(PARTITIONS), 1)
    host.coordinator.refresh()
    assert isinstance(asked, asyncio.Future)
    assert (await asked).error is E.NOT_COORDINATOR
    await asyncio.sleep(0.01)
    assert not any(host.replicas.led.values())


async def test_who_has_an_id_needs_no_controller() -> None:
    host = leading()
    await host.open()
    host.block_size = 0  # of the next
    for _ in range(9):
        host.producer_ids.take()
    assert (await host.coordinator.end(ID, (1000, 0), 2, is_commit=True)).error is E.NONE
    await host.reach("CompleteCommit")
    assert await host.init() == (E.NONE, 1000, 2)
    assert host.blocks == 1
    assert (await host.init("other")).error is E.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("name", ["", "x" * 32_768, "ü" * 20_000])
async def test_what_is_no_id(name: str) -> None:
    host = leading()
    for request in (
        host.init(name),
        host.coordinator.end(name, (1, 0), 0, is_commit=True),
        host.coordinator.add_partitions(name, (1, 0), [LOCAL], 0),
        host.coordinator.coordinator_of(name, 0),
    ):
        with pytest.raises(KafkaError) as raised:
            await request
        assert raised.value.code is E.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_timeouts_have_limits(timeout_ms: int) -> None:
    host = leading()
    assert (await host.init(timeout_ms=timeout_ms)).error is E.INVALID_TRANSACTION_TIMEOUT


async def test_ids_are_listed_and_expire() -> None:
    host = leading()
    for name in ("t", "u", "v"):
        await host.init(name)

    def names() -> list[str]:
        return sorted(name for some in host.coordinator.transactions() for name, _ in some)

    assert names() == ["t", "u", "v"]
    host.ahead_ms = host.config.transactional_id_expiration_ms
    await host.coordinator.expire()
    assert names() == ["t", "u", "v"], "the clock was set"
    interval_ms = host.config.transaction_remove_expired_transaction_cleanup_interval_ms
    host.coordinator.clock_set_s -= interval_ms / 1000  # that is past
    await host.coordinator.expire()
    assert names() == []
    with pytest.raises(KafkaError) as raised:
        host.coordinator.describe("t")
    assert raised.value.code is E.TRANSACTIONAL_ID_NOT_FOUND


async def test_stopping_gives_up() -> None:
    host = leading()
    producer = await host.open()
    host.errors = [E.NOT_LEADER_OR_FOLLOWER] * 1000
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    newcomer = asyncio.ensure_future(host.init())
    await asyncio.sleep(0.02)
    await host.coordinator.stop()
    assert (await newcomer).error is E.NOT_COORDINATOR
    count = len(host.written)
    await asyncio.sleep(0.05)
    assert len(host.written) == count


async def test_markers_for_this_broker_are_written_one_call_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = leading()
    under_way = 0

    async def write(markers: Any, appended: Any) -> Any:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        await asyncio.sleep(0)
        under_way -= 1
        appended()
        await asyncio.sleep(0)
        return await FakeHost.write_markers(host, markers, lambda: None)

    monkeypatch.setattr(host, "write_markers", write)
    for name in ("t", "u", "v"):
        answer = await host.init(name)
        producer = answer.producer_id, answer.producer_epoch
        added = await host.coordinator.add_partitions(name, producer, [LOCAL], 2)
        assert added.error is E.NONE
        ended = await host.coordinator.end(name, producer, 2, is_commit=True)
        assert ended.error is E.NONE
    async with asyncio.timeout(5):
        while len(host.written) < 3:
            await asyncio.sleep(0.001)
    await host.reach("CompleteCommit")


async def test_a_bug_in_the_way_to_a_marker_does_not_lose_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = leading()
    producer = await host.open()
    calls = 0

    async def write(markers: Any, appended: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no")
        return await FakeHost.write_markers(host, markers, appended)

    monkeypatch.setattr(host, "write_markers", write)
    await host.coordinator.end(ID, producer, 2, is_commit=True)
    await host.reach("CompleteCommit")
    assert calls == 2
    assert "a bug" in caplog.text
