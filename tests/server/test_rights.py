"""Every API, asked by who has no right, the right one, and each neighbouring one.

Rights differ by the client's address: from ADMIN_HOST everything is allowed, from CLIENT_HOST what
the test gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey, advertised
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch
from kraftpy.server.handlers.authorization.guards import guarded, rights
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.testing import Broker
from tests.server.old_wire import message_set
from tests.server.rights import (
    ADMIN_HOST,
    AUTHORIZATION,
    CASES,
    CLIENT_HOST,
    OPERATIONS,
    SECRET,
    TYPES,
    Case,
    HostWire,
    Right,
    codes,
    name_of,
)
from tests.server.shares import ACCEPT, Member
from tests.server.wire import Closed, fetch_request, produce
from tests.waiting import wait_until

ALLOW, DENY = 3, 2
LITERAL = 3
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

THERE = "kept-secret-topic"
GONE = "lost-secret-topic"


class Secured:
    """A broker with an authorizer, and things in it that the client may not know of."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.admin = self.connect(ADMIN_HOST)
        self.given: list[tuple[Right, int]] = []
        self.create_acls([(type_, Operation.ALL) for type_ in TYPES], host=ADMIN_HOST)
        self.fill()

    def connect(self, source: str = CLIENT_HOST) -> HostWire:
        return HostWire(self.broker.host, self.broker.port, source)

    def create_acls(
        self, rights: list[Right], *, host: str = CLIENT_HOST, permission: int = ALLOW
    ) -> None:
        creations = [
            m.CreateAclsRequest.AclCreation(
                type_, name_of(type_), LITERAL, "User:ANONYMOUS", host, operation, permission
            )
            for type_, operation in rights
        ]
        answer = self.admin.call(ApiKey.CREATE_ACLS, 3, m.CreateAclsRequest(creations))
        assert not any(codes(answer)), answer

    def give(self, *rights: Right, permission: int = ALLOW) -> None:
        """These rights, and no others."""
        kinds = m.DeleteAclsRequest
        everything = kinds.DeleteAclsFilter(1, None, 1, None, CLIENT_HOST, 1, 1)
        assert not any(codes(self.admin.call(ApiKey.DELETE_ACLS, 3, kinds([everything]))))
        if rights:
            self.create_acls(list(rights), permission=permission)

    def fill(self, name: str = THERE) -> None:
        """Makes a topic, a group with an offset and a transactional id of this name."""
        admin = self.admin
        kinds = m.CreateTopicsRequest
        config = kinds.CreatableTopicConfig("retention.ms", "987654321")
        created = admin.call(
            ApiKey.CREATE_TOPICS,
            7,
            kinds([kinds.CreatableTopic(name, 1, 1, configs=[config])], 9999),
        )
        assert not any(codes(created)), created
        assert produce(admin, name, build_batch([(1, None, SECRET, [])])).error_code == 0
        for key_type in (0, 1):
            find = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
            self.at_last(ApiKey.FIND_COORDINATOR, 4, find)
        commit = m.OffsetCommitRequest
        partition = commit.OffsetCommitRequestPartition(
            0, 1, -1, committed_metadata=SECRET.decode()
        )
        topic = commit.OffsetCommitRequestTopic(name, partitions=[partition])
        self.at_last(ApiKey.OFFSET_COMMIT, 9, commit(name, -1, "", topics=[topic]))
        self.at_last(ApiKey.INIT_PRODUCER_ID, 4, m.InitProducerIdRequest(name, 60_000))

    def at_last(self, key: ApiKey, version: int, request: Any) -> None:
        """Asks until there is no error: coordinators take a moment."""
        wait_until(
            lambda: not any(codes(self.admin.call(key, version, request))), f"{key.name} is done"
        )

    def state(self) -> list[Any]:
        """Whatever a client could have changed."""
        admin = self.admin
        fetch = m.OffsetFetchRequest
        answers = [
            admin.call(ApiKey.METADATA, 9, m.MetadataRequest(None)),
            admin.call(ApiKey.LIST_GROUPS, 5, m.ListGroupsRequest()),
            admin.call(ApiKey.LIST_TRANSACTIONS, 1, m.ListTransactionsRequest()),
            admin.call(
                ApiKey.OFFSET_FETCH,
                9,
                fetch(
                    groups=[
                        fetch.OffsetFetchRequestGroup(each, None, -1, None)
                        for each in (THERE, GONE)
                    ]
                ),
            ),
            admin.call(
                ApiKey.DESCRIBE_ACLS,
                3,
                m.DescribeAclsRequest(2, None, 1, "User:mallory", None, 1, 1),
            ),
            admin.call(ApiKey.FETCH, 12, fetch_request(THERE, 0))
            .responses[0]
            .partitions[0]
            .high_watermark,
            admin.call(ApiKey.API_VERSIONS, 4, m.ApiVersionsRequest("a", "1")),
        ]
        kinds = m.DescribeConfigsRequest
        named = [(2, THERE), (32, THERE), (4, "")]
        described = [kinds.DescribeConfigsResource(*each) for each in named]
        answers.append(admin.call(ApiKey.DESCRIBE_CONFIGS, 4, kinds(described)))
        return answers


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with Broker(
        authorizer_class_name=AUTHORIZER,
        allow_everyone_if_no_acl_found="true",
        group_initial_rebalance_delay_ms=0,
    ) as broker:
        yield Secured(broker)


