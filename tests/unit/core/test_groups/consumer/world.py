"""A group of simulated consumers, their coordinators and the log, driven by a seed.

Consumers do as the Java client does: they own what they were told as soon as they hear of it, give
partitions up some time after they were told to, say everything again when an answer is lost, and
give everything up when they are fenced, or when they were not heard for a session (from their own
point of view). Coordinators fail over, their log is compacted, and writes fail or are late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kraftpy.core.groups import (
    Client,
    CoordinatorRecord,
    Effects,
    GroupConfig,
    GroupMachine,
    GroupMemory,
    Write,
    decode_record,
    encode_record,
)
from kraftpy.core.groups.consumer.regex import compile_pattern
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topic
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 40_000
HEARTBEAT_MS = 1_000

Place = tuple[bytes, int]
Bytes = tuple[bytes, bytes | None]
"""A record of the log: key and value."""


class FakeTopics:
    """The port `Topics`; a topic that is made again has another id."""

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, Topic] = {}

    def make(self, name: str, partition_count: int) -> None:
        self.version += 1
        self.topics[name] = Topic(f"{name}-{self.version}".encode().ljust(16), partition_count)

    def grow(self, name: str, more: int) -> None:
        self.version += 1
        topic_id, count = self.topics[name]
        self.topics[name] = Topic(topic_id, count + more)

    def delete(self, name: str) -> None:
        self.version += 1
        del self.topics[name]

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((n for n, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def match(self, regex: str) -> tuple[str, ...]:
        pattern = compile_pattern(regex)
        return tuple(sorted(name for name in self.topics if pattern.fullmatch(name)))


class Consumer:
    """One process; `owned` is what it may be reading, `told` what it last heard that is its own."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.names: list[str] | None = None
        self.regex: str | None = None
        self.assignor: str | None = None
        self.epoch = 0
        self.owned: set[Place] = set()
        self.told: set[Place] = set()
        self.reported: set[Place] | None = None
        self.says_all = True
        self.changed_subscription = False
        self.heard_ms = 0
        self.sent_ms = 0
        self.revoke_by_ms: int | None = None
        self.token: str | None = None
        self.is_alive = True
        self.refused: ErrorCode | None = None
        self.lost = 0  # answers, since it heard one

    def request(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat."""
        joins = self.epoch == 0
        full = joins or self.says_all
        subscribes = full or self.changed_subscription
        owned = None
        if full or self.owned != self.reported:
            owned = as_partitions(self.owned)
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            subscribed_topic_names=(self.names or []) if subscribes else None,
            subscribed_topic_regex=(self.regex or "") if subscribes else None,
            server_assignor=self.assignor if full else None,
            topic_partitions=owned,
        )

    def abandon(self) -> None:
        """Gives everything up, to join again."""
        self.epoch = 0
        self.owned.clear()
        self.told.clear()
        self.reported = None
        self.revoke_by_ms = None
        self.says_all = True

    def hear(self, response: ConsumerGroupHeartbeatResponse, request: Any) -> None:
        """Takes an answer in."""
        error = ErrorCode(response.error_code)
        if self.epoch > 0:
            assert error is not ErrorCode.UNKNOWN_MEMBER_ID, "fenced in the middle of its session"
            assert error is not ErrorCode.FENCED_MEMBER_EPOCH or self.lost > 1, "fenced too early"
        if error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.abandon()
            return
        if error is not ErrorCode.NONE:
            self.says_all = True
            self.refused = error
            self.lost += 1  # what it asked for may happen all the same
            return
        assert self.epoch == 0 or response.member_epoch >= self.epoch, "the epoch went back"
        self.epoch = response.member_epoch
        self.heard_ms = self.sent_ms
        self.lost = 0
        self.says_all = False
        if request.subscribed_topic_names is not None:
            said = (request.subscribed_topic_names, request.subscribed_topic_regex)
            self.changed_subscription = said != (self.names or [], self.regex or "")
        if request.topic_partitions is not None:
            self.reported = from_partitions(request.topic_partitions)
        if response.assignment is not None:
            self.told = from_partitions(response.assignment.topic_partitions)
            self.owned |= self.told
            if self.owned != self.told and self.revoke_by_ms is None:
                self.revoke_by_ms = self.sent_ms + REBALANCE_MS // 4

    def revoke(self) -> None:
        """Has given up what it was told to."""
        self.owned &= self.told
        self.revoke_by_ms = None


class World:
    """Everything there is; `chance` makes all choices."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 1_000_000
        self.topics = FakeTopics()
        self.memory = GroupMemory(1 << 40)
        self.consumers: list[Consumer] = []
        self.log: list[Bytes] = []
        self.in_flight: list[Write] = []
        self.replies: dict[str, Any] = {}
        self.requests: dict[str, ConsumerGroupHeartbeatRequest] = {}
        self.late: set[int] = set()
        self.group_epoch = 0
        self._number = 0
        self.config = GroupConfig(
            consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=HEARTBEAT_MS
        )
        self.large_size = self.chance.choice([100, 2])
        self.machine = self.load([])
        self._decoded: dict[Bytes, CoordinatorRecord] = {}
        self._follower = self.machine
        self._followed: list[Bytes] = []
        self._followed_to = 0

    # -- coordinators

    def carry_out(self, effects: Effects) -> None:
        self.in_flight += effects.writes
        for token, response in effects.replies:
            assert isinstance(token, str)
            assert token not in self.replies, "answered twice"
            self.replies[token] = response

    def land(self) -> None:
        """The oldest write in flight commits."""
        write = self.in_flight.pop(0)
        self.late.discard(id(write))
        self.log += [encode_record(record) for record in write.records]
        self.carry_out(self.machine.committed(write, self.now_ms))

    def fail(self) -> None:
        write = self.in_flight.pop(0)
        self.late.discard(id(write))
        error = self.chance.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])
        self.carry_out(self.machine.failed(write, error, self.now_ms))

    def be_late(self) -> None:
        write = self.in_flight[0]
        if id(write) not in self.late:
            self.late.add(id(write))
            self.carry_out(self.machine.timed_out(write, self.now_ms))

    def fail_over(self) -> None:
        """Another coordinator reads the log, with or without what was in flight."""
        survivors = self.chance.randint(0, len(self.in_flight))
        for write in self.in_flight[:survivors]:
            self.log += [encode_record(record) for record in write.records]
        self.in_flight.clear()
        self.late.clear()
        self.carry_out(self.machine.close(ErrorCode.NOT_COORDINATOR, self.now_ms))
        self.machine = self.load(self.log)
        self.carry_out(self.machine.finish_load(self.now_ms))

    def load(self, log: list[Bytes]) -> GroupMachine:
        """A coordinator that has read the log."""
        machine = self._new_machine()
        for each in log:
            machine.load(decoded(each))
        return machine

    def _new_machine(self) -> GroupMachine:
        machine = GroupMachine(self.config, self.topics, self.memory)
        settings = machine._consumers.settings
        machine._consumers.settings = settings._replace(large_size=self.large_size)
        return machine

    # -- reading what is written, over and over

    def follower(self) -> GroupMachine:
        """Knows what a coordinator knows that has read the log, and is only looked at."""
        if self._followed is not self.log:
            self._follower, self._followed, self._followed_to = self._new_machine(), self.log, 0
        self._read(self._follower, self.log[self._followed_to :])
        self._followed_to = len(self.log)
        return self._follower

    def reader_of_compacted(self) -> GroupMachine:
        """The same of a log that was compacted."""
        machine = self._new_machine()
        self._read(machine, self.compacted())
        return machine

    def _read(self, machine: GroupMachine, log: list[Bytes]) -> None:
        known = self._decoded
        for each in log:
            record = known.get(each)
            if record is None:
                record = known[each] = decoded(each)
            machine.load(record)

    def check_records(self) -> None:
        """Nobody has changed a record that all readers had in common."""
        for each, record in self._decoded.items():
            assert record == decoded(each)

    def compacted(self) -> list[Bytes]:
        """The log as cleaners may leave it: any record that a later one replaces may be gone.

        A tombstone may be gone too, once nothing of its key is left before it.
        """
        end = self.chance.randint(0, len(self.log))
        newest = {key: offset for offset, (key, _) in enumerate(self.log[:end])}
        thoroughness = self.chance.choice([0.5, 0.9, 1.0])
        kept: list[Bytes] = []
        keys: set[bytes] = set()
        for offset, (key, value) in enumerate(self.log[:end]):
            may_go = newest[key] != offset or (value is None and key not in keys)
            if not may_go or self.chance.random() > thoroughness:
                kept.append((key, value))
                keys.add(key)
        return kept + self.log[end:]

    def advance(self, ms: int) -> None:
        """Time passes; consumers that were not heard for long give up before others take over."""
        for consumer in self.alive():
            # A heartbeat under way may be answered later, but counts from when it was sent.
            if self.now_ms + ms >= consumer.heard_ms + SESSION_MS and consumer.epoch > 0:
                consumer.abandon()
                consumer.token = None
            elif consumer.revoke_by_ms is not None and self.now_ms + ms >= consumer.revoke_by_ms:
                consumer.revoke()
        self.now_ms += ms
        self.carry_out(self.machine.handle_timers(self.now_ms))

    # -- consumers

    def alive(self) -> Iterator[Consumer]:
        return (consumer for consumer in self.consumers if consumer.is_alive)

    def token(self) -> str:
        self._number += 1
        return f"request-{self._number}"

    def start(self, instance_id: str | None = None) -> Consumer:
        self._number += 1
        consumer = Consumer(f"m-{self._number}", instance_id)
        consumer.heard_ms = self.now_ms
        self.consumers.append(consumer)
        return consumer

    def send(self, consumer: Consumer) -> None:
        """A heartbeat goes out, and the one before is not waited for any more."""
        if consumer.token is not None:
            self.lose(consumer)
        consumer.sent_ms = self.now_ms
        consumer.token = self.transmit(consumer.request())

    def transmit(self, request: ConsumerGroupHeartbeatRequest) -> str:
        token = self.token()
        self.requests[token] = request
        client = Client(1, "client", "/127.0.0.1")
        self.carry_out(
            self.machine.consumer_heartbeat(token, request, client, "unused", self.now_ms)
        )
        return token

    def deliver(self, consumer: Consumer, lost: bool) -> None:
        """The answer comes if it is there, or gets lost; nobody waits longer than a session."""
        if consumer.token is None or consumer.token not in self.replies:
            return
        token, consumer.token = consumer.token, None
        if lost or self.now_ms >= consumer.sent_ms + SESSION_MS:
            self.lose(consumer)
        else:
            consumer.hear(self.replies[token], self.requests[token])

    def lose(self, consumer: Consumer) -> None:
        """An answer never comes."""
        consumer.lost += 1
        consumer.says_all = True

    # -- what the log and the coordinator know

    @property
    def group(self) -> ConsumerGroup | None:
        return self.machine._consumers.groups.get(GROUP)


def decoded(each: Bytes) -> CoordinatorRecord:
    record = decode_record(*each)
    assert record is not None
    return record


def as_partitions(places: set[Place]) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(places):
        by_topic.setdefault(topic_id, []).append(index)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id, indexes)
        for topic_id, indexes in by_topic.items()
    ]


def from_partitions(rows: Any) -> set[Place]:
    return {(row.topic_id, index) for row in rows for index in row.partitions}


def durable(machine: GroupMachine) -> dict[str, dict[str, Any]]:
    """All that the machine's consumer groups know from the log."""
    return {group_id: vars(group) for group_id, group in machine._consumers.groups.items()}
