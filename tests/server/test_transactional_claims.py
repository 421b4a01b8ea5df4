"""Claims in transactions over the wire: their log's markers, who may, what is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.extensions import (
    LAST_STABLE_OFFSET_TAG,
    OFFSET_RANGES_TAG,
    WAIT_FOR_STABLE_TAG,
    YES,
    decode_int64,
    encode_ranges,
)
from kraftpy.testing import Broker
from tests.server.test_claims import TWIN, Claimer, Ranges
from tests.server.test_transactions import Id
from tests.server.wire import Wire
from tests.waiting import wait_until

UNSTABLE = E.UNSTABLE_OFFSET_COMMIT


class Transactional(Id):
    """A transactional id, as a client of the second version uses it."""

    def end(self, *, commit: bool = True, producer: Any = None) -> E:
        request = m.EndTxnRequest(self.name, *(producer or self.producer), committed=commit)
        answer = self._wire.call(ApiKey.END_TXN, 5, request)
        if answer.error_code == E.NONE:
            self.producer = answer.producer_id, answer.producer_epoch
        return E(answer.error_code)


class TransactionalClaimer(Claimer):
    """A group of which transactions claim records."""

    def claim_in(
        self,
        transactional: Id,
        topic: str,
        ranges: Ranges,
        *,
        version: int = 5,
        **more: Any,
    ) -> tuple[E, int]:
        """Error and stable offset."""
        request = self.request_in(transactional, topic, ranges, **more)
        return claimed(self._wire.call(ApiKey.TXN_OFFSET_COMMIT, version, request))

    def request_in(
        self,
        transactional: Id,
        topic: str,
        ranges: Ranges,
        *,
        offset: int | None = None,
        waits: bool = False,
        producer: tuple[int, int] | None = None,
        **who: Any,
    ) -> m.TxnOffsetCommitRequest:
        """With `offset` there is a plain one for partition 1, too."""
        kinds = m.TxnOffsetCommitRequest
        tags = {OFFSET_RANGES_TAG: encode_ranges(ranges)}
        if waits:
            tags[WAIT_FOR_STABLE_TAG] = YES
        partitions = [kinds.TxnOffsetCommitRequestPartition(0, -1, 3, _tags=tags)]
        if offset is not None:
            partitions.append(kinds.TxnOffsetCommitRequestPartition(1, offset, 3))
        return kinds(
            transactional.name,
            self.group_id,
            *(producer or transactional.producer),
            topics=[kinds.TxnOffsetCommitRequestTopic(topic, partitions)],
            **who,
        )


def claimed(answer: Any) -> tuple[E, int]:
    """Error and stable offset of the first partition; the others are as they should be."""
    first, *others = answer.topics[0].partitions
    assert all(each.error_code == E.NONE for each in others) or first.error_code
    stable = (first._tags or {}).get(LAST_STABLE_OFFSET_TAG)
    return E(first.error_code), -2 if stable is None else decode_int64(stable)


@pytest.fixture
def transactional(wire: Wire, request: pytest.FixtureRequest) -> Transactional:
    made = Transactional(wire, f"claims-{request.node.name}")
    made.begin()
    return made


@pytest.fixture
def claimer(wire: Wire, request: pytest.FixtureRequest, new_topic: Any) -> TransactionalClaimer:
    """Whose log there is."""
    found = TransactionalClaimer(wire, f"group-{request.node.name}")
    topic = new_topic()
    assert found.commit(topic, 0) is E.NONE
    found.claim_soon(topic, [(5, 5)])
    return found


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_claims_count_when_the_transaction_does(
    transactional: Transactional,
    claimer: TransactionalClaimer,
    new_topic: Callable[..., str],
    commit: bool,
) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 41) is E.NONE
    assert claimer.claim_in(transactional, topic, [(43, 45), (48, 49)]) == (E.NONE, 41)
    assert [each.topic for each in transactional.described().topics] == [TWIN]
    assert claimer.offset(topic) is UNSTABLE
    assert claimer.offset(topic, stable=False) == 41
    assert claimer.ranges(topic) == (41, [], [])
    assert claimer.claim(topic, [(41, 42)]) == (E.NONE, 43)
    assert transactional.end(commit=commit) is E.NONE
    wait_until(lambda: claimer.offset(topic) is not UNSTABLE, "the marker")
    if commit:
        wait_until(lambda: claimer.ranges(topic) == (46, [(48, 49, 3)], []), "what follows")
        assert claimer.offset(topic) == 46
    else:
        assert claimer.ranges(topic) == (43, [], [])
    # The next one.
    wait_until(
        lambda: claimer.claim_in(transactional, topic, [(43, 47)])[0] is E.NONE, "the next one"
    )
    assert transactional.end() is E.NONE
    wait_until(lambda: claimer.offset(topic) == (50 if commit else 48), "what follows")


def test_offsets_and_claims_in_one_request(
    transactional: Transactional, claimer: TransactionalClaimer, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    assert claimer.commit(topic, 41) is E.NONE
    assert claimer.claim_in(transactional, topic, [(41, 45)], offset=7) == (E.NONE, 41)
    joined = {each.topic for each in transactional.described().topics}
    assert joined == {TWIN, "__consumer_offsets"}
    assert transactional.end() is E.NONE
    wait_until(lambda: claimer.offset(topic) == 46, "the markers")


def test_who_may_not(
    transactional: Transactional, claimer: TransactionalClaimer, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 41) is E.NONE
    producer_id, epoch = transactional.producer
    claim = [(43, 45)]
    for producer, error in (
        ((producer_id, epoch + 1), E.INVALID_PRODUCER_EPOCH),
        ((producer_id + 9_999, epoch), E.INVALID_PRODUCER_ID_MAPPING),
        ((-1, epoch), E.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert claimer.claim_in(transactional, topic, claim, producer=producer)[0] is error
    zombie = {"member_id": "zombie", "generation_id": 4}
    assert claimer.claim_in(transactional, topic, claim, **zombie)[0] is E.ILLEGAL_GENERATION
    bad = [(45, 43)]
    assert claimer.claim_in(transactional, topic, bad) == (E.INVALID_REQUEST, 41)
    assert claimer.claim_in(transactional, topic, [(3, 4)]) == (E.INDIVIDUAL_COMMIT_TOO_OLD, 41)
    assert claimer.offset(topic) == 41
    assert transactional.end(commit=False) is E.NONE
    # One whose transaction has ended is late.
    late = producer_id, epoch
    assert claimer.claim_in(transactional, topic, claim, producer=late)[0] is (
        E.INVALID_PRODUCER_EPOCH
    )
    assert claimer.offset(topic) == 41


def test_before_version_5_they_are_refused(
    transactional: Transactional, claimer: TransactionalClaimer, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 41) is E.NONE
    assert claimer.add(transactional) is E.NONE
    answer = claimer.claim_in(transactional, topic, [(43, 45)], version=4)
    assert answer[0] is E.INVALID_REQUEST
    assert claimer.offset(topic) == 41


def test_who_waits_for_what_lies_below(
    broker: Broker,
    wire: Wire,
    transactional: Transactional,
    claimer: TransactionalClaimer,
    new_topic: Callable[..., str],
) -> None:
    topic = new_topic()
    assert claimer.commit(topic, 41) is E.NONE
    other = Transactional(wire, f"{transactional.name}-other")
    other.begin()
    key, waiting = ApiKey.TXN_OFFSET_COMMIT, {"waits": True}

    def park(waiter: Wire, *ranges: tuple[int, int]) -> None:
        waiter.send(key, 5, claimer.request_in(other, topic, list(ranges), **waiting))
        wait_until(lambda: other.described().topics, "the partition of what waits")

    with Wire(broker.host, broker.port) as waiter:
        park(waiter, (42, 42), (44, 44))
        mine = [(41, 41), (43, 43)]
        assert claimer.claim_in(transactional, topic, mine, **waiting) == (E.NONE, 41)
        assert claimed(waiter.receive(key, 5)[1]) == (E.NONE, 41)
        # What lies below is pending, so neither waits for the other's end.
        for each in (other, transactional):
            assert each.end() is E.NONE
        wait_until(lambda: claimer.offset(topic) == 45, "both")
        other.wait_ended()
        # One ends with its transaction.
        park(waiter, (50, 50))
        assert other.end(commit=False) is E.NONE
        assert claimed(waiter.receive(key, 5)[1])[0] is E.INVALID_TXN_STATE
    assert claimer.ranges(topic) == (45, [], [])


def test_very_many_are_claimed_in_parts(
    transactional: Transactional, claimer: TransactionalClaimer, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    assert claimer.commit(topic, 5) is E.NONE
    many = [(2 * n, 2 * n) for n in range(3, 3_003)]
    full = (E.MAX_INDIVIDUAL_COMMIT_REACHED, -2)
    assert claimer.claim_in(transactional, topic, many, waits=True) == full
    assert claimer.claim_in(transactional, topic, many, offset=7) == (E.NONE, 5)
    assert claimer.claim_in(transactional, topic, [(5, 5)]) == (E.NONE, 5)
    assert claimer.ranges(topic) == (5, [], [])
    assert transactional.end() is E.NONE
    wait_until(lambda: claimer.offset(topic) == 7, "the marker")
    assert claimer.ranges(topic) == (7, [(*each, 3) for each in many[1:]], [])
