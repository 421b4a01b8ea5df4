"""Offsets in transactions over the wire: who may commit them, when they count, what is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.testing import Broker
from tests.server.test_transactions import Id, Producer
from tests.server.wire import Wire
from tests.waiting import wait_until

GROUP_TYPE, LATEST = 0, 4
UNSTABLE = E.UNSTABLE_OFFSET_COMMIT


class Group:
    """A group of which transactions commit the offsets."""

    def __init__(self, wire: Wire, group_id: str) -> None:
        self.group_id = group_id
        self._wire = wire
        find = m.FindCoordinatorRequest(key_type=GROUP_TYPE, coordinator_keys=[group_id])

        def is_found() -> bool:
            (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators
            return bool(found.error_code == E.NONE)

        wait_until(is_found, f"the coordinator of {group_id}")

    def add(self, transactional: Id) -> E:
        """AddOffsetsToTxn."""
        request = m.AddOffsetsToTxnRequest(
            transactional.name, *transactional.producer, self.group_id
        )
        return E(self._wire.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, request).error_code)

    def commit_in(
        self,
        transactional: Id,
        topic: str,
        offset: int,
        *,
        version: int = LATEST,
        index: int = 0,
        producer: Producer | None = None,
        **who: Any,
    ) -> E:
        """TxnOffsetCommit."""
        kinds = m.TxnOffsetCommitRequest
        producer_id, epoch = producer or transactional.producer
        request = kinds(
            transactional_id=transactional.name,
            group_id=self.group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[
                kinds.TxnOffsetCommitRequestTopic(
                    topic,
                    [
                        kinds.TxnOffsetCommitRequestPartition(
                            index, offset, committed_metadata="note"
                        )
                    ],
                )
            ],
            **who,
        )
        answer = self._wire.call(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return E(answer.topics[0].partitions[0].error_code)

    def commit(self, topic: str, offset: int) -> E:
        """A commit outside of transactions."""
        kinds = m.OffsetCommitRequest
        request = kinds(
            self.group_id,
            topics=[
                kinds.OffsetCommitRequestTopic(
                    topic, partitions=[kinds.OffsetCommitRequestPartition(0, offset)]
                )
            ],
        )
        answer = self._wire.call(ApiKey.OFFSET_COMMIT, 8, request)
        return E(answer.topics[0].partitions[0].error_code)

    def offset(self, topic: str, *, version: int = 8, stable: bool = True) -> int | E:
        """What is committed, or why that isn't told."""
        kinds = m.OffsetFetchRequest
        if version < 8:
            request = kinds(
                self.group_id,
                topics=[kinds.OffsetFetchRequestTopic(topic, [0])],
                require_stable=stable,
            )
            answer = self._wire.call(ApiKey.OFFSET_FETCH, version, request)
        else:
            group = kinds.OffsetFetchRequestGroup(
                self.group_id,
                member_id=None,
                member_epoch=-1,
                topics=[kinds.OffsetFetchRequestTopics(topic, partition_indexes=[0])],
            )
            request = kinds(groups=[group], require_stable=stable)
            (answer,) = self._wire.call(ApiKey.OFFSET_FETCH, version, request).groups
        if answer.error_code:
            return E(answer.error_code)
        (row,) = answer.topics[0].partitions
        assert row.error_code == E.NONE or row.committed_offset == -1
        return E(row.error_code) if row.error_code else int(row.committed_offset)


@pytest.fixture
def transactional(wire: Wire, request: pytest.FixtureRequest) -> Id:
    return Id(wire, f"offsets-{request.node.name}").begin()


@pytest.fixture
def group(wire: Wire, request: pytest.FixtureRequest) -> Group:
    return Group(wire, f"group-{request.node.name}")


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_offsets_count_when_the_transaction_does(
    transactional: Id, group: Group, new_topic: Callable[..., str], commit: bool
) -> None:
    topic = new_topic()
    assert group.commit(topic, 1) is E.NONE
    assert group.add(transactional) is E.NONE
    assert [each.topic for each in transactional.described().topics] == ["__consumer_offsets"]
    assert group.commit_in(transactional, topic, 5) is E.NONE
    for version in (7, 8, 9):
        assert group.offset(topic, version=version) is UNSTABLE
        assert group.offset(topic, version=version, stable=False) == 1
    assert transactional.end(commit=commit) is E.NONE
    transactional.wait_ended()
    # Whoever heard that it has ended sees what counts.
    for version in (7, 8, 9):
        assert group.offset(topic, version=version) == (5 if commit else 1)


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_every_version_commits(
    transactional: Id, group: Group, new_topic: Callable[..., str], version: int
) -> None:
    topic = new_topic()
    assert group.add(transactional) is E.NONE
    assert group.commit_in(transactional, topic, 5, version=version) is E.NONE
    assert group.commit_in(transactional, "nowhere", 5, version=version) == 3
    assert transactional.end() is E.NONE
    transactional.wait_ended()
    assert group.offset(topic) == 5


