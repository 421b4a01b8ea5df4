"""Trap 12: envelopes (KIP-590), from brokers and from those who are none."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.core.security.acls import Operation
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.replication.support import coordinator_of
from tests.server.rights import HostWire, codes
from tests.waiting import wait_until

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OFFSETS_PARTITIONS = 6
ADMIN, BROKERS, CLIENT = "127.0.0.2", "127.0.0.1", "127.0.0.3"
ALL = Operation.ALL
ALICE = m.DefaultPrincipalData("User", "alice", False)
TOPIC = "read"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        2,
        offsets_topic_num_partitions=OFFSETS_PARTITIONS,
        authorizer_class_name=AUTHORIZER,
        allow_everyone_if_no_acl_found="true",
    ) as started:
        with connect(started, 1, ADMIN) as admin:
            create(
                admin,
                *((kind, "*", "User:ANONYMOUS", ADMIN, ALL) for kind in (2, 3, 5)),
                (4, "kafka-cluster", "User:ANONYMOUS", ADMIN, ALL),
                (4, "kafka-cluster", "User:ANONYMOUS", BROKERS, Operation.CLUSTER_ACTION),
                (4, "kafka-cluster", "User:ANONYMOUS", BROKERS, Operation.DESCRIBE),
                (2, "*", "User:ANONYMOUS", BROKERS, Operation.DESCRIBE),
                (2, TOPIC, "User:alice", "*", Operation.READ),
                (3, "*", "User:alice", "*", Operation.READ),
            )
            kinds = m.CreateTopicsRequest
            topic = kinds.CreatableTopic(TOPIC, 1, 2)
            created = admin.call(ApiKey.CREATE_TOPICS, 7, kinds([topic], 10_000))
            assert not any(codes(created)), created
            wait_until(lambda: not any(commit(admin, "first", 1)), "the first commit is done")
        started.wait_healthy()
        yield started


def connect(cluster: Cluster, node_id: int, source: str) -> HostWire:
    node = cluster.nodes[node_id]
    return HostWire(node.host, node.port, source)


def as_broker(cluster: Cluster) -> HostWire:
    """A connection to the listener of brokers at node 1, from where they come."""
    listeners = cluster.nodes[1].config.read_text()
    found = re.search(r"(?m)^listeners=.*INTERNAL://([\d.]+):(\d+)", listeners)
    assert found is not None
    return HostWire(found[1], int(found[2]), BROKERS)


def create(admin: HostWire, *acls: tuple[int, str, str, str, int]) -> None:
    kinds = m.CreateAclsRequest
    creations = [
        kinds.AclCreation(kind, name, 3, principal, host, operation, 3)
        for kind, name, principal, host, operation in acls
    ]
    answer = admin.call(ApiKey.CREATE_ACLS, 3, kinds(creations))
    assert not any(codes(answer)), answer


def request(group: str, offset: int) -> m.OffsetCommitRequest:
    kinds = m.OffsetCommitRequest
    partition = kinds.OffsetCommitRequestPartition(0, offset, -1)
    return kinds(
        group, -1, "", topics=[kinds.OffsetCommitRequestTopic(TOPIC, partitions=[partition])]
    )


def commit(wire: HostWire, group: str, offset: int) -> list[int]:
    return list(codes(wire.call(ApiKey.OFFSET_COMMIT, 8, request(group, offset))))


def committed(wire: HostWire, group: str) -> int:
    kinds = m.OffsetFetchRequest
    asked = kinds(group, [kinds.OffsetFetchRequestTopic(TOPIC, [0])])
    answer = wire.call(ApiKey.OFFSET_FETCH, 7, asked)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def group_of(cluster: Cluster, node_id: int, prefix: str) -> str:
    return next(
        group
        for group in (f"{prefix}-{number}" for number in range(100))
        if coordinator_of(cluster, group, OFFSETS_PARTITIONS) == node_id
    )


def enveloped(
    message: Any,
    version: int = 8,
    principal: bytes | None = codec.encode_versioned("DefaultPrincipalData", 0, ALICE),
    host: bytes = socket.inet_aton("10.0.0.1"),
) -> m.EnvelopeRequest:
    frame = codec.encode_request(message.API_KEY, version, 7, "alice's", message)
    return m.EnvelopeRequest(b"".join(frame), principal, host)


def test_what_is_passed_on_keeps_its_principal_and_address(cluster: Cluster) -> None:
    """Neither broker may do it for itself, and the client has its own rights at both."""
    group = group_of(cluster, 1, "kept")
    with connect(cluster, 2, CLIENT) as wire, connect(cluster, 2, ADMIN) as admin:
        assert commit(wire, group, 5) == [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        assert commit(admin, group, 6) == [0]
        create(
            admin,
            (3, group, "User:ANONYMOUS", CLIENT, Operation.READ),
            (2, TOPIC, "User:ANONYMOUS", CLIENT, Operation.READ),
        )
        wait_until(lambda: commit(wire, group, 7) == [0], "the client may commit")
        assert committed(admin, group) == 7
        assert committed(wire, group) == 7


def test_a_broker_s_envelope_is_opened(cluster: Cluster) -> None:
    group = group_of(cluster, 1, "opened")
    with as_broker(cluster) as peer, connect(cluster, 1, ADMIN) as admin:
        answer = peer.call(ApiKey.ENVELOPE, 0, enveloped(request(group, 8)))
        assert answer.error_code == 0
        number, inner = codec.decode_response(ApiKey.OFFSET_COMMIT, 8, answer.response_data)
        assert number == 7
        assert list(codes(inner)) == [0]
        assert committed(admin, group) == 8


def test_what_is_passed_on_is_not_passed_on_again(cluster: Cluster) -> None:
    group = group_of(cluster, 2, "once")
    with as_broker(cluster) as peer:
        answer = peer.call(ApiKey.ENVELOPE, 0, enveloped(request(group, 8)))
        _, inner = codec.decode_response(ApiKey.OFFSET_COMMIT, 8, answer.response_data)
        assert list(codes(inner)) == [ErrorCode.NOT_COORDINATOR]


def test_the_old_mark_means_nothing_any_more(cluster: Cluster) -> None:
    group = group_of(cluster, 1, "marked")
    with connect(cluster, 2, ADMIN) as wire, connect(cluster, 2, CLIENT) as client:
        for marked, expected in ((wire, 0), (client, ErrorCode.GROUP_AUTHORIZATION_FAILED)):
            marked._client_id = "kraftpy-forwarded"
            assert commit(marked, group, 3) == [expected]


def test_trap_12_a_client_s_envelope_is_refused(cluster: Cluster) -> None:
    group = group_of(cluster, 1, "client")
    with connect(cluster, 1, CLIENT) as wire, connect(cluster, 1, ADMIN) as admin:
        answer = wire.call(ApiKey.ENVELOPE, 0, enveloped(request(group, 9)))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert answer.response_data is None
        with connect(cluster, 1, BROKERS) as elsewhere:  # not on the listener of brokers
            answer = elsewhere.call(ApiKey.ENVELOPE, 0, enveloped(request(group, 9)))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert committed(admin, group) == -1


def packed(type_: str, name: str) -> bytes:
    return codec.encode_versioned(
        "DefaultPrincipalData", 0, m.DefaultPrincipalData(type_, name, False)
    )


COMMIT = request("g", 1)
INVALID = ErrorCode.INVALID_REQUEST
UNREADABLE = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


@pytest.mark.parametrize(
    ("envelope", "error"),
    [
        (enveloped(enveloped(COMMIT), 0), INVALID),
        (enveloped(m.MetadataRequest(None), 9), INVALID),
        (enveloped(m.DeleteTopicsRequest(topic_names=[TOPIC]), 5), INVALID),
        (enveloped(COMMIT, host=b"123"), INVALID),
        (m.EnvelopeRequest(b"", packed("User", "a"), b"1234"), INVALID),
        (m.EnvelopeRequest(b"\0\x08\0\x63....", packed("User", "a"), b"1234"), INVALID),
        (enveloped(COMMIT, principal=None), UNREADABLE),
        (enveloped(COMMIT, principal=b""), UNREADABLE),
        (enveloped(COMMIT, principal=b"\0\1x"), UNREADABLE),
        (enveloped(COMMIT, principal=packed("", "a")), UNREADABLE),
        (enveloped(COMMIT, principal=packed("Broker", "1")), UNREADABLE),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else "",
)
def test_trap_12_nested_other_requests_and_bad_principals_are_refused(
    cluster: Cluster, envelope: m.EnvelopeRequest, error: ErrorCode
) -> None:
    with as_broker(cluster) as peer:
        answer = peer.call(ApiKey.ENVELOPE, 0, envelope)
        assert (answer.error_code, answer.response_data) == (error, None)


def test_the_enclosed_principal_has_its_own_rights_only(cluster: Cluster) -> None:
    group = group_of(cluster, 1, "mallory")
    mallory = packed("User", "mallory")
    with as_broker(cluster) as peer:
        answer = peer.call(ApiKey.ENVELOPE, 0, enveloped(request(group, 9), principal=mallory))
        _, inner = codec.decode_response(ApiKey.OFFSET_COMMIT, 8, answer.response_data)
        assert list(codes(inner)) == [ErrorCode.GROUP_AUTHORIZATION_FAILED]
