"""A follower's fetcher against a scripted leader, with real partitions and logs behind it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.core.metadata import Endpoint, PartitionState
from kraftpy.metrics.instruments import DISK_BUCKETS, Histogram, Replicated, TopicNumbers
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch, stamp_batch
from kraftpy.server.network.dialing import Dialer
from kraftpy.server.network.throttle import Throttle
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.replica_fetcher import ReplicaFetcher
from kraftpy.storage.flusher import Flusher
from tests.unit.client.peer import HANG_UP, SILENCE, Peer, batch, running
from tests.unit.storage.support import SMALL, TOPIC_ID, Store, with_config

DEADLINE_S = 10.0
LEADER = 1
SESSION = 77

Response = messages.FetchResponse


HELD = object()


class Leader(Peer):
    """Answers each Fetch with the next of `script`, and when that is over not at all.

    What the script says is HELD waits for `answer_held`; `left` is set when a connection ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()
        self._held: list[Callable[[Any], None]] = []
        self.versions[ApiKey.FETCH] = (4, 16)
        self.script: list[Any] = []
        self.answers[ApiKey.FETCH] = self._answer

    def _answer(self, request: Any) -> Any:
        return self.script.pop(0) if self.script else SILENCE

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super().serve(reader, writer)
        self.left.set()

    def _write(
        self, writer: asyncio.StreamWriter, key: ApiKey, version: int, header: Any, answer: Any
    ) -> None:
        write = functools.partial(super()._write, writer, key, version, header)
        if answer is HELD:
            self._held.append(write)
        else:
            write(answer)

    def answer_held(self, answer: Any) -> None:
        """Answers the request that has been held for longest."""
        self._held.pop(0)(answer)

    @property
    def fetches(self) -> list[Any]:
        return self.asked(ApiKey.FETCH)

    async def fetch(self, number: int) -> Any:
        """The fetch of this number, once it has come."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.fetches) <= number:
                await asyncio.sleep(0.001)
        return self.fetches[number]


def answer(*partitions: Any, error: ErrorCode = ErrorCode.NONE) -> Any:
    topics = [Response.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
    return Response(error_code=error, session_id=SESSION, responses=topics if partitions else [])


def data(index: int = 0, records: bytes = b"", **fields: Any) -> Any:
    fields = {"high_watermark": 0, "log_start_offset": 0, **fields}
    return Response.PartitionData(index, records=records, **fields)


def stamped(offset: int, *values: bytes, epoch: int = 1) -> bytes:
    buffer = bytearray(batch(offset, *values))
    stamp_batch(buffer, 0, offset, epoch)
    return bytes(buffer)


def named(request: Any) -> list[tuple[int, int, int]]:
    """(index, offset, leader epoch) of the partitions in a request."""
    return [
        (each.partition, each.fetch_offset, each.current_leader_epoch)
        for topic in request.topics
        for each in topic.partitions
    ]


class Follower:
    """Broker 2: its partitions, and the fetcher under test."""

    def __init__(self, store: Store, leader: Leader) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id, self.broker_epoch = 2, 9
        self.config = BrokerConfig.from_properties({"replica.fetch.backoff.ms": "20"})
        self.follower_throttle = Throttle(2**40, self.loop.time())
        self.flusher = Flusher(self.loop.call_soon_threadsafe)
        self.active_brokers: dict[int, int] = {}
        self.lag_max_ms = 30_000
        self._store = store
        self.dialer = Dialer(
            lambda _: Endpoint("PLAINTEXT", "127.0.0.1", leader.port, "PLAINTEXT"), lambda: None
        )
        self.fetcher = ReplicaFetcher(self, LEADER)

    def monotonic_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def isr_may_grow(self, partition: Partition) -> None:
        raise AssertionError("it leads nothing")

    def partition(self, index: int = 0, config: TopicConfig = SMALL) -> Partition:
        partition = Partition(
            "t",
            TOPIC_ID,
            index,
            host=self,
            log=self._store.log(partition=index),
            config=config,
            high_watermark=0,
            numbers=TopicNumbers(Histogram(DISK_BUCKETS), Replicated()),
        )
        partition.follow(state(1))
        return partition


def state(leader_epoch: int) -> PartitionState:
    return PartitionState(
        LEADER, leader_epoch, leader_epoch, (1, 2), (1, 2), directories=(TOPIC_ID, TOPIC_ID)
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "data")
    yield opened
    opened.close()


Test = Callable[[Follower, Leader], Awaitable[None]]


def run(store: Store, test: Test) -> None:
    async def main() -> None:
        leader = Leader()
        async with running(leader):
            follower = Follower(store, leader)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await test(follower, leader)
            finally:
                follower.fetcher.close()
                follower.flusher.close()

    asyncio.run(main())


def test_asks_on_where_the_records_end(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        records = stamped(0, b"a", b"b") + stamped(2, b"c")
        leader.script = [answer(data()), answer(data(records=records, high_watermark=2))]
        follower.fetcher.add(partition)
        first, second, third = [await leader.fetch(number) for number in range(3)]
        assert (first.session_id, first.session_epoch, first.max_wait_ms) == (0, 0, 0)
        assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 9)
        assert named(first) == [(0, 0, 1)]
        assert (second.session_id, second.session_epoch, named(second)) == (SESSION, 1, [])
        assert (third.session_epoch, named(third)) == (2, [(0, 3, 1)])
        assert third.topics[0].partitions[0].last_fetched_epoch == 1
        assert (partition.log.log_end_offset, partition.high_watermark) == (3, 2)
        slices = partition.log.read(0, 10_000, upper_offset=3).slices
        assert b"".join(each.read() for each in slices) == records

    run(store, test)


def test_a_change_does_not_wait_for_the_fetch_that_waits(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        leader.script = [answer(data())]
        follower.fetcher.add(follower.partition())
        await leader.fetch(1)  # held by the leader
        other = follower.partition(1)
        follower.fetcher.add(other)
        assert named(await leader.fetch(2)) == [(1, 0, 1)]

    run(store, test)


def test_a_partition_that_is_left_is_forgotten(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        leader.script = [answer(data(), data(1))]
        partition = follower.partition()
        follower.fetcher.add(partition)
        follower.fetcher.add(follower.partition(1))
        await leader.fetch(1)
        follower.fetcher.remove(partition)
        (topic,) = (await leader.fetch(2)).forgotten_topics_data
        assert (topic.topic_id, topic.partitions) == (TOPIC_ID, [0])

    run(store, test)


@pytest.mark.parametrize(
    "lost", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, None]
)
def test_starts_over_with_everything(store: Store, lost: ErrorCode | None) -> None:
    """docs/rules.md, rule 37; the same when the connection was lost."""

    async def test(follower: Follower, leader: Leader) -> None:
        leader.script = [answer(data(), data(1)), answer(error=lost) if lost else HANG_UP]
        follower.fetcher.add(follower.partition())
        follower.fetcher.add(follower.partition(1))
        again = await leader.fetch(2)
        assert (again.session_id, again.session_epoch) == (0, 0)
        assert sorted(named(again)) == [(0, 0, 1), (1, 0, 1)]

    run(store, test)


def test_two_requests_of_a_lost_session_start_it_over_once(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        gone = answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        leader.script = [answer(data()), HELD, HELD]
        follower.fetcher.add(follower.partition())
        await leader.fetch(1)
        follower.fetcher.add(follower.partition(1))
        await leader.fetch(2)
        leader.answer_held(gone)
        await asyncio.sleep(0.05)  # the fetcher takes it before the other comes
        leader.answer_held(gone)
        again = await leader.fetch(3)
        assert (again.session_id, again.session_epoch) == (0, 0)
        assert sorted(named(again)) == [(0, 0, 1), (1, 0, 1)]

    run(store, test)


def test_a_leader_that_is_gone_is_told_of_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """What was on its way when the connection was lost isn't waited for any more."""

    async def test(follower: Follower, leader: Leader) -> None:
        follower.config = BrokerConfig.from_properties({"replica.socket.timeout.ms": "1"})

        def die(_: Any) -> Any:
            follower.dialer = Dialer(lambda _: None, lambda: None)
            return HANG_UP

        leader.answers[ApiKey.FETCH] = die
        follower.fetcher.add(follower.partition())
        while "has no address" not in caplog.text:
            await asyncio.sleep(0.001)
        assert follower.loop.time() - follower.fetcher.heard_s > 0.001
        follower.fetcher.check()
        assert "has not answered" not in caplog.text

    run(store, test)


