"""A consumer of slices: what it asks for, hands out and claims."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.commits import Claiming
from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import Generation, GroupMetadata
from kraftpy.client.ledger import Claim
from kraftpy.client.offsets import EARLIEST, LATEST
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import KEY_RANGES_MAX, KEY_RANGES_TAG, decode_ranges
from kraftpy.protocol.key_hash import HASH_MAX, key_hash

from .peer import list_offsets_answer, running
from .slices_peer import FULL, T0, TOO_OLD, SlicesPeer

LOW = (0, (1 << 62) - 1)
HIGH = (1 << 62, HASH_MAX)
KEYS: list[bytes | None] = [b"%d" % (number % 7) if number % 5 else None for number in range(60)]


def offsets_of(slice_: tuple[int, int]) -> list[int]:
    return [
        offset for offset, key in enumerate(KEYS) if slice_[0] <= key_hash(key, offset) <= slice_[1]
    ]


def consume(peer: SlicesPeer, work: Callable[[Consumer], Awaitable[None]], **options: Any) -> None:
    defaults = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}

    async def run() -> None:
        async with (
            asyncio.timeout(20),
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=2000) as cluster,
            Consumer(cluster, fetch_max_wait_ms=10, **(defaults | options)) as consumer,
        ):
            await work(consumer)

    asyncio.run(run())


async def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in await consumer.poll(100, max_records=7)]
    return found


async def read_to(consumer: Consumer, end: int) -> list[int]:
    found: list[int] = []
    while await consumer.position(T0) < end:
        found += [record.offset for record in await consumer.poll(100)]
    return found


@pytest.fixture
def peer() -> SlicesPeer:
    return SlicesPeer(KEYS)


@pytest.mark.parametrize("feature", [True, False])
def test_slices_are_read_alone_whoever_sends_more(feature: bool) -> None:
    peer = SlicesPeer(KEYS, feature=feature)

    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        assert consumer.shares == {T0: [LOW]}
        assert await read_to(consumer, 60) == offsets_of(LOW)

    consume(peer, work, group_id=None)
    asked = [request.topics[0].partitions[0]._tags for request in peer.asked(ApiKey.FETCH)]
    if feature:
        assert {tuple(decode_ranges(tags[KEY_RANGES_TAG], KEY_RANGES_MAX)) for tags in asked} == {
            (LOW,)
        }
    else:
        assert asked
        assert not any(asked)


def test_an_empty_list_is_the_whole_partition(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: []})
        assert consumer.shares == {T0: []}
        assert await read_to(consumer, 60) == list(range(60))
        await consumer.commit()

    consume(peer, work)
    assert peer.stable == 60
    assert all(not request.topics[0].partitions[0]._tags for request in peer.asked(ApiKey.FETCH))


def test_two_slices_together_move_the_stable_offset(peer: SlicesPeer) -> None:
    async def low(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        assert await read_to(consumer, 60) == offsets_of(LOW)
        await consumer.commit()
        claims = await consumer.committed_ranges([T0])
        assert claims == {T0: [Claim(*LOW, 0, 59)]}

    found: list[int] = []

    async def high(consumer: Consumer) -> None:
        consumer.assign({T0: [HIGH]})
        found.extend(await read(consumer, 7))
        await consumer.commit()
        assert await consumer.committed([T0]) == {T0: peer.stable}

    consume(peer, low)
    assert peer.stable == 0
    consume(peer, high)
    assert found[-1] < peer.stable <= offsets_of(HIGH)[len(found)]


def test_what_is_claimed_is_never_handed_out_again(peer: SlicesPeer) -> None:
    """Whoever has it next reads what isn't, whatever slices he has."""

    async def some(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        assert await read_to(consumer, 60) == offsets_of(LOW)
        await consumer.commit()

    async def whole(consumer: Consumer) -> None:
        consumer.assign([T0])
        assert await read_to(consumer, 60) == offsets_of(HIGH)
        await consumer.commit()

    consume(peer, some)
    consume(peer, whole)
    assert peer.stable == 60


def test_what_is_done_out_of_order_is_committed_so(peer: SlicesPeer) -> None:
    """The draft's example, by hand: gaps are amended after a restart."""

    async def first(consumer: Consumer) -> None:
        consumer.assign([T0])
        records = await consumer.poll(1000)
        assert [record.offset for record in records] == list(range(10))
        for offset in (3, 4, 5, 8, 9):
            consumer.done(records[offset])
        await consumer.commit()

    async def second(consumer: Consumer) -> None:
        consumer.assign([T0])
        records = await consumer.poll(1000)
        assert [record.offset for record in records] == [0, 1, 2, 6, 7]
        for record in records[1:]:
            consumer.done(record)
        await consumer.commit()

    consume(peer, first, explicit_done=True)
    assert peer.stable == 0
    assert [(claim.first, claim.last) for claim in peer.claims] == [(3, 5), (8, 9)]
    consume(peer, second, explicit_done=True)
    assert peer.stable == 0
    assert [(claim.first, claim.last) for claim in peer.claims] == [(1, 9)]


def test_without_the_feature_what_is_done_out_of_order_is_committed_as_far_as_it_has_no_gap() -> (
    None
):
    peer = SlicesPeer(KEYS, feature=False)

    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        records = await consumer.poll(1000)
        await consumer.commit()
        assert peer.stable == 0
        for offset in (0, 1, 2, 5, 7):
            consumer.done(records[offset])
        await consumer.commit()
        assert peer.stable == 3

    consume(peer, work, explicit_done=True)


def test_without_the_feature_slices_can_t_be_committed() -> None:
    """Its coordinator would store the offset of a claim, or pass over what others have to do."""
    peer = SlicesPeer(KEYS, feature=False)

    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read_to(consumer, 60)
        with pytest.raises(KafkaError) as caught:
            await consumer.commit()
        assert caught.value.code == ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
        with pytest.raises(KafkaError):
            await consumer.commit({T0: 30})

    consume(peer, work)
    assert peer.stable == -1


def test_who_begins_second_begins_where_the_first_one_did(peer: SlicesPeer) -> None:
    """At the log's end at different times, they would leave a gap that nobody reads."""

    async def first(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        assert await consumer.position(T0) == 60

    async def second(consumer: Consumer) -> None:
        consumer.assign({T0: [HIGH]})
        assert await consumer.position(T0) == 60

    consume(peer, first, auto_offset_reset="latest")
    assert peer.stable == 60
    consume(peer, second, auto_offset_reset="earliest")


def test_what_is_too_old_is_done(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read(consumer, 3)
        peer.stable, peer.codes = 40, [TOO_OLD]
        await consumer.commit()
        assert await read_to(consumer, 60) == [o for o in offsets_of(LOW) if o >= 40]

    consume(peer, work)


def test_a_full_group_is_fetched_no_more_until_a_hole_is_filled(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read(consumer, 3)
        peer.codes = [FULL]
        with pytest.raises(KafkaError) as caught:
            await consumer.commit()
        assert caught.value.code == ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        while await consumer.poll(50):
            pass
        asked = len(peer.asked(ApiKey.FETCH))
        assert not await consumer.poll(100)
        assert len(peer.asked(ApiKey.FETCH)) == asked
        await consumer.commit()
        await read_to(consumer, 60)

    consume(peer, work)


def test_a_user_commits_his_slices_up_to_an_offset(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read_to(consumer, 60)
        await consumer.commit({T0: 30})
        assert await consumer.committed_ranges([T0]) == {T0: [Claim(*LOW, 0, 29)]}

    consume(peer, work)


def test_slices_that_come_later_are_read_from_where_they_were_left(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        found = await read_to(consumer, 60)
        await consumer.commit()
        consumer.assign({T0: [LOW, HIGH]})
        found += await read(consumer, len(offsets_of(HIGH)))
        assert sorted(found) == list(range(60))
        await consumer.commit()
        assert peer.stable == 60

    consume(peer, work)


def test_a_whole_partition_that_is_cut_goes_on_where_it_was(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        found = await read(consumer, 14)
        await consumer.commit()
        consumer.assign({T0: [LOW]})
        low = await read_to(consumer, 60)
        assert low == [o for o in offsets_of(LOW) if o >= len(found)]
        consumer.assign([T0])
        left = sorted({*range(60)} - {*found} - {*low})
        assert await read(consumer, len(left)) == left

    consume(peer, work)


def test_seeking_goes_for_all_slices(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read_to(consumer, 60)
        await consumer.commit()
        consumer.seek(T0, 20)
        assert await read_to(consumer, 60) == [o for o in offsets_of(LOW) if o >= 20]

    consume(peer, work)


@pytest.mark.parametrize("reset", ["earliest", "none"])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("group_id", ["g", None])
def test_who_seeks_before_anything_was_read_has_his_slices_alone(
    peer: SlicesPeer, group_id: str | None, paused: bool, reset: str
) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        if paused:
            consumer.pause([T0])
        consumer.seek(T0, 20)
        assert await consumer.position(T0) == 20
        if paused:
            assert not await consumer.poll(20)
            consumer.resume([T0])
        assert await read_to(consumer, 60) == [o for o in offsets_of(LOW) if o >= 20]
        consumer.seek(T0, 50)
        consumer.assign({T0: [LOW, HIGH]})
        consumer.seek(T0, 40)
        assert await read_to(consumer, 60) == [*range(40, 60)]
        if group_id is not None:
            await consumer.commit()

    consume(peer, work, group_id=group_id, auto_offset_reset=reset)
    assert peer.stable == (-1 if group_id is None else 60)


def test_slices_of_which_is_sought_before_they_are_whole_are_read_as_a_whole(
    peer: SlicesPeer,
) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        consumer.seek(T0, 20)
        consumer.assign([T0])
        assert await read_to(consumer, 60) == [*range(20, 60)]

    consume(peer, work)


def test_nothing_of_others_is_committed_before_anything_was_read(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        consumer.seek(T0, 30)
        await consumer.commit()
        await consumer.commit({T0: 30})
        assert await consumer.committed_ranges([T0]) == {T0: [Claim(*LOW, 0, 29)]}

    consume(peer, work)
    assert peer.stable == 0


def test_out_of_order_what_was_sought_is_done_when_it_is(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        consumer.seek(T0, 20)
        (record, *_) = await consumer.poll(1000)
        await consumer.commit()
        assert peer.stable == record.offset == 20
        consumer.done(record)
        await consumer.commit()
        assert peer.stable == 21

    consume(peer, work, explicit_done=True)


def test_who_seeks_past_a_record_has_still_to_do_what_was_handed_out_before(
    peer: SlicesPeer,
) -> None:
    """A record that can't be read was nobody's to do; those in front of it are under way."""

    def read_value(value: bytes) -> bytes:
        if value == b"5":
            raise ZeroDivisionError
        return value

    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        records = await consumer.poll(1000)
        assert [record.offset for record in records] == [*range(5)]
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(1000)
        consumer.seek(T0, 6)
        for record in records[1:]:
            consumer.done(record)
        await consumer.commit()
        assert peer.stable == 0
        consumer.done(records[0])
        await consumer.commit()
        assert peer.stable == 6

    consume(peer, work, explicit_done=True, value_deserializer=read_value)


def test_who_rewinds_before_anything_was_committed_goes_on_where_he_began() -> None:
    """Out of order, and without claims, nobody else has noted where that was: not the log's end."""
    peer = SlicesPeer(KEYS[:30], feature=False)

    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        assert await consumer.position(T0) == 30
        peer.keys = KEYS
        peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 0, LATEST: len(KEYS)})
        assert (await read(consumer, 5))[0] == 30
        consumer.rewind()
        assert (await read(consumer, 5))[0] == 30

    consume(peer, work, explicit_done=True, auto_offset_reset="latest")


def test_slices_that_are_behind_the_log_skip_nothing_of_those_that_are_not() -> None:
    """Those go where auto.offset.reset says, as a member would that had them alone."""
    peer = SlicesPeer(KEYS)
    fetch, starts = peer._fetch, 0

    def fetch_from_the_start(request: Any) -> Any:
        if request.topics[0].partitions[0].fetch_offset >= starts:
            return fetch(request)
        kinds = messages.FetchResponse
        data = kinds.PartitionData(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return kinds(responses=[kinds.FetchableTopicResponse(topic="t", partitions=[data])])

    async def work(consumer: Consumer) -> None:
        nonlocal starts
        consumer.assign({T0: [LOW]})
        low = await read(consumer, 12)
        consumer.assign({T0: [LOW, HIGH]})
        starts = 12
        assert low[-1] > starts
        peer.answers[ApiKey.FETCH] = fetch_from_the_start
        peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: starts, LATEST: 60})
        low += await read(consumer, len(offsets_of(LOW)) - len(low))
        assert low == offsets_of(LOW)

    peer.stable = 0
    consume(peer, work, auto_offset_reset="latest")


def test_what_a_paused_partition_had_fetched_comes_later(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        found = [record.offset for record in await consumer.poll(1000, max_records=2)]
        consumer.pause([T0])
        assert not await consumer.poll(50)
        consumer.resume([T0])
        found += await read_to(consumer, 60)
        assert found == offsets_of(LOW)

    consume(peer, work)


def test_auto_commit_claims_what_was_handed_out(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        await read_to(consumer, 60)

    consume(peer, work, enable_auto_commit=True)
    assert list(peer.claims)[-1][2:] == (0, 59)


@pytest.mark.parametrize("explicit", [False, True])
def test_what_was_in_hand_when_an_error_ended_the_block_is_not_claimed(
    peer: SlicesPeer, explicit: bool
) -> None:
    expected = offsets_of(LOW)

    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        done, found = [], []
        while len(done) < 3:
            done += found
            found = await consumer.poll(100, max_records=1)
        for record in done if explicit else ():
            consumer.done(record)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume(peer, work, enable_auto_commit=True, explicit_done=explicit)
    claimed = [
        offset
        for offset in expected
        if any(claim.first <= offset <= claim.last for claim in peer.claims)
    ]
    assert claimed == expected[:3]


def test_many_done_records_are_committed_before_their_time(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        consumer.assign([T0])
        for _ in range(3):
            for record in await consumer.poll(1000):
                consumer.done(record)
        while peer.stable < 20:
            await consumer.poll(20)

    options = {"explicit_done": True, "enable_auto_commit": True}
    consume(peer, work, **options, auto_commit_interval_ms=60_000, max_num_ranges_to_commit=15)


def test_what_makes_no_sense_is_refused(peer: SlicesPeer) -> None:
    async def work(consumer: Consumer) -> None:
        with pytest.raises(ValueError, match="slice"):
            consumer.assign({T0: [(5, 4)]})
        consumer.assign([T0])
        (record, *_) = await consumer.poll(1000)
        with pytest.raises(ValueError, match="explicit_done"):
            consumer.done(record)

    consume(peer, work)
    with pytest.raises(ValueError, match="needs a group_id"):
        consume(peer, work, group_id=None, explicit_done=True)


def test_a_transaction_claims_parts_of_partitions(peer: SlicesPeer) -> None:
    """An offset would pass over the records of others."""

    async def work(consumer: Consumer) -> None:
        consumer.assign({T0: [LOW]})
        records = await read_to(consumer, 60)
        metadata = consumer.group_metadata
        assert metadata == GroupMetadata("g", Generation())
        assert metadata.done is not None
        claiming = metadata.done(None)[T0]
        assert isinstance(claiming, Claiming)
        assert claiming.dues.accounts == [([(LOW[0], LOW[1] + 1)], [(0, 59)])]
        # What was aborted comes again.
        consumer.rewind()
        assert await read_to(consumer, 60) == records == offsets_of(LOW)

    consume(peer, work)
