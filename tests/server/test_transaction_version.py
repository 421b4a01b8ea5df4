"""The second version of the protocol of transactions (KIP-890), and the feature that tells of it.

Brokers go by the versions of requests, whatever level the feature has: so a client that has just
begun a transaction goes on with it when an operator changes the level.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kraftpy.core.metadata.levels import SHARE_VERSION
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE
from kraftpy.testing import Broker
from tests.server.test_produce import batch
from tests.server.test_transactional_offsets import Group as Offsets
from tests.server.test_transactions import Id
from tests.server.wire import Closed, Wire, fetch
from tests.waiting import wait_until

FEATURE = "transaction.version"
WAIT_S = 20.0
ZERO = bytes(16)
_ids = (f"id-{number}" for number in itertools.count())

Update = m.UpdateFeaturesRequest.FeatureUpdateKey
UPGRADE, SAFE, UNSAFE = 1, 2, 3


# -- the feature


class Features(NamedTuple):
    """What ApiVersions says."""

    supported: dict[str, tuple[int, int]]
    in_use: dict[str, int]
    epoch: int


def features(wire: Wire, version: int = 4) -> Features:
    answer = wire.call(ApiKey.API_VERSIONS, version, m.ApiVersionsRequest("test", "1"))
    for each in answer.finalized_features:
        assert each.min_version_level == each.max_version_level
    return Features(
        {each.name: (each.min_version, each.max_version) for each in answer.supported_features},
        {each.name: each.max_version_level for each in answer.finalized_features},
        answer.finalized_features_epoch,
    )


def updated(wire: Wire, *updates: Update, version: int = 1, validate_only: bool = False) -> E:
    request = m.UpdateFeaturesRequest(10_000, list(updates), validate_only)
    answer = wire.call(ApiKey.UPDATE_FEATURES, version, request)
    assert (answer.error_message is None) == (answer.error_code == E.NONE)
    return E(answer.error_code)


@pytest.fixture
def at_2_again(wire: Wire) -> Iterator[None]:
    """The level is 2 when the test begins and when it ends."""
    updated(wire, Update(FEATURE, 2))
    yield
    assert updated(wire, Update(FEATURE, 2)) is E.NONE


def test_a_new_cluster_begins_with_the_second_version(wire: Wire) -> None:
    found = features(wire)
    assert found.supported[FEATURE] == (0, 2)
    assert found.in_use[FEATURE] == 2
    assert found.epoch > 0


def test_old_clients_are_not_told_of_features_that_may_be_at_0(wire: Wire) -> None:
    """Java before 3.9 ends upon them (KAFKA-17492). What is in use they may know."""
    told = features(wire).supported
    at_0 = {name for name, (lowest, _) in told.items() if lowest == 0}
    assert at_0 == {FEATURE, COOPERATIVE_FEATURE, SHARE_VERSION}
    assert features(wire, 3).supported.keys() == told.keys() - at_0
    assert features(wire, 3).in_use == features(wire).in_use


@pytest.mark.usefixtures("at_2_again")
@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_lowers_and_raises_it(wire: Wire, version: int) -> None:
    epoch = features(wire).epoch
    for wanted, kind in [
        (1, SAFE),
        (0, UNSAFE),
        (1, UPGRADE),
        (2, UPGRADE),
        (0, SAFE),
        (2, UPGRADE),
    ]:
        update = Update(FEATURE, wanted, False, kind)
        before = features(wire)
        assert updated(wire, update, version=version, validate_only=True) is E.NONE
        assert features(wire).in_use == before.in_use
        assert updated(wire, update, version=version) is E.NONE
        now = features(wire)
        assert now.in_use.get(FEATURE) == (wanted or None)  # as Kafka, which leaves out level 0
        assert now.epoch > epoch
        epoch = now.epoch
    # What it has already it may be given by anything.
    assert updated(wire, Update(FEATURE, 2, False, SAFE)) is E.NONE


@pytest.mark.usefixtures("at_2_again")
@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        Update(FEATURE, 1),
        Update(FEATURE, 0, True, UPGRADE),
        Update(FEATURE, 3),
        Update(FEATURE, -1, False, SAFE),
        Update(FEATURE, 1, False, 4),
        Update(FEATURE, 1, False, 0),
        Update("group.version", 2),
        Update("no.such", 1),
    ],
)
def test_one_wrong_update_refuses_all(wire: Wire, wrong: Update, validate_only: bool) -> None:
    for updates in ([wrong], [Update("group.version", 1), wrong]):
        assert updated(wire, *updates, validate_only=validate_only) is E.INVALID_UPDATE_VERSION
    if wrong.feature != FEATURE:
        lowering = Update(FEATURE, 0, False, SAFE)
        assert updated(wire, lowering, wrong, validate_only=validate_only) is not E.NONE
    assert features(wire).in_use[FEATURE] == 2


@pytest.mark.usefixtures("at_2_again")
def test_version_0_of_the_request_lowers_nothing(wire: Wire) -> None:
    """Kafka 4 doesn't look at its `allow_downgrade`."""
    lowering = Update(FEATURE, 1, True)
    assert updated(wire, lowering, version=0) is E.INVALID_UPDATE_VERSION
    assert updated(wire, Update(FEATURE, 0, False, SAFE)) is E.NONE
    assert updated(wire, Update(FEATURE, 2), version=0) is E.NONE
    assert features(wire).in_use[FEATURE] == 2


