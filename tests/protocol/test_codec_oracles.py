"""Our codec against kio and kafka-python: random messages of every version, byte for byte."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given

from kraftpy.protocol import codec, messages, schema
from tests.protocol.oracles import (
    NEWER_THAN_THE_ORACLES,
    kafka_python_classes,
    kafka_python_round_trip,
    kio_class,
    kio_round_trip,
)
from tests.protocol.random_messages import SEEDS, RandomMessages, all_versions, examples, plain

# Kafka 4, which kio's tables are made from, has dropped these versions.
OLDER_THAN_KIO = {
    *((f"Produce{kind}", version) for kind in ("Request", "Response") for version in (0, 1, 2)),
    *((f"Fetch{kind}", version) for kind in ("Request", "Response") for version in (0, 1, 2, 3)),
    *((f"OffsetCommit{kind}", version) for kind in ("Request", "Response") for version in (0, 1)),
    *((f"CreateTopics{kind}", version) for kind in ("Request", "Response") for version in (0, 1)),
    *((f"DeleteTopics{kind}", 0) for kind in ("Request", "Response")),
    *((f"OffsetFetch{kind}", 0) for kind in ("Request", "Response")),
    ("ListOffsetsRequest", 0),
    ("ListOffsetsResponse", 0),
    ("WriteTxnMarkersRequest", 0),
    ("WriteTxnMarkersResponse", 0),
}
# The records of internal topics: kio has wire messages only.
NOT_IN_KIO = {
    "OffsetCommitKey",
    "OffsetCommitValue",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "TransactionLogKey",
    "TransactionLogValue",
    "ShareSnapshotKey",
    "ShareSnapshotValue",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "ConsumerGroupClassicMemberMetadata",
    *(
        f"ConsumerGroup{name}{part}"
        for name in (
            "Metadata",
            "MemberMetadata",
            "TargetAssignmentMetadata",
            "TargetAssignmentMember",
            "CurrentMemberAssignment",
            "RegularExpression",
        )
        for part in ("Key", "Value")
    ),
    *(
        f"ShareGroup{name}{part}"
        for name in (
            "Metadata",
            "MemberMetadata",
            "TargetAssignmentMetadata",
            "TargetAssignmentMember",
            "CurrentMemberAssignment",
            "StatePartitionMetadata",
        )
        for part in ("Key", "Value")
    ),
}
NOT_IN_KAFKA_PYTHON = {
    *NOT_IN_KIO,
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ControlRecordTypeSchema",
    "DefaultPrincipalData",
    "EndTxnMarker",
    "EnvelopeRequest",
    "EnvelopeResponse",
    *(
        f"{what}DelegationToken{part}"
        for what in ("Create", "Renew", "Expire", "Describe")
        for part in ("Request", "Response")
    ),
    *(
        f"{what}{part}"
        for what in (
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "WriteShareGroupState",
            "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
            "ShareGroupHeartbeat",
            "ShareGroupDescribe",
            "DescribeShareGroupOffsets",
            "AlterShareGroupOffsets",
            "DeleteShareGroupOffsets",
            "ShareAcknowledge",
            "ShareFetch",
        )
        for part in ("Request", "Response")
    ),
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
}
EMBEDDED_WITH_VERSION = {"ConsumerProtocolSubscription", "ConsumerProtocolAssignment"}


def encode(name: str, version: int, message: Any) -> bytes:
    parts: list[Any] = []
    codec.encoder(name, version)(message, parts.append)
    return b"".join(parts)


@pytest.mark.parametrize("name", sorted(set(schema.names()) - NOT_IN_KIO))
@examples()
@given(seed=SEEDS)
def test_kio_reads_and_writes_the_same_bytes(name: str, seed: int) -> None:
    for version in all_versions(name):
        if (name, version) in OLDER_THAN_KIO | NEWER_THAN_THE_ORACLES:
            continue
        # kio raises KeyError for tagged fields that it does not know.
        maker = RandomMessages(seed, unknown_tags=False, plausible=True)
        message = maker.message(name, version)
        data = encode(name, version, message)
        entity, again = kio_round_trip(name, version, data)
        assert again == data, version
        assert_same_fields(message, entity)


def assert_same_fields(ours: Any, theirs: Any) -> None:
    """Every field that kio names as Kafka does has the value that we gave to that name."""
    for field in dataclasses.fields(theirs):
        if not hasattr(ours, field.name):
            continue  # times: kio drops the unit from the name and gives timedelta or datetime
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(right, tuple) and right and dataclasses.is_dataclass(right[0]):
            for one, other in zip(left, right, strict=True):
                assert_same_fields(one, other)
        elif isinstance(right, tuple | str | int | bytes) and left is not None:
            kio_type = field.metadata.get("kafka_type")
            if kio_type in ("string", "int8", "int16", "int32", "int64", "bool", "bytes"):
                assert left == (list(right) if isinstance(right, tuple) else right), field.name


@pytest.mark.parametrize("name", sorted(set(schema.names()) - NOT_IN_KAFKA_PYTHON))
@examples()
@given(seed=SEEDS)
def test_kafka_python_reads_and_writes_the_same_bytes(name: str, seed: int) -> None:
    for version in all_versions(name):
        if (name, version) in NEWER_THAN_THE_ORACLES:
            continue
        # kafka-python drops tagged fields that it does not know.
        message = RandomMessages(seed, unknown_tags=False).message(name, version)
        if name == "ApiVersionsResponse":
            message.error_code = 0  # it reads any answer with an error as version 0
        if name in EMBEDDED_WITH_VERSION:
            data = codec.encode_versioned(name, version, message)
        else:
            data = encode(name, version, message)
        assert kafka_python_round_trip(name, version, data) == data, version


@pytest.mark.parametrize("name", list(schema.names()))
@examples()
@given(seed=SEEDS)
def test_what_is_encoded_decodes_to_the_same_message(name: str, seed: int) -> None:
    for version in all_versions(name):
        message = RandomMessages(seed).message(name, version)
        data = encode(name, version, message)
        again, end = codec.decoder(name, version)(data, 0)
        assert end == len(data)
        assert plain(again) == plain(message), version


@pytest.mark.parametrize("name", list(schema.names()))
def test_a_message_of_defaults_round_trips(name: str) -> None:
    for version in all_versions(name):
        message = getattr(messages, name)()
        data = encode(name, version, message)
        again, end = codec.decoder(name, version)(data, 0)
        assert end == len(data)
        assert again == message, version


def test_the_oracles_cover_what_they_are_said_to_cover() -> None:
    missing = {
        (name, version)
        for name in schema.names()
        for version in all_versions(name)
        if name not in NOT_IN_KIO and kio_class(name, version) is None
    }
    differ = missing ^ (OLDER_THAN_KIO | NEWER_THAN_THE_ORACLES)
    assert not differ, f"kio lacks them, or OLDER_THAN_KIO names them, but not both: {differ}"
    differ = (set(schema.names()) - set(kafka_python_classes())) ^ NOT_IN_KAFKA_PYTHON
    assert not differ, (
        "kafka-python lacks them (in the modules that oracles.py names), or NOT_IN_KAFKA_PYTHON "
        f"names them, but not both: {differ}"
    )