def ask(wire: HostWire, case: Case, name: str) -> tuple[bytes, Any]:
    """The answer's bytes but for its correlation id, and what they say."""
    wire.send(case.key, case.version, case.request(name))
    frame = wire.receive_frame()
    _, answer = codec.decode_response(case.key, case.version, frame)
    return frame[4:], answer


def check_denied(wire: HostWire, case: Case, *, of: tuple[Right, ...]) -> None:
    """Trap 15: the same bytes whether it's there or not, and nothing of what is there."""
    label = case.key.name, case.version, of
    there, answer = ask(wire, case, THERE)
    gone, _ = ask(wire, case, GONE)
    assert there.replace(THERE.encode(), GONE.encode()) == gone, (label, answer)
    assert SECRET not in there, label
    found = set(codes(answer))
    if case.silent:
        named = case.request("x") != case.request("y")
        assert named or THERE.encode() not in there, (label, answer)
        assert found & AUTHORIZATION or not found - {0}, (label, answer)
    else:
        assert found & AUTHORIZATION, (label, answer)
        assert found <= AUTHORIZATION | {0, ErrorCode.OPERATION_NOT_ATTEMPTED}, (label, answer)


def denied(of: tuple[Right, ...]) -> list[Case]:
    return [case for case in CASES if case.needs and not case.allowed_by(*of)]


def test_trap_19_every_api_has_a_row() -> None:
    assert set(rights()) >= set(HANDLERS)
    assert set(guarded(HANDLERS)) == set(HANDLERS)
    assert {case.key for case in CASES} >= set(advertised(HANDLERS)) - {ApiKey.SASL_AUTHENTICATE}


def test_trap_15_and_19_without_rights_nothing_is_told_and_nothing_changes(
    secured: Secured,
) -> None:
    secured.give()
    before = secured.state()
    with secured.connect() as wire:
        for case in denied(()):
            check_denied(wire, case, of=())
    assert secured.state() == before


@pytest.mark.parametrize(
    "right",
    [(type_, operation) for type_ in TYPES for operation in OPERATIONS[type_]],
    ids=lambda right: f"{right[0].name}-{right[1].name}",
)
def test_trap_19_a_neighbouring_right_is_not_enough(secured: Secured, right: Right) -> None:
    secured.give(right)
    before = secured.state()
    with secured.connect() as wire:
        for case in denied((right,)):
            check_denied(wire, case, of=(right,))
    assert secured.state() == before


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].key.name}")
def test_with_the_right_it_is_let_through(secured: Secured, number: int) -> None:
    case = CASES[number]
    for count, need in enumerate(case.needs or (frozenset(),)):
        name = f"right-{number:04}-{count:04}"
        secured.fill(name)
        secured.give(*sorted(need))
        with secured.connect() as wire:
            _, answer = ask(wire, case, name)
        assert not set(codes(answer)) & AUTHORIZATION, (need, answer)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].key.name}")
def test_trap_13_deny_wins(secured: Secured, number: int) -> None:
    case = CASES[number]
    if not case.needs:
        return
    every = [(type_, operation) for type_ in TYPES for operation in OPERATIONS[type_]]
    secured.give(*every)
    wanted = {right for need in case.needs for right in need}
    implied = {(type_, Operation.DESCRIBE) for type_, _ in wanted}
    secured.create_acls(sorted(wanted | implied), permission=DENY)
    with secured.connect() as wire:
        check_denied(wire, case, of=())