def test_closing_ends_the_connection(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        leader.script = [answer(data())]
        follower.fetcher.add(follower.partition())
        await leader.fetch(1)
        follower.fetcher.close()
        await leader.left.wait()

    run(store, test)


def test_one_that_fails_waits_by_itself(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        failed = data(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, high_watermark=-1)
        leader.script = [
            answer(failed, data(1)),
            answer(data(1, stamped(0, b"x"), high_watermark=1)),
        ]
        follower.fetcher.add(follower.partition())
        other = follower.partition(1)
        follower.fetcher.add(other)
        requests = [named(await leader.fetch(number)) for number in range(4)]
        assert sorted(requests[0]) == [(0, 0, 1), (1, 0, 1)]
        # In some order: the other goes on, and the one that failed is asked for again.
        assert sorted(each for request in requests[1:] for each in request) == [
            (0, 0, 1),
            (1, 1, 1),
        ]
        assert other.log.log_end_offset == 1

    run(store, test)


def test_an_answer_to_the_old_epoch_is_not_used(store: Store) -> None:
    """docs/rules.md, rule 3."""

    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        answers: list[Any] = [answer(data())]

        def respond(request: Any) -> Any:
            if answers:
                return answers.pop()
            if len(leader.fetches) == 2:
                # While this answer is on its way a new epoch begins, with the same leader.
                partition.follow(state(2))
                follower.fetcher.add(partition)
                return answer(data(records=stamped(0, b"old")))
            return SILENCE

        leader.answers[ApiKey.FETCH] = respond
        follower.fetcher.add(partition)
        assert named(await leader.fetch(2)) == [(0, 0, 2)]
        assert partition.log.log_end_offset == 0

    run(store, test)


def test_keeps_nothing_that_the_leader_cant_compare_any_more(store: Store) -> None:
    """What is left below the leader's log start would vouch for batches that nobody has."""

    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        lost = [(0, None, b"never committed", [])]
        own = bytearray(build_batch(lost, producer_id=7, producer_epoch=0, base_sequence=0))
        stamp_batch(own, 0, 0, 1)
        own += stamped(1, b"mine", epoch=1)
        partition.log.append_as_follower(own, 1)
        partition.follow(state(3))
        assert 7 in partition.log.producers
        parted = Response.EpochEndOffset(1, 1)
        leader.script = [
            answer(data(diverging_epoch=parted, log_start_offset=1)),
            answer(data(records=stamped(1, b"theirs", epoch=3), high_watermark=2)),
        ]
        follower.fetcher.add(partition)
        assert named(await leader.fetch(1)) == [(0, 1, 3)]
        assert named(await leader.fetch(2)) == [(0, 2, 3)]
        assert partition.log.log_start_offset == 1
        assert 7 not in partition.log.producers

    run(store, test)


def test_cuts_where_the_leaders_log_parts(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        own = bytearray(stamped(0, b"both") + stamped(1, b"mine", epoch=1))
        partition.log.append_as_follower(own, 1)
        partition.follow(state(3))
        parted = Response.EpochEndOffset(1, 1)
        leader.script = [
            answer(data(diverging_epoch=parted)),
            answer(data(records=stamped(1, b"theirs", epoch=3), high_watermark=2)),
        ]
        follower.fetcher.add(partition)
        assert named(await leader.fetch(1)) == [(0, 1, 3)]
        assert named(await leader.fetch(2)) == [(0, 2, 3)]
        assert partition.high_watermark == 2

    run(store, test)


def test_a_log_outside_of_the_leaders_starts_anew(store: Store) -> None:
    """docs/rules.md, rule 26."""

    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        gone = data(
            error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=50, last_stable_offset=60
        )
        leader.script = [answer(gone)]
        follower.fetcher.add(partition)
        assert named(await leader.fetch(1)) == [(0, 50, 1)]
        assert partition.log.log_start_offset == 50

    run(store, test)


def test_acknowledges_what_is_on_disk(store: Store) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        held: list[Callable[[], None]] = []
        partition = follower.partition(config=with_config(SMALL, flush_messages=1))
        follower.flusher = SimpleNamespace(  # type: ignore[assignment]
            close=follower.flusher.close,
            request=lambda log, offset, flushed: held.append(lambda: flushed(log.flush())),
        )
        leader.script = [answer(data()), answer(data(records=stamped(0, b"x")))]
        follower.fetcher.add(partition)
        assert named(await leader.fetch(2)) == []
        assert len(leader.fetches) == 3
        for flush in held:
            flush()
        assert named(await leader.fetch(3)) == [(0, 1, 1)]

    run(store, test)


def test_bad_batches_are_not_taken(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def test(follower: Follower, leader: Leader) -> None:
        partition = follower.partition()
        bad = bytearray(stamped(0, b"x"))
        bad[-1] ^= 1
        leader.script = [answer(data(records=bytes(bad)))]
        follower.fetcher.add(partition)
        await leader.fetch(0)
        while named(await leader.fetch(len(leader.fetches))) != [(0, 0, 1)]:
            pass
        assert partition.log.log_end_offset == 0

    run(store, test)
    assert "broker 1 sent bad batches of t-0" in caplog.text
