"""Drives a `GroupMachine` as the shell does: explicit time, a list as log, strings as clients."""

from __future__ import annotations

from collections import deque
from typing import Any

from kraftpy.core.groups import (
    Client,
    CommittedOffset,
    Effects,
    GroupConfig,
    GroupMachine,
    GroupMemory,
    Write,
    decode_record,
    encode_record,
)
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, EXPECTED_OFFSET_TAG

from .topics import KnownTopics

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
TOPICS = {"t": 10, "u": 10}


def partitions_of(topic: str) -> range:
    return range(TOPICS.get(topic, 0))


class Driver:
    """One machine and its log. With `commits` off, writes stay in flight until `settle`."""

    def __init__(self, *, commits: bool = True, memory_bytes: int = 1 << 40, **config: Any) -> None:
        self.config = GroupConfig(**config)
        self.topics = KnownTopics(**TOPICS)
        self.memory = GroupMemory(memory_bytes)
        self.machine = GroupMachine(self.config, self.topics, self.memory)
        self.now_ms = 1_000_000
        self.commits = commits
        self.in_flight: deque[Write] = deque()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.replies: dict[object, Any] = {}
        self._number = 0

    def _next(self) -> str:
        self._number += 1
        return f"request-{self._number}"

    def carry_out(self, effects: Effects) -> None:
        for write in effects.writes:
            self.in_flight.append(write)
        for token, response in effects.replies:
            assert token not in self.replies, f"{token} is answered twice"
            self.replies[token] = response
        while self.commits and self.in_flight:
            self.settle()

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Ends the oldest write in flight."""
        write = self.in_flight.popleft()
        if error is ErrorCode.NONE:
            self.log.extend(encode_record(record) for record in write.records)
            self.carry_out(self.machine.committed(write, self.now_ms))
        else:
            self.carry_out(self.machine.failed(write, error, self.now_ms))

    def time_out(self) -> None:
        """The oldest write in flight takes too long; it may still be settled later."""
        self.carry_out(self.machine.timed_out(self.in_flight[0], self.now_ms))

    def advance(self, ms: int) -> None:
        """Lets time pass, firing each deadline when it comes."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.machine.next_deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.carry_out(self.machine.handle_timers(self.now_ms))
        self.now_ms = end_ms

    def reloaded(self) -> Driver:
        """Another broker takes over: a new machine that has read the log."""
        other = Driver()
        other.config = self.config
        other.topics = self.topics
        other.machine = GroupMachine(self.config, self.topics, other.memory)
        other.now_ms = self.now_ms
        other.log = list(self.log)
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            other.machine.load(record)
        other.carry_out(other.machine.finish_load(other.now_ms))
        return other

    # -- requests; those that may be parked give a token to look up in `replies`

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "c",
    ) -> str:
        token = self._next()
        request = messages.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(name, metadata)
                for name, metadata in (protocols or {"range": b"subscription"}).items()
            ],
        )
        client = Client(version, client_id, "/127.0.0.1")
        self.carry_out(self.machine.join(token, request, client, token, self.now_ms))
        return token

    def abandon(self, member_id: str, token: str, *, group: str = "g") -> None:
        """The connection of a JoinGroup that is parked with this token has ended."""
        self.carry_out(self.machine.abandon(group, member_id, token, self.now_ms))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> str:
        token = self._next()
        request = messages.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                messages.SyncGroupRequest.SyncGroupRequestAssignment(name, assignment)
                for name, assignment in (assignments or {}).items()
            ],
        )
        self.carry_out(self.machine.sync(token, request, self.now_ms))
        return token

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        request = messages.HeartbeatRequest(group, generation, member_id, instance)
        return self.machine.heartbeat(request, self.now_ms)

    def leave(
        self, *members: str | tuple[str, str], group: str = "g"
    ) -> messages.LeaveGroupResponse:
        """Each member is a member id, or a pair of member id and instance id."""
        pairs = [(member, None) if isinstance(member, str) else member for member in members]
        request = messages.LeaveGroupRequest(
            group_id=group,
            members=[
                messages.LeaveGroupRequest.MemberIdentity(member_id, instance)
                for member_id, instance in pairs
            ],
        )
        token = self._next()
        self.carry_out(self.machine.leave(token, request, self.now_ms))
        return self.replies[token]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        expected: int | bytes | None = None,
        all_or_none: bytes | None = None,
    ) -> str:
        token = self._next()
        if isinstance(expected, int):
            expected = expected.to_bytes(8, "big", signed=True)
        request = messages.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            _tags=None if all_or_none is None else {ALL_OR_NONE_TAG: all_or_none},
            topics=[
                messages.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        messages.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            # No version has both of these.
                            committed_leader_epoch=5 if retention_ms < 0 else -1,
                            committed_metadata=metadata,
                            _tags=None if expected is None else {EXPECTED_OFFSET_TAG: expected},
                        )
                    ],
                )
                for (topic, index), offset in offsets.items()
            ],
        )
        self.carry_out(self.machine.commit(token, request, partitions_of, self.now_ms))
        return token

    def commit_errors(self, token: str) -> list[ErrorCode]:
        """The errors of an answered commit, partition by partition."""
        return [
            ErrorCode(partition.error_code)
            for topic in self.replies[token].topics
            for partition in topic.partitions
        ]

    def offsets(self, group: str = "g") -> dict[tuple[str, int], int]:
        """Everything that OffsetFetch gives for the group."""
        return {
            (topic, index): offset
            for topic, rows in self.machine.fetch(group, None)
            for index, offset, _, _ in rows
        }

    def committed(self, group: str = "g") -> dict[tuple[str, int], CommittedOffset]:
        return {
            (topic, index): committed
            for topic, index, committed in self.machine.offsets.of_group(group)
        }

    def delete_group(self, group: str = "g") -> str:
        token = self._next()
        self.carry_out(self.machine.delete_group(token, group, self.now_ms))
        return token

    def delete_offsets(self, *places: tuple[str, int], group: str = "g") -> str:
        token = self._next()
        request = messages.OffsetDeleteRequest(
            group_id=group,
            topics=[
                messages.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    topic, [messages.OffsetDeleteRequest.OffsetDeleteRequestPartition(index)]
                )
                for topic, index in places
            ],
        )
        self.carry_out(self.machine.delete_offsets(token, request, partitions_of, self.now_ms))
        return token

    def expire(self) -> int:
        count, effects = self.machine.expire_offsets(list(self.machine.group_ids()), self.now_ms)
        self.carry_out(effects)
        return count

    # -- longer stories

    def state(self, group: str = "g") -> str:
        return str(self.machine.describe(group).group_state)

    def new_member(self, **how: Any) -> str:
        """The handshake of a dynamic member: the member id that it is given (KIP-394)."""
        reply = self.replies[self.join(**how)]
        assert reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return str(reply.member_id)

    def stable_group(self, count: int = 1, **how: Any) -> tuple[list[str], int]:
        """A stable group of so many members (the leader first) and its generation."""
        members = [self.new_member(**how) for _ in range(count)]
        joins = [self.join(member, **how) for member in members]
        self.advance(2 * self.config.group_initial_rebalance_delay_ms)
        generation = self.replies[joins[0]].generation_id
        assignment = {member: f"part of {member}".encode() for member in members}
        group = how.get("group", "g")
        for number, member in enumerate(members):
            self.sync(member, generation, {} if number else assignment, group=group)
        assert self.state(group) == "Stable"
        return members, generation

    def static_group(self, *instances: str) -> tuple[list[str], int]:
        """A stable group of static members, the leader first, and its generation."""
        joins = [self.join(instance=instance) for instance in instances]
        self.advance(2 * self.config.group_initial_rebalance_delay_ms)
        members = [self.replies[join].member_id for join in joins]
        generation = self.replies[joins[0]].generation_id
        assignment = {member: f"part of {member}".encode() for member in members}
        for number, (member, instance) in enumerate(zip(members, instances, strict=True)):
            self.sync(member, generation, {} if number else assignment, instance=instance)
        assert self.state() == "Stable"
        return members, generation