@pytest.mark.usefixtures("at_2_again")
def test_of_two_updates_of_a_feature_the_last_counts(wire: Wire) -> None:
    assert updated(wire, Update(FEATURE, 2), Update(FEATURE, 1, False, SAFE)) is E.NONE
    assert features(wire).in_use[FEATURE] == 1


def test_what_was_lowered_stays_so_after_a_restart() -> None:
    with Broker() as own:
        with Wire(own.host, own.port) as wire:
            assert updated(wire, Update(FEATURE, 1, False, SAFE)) is E.NONE
        own.kill()
        own.restart()
        with Wire(own.host, own.port) as wire:
            assert features(wire).in_use[FEATURE] == 1


# -- transactions


class Producer:
    """A producer of the second version, over the wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.name = next(_ids)
        self.id, self.epoch = self.init()

    def _ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The answer, once it is no other than "again"."""
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = self._wire.call(key, version, request)
            passing = E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR
            if answer.error_code not in passing:
                return answer
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def init(self) -> tuple[int, int]:
        finding = m.FindCoordinatorRequest(key=self.name, key_type=1)
        deadline = time.monotonic() + WAIT_S
        while self._wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        answer = self._ask(ApiKey.INIT_PRODUCER_ID, 5, m.InitProducerIdRequest(self.name, 60_000))
        assert answer.error_code == E.NONE
        return answer.producer_id, answer.producer_epoch

    def add(self, topic: str) -> None:
        """As clients of the first version do."""
        kinds = m.AddPartitionsToTxnRequest
        request = kinds(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[kinds.AddPartitionsToTxnTopic(topic, [0])],
        )
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = self._wire.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            if result.partition_error_code != E.CONCURRENT_TRANSACTIONS:
                assert result.partition_error_code == E.NONE
                return
            assert time.monotonic() < deadline

    def produce(
        self,
        topic: str,
        sequence: int,
        *,
        version: int = 12,
        epoch: int | None = None,
        value: bytes = b"x",
    ) -> E:
        records = batch(
            value,
            transactional=True,
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
        )
        kinds = m.ProduceRequest
        named = {"topic_id": topic_id(self._wire, topic)} if version >= 13 else {"name": topic}
        data = kinds.TopicProduceData(
            **named, partition_data=[kinds.PartitionProduceData(0, records)]
        )
        request = kinds(self.name, -1, 10_000, [data])
        answer = self._wire.call(ApiKey.PRODUCE, version, request)
        return E(answer.responses[0].partition_responses[0].error_code)

    def end(self, *, commits: bool, epoch: int | None = None, version: int = 5) -> E:
        epoch = self.epoch if epoch is None else epoch
        request = m.EndTxnRequest(self.name, self.id, epoch, commits)
        answer = self._ask(ApiKey.END_TXN, version, request)
        if version >= 5 and answer.error_code == E.NONE:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return E(answer.error_code)