def test_offsets_of_no_transaction_are_refused(
    transactional: Id, group: Group, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    for version in range(LATEST):
        assert group.commit_in(transactional, topic, 5, version=version) is E.INVALID_TXN_STATE
    assert group.commit_in(transactional, topic, 5) is E.TRANSACTION_ABORTABLE
    assert group.add(transactional) is E.NONE
    assert group.commit_in(transactional, topic, 6) is E.NONE
    assert transactional.end() is E.NONE
    transactional.wait_ended()
    late = group.commit_in(transactional, topic, 7, version=3)
    assert late is E.INVALID_TXN_STATE
    assert group.offset(topic) == 6


def test_producers_that_are_not_who_they_say(
    transactional: Id, group: Group, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer_id, epoch = transactional.producer
    assert group.add(transactional) is E.NONE
    for producer, error in (
        ((producer_id + 1000, epoch), E.INVALID_PRODUCER_ID_MAPPING),
        ((-1, -1), E.INVALID_PRODUCER_ID_MAPPING),
        ((producer_id, -1), E.INVALID_PRODUCER_EPOCH),
        ((producer_id, epoch + 1), E.INVALID_PRODUCER_EPOCH),
    ):
        assert group.commit_in(transactional, topic, 5, producer=producer) is error
    assert group.commit_in(transactional, topic, 5) is E.NONE
    # The next owner of the id fences this one, and aborts what it had open.
    zombie = transactional.producer
    wait_until(lambda: transactional.init() is E.NONE, "the next owner")
    fenced = group.commit_in(transactional, topic, 6, producer=zombie)
    assert fenced is E.INVALID_PRODUCER_EPOCH
    assert group.offset(topic) == -1


def test_members_that_are_none(
    transactional: Id, group: Group, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert group.add(transactional) is E.NONE
    who = {"generation_id": 3, "member_id": "m"}
    assert group.commit_in(transactional, topic, 5, **who) is E.ILLEGAL_GENERATION
    assert group.offset(topic) == -1


def test_groups_that_can_not_be(
    wire: Wire, transactional: Id, group: Group, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    for name in ("", "x" * 32_768):
        group.group_id = name
        assert group.commit_in(transactional, topic, 5) is E.INVALID_GROUP_ID


def test_more_offsets_than_a_batch_takes(wire: Wire, transactional: Id, group: Group) -> None:
    kinds = m.TxnOffsetCommitRequest
    partitions = [kinds.TxnOffsetCommitRequestPartition(each, 5) for each in range(50_000)]
    request = kinds(
        transactional.name,
        group.group_id,
        *transactional.producer,
        topics=[kinds.TxnOffsetCommitRequestTopic("t", partitions)],
    )
    answer = wire.call(ApiKey.TXN_OFFSET_COMMIT, 3, request)
    errors = {each.error_code for each in answer.topics[0].partitions}
    assert errors == {E.INVALID_COMMIT_OFFSET_SIZE}


def test_a_marker_is_answered_when_it_has_taken_effect(
    wire: Wire, transactional: Id, group: Group, new_topic: Callable[..., str]
) -> None:
    """Sent as kafka-transactions abort does, and again."""
    topic = new_topic()
    assert group.add(transactional) is E.NONE
    assert group.commit_in(transactional, topic, 5) is E.NONE
    assert group.offset(topic) is UNSTABLE
    (index,) = transactional.described().topics[0].partitions
    producer_id, epoch = transactional.producer
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker
    of_topic = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic("__consumer_offsets", [index])
    end = EndTxnMarker(True, 0)
    request = m.WriteTxnMarkersRequest(
        [marker(producer_id, epoch, end.committed, [of_topic], end.coordinator_epoch)]
    )
    for _ in range(2):
        (answer,) = wire.call(ApiKey.WRITE_TXN_MARKERS, 1, request).markers
        assert answer.topics[0].partitions[0].error_code == E.NONE
        assert group.offset(topic) == 5
    assert transactional.end() is E.NONE
    transactional.wait_ended()
    assert group.offset(topic) == 5


def test_what_is_pending_outlives_the_broker() -> None:
    """Killed while a transaction is open; another is overtaken."""
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            wanted = m.MetadataRequest.MetadataRequestTopic(name="t")
            wire.call(ApiKey.METADATA, 9, m.MetadataRequest([wanted]))
            first, second = (Id(wire, name).begin() for name in ("first", "second"))
            group = Group(wire, "g")
            assert group.add(first) is group.add(second) is E.NONE
            assert group.commit_in(first, "t", 5) is E.NONE
            assert group.commit("t", 6) is E.NONE
            assert group.commit_in(second, "t", 7) is E.NONE
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            group = Group(wire, "g")
            assert group.offset("t") is UNSTABLE
            for each in (first, second):
                each._wire = wire
                assert each.find() is E.NONE
                wait_until(lambda each=each: each.end() is E.NONE, "the coordinator")
                each.wait_ended()
                assert group.offset("t") == (UNSTABLE if each is first else 7)
