"""A member of a consumer group, in Kafka's classic protocol: join, sync, heartbeat, leave.

Rules:

* A member joins, learns the generation, gets its assignment by SyncGroup and heartbeats until the
  coordinator says that the group rebalances. The leader of a generation computes the assignment.
* The first JoinGroup is answered with a member id and MEMBER_ID_REQUIRED (KIP-394). A static
  member (group.instance.id, KIP-345) needs none and keeps its place over restarts; a static leader
  that comes back may be told to leave the assignment as it is (KIP-814).
* UNKNOWN_MEMBER_ID and ILLEGAL_GENERATION mean that the group went on without this member: whatever
  it had is `lost`, and it joins anew. FENCED_INSTANCE_ID means that another consumer took its
  place: it stays out.
* Parts of partitions are for members whose assignors all know them, or that give everything up
  before they join (`sharing`), and for topics and coordinators that allow it. A coordinator without
  the feature `kraftpy.cooperative` isn't asked, and everything is dealt out whole. Whenever it
  joins and from time to time, a member looks at what the coordinator serves: members of one
  generation may have seen different things. Who leads also looks at what topics allow.
* A member of which the coordinator has heard nothing for a session's time may have been replaced
  (`in_touch`): it mustn't hand out records of slices any more.
* With an assignor that goes by leaders, the group's leader looks as often as it heartbeats who
  leads the partitions, and has the group join again if they would be divided otherwise. A partition
  that has no leader for the time counts as led by its last one.
* A member that isn't polled for `max_poll_interval_ms` leaves, so that others get its partitions.
* What a member sends as its metadata is ConsumerProtocolSubscription version 3, whose older readers
  ignore what they don't know; assignments are version 0, whose body all later versions have.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kraftpy.client.assignor import Assignor, Subscription, Topics
from kraftpy.client.cluster import Cluster, Retry, check, is_retriable
from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.offsets import Partition, by_topic
from kraftpy.client.sharing import SharingAssignor
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    ACCEPT_INDIVIDUAL_COMMIT_TAG,
    YES,
    is_set,
)
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    Shares,
    ShareSubscription,
    decode_shares,
    encode_shares,
)

_log = logging.getLogger(__name__)

_PROTOCOL_TYPE = "consumer"
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
_JOIN_MARGIN_MS = 5_000
_HEARTBEAT_RETRY_S = 0.1
# Without these the member is not part of the group any more.
_OUTDATED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
# The second: parts of partitions have to be given up, as nobody can say what is done of them.
_REBALANCE = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED})
MEMBERSHIP_ERRORS = _OUTDATED | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID}
_JOIN_AGAIN = frozenset({*_OUTDATED, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Kafka's session.timeout.ms, heartbeat.interval.ms and max.poll.interval.ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be less than session_timeout_ms")


class _Division(NamedTuple):
    """What a generation's assignment was made from."""

    assignor: Assignor
    topics: Topics
    members: Mapping[str, Subscription]
    shareable: frozenset[str]