@pytest.fixture
def producer(wire: Wire) -> Producer:
    return Producer(wire)


def topic_id(wire: Wire, topic: str) -> bytes:
    request = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=topic)])
    return bytes(wire.call(ApiKey.METADATA, 12, request).topics[0].topic_id)


def committed(wire: Wire, topic: str) -> int:
    """Up to where a reader of committed records gets, once no transaction is open."""
    request = m.ListOffsetsRequest
    ends = []
    deadline = time.monotonic() + WAIT_S
    while len(set(ends)) != 1:
        assert time.monotonic() < deadline
        wanted = request.ListOffsetsTopic(topic, [request.ListOffsetsPartition(0, timestamp=-1)])
        ends = [
            wire.call(ApiKey.LIST_OFFSETS, 7, request(-1, isolation_level=level, topics=[wanted]))
            .topics[0]
            .partitions[0]
            .offset
            for level in (0, 1)
        ]
    return int(ends[0])


@pytest.fixture(params=[0, 1, 2])
def level(request: pytest.FixtureRequest, wire: Wire) -> Iterator[int]:
    """The level of the feature."""
    assert updated(wire, Update(FEATURE, 0, False, SAFE)) is E.NONE
    assert updated(wire, Update(FEATURE, request.param)) is E.NONE
    yield request.param
    assert updated(wire, Update(FEATURE, 2)) is E.NONE


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("version", [12, 13])
def test_partitions_are_added_by_who_gets_the_records(
    wire: Wire, new_topic: Callable[..., str], producer: Producer, version: int
) -> None:
    """At any level: a client may have begun at another one."""
    topic = new_topic()
    for number, commits in enumerate((True, False, True)):
        assert producer.epoch == number
        for sequence in (0, 1):
            assert producer.produce(topic, sequence, version=version) is E.NONE
        assert producer.end(commits=commits) is E.NONE
    assert committed(wire, topic) == 9  # with the markers
    aborted = fetch_aborted(wire, topic)
    assert aborted == [(producer.id, 3)]


def fetch_aborted(wire: Wire, topic: str) -> list[tuple[int, int]]:
    """The aborted transactions that a reader of committed records is told."""
    kinds = m.FetchRequest
    part = kinds.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = kinds(isolation_level=1, topics=[kinds.FetchTopic(topic, partitions=[part])])
    answer = wire.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    assert answer.error_code == E.NONE
    return [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]


@pytest.mark.usefixtures("level")
def test_clients_of_the_first_version_go_on(
    wire: Wire, new_topic: Callable[..., str], producer: Producer
) -> None:
    topic = new_topic()
    for number in range(2):
        producer.add(topic)
        assert producer.produce(topic, number, version=11) is E.NONE
        assert producer.end(commits=True, version=4) is E.NONE
    assert producer.epoch == 0
    assert committed(wire, topic) == 4


@pytest.mark.parametrize(
    ("version", "error"),
    [(9, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)],
)
def test_before_version_12_nobody_adds_partitions(
    new_topic: Callable[..., str], producer: Producer, version: int, error: E
) -> None:
    assert producer.produce(new_topic(), 0, version=version) is error


