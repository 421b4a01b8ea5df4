"""Raw requests of the members of one group, and a record of the answers that can be compared.

Two brokers have the same rules if the same story told to both gives the same record. What differs
from run to run is left out of it: member ids become `m0`, `m1`, ... in the order of their
appearance, lists whose order nobody promises are sorted.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire

TIMEOUT_S = 20.0
# A request that is sent and not waited for has reached the group after this long: brokers work
# through a connection in order, but these come over one each.
SETTLE_S = 0.15

_numbers = itertools.count()


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 1 that owns nothing."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", 0, 0)


RANGE = {"range": subscription("t")}


class Conversation:
    """One group on one broker: a record of all that was answered."""

    def __init__(self, address: str, group: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.group = group
        self.record: list[tuple[object, ...]] = []
        self._names: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + TIMEOUT_S
        request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        while self.call(ApiKey.FIND_COORDINATOR, 4, request).coordinators[0].error_code:
            assert time.monotonic() < deadline_s, "the group has no coordinator"
            time.sleep(0.1)
        while (
            self.call(
                ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=[self.group])
            )
            .groups[0]
            .error_code
        ):
            assert time.monotonic() < deadline_s, "the coordinator is not ready"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self) -> Wire:
        return self._stack.enter_context(Wire(*self.address))

    def call(self, key: ApiKey, version: int, request: object) -> Any:
        with Wire(*self.address) as wire:
            return wire.call(key, version, request)

    def note(self, *words: object) -> None:
        self.record.append(words)

    def name(self, member_id: str) -> str:
        """What the record calls this member."""
        if not member_id:
            return ""
        return self._names.setdefault(member_id, f"m{len(self._names)}")

    def member(self, **how: Any) -> Member:
        """Somebody who has not joined yet; `how` are what its JoinGroups say."""
        return Member(self, **how)

    # -- what anybody may ask

    def create_topics(self, *names: str) -> None:
        request = messages.CreateTopicsRequest
        topics = [request.CreatableTopic(name, 4, 1) for name in names]
        self.call(ApiKey.CREATE_TOPICS, 7, request(topics=topics, timeout_ms=10_000))

    def describe(self) -> None:
        request = messages.DescribeGroupsRequest(groups=[self.group])
        (found,) = self.call(ApiKey.DESCRIBE_GROUPS, 5, request).groups
        members = sorted(
            (
                self.name(member.member_id),
                member.group_instance_id,
                member.client_id,
                bytes(member.member_metadata),
                bytes(member.member_assignment),
            )
            for member in found.members
        )
        head = (found.group_state, found.protocol_type, found.protocol_data)
        self.note("described", ErrorCode(found.error_code).name, *head, members)

    def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> None:
        request = messages.ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        answer = self.call(ApiKey.LIST_GROUPS, 5, request)
        mine = [group for group in answer.groups if group.group_id == self.group]
        words = [(group.protocol_type, group.group_state, group.group_type) for group in mine]
        self.note("listed", states, types, ErrorCode(answer.error_code).name, words)

    def delete(self) -> None:
        request = messages.DeleteGroupsRequest(groups_names=[self.group])
        results = self.call(ApiKey.DELETE_GROUPS, 2, request).results
        self.note("deleted", [ErrorCode(result.error_code).name for result in results])

    def commit(
        self, offset: int, generation: int = -1, member_id: str = "", instance: str | None = None
    ) -> None:
        """Commits for the first partition of topic "t"."""
        request = messages.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(0, offset, -1, committed_metadata="")
        answer = self.call(
            ApiKey.OFFSET_COMMIT,
            8,
            request(
                group_id=self.group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=instance,
                topics=[request.OffsetCommitRequestTopic(name="t", partitions=[partition])],
            ),
        )
        self.note("committed", ErrorCode(answer.topics[0].partitions[0].error_code).name)

    def fetch(self) -> None:
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopic("t", [0])
        answer = self.call(ApiKey.OFFSET_FETCH, 7, request(group_id=self.group, topics=[topic]))
        (place,) = answer.topics[0].partitions
        self.note("fetched", ErrorCode(answer.error_code).name, place.committed_offset)

    def delete_offsets(self, *topics: str) -> None:
        request = messages.OffsetDeleteRequest
        wanted = [
            request.OffsetDeleteRequestTopic(name, [request.OffsetDeleteRequestPartition(0)])
            for name in topics
        ]
        answer = self.call(ApiKey.OFFSET_DELETE, 0, request(self.group, wanted))
        errors = sorted(
            (topic.name, ErrorCode(partition.error_code).name)
            for topic in answer.topics
            for partition in topic.partitions
        )
        self.note("offsets deleted", ErrorCode(answer.error_code).name, errors)

    def leave(self, *members: tuple[str, str | None], version: int = 5) -> None:
        """Pairs of member id and instance id leave."""
        request = messages.LeaveGroupRequest(group_id=self.group)
        if version < 3:
            ((request.member_id, _),) = members
        else:
            request.members = [request.MemberIdentity(*member) for member in members]
        answer = self.call(ApiKey.LEAVE_GROUP, version, request)
        each = [
            (self.name(m.member_id), m.group_instance_id, ErrorCode(m.error_code).name)
            for m in answer.members
        ]
        self.note("left", ErrorCode(answer.error_code).name, each)


class Member:
    """A client with a connection of its own; it knows its member id and its generation."""

    def __init__(self, talk: Conversation, **how: Any) -> None:
        self.talk = talk
        self.wire = talk.connect()
        self.how = how
        self.id = ""
        self.generation = -1
        self._asked: tuple[ApiKey, int] | None = None

    @property
    def instance(self) -> str | None:
        instance = self.how.get("instance")
        assert instance is None or isinstance(instance, str)
        return instance

    def _ask(self, key: ApiKey, version: int, request: object) -> None:
        self.wire.send(key, version, request)
        self._asked = (key, version)
        time.sleep(SETTLE_S)

    def ask_join(self, **how: Any) -> None:
        """Sends a JoinGroup, as `how` says this time; `hear` has the answer."""
        how = {"member_id": self.id, **self.how, **how}
        request = messages.JoinGroupRequest
        protocols: Mapping[str, bytes] = how.get("protocols", RANGE)
        join = request(
            group_id=self.talk.group,
            session_timeout_ms=how.get("session_ms", 6_000),
            rebalance_timeout_ms=how.get("rebalance_ms", 10_000),
            member_id=how["member_id"],
            group_instance_id=how.get("instance"),
            protocol_type=how.get("protocol_type", "consumer"),
            protocols=[request.JoinGroupRequestProtocol(*each) for each in protocols.items()],
        )
        self._ask(ApiKey.JOIN_GROUP, how.get("version", 9), join)

    def ask_sync(self, assignments: Mapping[str, bytes] | None = None, **how: Any) -> None:
        """Sends a SyncGroup."""
        request = messages.SyncGroupRequest
        version = how.get("version", 5)
        sync = request(
            group_id=self.talk.group,
            generation_id=how.get("generation", self.generation),
            member_id=how.get("member_id", self.id),
            group_instance_id=how.get("instance", self.instance),
            protocol_type=how.get("protocol_type", "consumer") if version >= 5 else None,
            protocol_name=how.get("protocol_name", "range") if version >= 5 else None,
            assignments=[
                request.SyncGroupRequestAssignment(*each) for each in (assignments or {}).items()
            ],
        )
        self._ask(ApiKey.SYNC_GROUP, version, sync)

    def is_answered(self) -> bool:
        """Whether the answer to what was asked is there; goes into the record."""
        answered = bool(select.select([self.wire.sock], [], [], SETTLE_S)[0])
        self.talk.note("answered" if answered else "waits")
        return answered

    def hear(self) -> ErrorCode:
        """Waits for the answer to what was asked."""
        assert self._asked is not None
        key, version = self._asked
        _, answer = self.wire.receive(key, version)
        error = ErrorCode(answer.error_code)
        if key is ApiKey.JOIN_GROUP:
            self._joined(error, answer)
        else:
            protocol = (answer.protocol_type, answer.protocol_name)
            self.talk.note("synced", error.name, *protocol, bytes(answer.assignment))
        return error

    def _joined(self, error: ErrorCode, answer: Any) -> None:
        name = self.talk.name
        if error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = answer.member_id
        if error is not ErrorCode.NONE:
            # What else is in the answer has no meaning.
            self.talk.note("not joined", error.name)
            return
        self.generation = answer.generation_id
        self.talk.note(
            "joined",
            answer.generation_id,
            answer.protocol_type,
            answer.protocol_name,
            name(answer.leader),
            name(answer.member_id),
            answer.skip_assignment,
            sorted((name(m.member_id), m.group_instance_id, m.metadata) for m in answer.members),
        )

    def join(self, **how: Any) -> ErrorCode:
        """One JoinGroup and its answer."""
        self.ask_join(**how)
        return self.hear()

    def enter(self, **how: Any) -> ErrorCode:
        """Joins, in two steps if the broker wants that (KIP-394)."""
        error = self.join(**how)
        return self.join(**how) if error is ErrorCode.MEMBER_ID_REQUIRED else error

    def sync(self, assignments: Mapping[str, bytes] | None = None, **how: Any) -> ErrorCode:
        self.ask_sync(assignments, **how)
        return self.hear()

    def beat(self, **how: Any) -> None:
        """One Heartbeat."""
        self.talk.note("heartbeat", self.heartbeat(**how).name)

    def heartbeat(self, **how: Any) -> ErrorCode:
        """One Heartbeat that the record says nothing of."""
        request = messages.HeartbeatRequest(
            self.talk.group,
            how.get("generation", self.generation),
            how.get("member_id", self.id),
            how.get("instance", self.instance),
        )
        return ErrorCode(self.wire.call(ApiKey.HEARTBEAT, 4, request).error_code)

    def leave(self) -> None:
        self.talk.leave((self.id, self.instance))


def rebalance(members: Iterable[Member], *newcomers: Member) -> None:
    """All of them join the next generation: who starts it first, newcomers with an id already."""
    everybody = [*newcomers, *members]
    for member in everybody:
        member.ask_join()
    for member in everybody:
        member.hear()


def share(leader: Member, *followers: Member) -> None:
    """Everybody syncs; the leader gives to each its name in the record."""
    everybody = (leader, *followers)
    leader.ask_sync({m.id: leader.talk.name(m.id).encode() for m in everybody})
    for member in followers:
        member.ask_sync()
    for member in everybody:
        member.hear()


def stable(talk: Conversation, count: int, *, static: bool = False, **how: Any) -> list[Member]:
    """So many members in a stable generation, the leader first; static ones are i0, i1, ..."""
    members: list[Member] = []
    for number in range(count):
        one = talk.member(**how, **({"instance": f"i{number}"} if static else {}))
        if not members:
            one.enter()
        else:
            if not static:
                one.join()
            rebalance(members, one)
        members.append(one)
    share(*members)
    return members


Teller = TypeVar("Teller", bound=Conversation)


def tell(
    kind: Callable[[str, str], Teller], story: Callable[[Teller], None], addresses: dict[str, str]
) -> dict[str, list[str]]:
    """The record of each broker, one line an answer; a group of its own for each story."""
    records: dict[str, list[str]] = {}
    group = f"g-{next(_numbers)}"

    def run(name: str, address: str) -> None:
        with kind(address, group) as talk:
            try:
                story(talk)
            finally:
                records[name] = [repr(words) for words in talk.record]

    threads = [threading.Thread(target=run, args=each) for each in addresses.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return records
