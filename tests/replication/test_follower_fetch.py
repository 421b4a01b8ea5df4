"""Followers' fetches at a leader, with real partitions and logs behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.config.throttled import ThrottledReplicas
from kraftpy.core.metadata import PartitionState
from kraftpy.metrics.instruments import Traffic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.network.session import Session
from kraftpy.server.network.throttle import Throttle
from kraftpy.server.replication.follower_fetch import fetch_for_follower
from kraftpy.server.replication.follower_sessions import FollowerSessions
from kraftpy.server.replication.partition import Partition
from tests.unit.client.peer import batch
from tests.unit.storage.support import SMALL, TOPIC_ID, Store, with_config

LEADER, FOLLOWER, EPOCH, BROKER_EPOCH = 1, 2, 5, 9
DEADLINE_S = 10.0


class Leader:
    """Broker 1, which leads partitions 0 and 1 of one topic in epoch 5, followed by broker 2."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id = LEADER
        self.stopping = False
        self.flusher = store.flusher
        self.active_brokers = {LEADER: 1, FOLLOWER: BROKER_EPOCH}
        self.lag_max_ms = 30_000
        self.metadata = SimpleNamespace(brokers={FOLLOWER: SimpleNamespace(epoch=BROKER_EPOCH)})
        self.leader_throttle = Throttle(2**40, 0.0)
        self.follower_sessions = FollowerSessions(iter(range(100, 200)), eager=False)
        self.replicas = self
        self.traffic = Traffic()
        self.asked_again: list[tuple[Partition, int]] = []
        self.partitions = [self._partition(store, index) for index in range(2)]

    def _partition(self, store: Store, index: int) -> Partition:
        partition = Partition(
            "t",
            TOPIC_ID,
            index,
            host=self,
            log=store.log(partition=index),
            config=SMALL,
            high_watermark=0,
            numbers=self.traffic.topic("t", TOPIC_ID),
        )
        partition.lead(state(EPOCH))
        return partition

    def monotonic_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def isr_may_grow(self, partition: Partition) -> None:
        """See `PartitionHost`; proposals are tested elsewhere."""

    def refetched(self, partition: Partition, offset: int, size_bytes: int) -> None:
        self.asked_again.append((partition, offset))

    def led_by_id(self, topic_id: bytes, index: int) -> Partition:
        if topic_id != TOPIC_ID:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.partitions[index]

    def write(self, index: int, *values: bytes) -> None:
        self.partitions[index].append(memoryview(bytearray(batch(0, *values))), 1_700_000_000_000)

    def ask(self, request: FetchRequest, version: int = 16) -> Any:
        """The answer, or a future of it."""
        session = Session("INTERNAL", peer=("127.0.0.1", 1), local=("127.0.0.1", 2))
        context = SimpleNamespace(api_version=version, may_overlap=False, session=session)
        return fetch_for_follower(self, context, request)  # type: ignore[arg-type]


def state(epoch: int) -> PartitionState:
    isr = (LEADER, FOLLOWER)
    return PartitionState(LEADER, epoch, epoch, isr, isr, directories=(TOPIC_ID, TOPIC_ID))


def request(*wanted: Any, session: tuple[int, int] = (0, 0), **options: Any) -> FetchRequest:
    kinds = FetchRequest
    replica = kinds.ReplicaState(FOLLOWER, options.pop("broker_epoch", BROKER_EPOCH))
    options = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **options}
    topics = [kinds.FetchTopic(topic_id=TOPIC_ID, partitions=list(wanted))] if wanted else []
    return kinds(
        replica_state=replica,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        **options,
    )


def want(index: int, offset: int, *, epoch: int = EPOCH, last: int = -1) -> Any:
    return FetchRequest.FetchPartition(index, epoch, offset, last, 0, 1 << 20)


def found(response: FetchResponse) -> dict[int, Any]:
    return {data.partition_index: data for each in response.responses for data in each.partitions}


def sent_bytes(data: Any) -> int:
    return sum(len(piece) for piece in data.records)


