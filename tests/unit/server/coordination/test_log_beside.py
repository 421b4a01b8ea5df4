"""The log of claims, beside a coordinator's work: read, lost, led elsewhere, damaged, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.core.groups.individual.places import ClaimsLog
from kraftpy.core.metadata.levels import TWINS
from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC as TWIN
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    decode_epoch_ranges,
    encode_ranges,
)
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.server.replication.markers import Marker
from tests.unit.server.coordination.fake_groups import (
    PARTITIONS,
    FakeHost,
    answer,
    errors,
    soon,
    topic,
)
from tests.unit.server.coordination.fake_log import FakeLog

INDEX = partition_for("g", PARTITIONS)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class TwoLogs(FakeLog):
    """The offsets topic and its twin."""

    def __init__(self) -> None:
        super().__init__(OFFSETS_TOPIC)
        self.twin = FakeLog(TWIN)

    def led_epochs(self, topic: str) -> dict[int, int]:
        return self.twin.led_epochs(topic) if topic == TWIN else super().led_epochs(topic)

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        if topic == TWIN:
            self.twin.when_settled(topic, partition, settled)
        else:
            super().when_settled(topic, partition, settled)

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        if topic == TWIN:
            return self.twin.append_records(topic, partition, batch)
        return super().append_records(topic, partition, batch)

    def append_markers(
        self, topic: str, partition: int, markers: Sequence[Marker]
    ) -> tuple[list[ErrorCode], asyncio.Future[int]]:
        if topic == TWIN:
            return self.twin.append_markers(topic, partition, markers)
        return super().append_markers(topic, partition, markers)

    def read_batches(
        self, topic: str, partition: int, start_offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        if topic == TWIN:
            return self.twin.read_batches(topic, partition, start_offset, max_bytes)
        return super().read_batches(topic, partition, start_offset, max_bytes)

    def refused(self, topic: str, partition: int, start_offset: int, size_bytes: int) -> None:
        if topic == TWIN:
            self.twin.refused(topic, partition, start_offset, size_bytes)
        else:
            super().refused(topic, partition, start_offset, size_bytes)


class Host(FakeHost):
    """A broker that coordinates "g", whose offsets topic has a twin or not."""

    replicas: TwoLogs

    def __init__(self, *, twin: bool = True) -> None:
        super().__init__()
        self.replicas = TwoLogs()
        self.metadata.level = TWINS
        self.metadata.features = {COOPERATIVE_FEATURE: 1}
        if twin:
            self.make_twin()
        self.lead(INDEX)

    def make_twin(self) -> None:
        self.metadata.topics[TWIN] = topic(PARTITIONS)
        self.replicas.twin.led[INDEX] = bytearray()

    async def propose(self, command: Any, timeout_ms: int) -> tuple[int, Any]:
        self.proposals.append(command)
        await asyncio.sleep(0)
        self.make_twin()
        self.groups.leads_changed(TWIN)
        return 1, SimpleNamespace(error=ErrorCode.NONE, message=None, value={})

    def lose_twin(self) -> dict[int, bytearray]:
        """Another broker leads it now."""
        led, self.replicas.twin.led = self.replicas.twin.led, {}
        self.groups.leads_changed(TWIN)
        return led

    def regain_twin(self, led: dict[int, bytearray]) -> None:
        self.replicas.twin.led = led
        self.replicas.twin.epochs[INDEX] = self.replicas.twin.epochs.get(INDEX, 0) + 1
        self.groups.leads_changed(TWIN)

    @property
    def machine(self) -> Any:
        ((_, machine),) = self.groups.machines()
        return machine

    async def opened(self) -> None:
        await soon(lambda: self.machine.claims.state is ClaimsLog.OPEN)

    def claim(self, *ranges: tuple[int, int]) -> Any:
        kinds = messages.OffsetCommitRequest
        tags = {OFFSET_RANGES_TAG: encode_ranges(ranges)}
        partition = kinds.OffsetCommitRequestPartition(0, -1, _tags=tags)
        wanted = [kinds.OffsetCommitRequestTopic(name="t", partitions=[partition])]
        return self.groups.commit_offsets(8, kinds(group_id="g", topics=wanted))

    async def claimed_in(self, producer_id: int, *ranges: tuple[int, int]) -> ErrorCode:
        kinds = messages.TxnOffsetCommitRequest
        tags = {OFFSET_RANGES_TAG: encode_ranges(ranges)}
        partition = kinds.TxnOffsetCommitRequestPartition(0, -1, _tags=tags)
        wanted = [kinds.TxnOffsetCommitRequestTopic("t", [partition])]
        request = kinds("x", "g", producer_id, 0, topics=wanted)
        (error,) = errors(await answer(self.groups.commit_in_transaction(5, request)))
        return ErrorCode(error)

    def mark(self, producer_id: int) -> Any:
        marker = Marker(producer_id, 0, EndTxnMarker(True, 0), 0)
        (found,) = self.groups.write_markers(TWIN, INDEX, [marker])
        return found

    async def claimed(self, *ranges: tuple[int, int]) -> ErrorCode:
        (error,) = errors(await answer(self.claim(*ranges)))
        return ErrorCode(error)

    def ranges(self) -> list[tuple[int, int]]:
        tags = self.groups.claims_of("g")("t", 0) or {}
        found = decode_epoch_ranges(tags.get(OFFSET_RANGES_TAG, b"\1"), RANGES_MAX)
        return [(first, last) for first, last, _ in found]


async def begun() -> Host:
    host = Host()
    await answer(host.commit(5))
    await host.opened()
    assert await host.claimed((7, 8), (10, 10)) is ErrorCode.NONE
    assert host.ranges() == [(7, 8), (10, 10)]
    return host


async def test_the_first_claim_makes_the_log() -> None:
    host = Host(twin=False)
    await answer(host.commit(5))
    assert host.ranges() == []
    assert await host.claimed((7, 8)) is LOADING
    await host.opened()
    (command,) = host.proposals
    (new,) = command.topics
    assert (new.name, new.twin_of, new.partitions) == (TWIN, OFFSETS_TOPIC, -1)
    assert await host.claimed((7, 8)) is ErrorCode.NONE
    assert host.ranges() == [(7, 8)]


async def test_it_is_not_made_where_claims_are_not_offered() -> None:
    host = Host(twin=False)
    await answer(host.commit(5))
    host.metadata.features.clear()
    assert await host.claimed((7, 8)) is ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
    await asyncio.sleep(0)
    assert host.proposals == []


async def test_plain_commits_go_on_while_it_is_led_elsewhere() -> None:
    host = await begun()
    machine = host.machine
    led = host.lose_twin()
    assert await host.claimed((5, 5)) is LOADING
    with pytest.raises(KafkaError) as raised:
        host.ranges()
    assert raised.value.code is LOADING
    assert errors(await answer(host.commit(6))) == [ErrorCode.NONE]
    assert errors(await answer(host.commit(2))) == [LOADING]  # claims would have to go before
    host.regain_twin(led)
    await host.opened()
    assert host.machine is machine
    assert host.ranges() == [(7, 8), (10, 10)]
    assert await host.claimed((6, 6)) is ErrorCode.NONE
    assert host.offset() == 9


async def test_another_epoch_of_it_reads_it_again() -> None:
    host = await begun()
    host.regain_twin(host.replicas.twin.led)
    assert await host.claimed((5, 5)) in (LOADING, ErrorCode.NONE)
    await host.opened()
    assert host.ranges() == [(7, 8), (10, 10)]


async def test_what_was_in_flight_when_it_was_lost_is_not_answered_as_done() -> None:
    host = await begun()
    host.replicas.twin.holds = True
    claim = asyncio.ensure_future(host.claim((12, 12)))
    led = host.lose_twin()
    assert errors(await claim) == [ErrorCode.NOT_COORDINATOR]
    host.replicas.twin.release(0)  # Too late: nobody is told.
    host.replicas.twin.holds = False
    await asyncio.sleep(0)
    host.regain_twin(led)
    await host.opened()
    # It is in the log all the same, and true.
    assert host.ranges() == [(7, 8), (10, 10), (12, 12)]


async def test_a_damaged_one_keeps_claims_waiting_until_it_is_sound() -> None:
    host = await begun()
    led = host.lose_twin()
    sound = bytes(led[INDEX])
    led[INDEX][-1] ^= 0xFF
    host.regain_twin(led)
    await soon(lambda: host.replicas.twin.refusals)
    assert await host.claimed((5, 5)) is LOADING
    assert errors(await answer(host.commit(6))) == [ErrorCode.NONE]
    led[INDEX][:] = sound
    host.regain_twin(led)
    await host.opened()
    assert host.ranges() == [(7, 8), (10, 10)]


async def test_one_that_is_behind_or_deleted_costs_repeats_and_no_skip() -> None:
    host = await begun()
    await host.claimed((5, 5))
    assert host.offset() == 6
    led = host.lose_twin()
    del host.metadata.topics[TWIN]
    host.groups.topic_deleted(TWIN)
    assert host.ranges() == []
    assert host.offset() == 6
    assert await host.claimed((6, 6)) is LOADING  # which makes it anew
    await host.opened()
    assert led[INDEX]
    assert host.ranges() == []
    assert await host.claimed((6, 6)) is ErrorCode.NONE
    assert host.offset() == 7


async def test_it_is_read_again_with_the_first_log() -> None:
    host = await begun()
    host.replicas.epochs[INDEX] = 1
    host.groups.refresh()
    await soon(lambda: list(host.groups.machines()))
    assert host.machine.claims.state is not ClaimsLog.ABSENT
    await host.opened()
    assert (host.offset(), host.ranges()) == (5, [(7, 8), (10, 10)])
    await host.groups.stop()


async def test_who_stops_answers_what_waits() -> None:
    host = await begun()
    host.replicas.twin.holds = True
    claims = [asyncio.ensure_future(host.claim((n, n))) for n in (12, 14, 16)]
    await asyncio.sleep(0)
    await host.groups.stop()
    for claim in claims:
        assert errors(await claim) == [ErrorCode.NOT_COORDINATOR]


async def test_transactions_that_claim_are_read_with_the_log() -> None:
    host = await begun()
    assert await host.claimed_in(7, (20, 21)) is ErrorCode.NONE
    assert await host.claimed_in(8, (30, 31)) is ErrorCode.NONE
    assert await host.mark(7) is ErrorCode.NONE
    assert host.ranges() == [(7, 8), (10, 10), (20, 21)]
    led = host.lose_twin()
    # Who leads it without knowing the group can't say what has taken effect.
    assert host.mark(8) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await host.claimed_in(8, (40, 41)) is LOADING
    host.regain_twin(led)
    await host.opened()
    assert host.ranges() == [(7, 8), (10, 10), (20, 21)]
    assert host.machine.claims.pending_count == 1
    assert await host.mark(8) is ErrorCode.NONE
    assert host.ranges() == [(7, 8), (10, 10), (20, 21), (30, 31)]
    assert host.machine.claims.pending_count == 0


async def test_a_marker_in_flight_when_the_log_is_lost_is_told_so() -> None:
    host = await begun()
    assert await host.claimed_in(7, (20, 21)) is ErrorCode.NONE
    host.replicas.twin.holds = True
    marked = host.mark(7)
    host.lose_twin()
    assert await marked is ErrorCode.NOT_LEADER_OR_FOLLOWER
