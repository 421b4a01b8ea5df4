"""Apache Kafka reads what a group coordinator writes down of share groups (kafka-dump-log
--offsets-decoder)."""

from __future__ import annotations

from pathlib import Path

from kraftpy.core.groups import encode_record
from kraftpy.core.groups.consumer.records import GroupEpoch, TargetEpoch
from kraftpy.core.groups.share.records import (
    ShareAssignment,
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareStates,
    ShareStatesRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    TopicShares,
)
from tests.conformance.records_as_printed import as_printed

TOPIC_ID = bytes(15) + b"\1"
SHOWN_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SHARES = {TOPIC_ID: TopicShares("t", frozenset((0, 2)))}
PARTITIONS = {TOPIC_ID: frozenset((2, 0))}
SHOWN_PARTITIONS = {"topicId": SHOWN_ID, "partitions": [0, 2]}
SHOWN_SHARES = {"topicId": SHOWN_ID, "topicName": "t", "partitions": [0, 2]}

# By the number of the record's kind: what is written, and what Kafka shows of its value.
RECORDS = {
    "10": (
        ShareMemberRecord("g", "m", ShareMember("r", "c", "/h", ("t", "u"))),
        {"rackId": "r", "clientId": "c", "clientHost": "/h", "subscribedTopicNames": ["t", "u"]},
    ),
    "11": (ShareEpochRecord("g", GroupEpoch(7, -3)), {"epoch": 7, "metadataHash": -3}),
    "12": (
        ShareTargetEpochRecord("g", TargetEpoch(7, 123)),
        {"assignmentEpoch": 7, "assignmentTimestamp": 123},
    ),
    "13": (ShareTargetRecord("g", "m", PARTITIONS), {"topicPartitions": [SHOWN_PARTITIONS]}),
    "14": (
        ShareAssignmentRecord("g", "m", ShareAssignment(7, 6, PARTITIONS)),
        {
            "memberEpoch": 7,
            "previousMemberEpoch": 6,
            "state": 0,
            "assignedPartitions": [SHOWN_PARTITIONS],
        },
    ),
    "15": (
        ShareStatesRecord("g", ShareStates(SHARES, SHARES, {TOPIC_ID: "t"})),
        {
            "initializingTopics": [SHOWN_SHARES],
            "initializedTopics": [SHOWN_SHARES],
            "deletingTopics": [{"topicId": SHOWN_ID, "topicName": "t"}],
        },
    ),
}


def test_kafka_reads_our_records(tmp_path: Path) -> None:
    written = [encode_record(record) for record, _ in RECORDS.values()]
    written += [encode_record(record._replace(value=None)) for record, _ in RECORDS.values()]
    pairs = as_printed(tmp_path, "--offsets-decoder", written)
    assert [key["type"] for key, _ in pairs] == 2 * list(RECORDS)
    for key, _ in pairs:
        member = {"memberId": "m"} if key["type"] in ("10", "13", "14") else {}
        assert key["data"] == {"groupId": "g", **member}
    values = [value for _, value in pairs]
    assert values[: len(RECORDS)] == [
        {"version": "0", "data": shown} for _, shown in RECORDS.values()
    ]
    assert values[len(RECORDS) :] == [None] * len(RECORDS)