Test = Callable[[Leader], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Test], None]]:
    store = Store(tmp_path / "data")

    def runner(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(Leader(store))

        asyncio.run(main())

    yield runner
    store.close()


def test_what_is_fetched_is_what_the_follower_has(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        partition = leader.partitions[0]
        leader.write(0, b"a", b"b")
        first = leader.ask(request(want(0, 0), want(1, 0)))
        assert sent_bytes(found(first)[0]) > 0
        assert (found(first)[0].high_watermark, partition.high_watermark) == (0, 0)
        assert found(first)[1].records == []
        waiting = leader.ask(
            request(want(0, 2, last=EPOCH), session=(first.session_id, 1), max_wait_ms=5000)
        )
        assert partition.high_watermark == 2
        assert not waiting.done(), "a watermark alone is nothing to answer for"
        leader.write(1, b"c")
        answer = found(await waiting)
        assert sent_bytes(answer[1]) > 0
        assert answer[0].high_watermark == 2

    run(test)


def test_a_second_fetch_ends_the_first(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        session = leader.ask(request(want(0, 0))).session_id
        waiting = leader.ask(request(session=(session, 1), max_wait_ms=5000))
        assert not waiting.done()
        second = leader.ask(request(want(1, 0), session=(session, 2), max_wait_ms=5000))
        assert (await waiting).responses == []
        leader.write(1, b"x")
        assert 1 in found(await second)

    run(test)


def test_each_fetch_waits_its_own_time(run: Callable[[Test], None]) -> None:
    """The session's timer was started for an earlier fetch."""

    async def test(leader: Leader) -> None:
        session = leader.ask(request(want(0, 0))).session_id
        started_s = leader.loop.time()
        for epoch, wait_ms in enumerate((40, 10_000, 200), start=1):
            waiting = leader.ask(request(session=(session, epoch), max_wait_ms=wait_ms))
            assert not waiting.done()
        assert (await waiting).responses == []
        assert 0.19 < leader.loop.time() - started_s < 5
        leader.ask(request(session=(session, 4), max_wait_ms=10_000)).cancel()
        short = leader.ask(request(session=(session, 5), max_wait_ms=50))
        assert (await short).responses == []

    run(test)


@pytest.mark.parametrize("made", [1, 2, 3])
def test_what_the_leader_made_itself_is_sent_as_it_is_in_the_file(
    run: Callable[[Test], None], made: int
) -> None:
    """Batches that a coordinator appended are kept for the followers."""

    async def test(leader: Leader) -> None:
        partition = leader.partitions[0]
        leader.write(0, b"a", b"b")
        session = leader.ask(request(want(0, 0))).session_id
        asked = request(want(0, 2, last=EPOCH), session=(session, 1), max_wait_ms=5000)
        waiting = leader.ask(asked)
        for number in range(made):
            records = memoryview(bytearray(batch(0, b"%d" % number)))
            appended = partition.append(records, 1_700_000_000_000, from_client=False)
            offsets = appended.base_offset, appended.end_offset
            partition.recent.add(partition.leader_epoch, *offsets, records)
        sent = found(await waiting)[0].records
        assert all(isinstance(each, memoryview) for each in sent)
        result = partition.log.read(2, 1 << 20, upper_offset=2 + made)
        assert b"".join(sent) == b"".join(each.read() for each in result.slices)

    run(test)


def test_what_was_sent_is_not_sent_again_unasked(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        leader.write(0, b"a")
        session = leader.ask(request(want(0, 0))).session_id
        leader.write(0, b"b")
        assert leader.ask(request(session=(session, 1))).responses == []
        assert leader.asked_again == []
        again = leader.ask(request(want(0, 0), session=(session, 2)))
        assert sent_bytes(found(again)[0]) > 0
        assert leader.asked_again == [(leader.partitions[0], 0)], "are the records sound?"

    run(test)


def test_sessions(run: Callable[[Test], None]) -> None:
    """docs/rules.md, rule 37."""

    async def test(leader: Leader) -> None:
        session = leader.ask(request(want(0, 0))).session_id
        assert (
            leader.ask(request(session=(session, 7))).error_code
            == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        )
        other = leader.ask(request(want(0, 0))).session_id
        assert other != session
        gone = leader.ask(request(session=(session, 1)))
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(test)


def test_an_invented_follower_leaves_nothing_behind(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        invented = request(want(0, 0))
        for replica_id in range(FOLLOWER + 1, FOLLOWER + 9):
            invented.replica_state.replica_id = replica_id
            assert leader.ask(invented).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert len(leader.follower_sessions) == 0

    run(test)


def test_an_earlier_life_and_versions_that_do_not_name_it(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        old = leader.ask(request(want(0, 0), broker_epoch=BROKER_EPOCH - 1))
        assert old.error_code == ErrorCode.STALE_BROKER_EPOCH
        unnamed = request(want(0, 0))
        unnamed.replica_state = None
        unnamed.replica_id = FOLLOWER
        assert leader.ask(unnamed, 14).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(test)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_epochs_are_fenced_both_ways(
    run: Callable[[Test], None], epoch: int, error: ErrorCode
) -> None:
    """docs/rules.md, rules 4 and 8: neither moves the leader's view."""

    async def test(leader: Leader) -> None:
        leader.write(0, b"a")
        answer = leader.ask(request(want(0, 1, epoch=epoch, last=EPOCH), max_wait_ms=5000))
        assert found(answer)[0].error_code == error
        assert leader.partitions[0].high_watermark == 0

    run(test)


def test_a_log_that_parts_is_told_where_and_counts_for_nothing(
    run: Callable[[Test], None],
) -> None:
    async def test(leader: Leader) -> None:
        leader.write(0, b"a")
        answer = found(leader.ask(request(want(0, 9, last=EPOCH - 1), max_wait_ms=5000)))[0]
        assert answer.diverging_epoch is not None
        assert answer.records == []
        assert leader.partitions[0].high_watermark == 0

    run(test)


def test_no_watermark_goes_to_a_log_that_parts_before_it_is_told_so(
    run: Callable[[Test], None],
) -> None:
    """The answer is full with another partition's records: this one is left for the next."""

    async def test(leader: Leader) -> None:
        leader.write(0, b"a" * 500)
        leader.write(0, b"a" * 500)
        leader.write(1, b"b")
        first = leader.ask(request(want(0, 0), want(1, 9, last=EPOCH - 1), max_bytes=100))
        assert list(found(first)) == [0]
        second = leader.ask(request(session=(first.session_id, 1), max_bytes=100))
        assert found(second)[1].diverging_epoch is not None

    run(test)


def test_a_follower_outside_of_the_log_is_told_its_bounds(run: Callable[[Test], None]) -> None:
    """docs/rules.md, rule 26."""

    async def test(leader: Leader) -> None:
        leader.write(0, b"a")
        leader.write(0, b"b")
        leader.partitions[0].log.delete_records_before(1)
        answer = found(leader.ask(request(want(0, 0))))[0]
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (answer.log_start_offset, answer.last_stable_offset) == (1, 2)
        assert leader.partitions[0].high_watermark == 0

    run(test)


@pytest.mark.parametrize("how", ["deposed", "next epoch", "deleted"])
def test_lost_leadership_ends_the_wait(run: Callable[[Test], None], how: str) -> None:
    """docs/rules.md, rules 13 and 20."""

    async def test(leader: Leader) -> None:
        partition = leader.partitions[0]
        session = leader.ask(request(want(0, 0))).session_id
        waiting = leader.ask(request(session=(session, 1), max_wait_ms=5000))
        outcomes: list[ErrorCode] = []
        leader.write(0, b"never committed")
        partition.when_committed(1, outcomes.append)
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if how == "deposed":
            partition.resign()
        elif how == "next epoch":
            partition.lead(state(EPOCH + 2))
        else:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partition.close(error)
        assert outcomes == [error]
        assert found(await waiting)[0].error_code == error

    run(test)


def test_a_throttled_follower_waits_and_others_do_not(run: Callable[[Test], None]) -> None:
    async def test(leader: Leader) -> None:
        throttled = ThrottledReplicas(frozenset({(0, LEADER)}))
        config = with_config(SMALL, leader_replication_throttled_replicas=throttled)
        leader.partitions[0].update_config(config)
        out_of_sync = replace(state(EPOCH), partition_epoch=EPOCH + 1, isr=(LEADER,))
        leader.partitions[0].lead(out_of_sync)
        leader.leader_throttle = Throttle(1, leader.loop.time())
        leader.leader_throttle.spend(100)
        leader.write(0, b"a")
        leader.write(1, b"b")
        assert list(found(leader.ask(request(want(0, 0), want(1, 0))))) == [1]

    run(test)
