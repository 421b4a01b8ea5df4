"""One request for each API that takes rights, and which rights let it through.

Requests are about resources that are there or not: their names are equally long, so the answers to
who may not know can be compared byte by byte.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from kraftpy.core.security.acls import CLUSTER_NAME, Operation, Resource
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.share_state import request_of
from tests.server.wire import TIMEOUT_S, Wire

Op = Operation
T, G, C, X = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID

Right = tuple[Resource, Operation]

ADMIN_HOST = "127.0.0.2"
CLIENT_HOST = "127.0.0.3"
TYPES = (T, G, C, X)
SECRET = b"nobody-may-read-this"

AUTHORIZATION = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

OPERATIONS = {
    T: (
        Op.READ,
        Op.WRITE,
        Op.CREATE,
        Op.DELETE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
    ),
    G: (Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
    C: (
        Op.CREATE,
        Op.DELETE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.CLUSTER_ACTION,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
        Op.IDEMPOTENT_WRITE,
    ),
    X: (Op.WRITE, Op.DESCRIBE),
}


class HostWire(Wire):
    """A connection from an address of the loopback network: that's how rights differ here."""

    def __init__(self, host: str, port: int, source: str) -> None:
        self.sock = socket.create_connection(
            (host, port), timeout=TIMEOUT_S, source_address=(source, 0)
        )
        self._client_id = "wire"
        self._correlation_id = 0


class Case(NamedTuple):
    """How an API is asked about a name. `needs`: alternatives, each a set of rights.

    `silent`: what is denied is left out, and no error says so.
    """

    key: ApiKey
    version: int
    request: Callable[[str], Any]
    needs: tuple[frozenset[Right], ...]
    silent: bool = False
    whole: bool = False  # nothing of the request depends on the name

    def allowed_by(self, *rights: Right) -> bool:
        have = set(rights)
        for type_, operation in rights:
            if operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER):
                have.add((type_, Op.DESCRIBE))
            if operation is Op.ALTER_CONFIGS:
                have.add((type_, Op.DESCRIBE_CONFIGS))
        return any(need <= have for need in self.needs)


def one(*rights: Right) -> tuple[frozenset[Right], ...]:
    """All of these rights together."""
    return (frozenset(rights),)


def either(*rights: Right) -> tuple[frozenset[Right], ...]:
    """Any of these rights."""
    return tuple(frozenset((each,)) for each in rights)


def _produce(name: str, transactional_id: str | None = None, acks: int = 1) -> Any:
    kinds = m.ProduceRequest
    return kinds(
        transactional_id,
        acks,
        1000,
        [kinds.TopicProduceData(name, partition_data=[kinds.PartitionProduceData(0, b"")])],
    )


def _fetch(name: str) -> Any:
    kinds = m.FetchRequest
    return kinds(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[
            kinds.FetchTopic(name, partitions=[kinds.FetchPartition(0, -1, 0, -1, -1, 1 << 20)])
        ],
    )


def _commit(name: str) -> Any:
    kinds = m.OffsetCommitRequest
    return kinds(
        name,
        -1,
        "",
        topics=[
            kinds.OffsetCommitRequestTopic(
                name, partitions=[kinds.OffsetCommitRequestPartition(0, 1, -1)]
            )
        ],
    )


def _offset_fetch(name: str, *, everything: bool = False) -> Any:
    kinds = m.OffsetFetchRequest
    topics = None if everything else [kinds.OffsetFetchRequestTopics(name, partition_indexes=[0])]
    return kinds(groups=[kinds.OffsetFetchRequestGroup(name, None, -1, topics)])


def _txn_commit(name: str) -> Any:
    kinds = m.TxnOffsetCommitRequest
    return kinds(
        name,
        name,
        7,
        0,
        topics=[
            kinds.TxnOffsetCommitRequestTopic(
                name, [kinds.TxnOffsetCommitRequestPartition(0, 1, -1, "")]
            )
        ],
    )