def test_acks_0_that_is_denied_ends_the_connection(secured: Secured) -> None:
    secured.give()
    with secured.connect() as wire:
        request = CASES[0].request(THERE)
        request.acks = 0
        wire.send(ApiKey.PRODUCE, 12, request)
        with pytest.raises(Closed):
            wire.receive_frame()


def test_what_is_allowed_is_done_beside_what_is_denied(secured: Secured) -> None:
    for name in ("prefix-a", "other-a"):
        secured.fill(name)
    secured.give()
    kinds = m.CreateAclsRequest
    creation = kinds.AclCreation(
        2, "prefix-", 4, "User:ANONYMOUS", CLIENT_HOST, Operation.ALL, ALLOW
    )
    assert not any(codes(secured.admin.call(ApiKey.CREATE_ACLS, 3, kinds([creation]))))
    with secured.connect() as wire:
        request = m.ListOffsetsRequest
        topics = [
            request.ListOffsetsTopic(name, [request.ListOffsetsPartition(0, -1, -1)])
            for name in ("other-a", "prefix-a", "prefix-nothing")
        ]
        answer = wire.call(ApiKey.LIST_OFFSETS, 9, request(-1, 0, topics))
        assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
            "other-a": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "prefix-a": ErrorCode.NONE,
            "prefix-nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        everything = wire.call(ApiKey.METADATA, 9, m.MetadataRequest(None))
        assert [topic.name for topic in everything.topics] == ["prefix-a"]


def test_authorized_operations_are_what_may_be_done(secured: Secured) -> None:
    """KIP-430; the cluster's are 0 without DESCRIBE."""
    secured.give((Resource.TOPIC, Operation.READ), (Resource.CLUSTER, Operation.ALTER_CONFIGS))
    with secured.connect() as wire:
        request = m.MetadataRequest(
            [m.MetadataRequest.MetadataRequestTopic(name=THERE)],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        answer = wire.call(ApiKey.METADATA, 9, request)
        operations = answer.topics[0].topic_authorized_operations
        assert operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
        assert answer.cluster_authorized_operations == 0
        secured.give((Resource.CLUSTER, Operation.ALTER))
        answer = wire.call(
            ApiKey.DESCRIBE_CLUSTER,
            1,
            m.DescribeClusterRequest(include_cluster_authorized_operations=True),
        )
        assert (
            answer.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
        )


def test_trap_16_a_fetch_that_waits_asks_again_when_it_answers(secured: Secured) -> None:
    secured.fill("waited-for")
    secured.give((Resource.TOPIC, Operation.READ))
    for request in (
        fetch_request("waited-for", 1, max_wait_ms=20_000),
        fetch_request("waited-for", 2, max_wait_ms=20_000),
    ):
        with secured.connect() as wire:
            wire.send(ApiKey.FETCH, 12, request)
            wire.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                wire.sock.recv(1)
            wire.sock.settimeout(20)
            secured.give()
            produced = produce(secured.admin, "waited-for", build_batch([(1, None, SECRET, [])]))
            assert produced.error_code == 0
            frame = wire.receive_frame()
            assert SECRET not in frame
            _, answer = codec.decode_response(ApiKey.FETCH, 12, frame)
            assert set(codes(answer)) == {0, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        secured.give((Resource.TOPIC, Operation.READ))


def test_old_versions_of_fetch_and_produce_ask_for_the_same_rights(secured: Secured) -> None:
    secured.fill("of-old-clients")
    for version, produced, magic in ((1, 0, 0), (3, 2, 1)):
        sent = message_set(magic, [(5, None, b"v")])
        with secured.connect() as wire:
            for operation, may_read, may_write in (
                (Operation.DESCRIBE, False, False),
                (Operation.READ, True, False),
                (Operation.WRITE, False, True),
            ):
                secured.give((Resource.TOPIC, operation))
                answer = wire.call(ApiKey.FETCH, version, fetch_request("of-old-clients", 0))
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                assert set(codes(answer)) - {0} == (set() if may_read else {denied})
                assert bool(answer.responses[0].partitions[0].records) == may_read
                written = produce(wire, "of-old-clients", sent, version=produced)
                assert written.error_code == (0 if may_write else denied)


def test_trap_16_a_session_s_topics_are_asked_for_in_each_fetch(secured: Secured) -> None:
    secured.give((Resource.TOPIC, Operation.READ))
    first = fetch_request(THERE, 0)
    first.session_epoch = 0
    with secured.connect() as wire:
        opened = wire.call(ApiKey.FETCH, 12, first)
        assert opened.session_id > 0
        assert set(codes(opened)) == {0}
        secured.give()
        goes_on = m.FetchRequest(
            replica_id=-1,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=opened.session_id,
            session_epoch=1,
        )
        answer = wire.call(ApiKey.FETCH, 12, goes_on)
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes(answer)
        assert SECRET not in b"".join(
            codec.encode_response(ApiKey.FETCH, 12, 0, answer)  # type: ignore[arg-type]
        )


def test_trap_17_acls_outlive_a_topic_and_its_old_id_reads_nothing(secured: Secured) -> None:
    name = "created-again"
    secured.fill(name)
    described = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)])
    old_id = secured.admin.call(ApiKey.METADATA, 12, described).topics[0].topic_id
    secured.give((Resource.TOPIC, Operation.READ))
    request = fetch_request(name, 0)
    request.topics[0].topic_id = old_id
    with secured.connect() as wire:
        assert set(codes(wire.call(ApiKey.FETCH, 13, request))) == {0}
        deletion = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=9_999)
        assert not any(codes(secured.admin.call(ApiKey.DELETE_TOPICS, 5, deletion)))
        secured.fill(name)
        answer = wire.call(ApiKey.FETCH, 13, request)
        assert ErrorCode.UNKNOWN_TOPIC_ID in codes(answer)
        secured.give()
        denied = wire.call(ApiKey.FETCH, 12, fetch_request(name, 0))
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes(denied)


