"""Apache Kafka reads what a group coordinator writes down (kafka-dump-log --offsets-decoder), and a
group coordinator takes over what Apache Kafka wrote."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups import (
    CommittedOffset,
    CoordinatorRecord,
    GroupCodec,
    GroupConfig,
    GroupMachine,
    GroupMemory,
    OffsetRecord,
    Write,
    decode_record,
    encode_record,
)
from kraftpy.core.groups.consumer.records import (
    ClassicMember,
    ClassicProtocol,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.core.groups.consumer.topics import Topic
from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.protocol.records import (
    EndTxnMarker,
    build_end_txn_marker,
    iter_records,
    split_batches,
)
from tests.apache_kafka import ApacheKafka, run_tool
from tests.conformance.records_as_printed import as_printed
from tests.processes import running

TIMEOUT_S = 60

TOPIC_ID = bytes(range(16))
SHOWN_ID = base64.urlsafe_b64encode(TOPIC_ID).decode().rstrip("=")

MEMBER = MemberMetadata(
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/127.0.0.1",
    topic_names=("beer", "cheese"),
    topic_regex="b.*",
    rebalance_timeout_ms=300_000,
    server_assignor="uniform",
    classic=ClassicMember(45_000, (ClassicProtocol("range", b"\1\2"),)),
)
CURRENT = CurrentAssignment(
    5, 4, MemberState.UNREVOKED_PARTITIONS, {TOPIC_ID: {0: 3, 7: 5}}, {TOPIC_ID: {2: 4}}
)

VALUES: list[dict[str, Any]] = [
    {"epoch": 5, "metadataHash": -(2**62)},
    {
        "instanceId": "i",
        "rackId": "r",
        "clientId": "c",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["beer", "cheese"],
        "subscribedTopicRegex": "b.*",
        "rebalanceTimeoutMs": 300_000,
        "serverAssignor": "uniform",
        "classicMemberMetadata": {
            "sessionTimeoutMs": 45_000,
            "supportedProtocols": [{"name": "range", "metadata": "AQI="}],
        },
    },
    {"assignmentEpoch": 5, "assignmentTimestamp": 1_700_000_000_000},
    {"topicPartitions": [{"topicId": SHOWN_ID, "partitions": [0, 7]}]},
    {
        "memberEpoch": 5,
        "previousMemberEpoch": 4,
        "state": 1,
        "assignedPartitions": [
            {"topicId": SHOWN_ID, "partitions": [0, 7], "assignmentEpochs": [3, 5]}
        ],
        "partitionsPendingRevocation": [
            {"topicId": SHOWN_ID, "partitions": [2], "assignmentEpochs": [4]}
        ],
    },
    {"topics": ["beer"], "version": 12, "timestamp": 1_700_000_000_000},
]


def test_kafka_reads_the_records_of_a_consumer_group(tmp_path: Path) -> None:
    records: list[CoordinatorRecord] = [
        GroupEpochRecord("g", GroupEpoch(5, -(2**62))),
        MemberRecord("g", "m", MEMBER),
        MemberRecord("g", "m", MEMBER._replace(classic=None)),
        TargetEpochRecord("g", TargetEpoch(5, 1_700_000_000_000)),
        TargetRecord("g", "m", {TOPIC_ID: frozenset({7, 0})}),
        CurrentRecord("g", "m", CURRENT),
        RegexRecord("g", "b.*", ResolvedRegex(("beer",), 12, 1_700_000_000_000)),
    ]
    all_of_them = (*records, *(record._replace(value=None) for record in records))
    pairs = as_printed(tmp_path, "--offsets-decoder", map(encode_record, all_of_them))
    group, member = {"groupId": "g"}, {"groupId": "g", "memberId": "m"}
    keys = [
        {"type": "3", "data": group},
        {"type": "5", "data": member},
        {"type": "5", "data": member},
        {"type": "6", "data": group},
        {"type": "7", "data": member},
        {"type": "8", "data": member},
        {"type": "16", "data": {"groupId": "g", "regularExpression": "b.*"}},
    ]
    assert [key for key, _ in pairs] == keys * 2
    assert [value["version"] for _, value in pairs[:7]] == ["0"] * 7
    assert [value["data"] for _, value in pairs[:7]] == [
        *VALUES[:2],
        {**VALUES[1], "classicMemberMetadata": None},
        *VALUES[2:],
    ]
    assert [value for _, value in pairs[7:]] == [None] * 7


def test_a_coordinator_takes_over_a_group_from_kafka(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, offsets_topic_num_partitions=1)
    with running(kafka):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("beer", 3, 1)])["beer"].result(TIMEOUT_S)
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "group.protocol": "consumer",
        }
        consumers = [Consumer(settings), Consumer(settings)]
        for consumer in consumers:
            consumer.subscribe(["beer"])
        deadline_s = time.monotonic() + TIMEOUT_S
        while sorted(len(each.assignment()) for each in consumers) != [1, 2]:
            assert time.monotonic() < deadline_s, "the group is not balanced yet"
            for consumer in consumers:
                consumer.poll(0.1)
        owned = sorted(sorted(p.partition for p in each.assignment()) for each in consumers)
        kafka.kill()  # before anybody leaves
    machine = GroupMachine(GroupConfig(), Topics(), GroupMemory(1 << 40))
    for segment in sorted((kafka.log_dir / "__consumer_offsets-0").glob("*.log")):
        data = segment.read_bytes()
        for position, _ in split_batches(data):
            for record in iter_records(data, position):
                decoded = decode_record(record.key, record.value)
                if decoded is not None:
                    machine.load(decoded)
    machine.finish_load(0)
    described = machine.consumer_describe("g")
    assert (described.group_state, described.group_epoch) == ("Stable", described.assignment_epoch)
    rows = [member.assignment.topic_partitions for member in described.members]
    assert sorted(row.partitions for (row,) in rows) == owned
    assert {member.subscribed_topic_names[0] for member in described.members} == {"beer"}


def transactional(kafka: ApacheKafka, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    return producer


def commit_in(producer: Producer, consumer: Consumer, *offsets: int) -> None:
    """One for each partition."""
    places = [TopicPartition("beer", index, offset) for index, offset in enumerate(offsets)]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), TIMEOUT_S)


def test_a_coordinator_takes_over_transactions_from_kafka(tmp_path: Path) -> None:
    """Committed ones, aborted ones, those that were overtaken, and one that is open."""
    kafka = ApacheKafka(tmp_path, offsets_topic_num_partitions=1)
    with running(kafka):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("beer", 4, 1)])["beer"].result(TIMEOUT_S)
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        first, second, third = (transactional(kafka, each) for each in "abc")
        commit_in(first, consumer, 10, 11, 12, 13)
        commit_in(second, consumer, 20, 21)
        commit_in(third, consumer, 30)
        second.commit_transaction(TIMEOUT_S)
        consumer.commit(offsets=[TopicPartition("beer", 2, 2)], asynchronous=False)
        first.commit_transaction(TIMEOUT_S)
        third.abort_transaction(TIMEOUT_S)
        third.begin_transaction()
        commit_in(third, consumer, 40)
        # Markers are written after the answer.
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            seen = [
                each.offset
                for each in Consumer(settings).committed(
                    [TopicPartition("beer", index) for index in (1, 2, 3)], TIMEOUT_S
                )
            ]
            if seen == [21, 2, 13]:
                break
            assert time.monotonic() < deadline_s, seen
            time.sleep(0.1)
        kafka.kill()
    machine = GroupMachine(GroupConfig(), Topics(), GroupMemory(1 << 40))
    loaded = Loaded()
    for segment in sorted((kafka.log_dir / "__consumer_offsets-0").glob("*.log")):
        GroupCodec().replay(segment.read_bytes(), machine, loaded)
    machine.finish_load(0)
    wanted = [("beer", [0, 1, 2, 3])]
    ((_, rows),) = machine.fetch("g", wanted)
    assert [row[1] for row in rows] == [20, 21, 2, 13]
    ((_, stable),) = machine.fetch("g", wanted, require_stable=True)
    assert [len(row) for row in stable] == [5, 4, 4, 4]


def test_kafka_reads_a_commit_in_a_transaction(tmp_path: Path) -> None:
    """The batch and its marker, as kafka-dump-log shows them."""
    committed = CommittedOffset(7, 3, "note", 1_700_000_000_000, -1)
    records = TransactionalOffsets(9, 2, [OffsetRecord("g", "beer", 0, committed)])
    write = Write(records, ("g",), lambda _: None, lambda *_: None)
    marker = build_end_txn_marker(
        EndTxnMarker(True, 4), producer_id=9, producer_epoch=2, timestamp_ms=0, base_offset=1
    )
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(GroupCodec().encode(write, 0) + marker)
    printed = run_tool("kafka-dump-log", "--offsets-decoder", "--files", str(path))
    batch, value, control, end = printed.splitlines()[-4:]
    assert "producerId: 9 producerEpoch: 2" in batch
    assert "isTransactional: true isControl: false" in batch
    assert '"offset":7,"leaderEpoch":3,"metadata":"note"' in value
    assert "isTransactional: true isControl: true" in control
    assert "endTxnMarker: COMMIT coordinatorEpoch: 4" in end


class Topics:
    """Every id is that of the one topic."""

    version = 1

    def find(self, name: str) -> Topic | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return "beer"

    def match(self, regex: str) -> tuple[str, ...]:
        return ()
