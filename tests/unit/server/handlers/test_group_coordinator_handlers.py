"""The handlers of the group APIs: each version's shape, and where each puts an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.groups import no_offset
from kraftpy.core.security.principals import ANONYMOUS
from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import FORWARDED_CLIENT_ID
from kraftpy.server.handlers import (
    consumer_groups,
    coordinators,
    groups,
    transactional_offsets,
)
from kraftpy.server.network.session import PassedOnSession, Session

FAILURE = KafkaError(ErrorCode.NOT_COORDINATOR)


def fails(*_: object, **__: object) -> Any:
    raise FAILURE


def context(version: int, *, host: str = "10.0.0.1", **how: Any) -> Any:
    """A request that no other broker is asked about."""
    client_id = FORWARDED_CLIENT_ID
    return SimpleNamespace(
        answer_full=False,
        many=False,
        session=PassedOnSession(
            Session("PLAINTEXT", peer=("10.0.0.8", 5000), local=("10.0.0.9", 9092)),
            ANONYMOUS,
            host,
        ),
        **{"api_version": version, "client_id": client_id, **how},
    )


def broker(**calls: Callable[..., Any]) -> Any:
    """A broker whose coordinator has these methods; any other fails."""
    coordinator = SimpleNamespace(**dict.fromkeys(METHODS, fails))
    for name, call in calls.items():
        assert name in METHODS
        setattr(coordinator, name, call)
    return SimpleNamespace(groups=coordinator)


METHODS = (
    "served_partition",
    "coordinator_of",
    "join_group",
    "sync_group",
    "heartbeat",
    "leave_group",
    "commit_offsets",
    "fetch_offsets",
    "delete_offsets",
    "delete_group",
    "describe_group",
    "list_groups",
    "consumer_heartbeat",
    "describe_consumer_group",
)


def commit_request() -> messages.OffsetCommitRequest:
    request = messages.OffsetCommitRequest
    return request(
        group_id="g",
        topics=[
            request.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    request.OffsetCommitRequestPartition(0, 1),
                    request.OffsetCommitRequestPartition(1, 1),
                ],
            )
        ],
    )


def encodes(key: ApiKey, response: Any) -> None:
    """The response fits every version that is advertised."""
    low, high = ADVERTISED[key]
    for version in range(low, high + 1):
        codec.encode_response(key, version, 1, response)


@pytest.mark.parametrize(
    ("key", "handler", "request_"),
    [
        (ApiKey.JOIN_GROUP, groups.join_group, messages.JoinGroupRequest("g", member_id="m")),
        (ApiKey.SYNC_GROUP, groups.sync_group, messages.SyncGroupRequest("g")),
        (ApiKey.HEARTBEAT, groups.heartbeat, messages.HeartbeatRequest("g")),
        (ApiKey.LEAVE_GROUP, groups.leave_group, messages.LeaveGroupRequest("g")),
        (ApiKey.OFFSET_DELETE, groups.offset_delete, messages.OffsetDeleteRequest("g")),
        (ApiKey.LIST_GROUPS, groups.list_groups, messages.ListGroupsRequest()),
    ],
)
def test_an_error_at_the_top(key: ApiKey, handler: Any, request_: Any) -> None:
    response = handler(broker(), context(ADVERTISED[key][1]), request_)
    if asyncio.iscoroutine(response):
        response = asyncio.run(response)
    assert response.error_code == ErrorCode.NOT_COORDINATOR
    encodes(key, response)


def test_a_refused_join_names_the_member_and_the_client_is_known_by_its_host() -> None:
    response = groups.join_group(
        broker(), context(9), messages.JoinGroupRequest("g", member_id="m")
    )
    assert isinstance(response, messages.JoinGroupResponse)
    assert response.member_id == "m"
    seen = []
    for host in ("10.0.0.1", "::1"):
        ctx = context(5, host=host, client_id=None)
        groups.join_group(
            broker(join_group=lambda client, request: seen.append(client)),
            ctx,
            messages.JoinGroupRequest("g"),
        )
    assert seen == [groups.Client(5, "", "/10.0.0.1"), groups.Client(5, "", "/::1")]


def test_a_heartbeat_of_a_group_that_loads_is_fine() -> None:
    def loading(request: object) -> ErrorCode:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    response = groups.heartbeat(
        broker(heartbeat=loading), context(4), messages.HeartbeatRequest("g")
    )
    assert response.error_code == ErrorCode.NONE


def test_leave_before_version_3_is_about_one_member() -> None:
    def leave(request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse:
        member = messages.LeaveGroupResponse.MemberResponse
        return messages.LeaveGroupResponse(
            members=[
                member(m.member_id, m.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                for m in request.members
            ]
        )

    request = messages.LeaveGroupRequest("g", member_id="m")
    response = asyncio.run(groups.leave_group(broker(leave_group=leave), context(2), request))
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    encodes(ApiKey.LEAVE_GROUP, response)
    response = asyncio.run(groups.leave_group(broker(leave_group=leave), context(3), request))
    assert response.error_code == 0


@pytest.mark.parametrize("fails", [False, True])
def test_very_many_leave_some_at_a_time(fails: bool) -> None:
    left: list[int] = []
    answer = messages.LeaveGroupResponse.MemberResponse

    def leave(request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse:
        if fails and left:
            raise FAILURE
        left.append(len(request.members))
        return messages.LeaveGroupResponse(members=[answer(m.member_id) for m in request.members])

    members = [messages.LeaveGroupRequest.MemberIdentity(f"m{n}") for n in range(2_500)]
    request = messages.LeaveGroupRequest("g", members=members)
    response = asyncio.run(groups.leave_group(broker(leave_group=leave), context(5), request))
    if fails:
        assert (left, response.error_code, response.members) == ([1_000], FAILURE.code, [])
    else:
        assert left == [1_000, 1_000, 500]
        assert [each.member_id for each in response.members] == [m.member_id for m in members]


def test_a_refused_commit_has_the_error_on_every_partition() -> None:
    response = groups.offset_commit(broker(), context(8), commit_request())
    assert isinstance(response, messages.OffsetCommitResponse)
    (topic,) = response.topics
    assert topic.name == "t"
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (0, ErrorCode.NOT_COORDINATOR),
        (1, ErrorCode.NOT_COORDINATOR),
    ]
    encodes(ApiKey.OFFSET_COMMIT, response)


@pytest.mark.parametrize("version", range(5))
def test_offsets_in_a_transaction_while_the_group_is_read(version: int) -> None:
    """Clients that are older than Kafka 2.0 break upon the error that says so (KAFKA-7296)."""

    def served_partition(group_id: str) -> int:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    kinds = messages.TxnOffsetCommitRequest
    request = kinds(
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        topics=[
            kinds.TxnOffsetCommitRequestTopic("t", [kinds.TxnOffsetCommitRequestPartition(0, 5)])
        ],
    )
    response = transactional_offsets.txn_offset_commit(
        broker(served_partition=served_partition), context(version), request
    )
    (answer,) = response.topics[0].partitions
    assert answer.error_code == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
        if version < 2
        else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )


class TestOffsetFetch:
    topics = (messages.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0, 1]),)

    def fetch(self, version: int, **request: Any) -> messages.OffsetFetchResponse:
        asked = []

        def fetch_offsets(group_id: str, topics: Any, *member: Any, **options: bool) -> Any:
            assert options == {"require_stable": False, "wants_ranges": False}
            asked.append((group_id, topics))
            return lambda: [("t", [(0, 7, 2, "note"), no_offset(1)])]

        response = groups.offset_fetch(
            broker(fetch_offsets=fetch_offsets),
            context(version),
            messages.OffsetFetchRequest(**request),
        )
        self.asked = asked
        codec.encode_response(ApiKey.OFFSET_FETCH, version, 1, response)
        return response

    @pytest.mark.parametrize("version", range(1, 8))
    def test_of_one_group(self, version: int) -> None:
        response = self.fetch(version, group_id="g", topics=list(self.topics))
        assert self.asked == [("g", [("t", [0, 1])])]
        (topic,) = response.topics
        assert [
            (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata)
            for p in topic.partitions
        ] == [(0, 7, 2, "note"), (1, -1, -1, "")]

    def test_of_everything(self) -> None:
        self.fetch(2, group_id="g", topics=None)
        assert self.asked == [("g", None)]

    def test_of_several_groups(self) -> None:
        request = messages.OffsetFetchRequest
        topics = [request.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
        response = self.fetch(
            8,
            groups=[
                request.OffsetFetchRequestGroup(group_id="g", topics=topics),
                request.OffsetFetchRequestGroup(group_id="h", topics=None),
            ],
        )
        assert self.asked == [("g", [("t", [0, 1])]), ("h", None)]
        assert [group.group_id for group in response.groups] == ["g", "h"]
        assert [p.committed_offset for p in response.groups[0].topics[0].partitions] == [7, -1]

    def test_where_an_error_goes(self) -> None:
        request = messages.OffsetFetchRequest(group_id="g", topics=list(self.topics))
        first = groups.offset_fetch(broker(), context(1), request)
        assert [p.error_code for p in first.topics[0].partitions] == [FAILURE.code] * 2
        assert groups.offset_fetch(broker(), context(7), request).error_code == FAILURE.code
        request.groups = [messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g")]
        (group,) = groups.offset_fetch(broker(), context(8), request).groups
        assert (group.group_id, group.error_code) == ("g", FAILURE.code)


def test_describe_answers_each_group() -> None:
    described = messages.DescribeGroupsResponse.DescribedGroup

    def describe(group_id: str) -> Any:
        if group_id == "elsewhere":
            raise FAILURE
        return described(group_id=group_id, group_state="Empty")

    request = messages.DescribeGroupsRequest(groups=["g", "elsewhere"])
    response = asyncio.run(
        groups.describe_groups(broker(describe_group=describe), context(5), request)
    )
    assert [(g.group_id, g.error_code) for g in response.groups] == [
        ("g", ErrorCode.NONE),
        ("elsewhere", FAILURE.code),
    ]
    encodes(ApiKey.DESCRIBE_GROUPS, response)


def test_a_group_that_is_not_there_is_an_error_since_version_6() -> None:
    def describe(group_id: str) -> Any:
        state = "Dead" if group_id == "gone" else "Empty"
        return messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=state)

    request = messages.DescribeGroupsRequest(groups=["gone", "g"])
    for version, error in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        response = asyncio.run(
            groups.describe_groups(broker(describe_group=describe), context(version), request)
        )
        assert [g.error_code for g in response.groups] == [error, ErrorCode.NONE]
        assert response.groups[0].group_state == "Dead"


def test_the_names_that_groups_are_listed_by_are_few_however_many_there_are() -> None:
    asked: list[tuple[set[str], set[str]]] = []

    def list_groups(states: list[str], types: list[str]) -> list[Any]:
        asked.append(({*states}, {*types}))
        return []

    for states, types in (
        ([], []),
        (["Stable", "EMPTY"], ["Classic"]),
        ([f"s{n}" for n in range(5_000)], [*(f"t{n}" for n in range(5_000)), "consumer"]),
    ):
        request_ = messages.ListGroupsRequest(states_filter=states, types_filter=types)
        asyncio.run(groups.list_groups(broker(list_groups=list_groups), context(5), request_))
    assert asked == [
        (set(), set()),
        ({"stable", "empty"}, {"classic"}),
        ({""}, {"", "consumer"}),
    ]


def test_delete_waits_for_each_group() -> None:
    async def delete() -> messages.DeleteGroupsResponse:
        loop = asyncio.get_running_loop()

        def delete_group(group_id: str) -> Any:
            if group_id == "elsewhere":
                raise FAILURE
            if group_id == "busy":
                return ErrorCode.NON_EMPTY_GROUP
            future = loop.create_future()
            loop.call_soon(future.set_result, ErrorCode.NONE)
            return future

        here = broker(delete_group=delete_group)
        here.share_groups = here.groups
        here.loop = loop
        names = ["g", "busy", "elsewhere", "g"]
        return await groups.delete_groups(here, context(2), messages.DeleteGroupsRequest(names))

    response = asyncio.run(delete())
    assert [(r.group_id, r.error_code) for r in response.results] == [
        ("g", ErrorCode.NONE),
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        ("elsewhere", FAILURE.code),
    ]
    encodes(ApiKey.DELETE_GROUPS, response)


class TestFindCoordinator:
    def find(
        self, version: int, *, transactions: bool = False, shares: bool = False, **request: Any
    ) -> messages.FindCoordinatorResponse:
        async def find() -> messages.FindCoordinatorResponse:
            async def coordinator_of(group_id: str, deadline_s: float) -> int:
                if not group_id:
                    raise KafkaError(ErrorCode.INVALID_GROUP_ID)
                return 2 if group_id == "away" else 1

            here = broker(coordinator_of=coordinator_of)
            here.loop = asyncio.get_running_loop()
            here.serves_transactions = transactions
            here.transactions = here.share_coordinator = here.groups
            here.metadata = SimpleNamespace(features={"share.version": int(shares)})
            here.reachable_nodes = lambda ctx: [
                SimpleNamespace(node_id=1, host="broker", port=9092)
            ]
            return await coordinators.find_coordinator(
                here, context(version), messages.FindCoordinatorRequest(**request)
            )

        response = asyncio.run(find())
        codec.encode_response(ApiKey.FIND_COORDINATOR, version, 1, response)
        return response

    @pytest.mark.parametrize("version", range(4))
    def test_of_one_group(self, version: int) -> None:
        response = self.find(version, key="g")
        assert (response.node_id, response.host, response.port) == (1, "broker", 9092)
        assert response.error_code == ErrorCode.NONE
        assert self.find(version, key="").error_code == ErrorCode.INVALID_GROUP_ID

    def test_of_several_groups(self) -> None:
        response = self.find(4, coordinator_keys=["g", "away", ""])
        assert [
            (c.key, c.node_id, c.host, c.port, c.error_code) for c in response.coordinators
        ] == [
            ("g", 1, "broker", 9092, ErrorCode.NONE),
            ("away", -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            ("", -1, "", -1, ErrorCode.INVALID_GROUP_ID),
        ]

    @pytest.mark.parametrize("version", range(1, 4))
    def test_of_a_transactional_id(self, version: int) -> None:
        found = self.find(version, transactions=True, key="x", key_type=1)
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)

    def test_of_transactions_ends_a_producer_where_there_are_none_yet(self) -> None:
        (batched,) = self.find(4, coordinator_keys=["x"], key_type=1).coordinators
        answers = [*(self.find(version, key="x", key_type=1) for version in range(1, 4)), batched]
        unsupported = ErrorCode.UNSUPPORTED_VERSION
        librdkafka = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert [answer.error_code for answer in answers] == [
            unsupported,
            librdkafka,
            unsupported,
            unsupported,
        ]
        for answer in answers:
            assert "transactions are not available yet" in answer.error_message

    def test_of_a_share_partition(self) -> None:
        key = "g:AAECAwQFBgcICQoLDA0ODw:3"
        request: dict[str, Any] = {"coordinator_keys": [key], "key_type": 2}
        (found,) = self.find(6, shares=True, **request).coordinators
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)
        (hidden,) = self.find(6, **request).coordinators
        assert hidden.error_code == ErrorCode.UNSUPPORTED_VERSION
        (old,) = self.find(5, shares=True, **request).coordinators
        assert old.error_code == ErrorCode.INVALID_REQUEST

    def test_of_other_kinds(self) -> None:
        assert self.find(3, key="x", key_type=7).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("level", "is_passed_on"), [(4, True), (5, False)])
def test_below_level_5_the_mark_says_that_a_request_was_passed_on(
    level: int, is_passed_on: bool
) -> None:
    """Brokers of earlier releases know no envelopes; from there on anybody may bear the name."""
    relayed: list[Any] = []
    here = broker(commit_offsets=fails)
    here.metadata = SimpleNamespace(level=level)
    here.offset_forwarding = SimpleNamespace(relay=lambda *asked: relayed.append(asked))
    ctx = context(8)
    ctx.session = Session("PLAINTEXT", peer=("10.0.0.1", 5000), local=("10.0.0.9", 9092))
    kinds = messages.OffsetCommitRequest
    partition = kinds.OffsetCommitRequestPartition(0, 1)
    request = kinds("g", topics=[kinds.OffsetCommitRequestTopic("t", partitions=[partition])])
    groups.offset_commit(here, ctx, request)
    assert len(relayed) == (0 if is_passed_on else 1)


def heartbeat_of(group_id: str) -> messages.ConsumerGroupHeartbeatRequest:
    return messages.ConsumerGroupHeartbeatRequest(group_id=group_id, member_id="m")


def test_a_consumer_heartbeat_is_answered_by_the_coordinator() -> None:
    seen = []

    def beat(client: groups.Client, request: messages.ConsumerGroupHeartbeatRequest) -> Any:
        seen.append((client, request.member_id))
        return messages.ConsumerGroupHeartbeatResponse(member_epoch=3)

    here = broker(consumer_heartbeat=beat)
    answer: Any = consumer_groups.consumer_group_heartbeat(here, context(1), heartbeat_of("g"))
    assert answer.member_epoch == 3
    assert seen == [(groups.Client(1, FORWARDED_CLIENT_ID, "/10.0.0.1"), "m")]


def test_a_consumer_heartbeat_that_fails_says_why() -> None:
    failed: Any = consumer_groups.consumer_group_heartbeat(broker(), context(1), heartbeat_of("g"))
    assert (failed.error_code, failed.error_message) == (FAILURE.code, FAILURE.message)
    nameless: Any = consumer_groups.consumer_group_heartbeat(broker(), context(0), heartbeat_of(""))
    assert nameless.error_code == ErrorCode.INVALID_REQUEST


def test_consumer_groups_are_described_one_by_one() -> None:
    def describe(group_id: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
        if group_id == "elsewhere":
            raise FAILURE
        return messages.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id)

    request = messages.ConsumerGroupDescribeRequest(group_ids=["g", "elsewhere"])
    response = asyncio.run(
        consumer_groups.consumer_group_describe(
            broker(describe_consumer_group=describe), context(1), request
        )
    )
    assert [(g.group_id, g.error_code, g.error_message) for g in response.groups] == [
        ("g", 0, None),
        ("elsewhere", FAILURE.code, FAILURE.message),
    ]