def test_a_member_of_a_share_group_may_read_its_topics_in_each_fetch(secured: Secured) -> None:
    described = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=THERE)])
    id_ = secured.admin.call(ApiKey.METADATA, 12, described).topics[0].topic_id
    secured.give((Resource.GROUP, Operation.READ), (Resource.TOPIC, Operation.READ))
    said = {(id_, 0): [(0, 0, [ACCEPT])]}
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with secured.connect() as wire:
        ann = Member(wire, THERE)
        assert ann.fetch((id_, 0)) == {}
        assert ann.acknowledge(said) != {(id_, 0): denied}
        secured.give((Resource.GROUP, Operation.READ))
        assert ann.fetch()[id_, 0].error == denied
        assert ann.acknowledge(said) == {(id_, 0): denied}
        secured.give((Resource.TOPIC, Operation.READ))
        ann.fetch(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def test_metadata_by_id_that_is_denied_has_no_name(secured: Secured) -> None:
    named = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=THERE)])
    topic_id = secured.admin.call(ApiKey.METADATA, 12, named).topics[0].topic_id
    secured.give()
    by_id = m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)
    with secured.connect() as wire:
        (topic,) = wire.call(ApiKey.METADATA, 12, m.MetadataRequest([by_id])).topics
        assert (topic.error_code, topic.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        (topic,) = wire.call(ApiKey.METADATA, 12, named).topics
        assert (topic.error_code, topic.topic_id) == (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            bytes(16),
        )


def test_trap_11_a_replica_needs_cluster_action(secured: Secured) -> None:
    secured.give((Resource.TOPIC, Operation.READ), (Resource.TOPIC, Operation.ALL))
    request = fetch_request(THERE, 0)
    request.replica_id = 0
    with secured.connect() as wire:
        answer = wire.call(ApiKey.FETCH, 12, request)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert answer.responses == []


def test_trap_18_a_regex_matches_only_what_may_be_described(secured: Secured) -> None:
    for name in ("seen-1", "unseen-1"):
        secured.fill(name)
    secured.give((Resource.GROUP, Operation.READ))
    kinds = m.CreateAclsRequest
    describe = Operation.DESCRIBE
    creation = kinds.AclCreation(2, "seen-", 4, "User:ANONYMOUS", CLIENT_HOST, describe, ALLOW)
    assert not any(codes(secured.admin.call(ApiKey.CREATE_ACLS, 3, kinds([creation]))))
    named = [m.MetadataRequest.MetadataRequestTopic(name="seen-1")]
    metadata = secured.admin.call(ApiKey.METADATA, 12, m.MetadataRequest(named))
    find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["patterns"])
    secured.at_last(ApiKey.FIND_COORDINATOR, 4, find)
    with secured.connect() as wire:
        request = m.ConsumerGroupHeartbeatRequest(
            "patterns",
            "a-member",
            0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_regex=".*seen-.*",
            topic_partitions=[],
        )
        answer = wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert answer.error_code == 0, answer
        assigned = {each.topic_id for each in answer.assignment.topic_partitions}
        assert assigned == {metadata.topics[0].topic_id}
