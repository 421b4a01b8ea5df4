"""A consumer as a member of its group: joining, taking assignments over, giving up, leaving.

Rules:
* All of it runs inside `poll`, but for leaving; `group` does what goes on in between.
* A rebalance goes on though the listener raises, or the `poll` is cancelled that called it: others
  wait for what this consumer gives up. Of what came the listener is told by the next `poll`.

`Consumer` is the one class that has it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from kraftpy.client.cluster import Cluster, NoBrokerError
from kraftpy.client.consumer_commits import ConsumerCommits
from kraftpy.client.consumer_shares import shares_as_ranges
from kraftpy.client.coordinator import Generation
from kraftpy.client.group import Member
from kraftpy.client.handover import hand_over
from kraftpy.client.offsets import Partition
from kraftpy.client.rebalance_listener import RebalanceListener
from kraftpy.client.shares import hashes_of_slots
from kraftpy.client.streams import Streams
from kraftpy.client.topic_filter import TopicFilter
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.key_shares import Shares

_MISSING_TOPIC_CHECK_S = 1.0


class ConsumerMembership(ConsumerCommits):
    """The part of `Consumer` that is about its group."""

    _cluster: Cluster
    _member: Member | None
    _generation: Generation
    _listener: RebalanceListener
    _topics: frozenset[str]
    _filter: TopicFilter | None
    _look_at: float
    _metadata_max_age_s: float
    _joining: asyncio.Task[Shares] | None
    _streams: Streams | None
    _leaving: bool = False
    _wake: asyncio.Event
    _untold: tuple[Shares, list[Partition] | None] = ({}, None)
    """What has come that the listener doesn't know of: slices, and partitions, if any changed."""

    async def _advance_membership(self, member: Member) -> None:
        if member.failure is not None:
            raise member.failure
        await self._tell_assigned()
        if member.lost:
            member.lost = False
            ranges = self._shares.ranges
            lost = self._reading.forget(self._reading.assigned)
            if lost:
                await self._listener.shares_lost(ranges)
                await self._listener.lost(lost)
        if self._joining is not None and self._joining.done():
            # It may have been lost while joining, and joined anew; or since, and joins again.
            if self._joining.exception() is None and member.generation.id >= 0:
                await self._take_over(member, self._joining.result())
            else:
                joined, self._joining = self._joining, None
                member.needs_join = True
                joined.result()
        await self._look_at_topics(member)
        if self._has_left(member):
            return
        if self._joining is None and member.needs_join and (self._topics or self._filter is None):
            await self._join(member)

    async def _join(self, member: Member) -> None:
        previous = sorted(self._reading.assigned)
        if member.cooperative:
            leaving = [name for name in previous if name[0] not in self._topics]
        else:
            leaving = previous
        await self._settle(leaving)
        await self._commit_processed(previous)
        if leaving:
            shares = self._shares.ranges
            await self._listener.shares_revoked({name: shares[name] for name in leaving})
            await self._listener.revoked(leaving)
            await self._commit_claims(leaving)
        if self._has_left(member):
            return
        self._reading.forget(leaving)
        self._joining = asyncio.create_task(member.join(self._topics, self._shares.slots, previous))

    async def _take_over(self, member: Member, shares: Shares) -> None:
        """Makes the assignment of a new generation this consumer's.

        Until the listener hears of it, a `poll` that is cancelled leaves it to the next one.
        """
        self._generation = member.generation
        change = hand_over(self._shares.slots, shares)
        gone = sorted(self._reading.assigned - shares.keys())
        if change.revoked:
            await self._settle(change.revoked)
            await self._commit_processed(change.revoked)
        try:
            if change.revoked:
                await self._listener.shares_revoked(shares_as_ranges(change.revoked))
                if gone:
                    await self._listener.revoked(gone)
                await self._commit_claims(change.revoked)
        finally:
            if not self._has_left(member):
                self._joining = None
                self._reading.forget(gone)
                if change.revoked:
                    # They are given to others once this member has joined without them (KIP-429).
                    member.needs_join = True
                added = sorted(shares.keys() - self._reading.assigned)
                slices = {name: hashes_of_slots(slots) for name, slots in shares.items()}
                self._reading.have(slices)
                self._untold = (change.added, added if added or not gone else None)
        await self._tell_assigned()

    async def _tell_assigned(self) -> None:
        """Tells the listener of what came, also when the poll that brought it has ended before."""
        shares, added = self._untold
        self._untold = ({}, added)
        if shares:
            await self._listener.shares_assigned(shares_as_ranges(shares))
        self._untold = ({}, None)
        if added is not None:
            await self._listener.assigned(added)

    async def _settle(self, partitions: Iterable[Partition]) -> None:
        """Lets streams end what they do of partitions that are about to go."""
        if self._streams is not None:
            await self._streams.settle(partitions, self._times.session_timeout_ms / 2000)

    async def _look_at_topics(self, member: Member) -> None:
        """Looks at what is served, for topics of a filter and, when leading, for partitions."""
        now = time.monotonic()
        led = member.led
        joined = self._joining is None and not member.needs_join
        if now < self._look_at or not (joined or self._filter is not None):
            return
        self._look_at = now + self._metadata_max_age_s
        wanted = None if self._filter is not None else sorted(led or ())
        try:
            if joined:
                await member.look_at_features()
            if self._filter is not None or led is not None:
                await self._cluster.refresh(wanted, range_fetch=True)
        except (ConnectionError, KafkaError) as error:
            if isinstance(error, NoBrokerError) and error.first_contact:
                raise
            self._look_at = now + _MISSING_TOPIC_CHECK_S
            return
        known = self._cluster.topics
        if self._filter is not None:
            matching = frozenset(
                name
                for name, info in known.items()
                if not info.internal and self._filter.allows(name)
            )
            if matching != self._topics:
                self._topics = matching
                member.needs_join = True
        if led is not None:
            there = {
                topic: frozenset(known[topic].partitions if topic in known else ()) for topic in led
            }
            if (
                there != led
                or member.shareable_now() != member.shareable
                or member.divides_otherwise()
            ):
                member.needs_join = True
            if not all(there.values()):
                self._look_at = now + _MISSING_TOPIC_CHECK_S
            elif member.looks_at_leaders:
                beat_s = self._times.heartbeat_interval_ms / 1000
                self._look_at = min(self._look_at, now + beat_s)

    def _has_left(self, member: Member) -> bool:
        """Whether another task, or the listener, has left the group or is about to."""
        return self._leaving or self._member is not member

    async def _leave(self) -> None:
        """Leaves the group. Whoever polls meanwhile begins nothing, and gets nothing."""
        self._leaving = True
        member = self._member
        joining, self._joining = self._joining, None
        owned = sorted(self._reading.assigned)
        try:
            if joining is not None:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
            if member is None:
                await self._commit_processed(owned)
            elif member.lost or member.failure is not None:
                await self._listener.shares_lost(self._shares.ranges)
                await self._listener.lost(owned)
            elif owned:
                # It may have joined since the last poll, and is refused as who it was before.
                self._generation = member.generation
                await self._commit_processed(owned)
                await self._listener.shares_revoked(self._shares.ranges)
                await self._listener.revoked(owned)
                await self._commit_claims(owned)
        finally:
            self._reading.forget(self._reading.assigned)
            self._member, self._generation, self._untold = None, Generation(), ({}, None)
            self._leaving = False
            self._wake.set()
            if member is not None:
                await member.close()

    def _committing(self, error: KafkaError | None = None) -> Generation:
        """Who commits; what the coordinator answered that member tells it where it stands.

        Not while it joins: then it has been asked already, and the former generation may be over.
        """
        member = self._member
        if (
            error is not None
            and member is not None
            and self._joining is None
            and member.generation == self._generation
        ):
            member.observe(error)
        return self._generation