def test_late_produce(wire: Wire, new_topic: Callable[..., str], producer: Producer) -> None:
    """What comes behind the end is neither in the transaction that has ended nor in the next."""
    topic, other = new_topic(), new_topic()
    assert producer.produce(topic, 0) is E.NONE
    assert producer.end(commits=True) is E.NONE
    assert committed(wire, topic) == 2
    for place in (topic, other):  # fenced by the marker, and by the coordinator
        assert producer.produce(place, 1, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.produce(topic, 0) is E.NONE
    for place in (topic, other):
        assert producer.produce(place, 1, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.end(commits=True) is E.NONE
    assert (committed(wire, topic), committed(wire, other)) == (4, 0)


def test_late_end(wire: Wire, new_topic: Callable[..., str], producer: Producer) -> None:
    """The end of a transaction ends it again, and not the next one."""
    topic = new_topic()
    assert producer.produce(topic, 0) is E.NONE
    assert producer.end(commits=True) is E.NONE
    assert producer.epoch == 1
    assert producer.end(commits=True, epoch=0) is E.NONE
    assert producer.epoch == 1
    assert producer.end(commits=False, epoch=0) is E.INVALID_TXN_STATE
    assert producer.produce(topic, 0) is E.NONE
    for commits in (True, False):
        assert producer.end(commits=commits, epoch=0) is E.PRODUCER_FENCED
    assert producer.end(commits=True) is E.NONE
    assert committed(wire, topic) == 4
    assert fetch_aborted(wire, topic) == []


def test_what_never_began_may_be_aborted(producer: Producer) -> None:
    assert producer.end(commits=True) is E.INVALID_TXN_STATE
    for epoch in (1, 2):
        assert producer.end(commits=False) is E.NONE
        assert producer.epoch == epoch


def test_the_first_batch_of_a_transaction_has_the_first_sequence(
    new_topic: Callable[..., str], producer: Producer
) -> None:
    """Something is missing before (KAFKA-18202)."""
    topic = new_topic()
    assert producer.produce(topic, 1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.produce(topic, 0) is E.NONE
    assert producer.end(commits=True) is E.NONE
    assert producer.produce(topic, 1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_first_batch_may_have_to_be_opened(
    wire: Wire, new_topic: Callable[..., str], producer: Producer
) -> None:
    """And that elsewhere, when its coordinator has been asked already."""
    topic = new_topic(compression_type="gzip")
    for commits in (True, False):
        for sequence in (0, 1, 1):
            assert producer.produce(topic, sequence, value=bytes(300_000)) is E.NONE
        assert producer.end(commits=commits) is E.NONE
    assert committed(wire, topic) == 6
    old = producer.epoch - 1
    assert producer.produce(topic, 2, value=bytes(300_000), epoch=old) is E.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("change", [(2, 0), (0, 2)])
def test_an_open_transaction_goes_on_when_the_level_changes(
    wire: Wire, new_topic: Callable[..., str], change: tuple[int, int]
) -> None:
    topic, other = new_topic(), new_topic()
    assert updated(wire, Update(FEATURE, 0, False, SAFE)) is E.NONE
    before, after = change
    if before:
        assert updated(wire, Update(FEATURE, before)) is E.NONE
    first, second = Producer(wire), Producer(wire)
    first.add(topic)
    assert first.produce(topic, 0, version=11) is E.NONE
    assert second.produce(topic, 0) is E.NONE
    kind = UPGRADE if after else SAFE
    assert updated(wire, Update(FEATURE, after, False, kind)) is E.NONE
    first.add(other)
    assert first.produce(other, 0, version=11) is E.NONE
    assert second.produce(other, 0) is E.NONE
    assert first.end(commits=True, version=4) is E.NONE
    assert second.end(commits=False) is E.NONE
    assert (committed(wire, topic), committed(wire, other)) == (4, 4)
    # The next transactions are of the other version each.
    first.add(topic)
    assert first.produce(topic, 1) is E.NONE
    assert first.end(commits=True) is E.NONE
    second.add(topic)
    assert second.produce(topic, 0, version=11) is E.NONE
    assert second.end(commits=True, version=4) is E.NONE
    assert committed(wire, topic) == 8
    assert updated(wire, Update(FEATURE, 2)) is E.NONE


# -- offsets


class Group(Offsets):
    """Commits in a producer's transaction, as clients of the second version do: without a word."""

    def commits(self, producer: Producer, topic: str, offset: int, epoch: int | None = None) -> E:
        transactional = Id(self._wire, producer.name)
        whose = producer.id, producer.epoch if epoch is None else epoch
        return self.commit_in(transactional, topic, offset, version=5, producer=whose)


@pytest.fixture
def group(wire: Wire) -> Group:
    return Group(wire, next(_ids))


@pytest.mark.usefixtures("level")
def test_the_partition_of_offsets_is_added_by_who_gets_them(
    new_topic: Callable[..., str], producer: Producer, group: Group
) -> None:
    topic = new_topic()
    for number, commits in enumerate((True, False, True)):
        assert group.commits(producer, topic, number) is E.NONE
        assert group.offset(topic) is E.UNSTABLE_OFFSET_COMMIT
        assert producer.produce(topic, 0) is E.NONE
        assert producer.end(commits=commits) is E.NONE
        expected = number if commits else number - 1
        wait_until(lambda expected=expected: group.offset(topic) == expected, "the marker")  # type: ignore[misc]


def test_late_offsets(new_topic: Callable[..., str], producer: Producer, group: Group) -> None:
    topic = new_topic()
    other = Group(group._wire, next(_ids))
    assert group.commits(producer, topic, 1) is E.NONE
    assert producer.end(commits=True) is E.NONE
    wait_until(lambda: group.offset(topic) == 1, "the marker")
    for late in (group, other):
        assert late.commits(producer, topic, 2, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.produce(topic, 0) is E.NONE
    for late in (group, other):
        assert late.commits(producer, topic, 2, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.end(commits=True) is E.NONE
    assert (group.offset(topic), other.offset(topic)) == (1, -1)


def test_before_version_5_nobody_adds_the_partition_of_offsets(
    new_topic: Callable[..., str], producer: Producer, group: Group
) -> None:
    whose = producer.id, producer.epoch
    said = group.commit_in(Id(group._wire, producer.name), new_topic(), 1, producer=whose)
    assert said is E.TRANSACTION_ABORTABLE


# -- topics by their ids


def by_id(*topics: tuple[bytes, list[int]], acks: int = -1) -> m.ProduceRequest:
    kinds = m.ProduceRequest
    return kinds(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            kinds.TopicProduceData(
                topic_id=id_,
                partition_data=[
                    kinds.PartitionProduceData(index, batch(b"x")) for index in indexes
                ],
            )
            for id_, indexes in topics
        ],
    )


def errors(answer: m.ProduceResponse) -> list[tuple[bytes, list[tuple[int, E]]]]:
    return [
        (
            topic.topic_id,
            [(each.index, E(each.error_code)) for each in topic.partition_responses],
        )
        for topic in answer.responses
    ]


def test_topics_have_ids(wire: Wire, new_topic: Callable[..., str], producer: Producer) -> None:
    topic = new_topic(partitions=2)
    id_, nobody = topic_id(wire, topic), bytes([7]) * 16
    internal = topic_id(wire, "__transaction_state")
    request = by_id((id_, [1, 0, 2]), (nobody, [0, 1]), (ZERO, [0]), (internal, [0]))
    assert errors(wire.call(ApiKey.PRODUCE, 13, request)) == [
        (id_, [(1, E.NONE), (0, E.NONE), (2, E.UNKNOWN_TOPIC_OR_PARTITION)]),
        (nobody, [(0, E.UNKNOWN_TOPIC_ID), (1, E.UNKNOWN_TOPIC_ID)]),
        (ZERO, [(0, E.UNKNOWN_TOPIC_ID)]),
        (internal, [(0, E.INVALID_TOPIC_EXCEPTION)]),
    ]
    assert committed(wire, topic) == 1
    assert len(fetch(wire, topic, 0, partition=1).records) > 0
    wire.call(
        ApiKey.DELETE_TOPICS, 5, m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
    )
    request = by_id((id_, [0]))
    assert errors(wire.call(ApiKey.PRODUCE, 13, request)) == [(id_, [(0, E.UNKNOWN_TOPIC_ID)])]


def test_many_partitions_of_a_topic_by_its_id(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    id_, nobody = topic_id(wire, topic), bytes([7]) * 16
    request = by_id((id_, [0, 1] * 400), (nobody, [0] * 400))
    assert errors(wire.call(ApiKey.PRODUCE, 13, request)) == [
        (id_, [(0, E.NONE), (1, E.NONE)] * 400),
        (nobody, [(0, E.UNKNOWN_TOPIC_ID)] * 400),
    ]


def test_an_unknown_id_without_an_answer_ends_the_connection(broker: Broker) -> None:
    with Wire(broker.host, broker.port) as wire:
        wire.send(ApiKey.PRODUCE, 13, by_id((bytes([7]) * 16, [0]), acks=0))
        with pytest.raises(Closed):
            wire.receive_frame()