def _txn_add(name: str) -> Any:
    kinds = m.AddPartitionsToTxnRequest
    return kinds(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=7,
        v3_and_below_topics=[kinds.AddPartitionsToTxnTopic(name, [0])],
    )


def _txn_add_of_broker(name: str) -> Any:
    kinds = m.AddPartitionsToTxnRequest
    topics = [kinds.AddPartitionsToTxnTopic(name, [0])]
    return kinds([kinds.AddPartitionsToTxnTransaction(name, 7, 0, True, topics)])


def _create(name: str) -> Any:
    kinds = m.CreateTopicsRequest
    return kinds([kinds.CreatableTopic(name, 1, 1)], 10_000)


def _join(name: str) -> Any:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")
    return m.JoinGroupRequest(name, 10_000, 10_000, "", None, "consumer", [protocol])


def _describe_configs(type_: int) -> Callable[[str], Any]:
    kinds = m.DescribeConfigsRequest
    return lambda name: kinds([kinds.DescribeConfigsResource(type_, "0" if type_ == 4 else name)])


def _alter_configs(type_: int) -> Callable[[str], Any]:
    kinds = m.IncrementalAlterConfigsRequest
    key = {2: "retention.ms", 4: "log.retention.ms", 32: "consumer.session.timeout.ms"}[type_]
    value = {2: "1234567", 4: "1234567", 32: "46000"}[type_]
    return lambda name: kinds(
        [
            kinds.AlterConfigsResource(
                type_, "" if type_ == 4 else name, [kinds.AlterableConfig(key, 0, value)]
            )
        ]
    )


def _alter_configs_old(name: str) -> Any:
    kinds = m.AlterConfigsRequest
    config = kinds.AlterableConfig("retention.ms", "7654321")
    return kinds([kinds.AlterConfigsResource(2, name, [config])])


def _markers(name: str) -> Any:
    kinds = m.WriteTxnMarkersRequest
    topic = kinds.WritableTxnMarkerTopic(name, [0])
    return kinds([kinds.WritableTxnMarker(7, 0, False, [topic], 0)])


def _acl(name: str) -> Any:
    kinds = m.CreateAclsRequest
    return kinds([kinds.AclCreation(2, name, 3, "User:mallory", "*", 3, 3)])


def _list_offsets(name: str) -> Any:
    kinds = m.ListOffsetsRequest
    return kinds(-1, 0, [kinds.ListOffsetsTopic(name, [kinds.ListOffsetsPartition(0, -1, -1)])])


def _epochs(name: str) -> Any:
    kinds = m.OffsetForLeaderEpochRequest
    partition = kinds.OffsetForLeaderPartition(0, -1, 0)
    return kinds(-1, [kinds.OffsetForLeaderTopic(name, [partition])])


def _metadata(name: str | None) -> Any:
    kinds = m.MetadataRequest
    topics = None if name is None else [kinds.MetadataRequestTopic(name=name)]
    return kinds(topics, allow_auto_topic_creation=True)


def _log_dirs(name: str) -> Any:
    kinds = m.AlterReplicaLogDirsRequest
    return kinds([kinds.AlterReplicaLogDir("/nowhere", [kinds.AlterReplicaLogDirTopic(name, [0])])])


def _by_replica(name: str) -> Any:
    request = _fetch(name)
    request.replica_id = 1
    return request


def _share_offsets(name: str, topics: list[str]) -> Any:
    kinds = m.DescribeShareGroupOffsetsRequest
    rows = [kinds.DescribeShareGroupOffsetsRequestTopic(each, [0]) for each in topics]
    return kinds([kinds.DescribeShareGroupOffsetsRequestGroup(name, rows)])


def _share_alter(name: str) -> Any:
    kinds = m.AlterShareGroupOffsetsRequest
    partitions = [kinds.AlterShareGroupOffsetsRequestPartition(0, 0)]
    return kinds(name, [kinds.AlterShareGroupOffsetsRequestTopic(name, partitions)])


