"""The fetcher: what is shown of batches, how positions move, what a lost broker does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.leases import FEATURE_LEVEL, LeaseLedger
from kraftpy.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import (
    ACQUIRED_TAG,
    COOPERATIVE_FEATURE,
    Cooperation,
    encode_ranges,
)
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker

from .peer import HANG_UP, Peer, batch, fetch_response, list_offsets_answer, running

T0: Partition = ("t", 0)


def fetch(
    peer: Peer,
    positions: dict[Partition, int],
    work: Callable[[Fetcher], Coroutine[Any, Any, None]],
    **options: Any,
) -> None:
    async def run() -> None:
        async with (
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=2000) as cluster,
            Fetcher(cluster, positions, max_wait_ms=20, **options) as fetcher,
        ):
            await work(fetcher)

    asyncio.run(run())


def answering(data: dict[int, bytes], *, error: int = 0) -> Callable[[Any], Any]:
    """Answers a fetch of t-0 with what stands for its offset, or nothing."""

    def answer(request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        return fetch_response({T0: data.get(offset, b"")}, error=error)

    return answer


async def values(fetcher: Fetcher, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(10):
        async for fetched in fetcher:
            found += [record.value for record in fetched.records]
            if len(found) >= count:
                return found
    raise AssertionError("the fetcher ended")


def test_records_before_the_position_are_dropped() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.FETCH] = answering({12: batch(10, b"a", b"b", b"c", b"d")})

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 2) == [b"c", b"d"]
        assert fetcher.positions == {T0: 14}

    fetch(peer, {T0: 12}, work)


def test_control_batches_are_skipped_and_passed() -> None:
    peer = Peer({"t": 1})
    marker = batch(1, b"\0\0\0\0\0\0", control=True, transactional=True, producer_id=1)
    peer.answers[ApiKey.FETCH] = answering({0: batch(0, b"a") + marker + batch(2, b"b")})

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 2) == [b"a", b"b"]
        assert fetcher.positions == {T0: 3}

    fetch(peer, {T0: 0}, work)


def test_readers_of_committed_records_pass_those_of_aborted_transactions() -> None:
    peer = Peer({"t": 1})
    marker = build_end_txn_marker(
        EndTxnMarker(committed=False, coordinator_epoch=0),
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=2,
    )
    options = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    log = batch(0, b"a") + batch(1, b"never", **options) + marker + batch(3, b"b", **options)

    def answer(request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        return fetch_response({T0: log if not offset else b""}, aborted=[(1, 1)])

    peer.answers[ApiKey.FETCH] = answer
    for isolation, expected in (
        (READ_COMMITTED, [b"a", b"b"]),
        (READ_UNCOMMITTED, [b"a", b"never", b"b"]),
    ):

        async def work(fetcher: Fetcher, expected: Any = expected) -> None:
            assert await values(fetcher, len(expected)) == expected
            assert fetcher.positions == {T0: 4}

        fetch(peer, {T0: 0}, work, isolation=isolation)
        assert {request.isolation_level for request in peer.asked(ApiKey.FETCH)} == {isolation}
        peer.requests.clear()


def test_a_position_moves_past_what_was_all_aborted() -> None:
    peer = Peer({"t": 1})
    options = {"producer_id": 1, "producer_epoch": 0, "transactional": True}

    def answer(request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        data = batch(0, b"never", **options) if not offset else b""
        return fetch_response({T0: data}, aborted=[(1, 0)])

    peer.answers[ApiKey.FETCH] = answer

    async def work(fetcher: Fetcher) -> None:
        (fetched,) = await fetcher.poll()
        assert (fetched.records, fetched.position) == ([], 1)
        assert fetcher.positions == {T0: 1}

    fetch(peer, {T0: 0}, work, isolation=READ_COMMITTED)


def test_a_batch_cut_off_by_the_limit_is_fetched_again() -> None:
    peer = Peer({"t": 1})
    second = batch(1, b"b" * 100)
    peer.answers[ApiKey.FETCH] = answering(
        {0: batch(0, b"a") + second[:80], 1: second, 2: second[:30]}
    )

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 2) == [b"a", b"b" * 100]
        assert await fetcher.poll() == []

    fetch(peer, {T0: 0}, work)


def test_compressed_batches_and_all_partitions() -> None:
    peer = Peer({"t": 2})

    def answer(request: Any) -> Any:
        offsets = {p.partition: p.fetch_offset for p in request.topics[0].partitions}
        return fetch_response(
            {
                ("t", number): batch(0, b"%d" % number, compression="gzip") if not offset else b""
                for number, offset in offsets.items()
            }
        )

    peer.answers[ApiKey.FETCH] = answer

    async def work(fetcher: Fetcher) -> None:
        assert sorted(await values(fetcher, 2)) == [b"0", b"1"]

    fetch(peer, {T0: 0, ("t", 1): 0}, work)


def test_damaged_records_are_named() -> None:
    peer = Peer({"t": 1})
    damaged = bytearray(batch(0, b"hello"))
    damaged[-3] ^= 1
    peer.answers[ApiKey.FETCH] = answering({0: bytes(damaged)})

    async def work(fetcher: Fetcher) -> None:
        with pytest.raises(KafkaError, match="t-0 from offset 0") as caught:
            await fetcher.poll()
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE

    fetch(peer, {T0: 0}, work)


@pytest.mark.parametrize(
    ("first", "second"), [(7, 1), (0, 0), (-3, 1)], ids=["ahead", "again", "behind"]
)
def test_batches_whose_offsets_do_not_ascend_are_damaged(first: int, second: int) -> None:
    """No checksum covers a batch's first offset, and all that the list of aborted says hangs on it.

    The reader would be shown what was aborted, or not be shown what is there.
    """
    peer = Peer({"t": 1})
    answers = [batch(first, b"a") + batch(second, b"b"), batch(0, b"a") + batch(1, b"b")]

    def answer(request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        return fetch_response({T0: answers.pop(0) if not offset else b""})

    peer.answers[ApiKey.FETCH] = answer

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 2) == [b"a", b"b"]
        assert fetcher.positions == {T0: 2}
        assert not answers

    fetch(peer, {T0: 0}, work)


def test_comes_back_after_a_lost_connection_and_a_moved_leader() -> None:
    peer = Peer({"t": 1})
    good = answering({0: batch(0, b"a")})

    def answer(request: Any) -> Any:
        match len(peer.asked(ApiKey.FETCH)):
            case 1:
                return HANG_UP
            case 2:
                return fetch_response({T0: b""}, error=6)
            case _:
                return good(request)

    peer.answers[ApiKey.FETCH] = answer

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 1) == [b"a"]

    fetch(peer, {T0: 0}, work)


def test_raises_an_error_that_is_not_retriable() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.FETCH] = answering({}, error=29)

    async def work(fetcher: Fetcher) -> None:
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            await fetcher.poll()

    fetch(peer, {T0: 0}, work)


def test_an_offset_outside_the_log() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 7, LATEST: 9})

    def answer(request: Any) -> Any:
        if request.topics[0].partitions[0].fetch_offset == 3:
            return fetch_response({T0: b""}, error=1)
        return answering({7: batch(7, b"a")})(request)

    peer.answers[ApiKey.FETCH] = answer

    async def refused(fetcher: Fetcher) -> None:
        with pytest.raises(KafkaError, match="offset 3 is outside the log of t-0"):
            await fetcher.poll()

    async def reset(fetcher: Fetcher) -> None:
        assert await values(fetcher, 1) == [b"a"]

    fetch(peer, {T0: 3}, refused)
    fetch(peer, {T0: 3}, reset, auto_offset_reset="earliest")


@pytest.mark.parametrize("reset", ["none", "earliest", "latest"])
def test_an_offset_that_only_the_leader_has(reset: str) -> None:
    """A replica that lost its log's end is asked by whoever takes it for the leader.

    To go elsewhere would skip records, or have all of them come again.
    """
    peer = Peer({"t": 1})
    peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 0, LATEST: 9})
    answers = [fetch_response({T0: b""}, error=1), fetch_response({T0: batch(8, b"a")})]
    empty = fetch_response({T0: b""})
    peer.answers[ApiKey.FETCH] = lambda request: answers.pop(0) if answers else empty

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 1) == [b"a"]
        assert fetcher.positions == {T0: 9}

    fetch(peer, {T0: 8}, work, auto_offset_reset=reset)


def test_dropping_every_partition_ends_the_iteration() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.FETCH] = answering({0: batch(0, b"a")})

    async def work(fetcher: Fetcher) -> None:
        async with asyncio.timeout(10):
            async for fetched in fetcher:
                fetcher.drop(fetched.topic, fetched.partition)

    fetch(peer, {T0: 0}, work)


def mixed_response(good: bytes, error: int) -> Any:
    """Records of t-0, an error of t-1."""
    response = fetch_response({T0: good})
    response.responses += fetch_response({("t", 1): b""}, error=error).responses
    return response


def test_an_error_of_one_partition_loses_no_records_of_another() -> None:
    peer = Peer({"t": 2})

    def answer(request: Any) -> Any:
        offsets = {p.partition: p.fetch_offset for p in request.topics[0].partitions}
        if offsets[0] == 0:
            return mixed_response(batch(0, b"a", b"b"), 6)
        return fetch_response({("t", 1): batch(0, b"c") if offsets[1] == 0 else b""})

    peer.answers[ApiKey.FETCH] = answer

    async def work(fetcher: Fetcher) -> None:
        assert sorted(await values(fetcher, 3)) == [b"a", b"b", b"c"]

    fetch(peer, {T0: 0, ("t", 1): 0}, work)


def test_an_error_that_is_not_retriable_is_raised_after_the_records_of_another() -> None:
    peer = Peer({"t": 2})
    peer.answers[ApiKey.FETCH] = lambda request: mixed_response(batch(0, b"a"), 29)

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 1) == [b"a"]
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            await fetcher.poll()

    fetch(peer, {T0: 0, ("t", 1): 0}, work)


def test_what_was_fetched_for_another_position_is_thrown_away() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.FETCH] = answering({0: batch(0, b"a", b"b"), 2: batch(2, b"c")})

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 2) == [b"a", b"b"]
        # The fetch from offset 2 is under way.
        fetcher.positions[T0] = 1
        peer.answers[ApiKey.FETCH] = answering({1: batch(0, b"a", b"b"), 2: batch(2, b"c")})
        assert await values(fetcher, 2) == [b"b", b"c"]

    fetch(peer, {T0: 0}, work)


def test_a_partition_without_leader_holds_up_no_other() -> None:
    peer = Peer({"t": 2})
    peer.answers[ApiKey.FETCH] = answering({0: batch(0, b"a")})

    def metadata(request: Any) -> Any:
        response = peer._metadata(request)
        response.topics[0].partitions[1].leader_id = -1
        return response

    peer.answers[ApiKey.METADATA] = metadata

    async def work(fetcher: Fetcher) -> None:
        assert await values(fetcher, 1) == [b"a"]

    fetch(peer, {T0: 0, ("t", 1): 0}, work)


def test_leases_that_come_again_behind_a_lost_answer_are_taken_once() -> None:
    peer = Peer({"t": 1})
    peer.features[COOPERATIVE_FEATURE] = FEATURE_LEVEL

    def leasing(last: int, records: bytes) -> Any:
        answer = fetch_response({T0: records})
        answer.responses[0].partitions[0]._tags = {ACQUIRED_TAG: encode_ranges([(0, last)])}
        return answer

    first, second = batch(0, b"a", b"b"), batch(2, b"c", b"d")
    answers = iter([leasing(1, first), HANG_UP, leasing(3, first + second)])
    peer.answers[ApiKey.FETCH] = lambda request: next(answers, fetch_response({}))

    async def work(fetcher: Fetcher) -> None:
        ledger = fetcher.ledgers[T0] = LeaseLedger()
        ledger.add([], 0)
        fetcher.cooperation = Cooperation("g", "ann", 1, 6000)
        assert await values(fetcher, 2) == [b"a", b"b"]
        assert ledger.turn().position == 2
        assert await values(fetcher, 2) == [b"c", b"d"]

    fetch(peer, {T0: 0}, work, ahead=False)
