"""No request of any API makes an answer, or a broker, much larger than it may be.

All advertised APIs, each array repeated: what is new is in it by itself. Times are for
`make bench ARGS=amplification`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ADVERTISED, ApiKey, advertised
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.server.network.long_answers import ANSWER_MAX_BYTES, REFUSALS_MAX_BYTES
from kraftpy.testing import Broker
from tests.server.amplified import (
    CONSUMERS,
    GROUP,
    MEMBERS,
    PARTITIONS,
    TOPIC,
    Populated,
    cases,
    populate,
)
from tests.server.test_produce import batch
from tests.server.wire import Closed, Wire

pytestmark = pytest.mark.usefixtures("started_from_scratch")

# As many bytes as make a request long; make bench has them up to 1 MiB.
SIZE_BYTES = 192 * 1024
MEMORY_MAX_BYTES = 300 * 1024 * 1024
ANSWER_MAX = ANSWER_MAX_BYTES + REFUSALS_MAX_BYTES
# Of topics, groups and resources that exist, an answer has each once; only Produce answers a
# partition as often as it's written to.
REPEATED_ANSWER_MAX_BYTES = 16 * SIZE_BYTES
EVERY = list(range(PARTITIONS))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of this module's own: what the tests send could disturb others."""
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def populated(broker: Broker) -> Iterator[Populated]:
    with populate(broker.host, broker.port) as made:
        yield made


def resident_bytes(broker: Broker, what: str) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what}")


def answer_size(broker: Broker, key: ApiKey, version: int, request: object) -> int | None:
    """None if the connection was closed."""
    with Wire(broker.host, broker.port, timeout_s=60.0) as wire:
        try:
            wire.send(key, version, request)
            return len(wire.receive_frame())
        except Closed:
            return None


@pytest.mark.parametrize("key", advertised(HANDLERS), ids=lambda key: key.name)
def test_each_array_of_each_api_repeated(broker: Broker, populated: Populated, key: ApiKey) -> None:
    version = ADVERTISED[key][1]
    before = resident_bytes(broker, "VmRSS")
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the highest so far is forgotten
    for case in cases(key, version, SIZE_BYTES, populated):
        size = answer_size(broker, key, version, case.request)
        assert size is None or size <= ANSWER_MAX, case.what
        if case.what.endswith("same"):
            assert size is None or size <= REPEATED_ANSWER_MAX_BYTES, case.what
        assert resident_bytes(broker, "VmHWM") - before <= MEMORY_MAX_BYTES, case.what
    with Wire(broker.host, broker.port) as wire:
        assert wire.call(ApiKey.METADATA, 12, messages.MetadataRequest(topics=[])).brokers


ONE_OF = messages.OffsetFetchRequest.OffsetFetchRequestGroup(GROUP, topics=None)
BROKER_CONFIG = messages.DescribeConfigsRequest.DescribeConfigsResource(4, "1", None)


@pytest.mark.parametrize(
    ("key", "version", "request_", "once"),
    [
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            messages.DescribeConfigsRequest(
                [BROKER_CONFIG] * 12_000, include_synonyms=True, include_documentation=True
            ),
            lambda answer: [len(answer.results)],
        ),
        (
            ApiKey.OFFSET_FETCH,
            8,
            messages.OffsetFetchRequest(groups=[ONE_OF] * 3_000),
            lambda answer: [len(answer.groups), len(answer.groups[0].topics)],
        ),
        (
            ApiKey.METADATA,
            0,
            messages.MetadataRequest(
                [messages.MetadataRequest.MetadataRequestTopic(name=TOPIC)] * 5_000
            ),
            lambda answer: [len(answer.topics)],
        ),
        (
            ApiKey.DESCRIBE_GROUPS,
            5,
            messages.DescribeGroupsRequest([MEMBERS] * 200),
            lambda answer: [len(answer.groups), len(answer.groups[0].members)],
        ),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            1,
            messages.ConsumerGroupDescribeRequest([CONSUMERS] * 200),
            lambda answer: [len(answer.groups)],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_what_is_named_often_is_answered_once(
    broker: Broker, populated: Populated, key: ApiKey, version: int, request_: object, once: object
) -> None:
    with Wire(broker.host, broker.port, timeout_s=60.0) as wire:
        answer = wire.call(key, version, request_)
    assert set(once(answer)) == {1}  # type: ignore[operator]
    if key is ApiKey.METADATA:
        assert len(answer.topics[0].partitions) == PARTITIONS


def many_fetch(offset: int, max_wait_ms: int) -> messages.FetchRequest:
    kinds = messages.FetchRequest
    partitions = [
        kinds.FetchPartition(index, fetch_offset=offset, partition_max_bytes=10_000)
        for index in range(PARTITIONS)
    ]
    topic = kinds.FetchTopic(TOPIC, partitions=partitions)
    return kinds(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[topic],
        session_epoch=-1,
    )


def test_what_names_many_partitions_is_answered_like_what_names_few(
    broker: Broker, populated: Populated
) -> None:
    produce, fetch_offsets = messages.ProduceRequest, messages.OffsetFetchRequest
    data_of = batch(b"record")
    with (
        Wire(broker.host, broker.port, timeout_s=60.0) as wire,
        Wire(broker.host, broker.port, timeout_s=60.0) as reader,
    ):
        (before,) = wire.call(ApiKey.FETCH, 12, many_fetch(0, 0)).responses
        ends = [each.high_watermark for each in before.partitions]
        # Offsets of each partition, named often enough to make the request long.
        topic = fetch_offsets.OffsetFetchRequestTopics(TOPIC, partition_indexes=EVERY)
        group = fetch_offsets.OffsetFetchRequestGroup(GROUP, topics=[topic] * 20)
        (found,) = wire.call(ApiKey.OFFSET_FETCH, 8, fetch_offsets(groups=[group])).groups
        (offsets,) = found.topics
        assert found.error_code == 0
        assert [each.partition_index for each in offsets.partitions] == EVERY
        assert {each.committed_offset for each in offsets.partitions} == {1}
        # A fetch of all partitions waits until one of them has a record.
        reader.send(ApiKey.FETCH, 12, many_fetch(max(ends), 60_000))
        data = [
            produce.PartitionProduceData(index, data_of)
            for index in range(PARTITIONS)
            for _ in range(3)
        ]
        written = produce(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[produce.TopicProduceData(TOPIC, partition_data=data)],
        )
        (answers,) = wire.call(ApiKey.PRODUCE, 9, written).responses
        assert [(a.index, a.error_code, a.base_offset) for a in answers.partition_responses] == [
            (index, 0, ends[index] + number) for index in range(PARTITIONS) for number in range(3)
        ]
        _, woken = reader.receive(ApiKey.FETCH, 12)
        assert any(each.records for each in woken.responses[0].partitions)
        (after,) = wire.call(ApiKey.FETCH, 12, many_fetch(0, 0)).responses
        assert [each.high_watermark for each in after.partitions] == [end + 3 for end in ends]


def test_four_million_names_are_refused(broker: Broker) -> None:
    topics = [messages.MetadataRequest.MetadataRequestTopic(name="")] * 4_000_000
    before = resident_bytes(broker, "VmRSS")
    assert answer_size(broker, ApiKey.METADATA, 0, messages.MetadataRequest(topics)) is None
    assert resident_bytes(broker, "VmHWM") - before <= MEMORY_MAX_BYTES