def _heartbeat_848(name: str) -> Any:
    return m.ConsumerGroupHeartbeatRequest(
        name + "-848",
        "a-member",
        0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[name],
        topic_partitions=[],
    )


def _leave(name: str) -> Any:
    return m.LeaveGroupRequest(name, members=[m.LeaveGroupRequest.MemberIdentity("nobody")])


def _delete_records(name: str) -> Any:
    kinds = m.DeleteRecordsRequest
    partition = kinds.DeleteRecordsPartition(0, 0)
    return kinds([kinds.DeleteRecordsTopic(name, [partition])], 5_000)


def _offset_delete(name: str) -> Any:
    kinds = m.OffsetDeleteRequest
    partition = kinds.OffsetDeleteRequestPartition(0)
    return kinds(name, [kinds.OffsetDeleteRequestTopic(name, [partition])])


def _elect(name: str) -> Any:
    kinds = m.ElectLeadersRequest
    return kinds(0, [kinds.TopicPartitions(name, [0])], 5_000)


def _reassign(name: str) -> Any:
    kinds = m.AlterPartitionReassignmentsRequest
    partition = kinds.ReassignablePartition(0, None)
    return kinds(5_000, topics=[kinds.ReassignableTopic(name, [partition])])


def _reassignments(name: str) -> Any:
    kinds = m.ListPartitionReassignmentsRequest
    return kinds(5_000, [kinds.ListPartitionReassignmentsTopics(name, [0])])


def _quorum(_: str) -> Any:
    kinds = m.DescribeQuorumRequest
    return kinds([kinds.TopicData("__cluster_metadata", [kinds.PartitionData(0)])])


def _partitions(name: str) -> Any:
    kinds = m.CreatePartitionsRequest
    return kinds([kinds.CreatePartitionsTopic(name, 3, None)], 5_000)


def _share_state(key: ApiKey, fields: tuple[Any, ...], name: str) -> Any:
    return request_of(key, name, bytes(range(16)), (0, *fields))


def _scram(name: str) -> Any:
    kinds = m.AlterUserScramCredentialsRequest
    return kinds([], [kinds.ScramCredentialUpsertion(name, 1, 4096, b"salt", bytes(32))])


def _quotas(name: str) -> Any:
    kinds = m.AlterClientQuotasRequest
    part = kinds.EntityData("client-id", name)
    op = kinds.OpData("request_percentage", 50.0, False)
    return kinds([kinds.EntryData([part], [op])], False)