class Member:
    """This client's membership of a group.

    `needs_join` says that `join` is due, `lost` that the partitions belong to others now (whoever
    acts on it clears it), `failure` that the member can't go on. `changed` is called when one of
    these changes from outside.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        assignors: Sequence[Assignor],
        times: GroupTimes,
        *,
        instance_id: str | None = None,
        allow_key_share: bool = False,
        share_host: str = "",
        changed: Callable[[], None],
    ) -> None:
        self.generation = Generation(instance_id=instance_id)
        # All have to be able to, because the coordinator may choose any (KIP-429).
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        # Those of a stock leader would give a partition away of which this member keeps a part.
        self._allow_key_share = allow_key_share and not (
            self.cooperative and any(not isinstance(a, SharingAssignor) for a in assignors)
        )
        self._share_host = share_host
        self._heard_at = float("-inf")
        self._sharing_level = 0
        self.needs_join = True
        self.lost = False
        self.failure: KafkaError | None = None
        self.led: dict[str, frozenset[int]] | None = None
        self.shareable: frozenset[str] = frozenset()
        self._division: _Division | None = None
        self._cluster = cluster
        self._coordinator = coordinator
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._times = times
        self._changed = changed
        self._polled_at = time.monotonic()
        self._heart: asyncio.Task[None] | None = None

    def polled(self) -> None:
        """The user asked for records: the member is alive."""
        self._polled_at = time.monotonic()

    @property
    def in_touch(self) -> bool:
        """Whether the coordinator can't have taken this member for dead."""
        return time.monotonic() - self._heard_at < self._times.session_timeout_ms / 1000

    async def look_at_features(self) -> None:
        """Joins again if the coordinator serves another level of sharing than when it joined."""
        if await self._coordinator.ask_features() != self._sharing_level:
            self.needs_join = True

    def observe(self, error: KafkaError) -> None:
        """Learns from the coordinator's error what became of the membership."""
        if error.code in _OUTDATED:
            self._forget_membership(error.code)
        elif error.code in _REBALANCE:
            self.needs_join = True
        elif error.code == ErrorCode.FENCED_INSTANCE_ID:
            self.failure = error
        self._changed()

    def _forget_membership(self, code: ErrorCode) -> None:
        member_id = self.generation.member_id if code == ErrorCode.ILLEGAL_GENERATION else ""
        self.generation = Generation(-1, member_id, self.generation.instance_id)
        self.needs_join = self.lost = True

    async def join(
        self, topics: frozenset[str], owned: Shares, previous: Sequence[Partition]
    ) -> Shares:
        """Takes part in the group's next generation and returns what this member is assigned.

        `owned` is what it keeps meanwhile, `previous` what it had. Waits for the other members, as
        long as the group lets them. Raises KafkaError if the group refuses this member, and the
        last `ConnectionError` when the coordinator can't be reached for the request timeout.
        """
        self.needs_join = False
        await self._stop_heart()
        retry = Retry(self._cluster.request_timeout_ms)
        while True:
            if self.lost:
                owned, previous = {}, ()
            started_at = time.monotonic()
            try:
                assigned = await self._join_once(topics, owned, previous)
            except (ConnectionError, KafkaError) as error:
                if time.monotonic() - started_at > _JOIN_MARGIN_MS / 1000:
                    retry = Retry(self._cluster.request_timeout_ms)  # it was there, and is gone now
                if not isinstance(error, KafkaError) or error.code not in _JOIN_AGAIN:
                    await retry.wait(error)
                elif error.code in _OUTDATED:
                    self._forget_membership(error.code)
                    self.needs_join = False
                    self._changed()
                continue
            self._heart = asyncio.create_task(self._beat())
            return assigned

    async def _join_once(
        self, topics: frozenset[str], owned: Shares, previous: Sequence[Partition]
    ) -> Shares:
        kinds = messages.JoinGroupRequest
        before = self.generation
        self._sharing_level = await self._coordinator.ask_features()
        asking = self._sharing_level > 0
        sharing = None
        if asking and self._allow_key_share:
            sharing = ShareSubscription(True, self._share_host, owned)
        request = kinds(
            group_id=self._coordinator.group_id,
            session_timeout_ms=self._times.session_timeout_ms,
            rebalance_timeout_ms=self._times.max_poll_interval_ms,
            member_id=before.member_id,
            group_instance_id=before.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                kinds.JoinGroupRequestProtocol(
                    name=name,
                    metadata=encode_subscription(
                        topics, owned, before.id, assignor.user_data(previous, before.id, sharing)
                    ),
                )
                for name, assignor in self._assignors.items()
            ],
            _tags={ACCEPT_INDIVIDUAL_COMMIT_TAG: YES} if asking else None,
        )
        response = await self._coordinator.ask(
            request, joining=True, timeout_ms=self._times.max_poll_interval_ms + _JOIN_MARGIN_MS
        )
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = Generation(-1, response.member_id, before.instance_id)
        self._check(response.error_code)
        self._coordinator.refuses_claims = not is_set(response, ACCEPT_INDIVIDUAL_COMMIT_TAG)
        self.generation = Generation(response.generation_id, response.member_id, before.instance_id)
        assignments: dict[str, bytes] = {}
        self.led = self._division = None
        if response.leader == response.member_id:
            assignments = await self._divide(response)
        return await self._sync(response.protocol_name, assignments)

    async def _divide(self, joined: Any) -> dict[str, bytes]:
        """The assignment of a generation that this member leads, encoded."""
        members: dict[str, Subscription] = {}
        for member in joined.members:
            members[member.member_id] = decode_subscription(
                member.metadata, member.group_instance_id
            )
        wanted = sorted(frozenset[str]().union(*(m.topics for m in members.values())))
        await self._cluster.refresh(wanted, range_fetch=True)
        topics = self._leaders(wanted)
        self.led = {topic: frozenset(topics.get(topic, ())) for topic in wanted}
        self.shareable = self.shareable_now()
        assignor = self._assignors[joined.protocol_name]
        shareable = self.shareable if self._coordinator.takes_claims else frozenset[str]()
        if assignor.by_leader:
            self._division = _Division(assignor, topics, members, shareable)
        if joined.skip_assignment:
            return {}
        return {
            member: encode_assignment(shares)
            for member, shares in assignor.share(topics, members, shareable).items()
        }

    def _leaders(self, wanted: Iterable[str]) -> dict[str, dict[int, int]]:
        """The partitions of topics that exist, and who leads them."""
        known = self._cluster.topics
        return {
            topic: {p.id: p.leader for p in known[topic].partitions.values()}
            for topic in wanted
            if topic in known
        }

    @property
    def looks_at_leaders(self) -> bool:
        """Whether this member leads a group whose assignor goes by who leads partitions."""
        return self._division is not None

    def divides_otherwise(self) -> bool:
        """Whether leaders have moved so that members would get other partitions than they have."""
        if self._division is None:
            return False
        assignor, before, members, shareable = self._division
        now = self._leaders(before)
        for topic, leaders in now.items():
            for number, leader in before[topic].items():
                if leaders.get(number, -1) < 0:
                    leaders[number] = leader
        if now == before:
            return False
        return assignor.share(now, members, shareable) != assignor.share(before, members, shareable)

    def shareable_now(self) -> frozenset[str]:
        """The topics of the group that this member leads of which parts may be read."""
        known = self._cluster.topics
        return frozenset(
            topic for topic in self.led or () if topic in known and known[topic].accepts_range_fetch
        )

    async def _sync(self, protocol: str, assignments: Mapping[str, bytes]) -> Shares:
        kinds = messages.SyncGroupRequest
        generation = self.generation
        request = kinds(
            group_id=self._coordinator.group_id,
            generation_id=generation.id,
            member_id=generation.member_id,
            group_instance_id=generation.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=protocol,
            assignments=[
                kinds.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        asked_at = time.monotonic()
        # The leader's SyncGroup may be long in coming: it is given the time of a rebalance.
        response = await self._coordinator.ask(
            request, joining=True, timeout_ms=self._times.max_poll_interval_ms + _JOIN_MARGIN_MS
        )
        self._check(response.error_code)
        self._heard_at = asked_at
        shares = decode_assignment(response.assignment)
        if not self._allow_key_share and any(slots != ALL_SLOTS for slots in shares.values()):
            raise KafkaError(
                ErrorCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED,
                f"group {self._coordinator.group_id!r}: the leader assigned parts of partitions",
            )
        return shares

    def _check(self, code: int) -> None:
        if code:
            known = error_code(code)
            raise KafkaError(known, f"group {self._coordinator.group_id!r}: {known.message}")

    # -- heartbeats

    async def _beat(self) -> None:
        interval_s = self._times.heartbeat_interval_ms / 1000
        pause_s = interval_s
        while True:
            await asyncio.sleep(pause_s)
            if time.monotonic() - self._polled_at > self._times.max_poll_interval_ms / 1000:
                _log.warning(
                    "group %r: not polled for %d ms; leaving the group (max_poll_interval_ms)",
                    self._coordinator.group_id,
                    self._times.max_poll_interval_ms,
                )
                await self._say_leave("not polled in time")
                self._forget_membership(ErrorCode.UNKNOWN_MEMBER_ID)
                self._changed()
                return
            try:
                await self._heartbeat()
                pause_s = interval_s
            except ConnectionError:
                pause_s = min(interval_s, _HEARTBEAT_RETRY_S)
            except KafkaError as error:
                pause_s = min(interval_s, _HEARTBEAT_RETRY_S)
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    # Still a member until the next JoinGroup, which may have to wait for the user.
                    pause_s = interval_s
                elif not is_retriable(error) and error.code not in _OUTDATED:
                    self.failure = error
                self.observe(error)
                if self.failure is not None or self.lost:
                    return

    async def _heartbeat(self) -> None:
        generation = self.generation
        request = messages.HeartbeatRequest(
            group_id=self._coordinator.group_id,
            generation_id=generation.id,
            member_id=generation.member_id,
            group_instance_id=generation.instance_id,
        )
        asked_at = time.monotonic()
        response = await self._coordinator.ask(request, timeout_ms=self._times.session_timeout_ms)
        self._check(response.error_code)
        self._heard_at = asked_at

    async def _stop_heart(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    # -- leaving

    async def close(self) -> None:
        """Leaves the group; a static member stays in it, for it is expected to come back."""
        await self._stop_heart()
        await self._say_leave("the consumer was closed")
        self.generation = Generation(instance_id=self.generation.instance_id)

    async def _say_leave(self, reason: str) -> None:
        generation = self.generation
        if not generation.member_id or generation.instance_id is not None:
            return
        kinds = messages.LeaveGroupRequest
        request = kinds(
            group_id=self._coordinator.group_id,
            members=[kinds.MemberIdentity(member_id=generation.member_id, reason=reason)],
        )
        try:
            check((await self._coordinator.ask(request)).error_code)
        except (ConnectionError, KafkaError) as error:
            # The session's timeout does the same.
            _log.info("group %r: could not leave: %s", self._coordinator.group_id, error)


def encode_subscription(
    topics: Iterable[str], owned: Iterable[Partition], generation: int, user_data: bytes
) -> bytes:
    """A member's metadata."""
    kinds = messages.ConsumerProtocolSubscription
    message = kinds(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            kinds.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(sorted(owned)).items()
        ],
        generation_id=generation,
    )
    return encode_versioned("ConsumerProtocolSubscription", _SUBSCRIPTION_VERSION, message)


def decode_subscription(data: bytes, instance_id: str | None) -> Subscription:
    """A member's metadata as another wrote it; one that makes no sense subscribes to nothing."""
    try:
        _, message = decode_versioned("ConsumerProtocolSubscription", data)
    except DecodeError as error:
        _log.warning("a member's metadata can't be read: %s", error)
        return Subscription(frozenset(), instance_id=instance_id)
    return Subscription(
        frozenset(message.topics),
        tuple((t.topic, number) for t in message.owned_partitions for number in t.partitions),
        message.generation_id,
        instance_id,
        bytes(message.user_data or b""),
    )


def encode_assignment(shares: Shares) -> bytes:
    """What the leader assigns to a member; only of parts the user data says something."""
    kinds = messages.ConsumerProtocolAssignment
    message = kinds(
        assigned_partitions=[
            kinds.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(sorted(shares)).items()
        ]
    )
    if any(slots != ALL_SLOTS for slots in shares.values()):
        message.user_data = encode_shares(shares)
    return encode_versioned("ConsumerProtocolAssignment", _ASSIGNMENT_VERSION, message)


def decode_assignment(data: bytes) -> Shares:
    """What this member is assigned; empty bytes are nothing. Raises KafkaError for nonsense."""
    if not data:
        return {}
    try:
        _, message = decode_versioned("ConsumerProtocolAssignment", data)
        shares = decode_shares(bytes(message.user_data or b"")) or {}
    except DecodeError as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the leader's assignment can't be read: {error}"
        ) from error
    return {
        name: shares.get(name, ALL_SLOTS)
        for t in message.assigned_partitions
        for name in ((t.topic, number) for number in t.partitions)
    }
