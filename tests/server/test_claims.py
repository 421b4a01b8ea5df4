"""Claims on parts of a partition, over the wire: their log, and what a crash leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.extensions import (
    ACCEPT_INDIVIDUAL_COMMIT_TAG,
    LAST_STABLE_OFFSET_TAG,
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    SLICES_TAG,
    WANT_RANGES_TAG,
    YES,
    decode_epoch_ranges,
    decode_epoch_slices,
    decode_int64,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.testing import Broker
from tests.server.test_transactional_offsets import Group
from tests.server.wire import Wire
from tests.waiting import wait_until

TWIN = "__individual_commit_offsets"
HALF = HASH_MAX // 2
LOW, HIGH = (0, HALF), (HALF + 1, HASH_MAX)

Ranges = list[tuple[int, int]]


class Claimer(Group):
    """A group without members, of which somebody claims records."""

    def claim(
        self,
        topic: str,
        ranges: Ranges | None = None,
        slices: list[tuple[tuple[int, int], Ranges]] | None = None,
        *,
        offset: int = -1,
        version: int = 8,
        **who: Any,
    ) -> tuple[E, int]:
        """The error and the stable offset."""
        tags = {}
        if ranges is not None:
            tags[OFFSET_RANGES_TAG] = encode_ranges(ranges)
        if slices is not None:
            tags[SLICES_TAG] = encode_slices([(*hashes, its) for hashes, its in slices])
        kinds = m.OffsetCommitRequest
        partition = kinds.OffsetCommitRequestPartition(0, offset, 3, _tags=tags)
        wanted = [kinds.OffsetCommitRequestTopic(topic, partitions=[partition])]
        request = kinds(self.group_id, topics=wanted, **who)
        answer = self._wire.call(ApiKey.OFFSET_COMMIT, version, request)
        (partition,) = answer.topics[0].partitions
        tags = partition._tags or {}
        stable = decode_int64(tags[LAST_STABLE_OFFSET_TAG])
        return E(partition.error_code), stable

    def claim_soon(self, topic: str, *claims: Any, **more: Any) -> int:
        """The stable offset, once the log of the claims is there."""
        answer: list[tuple[E, int]] = []

        def is_taken() -> bool:
            answer[:] = [self.claim(topic, *claims, **more)]
            return answer[0][0] is not E.COORDINATOR_LOAD_IN_PROGRESS

        wait_until(is_taken, "the log of the claims")
        error, stable = answer[0]
        assert error is E.NONE
        return stable

    def ranges(self, topic: str, *, wants: bytes = YES) -> tuple[int, Any, Any] | E:
        """The offset, ranges for all hashes, and those for some."""
        kinds = m.OffsetFetchRequest
        topics = [kinds.OffsetFetchRequestTopics(topic, partition_indexes=[0])]
        group = kinds.OffsetFetchRequestGroup(
            self.group_id, member_id=None, member_epoch=-1, topics=topics
        )
        request = kinds(groups=[group], _tags={WANT_RANGES_TAG: wants})
        (answer,) = self._wire.call(ApiKey.OFFSET_FETCH, 8, request).groups
        if answer.error_code:
            return E(answer.error_code)
        (partition,) = answer.topics[0].partitions
        tags = partition._tags or {}
        return (
            partition.committed_offset,
            decode_epoch_ranges(tags.get(OFFSET_RANGES_TAG, b"\1"), RANGES_MAX),
            decode_epoch_slices(tags.get(SLICES_TAG, b"\1"), RANGES_MAX),
        )

    def ranges_soon(self, topic: str) -> Any:
        answer: list[Any] = []

        def is_told() -> bool:
            answer[:] = [self.ranges(topic)]
            return not isinstance(answer[0], E)

        wait_until(is_told, "the claims")
        return answer[0]


@pytest.fixture
def claimer(wire: Wire, request: pytest.FixtureRequest) -> Claimer:
    return Claimer(wire, f"group-{request.node.name}")


def topics_of(wire: Wire) -> dict[str, Any]:
    answer = wire.call(ApiKey.METADATA, 12, m.MetadataRequest(topics=None))
    return {topic.name: topic for topic in answer.topics}


def test_the_drafts_example(wire: Wire, claimer: Claimer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 41) is E.NONE
    assert claimer.claim_soon(topic, [(43, 45), (48, 49)]) == 41
    assert claimer.ranges(topic) == (41, [(43, 45, 3), (48, 49, 3)], [])
    assert claimer.ranges(topic, wants=b"\0") == (41, [], [])
    assert claimer.claim(topic, [(41, 42), (46, 47), (50, 50)]) == (E.NONE, 51)
    assert claimer.ranges(topic) == (51, [], [])
    assert claimer.claim(topic, [(44, 47)]) == (E.INDIVIDUAL_COMMIT_TOO_OLD, 51)
    found = topics_of(wire)
    twin, offsets = found[TWIN], found["__consumer_offsets"]
    assert twin.is_internal
    assert len(twin.partitions) == len(offsets.partitions)


def test_slices(claimer: Claimer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 0) is E.NONE
    assert claimer.claim_soon(topic, None, [(LOW, [(0, 9)])]) == 0
    assert claimer.claim(topic, None, [(HIGH, [(0, 4), (8, 8)])]) == (E.NONE, 5)
    slices = [(*LOW, [(0, 9, 3)]), (*HIGH, [(8, 8, 3)])]
    assert claimer.ranges(topic) == (5, [], slices)


def test_bad_ones_change_nothing(claimer: Claimer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 5) is E.NONE
    assert claimer.claim_soon(topic, [(7, 8)]) == 5
    for ranges in (
        [(9, 8)],
        [(9, 12), (11, 13)],
        [(-3, 1)],
        [(2 * n, 2 * n) for n in range(60_001)],
    ):
        assert claimer.claim(topic, ranges) == (E.INVALID_REQUEST, 5)
    assert claimer.claim(topic, [(9, 9)], offset=9) == (E.INVALID_REQUEST, 5)
    zombie = {"member_id": "zombie", "generation_id_or_member_epoch": 4}
    with pytest.raises(KeyError):  # The whole request is refused, as ever.
        claimer.claim(topic, [(9, 9)], **zombie)
    assert claimer.ranges(topic) == (5, [(7, 8, 3)], [])


def test_very_many_are_claimed_in_parts(claimer: Claimer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 5) is E.NONE
    many = [(2 * n, 2 * n) for n in range(3_000)]
    assert claimer.claim_soon(topic, many) == 5
    assert claimer.ranges(topic) == (5, [(*each, 3) for each in many if each[0] >= 5], [])
    assert claimer.claim(topic, many) == (E.NONE, 5)
    assert claimer.claim(topic, [(5, 6_000)]) == (E.NONE, 6_001)
    assert claimer.claim(topic, many) == (E.INDIVIDUAL_COMMIT_TOO_OLD, 6_001)
    # What can't be is seen before anything is claimed.
    many = [(7_000 + 2 * n, 7_000 + 2 * n) for n in range(3_000)]
    assert claimer.claim(topic, [*many, (7_000, 7_000)]) == (E.INVALID_REQUEST, 6_001)
    assert claimer.ranges(topic) == (6_001, [], [])


@pytest.mark.parametrize("version", [6, 9])
def test_who_joins_may_ask_whether_it_may_claim(wire: Wire, version: int) -> None:
    kinds = m.JoinGroupRequest
    Claimer(wire, f"joined-{version}")
    for tags, wanted in ((None, None), ({ACCEPT_INDIVIDUAL_COMMIT_TAG: YES}, YES)):
        request = kinds(
            f"joined-{version}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[kinds.JoinGroupRequestProtocol("range", b"")],
            _tags=tags,
        )
        answer = wire.call(ApiKey.JOIN_GROUP, version, request)
        assert answer.error_code == E.MEMBER_ID_REQUIRED
        assert (answer._tags or {}).get(ACCEPT_INDIVIDUAL_COMMIT_TAG) == wanted
        request.member_id = answer.member_id
    answer = wire.call(ApiKey.JOIN_GROUP, version, request)
    assert answer.error_code == E.NONE
    assert answer._tags == {ACCEPT_INDIVIDUAL_COMMIT_TAG: YES}


def test_a_reset_from_outside_drops_them(claimer: Claimer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 5) is E.NONE
    assert claimer.claim_soon(topic, [(7, 8)]) == 5
    assert claimer.commit(topic, 6) is E.NONE
    assert claimer.ranges(topic) == (6, [], [])


def test_what_was_answered_is_there_after_a_crash() -> None:
    with Broker() as own, Wire(own.host, own.port) as wire:
        kinds = m.CreateTopicsRequest
        request = kinds([kinds.CreatableTopic("t", 1, 1)], 10_000)
        assert wire.call(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code == 0
        claimer = Claimer(wire, "g")
        assert claimer.commit("t", 5) is E.NONE
        claimer.claim_soon("t", [(7, 8), (10, 10)])
        assert claimer.claim("t", [(5, 5)]) == (E.NONE, 6)
        own.kill()
        own.restart()
        with Wire(own.host, own.port) as again:
            claimer = Claimer(again, "g")
            assert claimer.ranges_soon("t") == (6, [(7, 8, 3), (10, 10, 3)], [])
            assert claimer.claim("t", [(6, 6)]) == (E.NONE, 9)


def test_a_topic_made_anew_has_none(
    wire: Wire, claimer: Claimer, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 5) is E.NONE
    assert claimer.claim_soon(topic, [(7, 8)]) == 5
    kinds = m.DeleteTopicsRequest
    wire.call(ApiKey.DELETE_TOPICS, 6, kinds([kinds.DeleteTopicState(topic)], timeout_ms=10_000))
    wait_until(lambda: claimer.ranges(topic) == (-1, [], []), "the claims' end")