K = ApiKey
CASES = [
    Case(K.PRODUCE, 12, _produce, one((T, Op.WRITE))),
    Case(K.PRODUCE, 12, lambda name: _produce(name, name), one((X, Op.WRITE), (T, Op.WRITE))),
    Case(K.FETCH, 12, _fetch, one((T, Op.READ))),
    Case(K.FETCH, 12, _by_replica, one((C, Op.CLUSTER_ACTION))),
    Case(K.SHARE_FETCH, 2, lambda name: m.ShareFetchRequest(name, "a"), one((G, Op.READ))),
    Case(K.SHARE_ACKNOWLEDGE, 2, lambda n: m.ShareAcknowledgeRequest(n, "a"), one((G, Op.READ))),
    Case(K.LIST_OFFSETS, 9, _list_offsets, one((T, Op.DESCRIBE))),
    Case(K.METADATA, 9, _metadata, one((T, Op.DESCRIBE))),
    Case(K.METADATA, 9, lambda _: _metadata(None), one((T, Op.DESCRIBE)), silent=True),
    Case(K.OFFSET_COMMIT, 9, _commit, one((G, Op.READ), (T, Op.READ))),
    Case(K.OFFSET_FETCH, 9, _offset_fetch, one((G, Op.DESCRIBE), (T, Op.DESCRIBE))),
    Case(
        K.OFFSET_FETCH,
        9,
        lambda name: _offset_fetch(name, everything=True),
        one((G, Op.DESCRIBE), (T, Op.DESCRIBE)),
        silent=True,
    ),
    Case(
        K.FIND_COORDINATOR,
        4,
        lambda name: m.FindCoordinatorRequest(key_type=0, coordinator_keys=[name]),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        K.FIND_COORDINATOR,
        3,
        lambda name: m.FindCoordinatorRequest(name, 1),
        one((X, Op.DESCRIBE)),
    ),
    Case(
        K.FIND_COORDINATOR,
        6,
        lambda name: m.FindCoordinatorRequest(
            key_type=2, coordinator_keys=[f"{name}:AAECAwQFBgcICQoLDA0ODw:0"]
        ),
        one((C, Op.CLUSTER_ACTION)),
    ),
    Case(K.JOIN_GROUP, 9, _join, one((G, Op.READ))),
    Case(K.HEARTBEAT, 4, lambda name: m.HeartbeatRequest(name, 1, "nobody"), one((G, Op.READ))),
    Case(K.LEAVE_GROUP, 5, _leave, one((G, Op.READ))),
    Case(K.SYNC_GROUP, 5, lambda name: m.SyncGroupRequest(name, 1, "nobody"), one((G, Op.READ))),
    Case(K.DESCRIBE_GROUPS, 6, lambda name: m.DescribeGroupsRequest([name]), one((G, Op.DESCRIBE))),
    Case(
        K.LIST_GROUPS,
        5,
        lambda _: m.ListGroupsRequest(),
        either((C, Op.DESCRIBE), (G, Op.DESCRIBE)),
        silent=True,
    ),
    Case(K.API_VERSIONS, 4, lambda _: m.ApiVersionsRequest("a", "1"), ()),
    Case(K.SASL_HANDSHAKE, 1, lambda _: m.SaslHandshakeRequest("PLAIN"), ()),
    Case(K.CREATE_TOPICS, 7, _create, either((C, Op.CREATE), (T, Op.CREATE))),
    Case(
        K.DELETE_TOPICS,
        5,
        lambda name: m.DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000),
        (frozenset({(T, Op.DELETE)}), frozenset({(C, Op.DELETE), (T, Op.DESCRIBE)})),
    ),
    Case(K.DELETE_RECORDS, 2, _delete_records, one((T, Op.DELETE))),
    Case(
        K.INIT_PRODUCER_ID, 4, lambda name: m.InitProducerIdRequest(name, 1000), one((X, Op.WRITE))
    ),
    Case(
        K.INIT_PRODUCER_ID,
        4,
        lambda _: m.InitProducerIdRequest(None, 1000),
        either((C, Op.IDEMPOTENT_WRITE), (T, Op.WRITE)),
    ),
    Case(K.OFFSET_FOR_LEADER_EPOCH, 4, _epochs, either((T, Op.DESCRIBE), (C, Op.CLUSTER_ACTION))),
    Case(K.ADD_PARTITIONS_TO_TXN, 3, _txn_add, one((X, Op.WRITE), (T, Op.WRITE))),
    Case(K.ADD_PARTITIONS_TO_TXN, 5, _txn_add_of_broker, one((C, Op.CLUSTER_ACTION))),
    Case(
        K.ADD_OFFSETS_TO_TXN,
        3,
        lambda name: m.AddOffsetsToTxnRequest(name, 7, 0, name),
        one((X, Op.WRITE), (G, Op.READ)),
    ),
    Case(K.END_TXN, 4, lambda name: m.EndTxnRequest(name, 7, 0, True), one((X, Op.WRITE))),
    Case(K.WRITE_TXN_MARKERS, 1, _markers, either((C, Op.ALTER), (C, Op.CLUSTER_ACTION))),
    Case(K.TXN_OFFSET_COMMIT, 4, _txn_commit, one((X, Op.WRITE), (G, Op.READ), (T, Op.READ))),
    Case(
        K.DESCRIBE_ACLS,
        3,
        lambda _: m.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        one((C, Op.DESCRIBE)),
    ),
    Case(K.CREATE_ACLS, 3, _acl, one((C, Op.ALTER))),
    Case(
        K.DELETE_ACLS,
        3,
        lambda name: m.DeleteAclsRequest(
            [m.DeleteAclsRequest.DeleteAclsFilter(2, name, 3, "User:nobody", None, 1, 1)]
        ),
        one((C, Op.ALTER)),
    ),
    Case(K.DESCRIBE_CONFIGS, 4, _describe_configs(2), one((T, Op.DESCRIBE_CONFIGS))),
    Case(K.DESCRIBE_CONFIGS, 4, _describe_configs(32), one((G, Op.DESCRIBE_CONFIGS))),
    Case(K.DESCRIBE_CONFIGS, 4, _describe_configs(4), one((C, Op.DESCRIBE_CONFIGS))),
    Case(K.ALTER_CONFIGS, 2, _alter_configs_old, one((T, Op.ALTER_CONFIGS))),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, _alter_configs(2), one((T, Op.ALTER_CONFIGS))),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, _alter_configs(32), one((G, Op.ALTER_CONFIGS))),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, _alter_configs(4), one((C, Op.ALTER_CONFIGS))),
    Case(K.ALTER_REPLICA_LOG_DIRS, 2, _log_dirs, one((C, Op.ALTER))),
    Case(K.DESCRIBE_LOG_DIRS, 4, lambda _: m.DescribeLogDirsRequest(None), one((C, Op.DESCRIBE))),
    Case(K.CREATE_PARTITIONS, 3, _partitions, one((T, Op.ALTER))),
    # Without a login none of these is let through; test_delegation_tokens.py has their rights.
    Case(K.CREATE_DELEGATION_TOKEN, 3, lambda _: m.CreateDelegationTokenRequest(), ()),
    Case(K.RENEW_DELEGATION_TOKEN, 2, lambda _: m.RenewDelegationTokenRequest(), ()),
    Case(K.EXPIRE_DELEGATION_TOKEN, 2, lambda _: m.ExpireDelegationTokenRequest(), ()),
    Case(K.DESCRIBE_DELEGATION_TOKEN, 3, lambda _: m.DescribeDelegationTokenRequest(), ()),
    Case(K.DELETE_GROUPS, 2, lambda name: m.DeleteGroupsRequest([name]), one((G, Op.DELETE))),
    Case(K.ELECT_LEADERS, 2, _elect, one((C, Op.ALTER))),
    Case(K.ALTER_PARTITION_REASSIGNMENTS, 0, _reassign, one((C, Op.ALTER))),
    Case(K.LIST_PARTITION_REASSIGNMENTS, 0, _reassignments, one((C, Op.DESCRIBE))),
    Case(K.OFFSET_DELETE, 0, _offset_delete, one((G, Op.DELETE), (T, Op.READ))),
    Case(
        K.DESCRIBE_CLIENT_QUOTAS,
        1,
        lambda _: m.DescribeClientQuotasRequest([]),
        one((C, Op.DESCRIBE_CONFIGS)),
    ),
    Case(K.ALTER_CLIENT_QUOTAS, 1, _quotas, one((C, Op.ALTER_CONFIGS))),
    Case(
        K.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda _: m.DescribeUserScramCredentialsRequest(None),
        one((C, Op.DESCRIBE)),
    ),
    Case(K.ALTER_USER_SCRAM_CREDENTIALS, 0, _scram, one((C, Op.ALTER))),
    Case(K.DESCRIBE_QUORUM, 2, _quorum, one((C, Op.DESCRIBE))),
    Case(
        K.UPDATE_FEATURES,
        1,
        lambda _: m.UpdateFeaturesRequest(
            5_000,
            [m.UpdateFeaturesRequest.FeatureUpdateKey("transaction.version", 1, upgrade_type=2)],
        ),
        one((C, Op.ALTER)),
    ),
    Case(
        K.ENVELOPE,
        0,
        lambda name: m.EnvelopeRequest(name.encode(), b"", bytes(4)),
        one((C, Op.CLUSTER_ACTION)),
    ),
    Case(K.DESCRIBE_CLUSTER, 1, lambda _: m.DescribeClusterRequest(), ()),
    Case(
        K.DESCRIBE_PRODUCERS,
        0,
        lambda name: m.DescribeProducersRequest(
            [m.DescribeProducersRequest.TopicRequest(name, [0])]
        ),
        one((T, Op.READ)),
    ),
    Case(K.UNREGISTER_BROKER, 0, lambda _: m.UnregisterBrokerRequest(99), one((C, Op.ALTER))),
    Case(
        K.DESCRIBE_TRANSACTIONS,
        0,
        lambda name: m.DescribeTransactionsRequest([name]),
        one((X, Op.DESCRIBE)),
    ),
    Case(
        K.LIST_TRANSACTIONS,
        1,
        lambda _: m.ListTransactionsRequest(),
        one((X, Op.DESCRIBE)),
        silent=True,
    ),
    Case(K.CONSUMER_GROUP_HEARTBEAT, 1, _heartbeat_848, one((G, Op.READ), (T, Op.DESCRIBE))),
    Case(
        K.CONSUMER_GROUP_DESCRIBE,
        1,
        lambda name: m.ConsumerGroupDescribeRequest([name]),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        K.SHARE_GROUP_HEARTBEAT,
        1,
        lambda name: m.ShareGroupHeartbeatRequest(name, "m", 0, None, [name]),
        one((G, Op.READ), (T, Op.DESCRIBE)),
    ),
    Case(
        K.SHARE_GROUP_DESCRIBE,
        1,
        lambda name: m.ShareGroupDescribeRequest([name]),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        K.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda name: _share_offsets(name, []),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        K.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda name: _share_offsets(name, [name]),
        one((G, Op.DESCRIBE), (T, Op.DESCRIBE)),
    ),
    Case(K.ALTER_SHARE_GROUP_OFFSETS, 0, _share_alter, one((G, Op.READ), (T, Op.READ))),
    Case(
        K.DELETE_SHARE_GROUP_OFFSETS,
        0,
        lambda name: m.DeleteShareGroupOffsetsRequest(
            name, [m.DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(name)]
        ),
        one((G, Op.DELETE), (T, Op.READ)),
    ),
    Case(
        K.LIST_CONFIG_RESOURCES,
        1,
        lambda _: m.ListConfigResourcesRequest(),
        one((C, Op.DESCRIBE_CONFIGS)),
    ),
    Case(
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda name: m.DescribeTopicPartitionsRequest(
            [m.DescribeTopicPartitionsRequest.TopicRequest(name)]
        ),
        one((T, Op.DESCRIBE)),
    ),
    Case(
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda _: m.DescribeTopicPartitionsRequest(),
        one((T, Op.DESCRIBE)),
        silent=True,
    ),
    *(
        Case(key, version, partial(_share_state, key, fields), one((C, Op.CLUSTER_ACTION)))
        for key, version, fields in (
            (K.INITIALIZE_SHARE_GROUP_STATE, 0, (0, -1)),
            (K.READ_SHARE_GROUP_STATE, 0, (0,)),
            (K.WRITE_SHARE_GROUP_STATE, 1, (0, 0, 0, 0, ())),
            (K.DELETE_SHARE_GROUP_STATE, 0, ()),
            (K.READ_SHARE_GROUP_STATE_SUMMARY, 1, (0,)),
        )
    ),
]


def codes(message: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(message, (list, tuple)):
        for each in message:
            yield from codes(each)
        return
    for name in getattr(type(message), "__slots__", ()):
        value = getattr(message, name, None)
        if name.endswith("error_code"):
            yield value
        elif isinstance(value, list) or type(value).__module__ == m.__name__:
            yield from codes(value)


def name_of(type_: Resource) -> str:
    """A pattern for all resources of the type."""
    return CLUSTER_NAME if type_ is C else "*"
