"""The consumer: partitions of subscribed topics, shared with the other members of a group.

Rules:

* Everything that the user can notice happens inside `poll` (and `async for`, which polls):
  callbacks of rebalances run there, and a record counts as processed when the next one is asked
  for. So auto commit never commits what the user has not finished. Heartbeats, joining and
  fetching go on in between.
* Before partitions are given up, what was processed is committed (with auto commit). That isn't
  what the last `poll` gave when an error or a cancellation ends `async with`, unless it was
  committed in there.
* An eager group gives up all partitions in a rebalance; with `cooperative-sticky` alone only those
  that move (KIP-429), and records of the others keep coming meanwhile.
* Of a partition that members share this one has slices of the keys (`ledger`): they are fetched and
  handed out by themselves, and what is done of them is claimed. Without auto commit that is what
  the user has committed, and every `auto_commit_interval_ms` what has none of its records.
* What is fetched ahead is bounded: one answer of each broker at a time, `fetch_max_bytes` each, and
  the next ones only when that has been handed out.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from kraftpy.client.arguments import check_partitions, checked_cluster
from kraftpy.client.assignor import Assignor
from kraftpy.client.assignors import assignors_of
from kraftpy.client.cluster import METADATA_MAX_AGE_MS, Cluster
from kraftpy.client.commits import Commits, Done
from kraftpy.client.consumer_membership import ConsumerMembership
from kraftpy.client.consumer_positions import ConsumerPositions
from kraftpy.client.consumer_records import ConsumerRecord, Deserializer, FetchedRecords
from kraftpy.client.consumer_shares import ConsumerShares, Ranges
from kraftpy.client.coordinator import Coordinator, Generation, GroupMetadata
from kraftpy.client.group import MEMBERSHIP_ERRORS, GroupTimes, Member
from kraftpy.client.isolation import ISOLATION_LEVELS
from kraftpy.client.leases import cooperation_of, is_leasing
from kraftpy.client.ledger import slices_of
from kraftpy.client.offsets import Offset, Partition
from kraftpy.client.options import ConsumerOptions
from kraftpy.client.reading import Reading
from kraftpy.client.rebalance_listener import RebalanceListener
from kraftpy.client.serializing import K, V
from kraftpy.client.sharing import keeps_what_is_cut
from kraftpy.client.streams import RecordStream, Streams, counts_of
from kraftpy.client.topic_filter import TopicFilter
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.extensions import Cooperation
from kraftpy.protocol.key_shares import Shares

__all__ = ["Consumer", "RebalanceListener"]

_ITERATION_POLL_MS = 1_000


class Consumer(ConsumerPositions, ConsumerMembership, Generic[K, V]):
    """Reads partitions that it subscribes to with a group, or that it is assigned by hand.

        async with Consumer(cluster, group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    Options, with Kafka's names and defaults: group.id, group.instance.id, auto.offset.reset,
    isolation.level, enable.auto.commit, auto.commit.interval.ms, max.poll.records,
    metadata.max.age.ms, and the fetch sizes. From the draft of cooperative consumption come
    allow.individual.commit (whether it may be given slices of partitions) and
    max.num.ranges.to.commit; `share_host` names the place that `kraftpy-colocate` fills together.
    With `explicit_done` a record counts as processed when `done` says so.

    `assignors` are names of `assignors.ASSIGNORS` or `Assignor`s, the liked ones first; `times` are
    the group's time limits. Keys and values are bytes, or what the deserializers make of them.
    """

    @overload
    def __init__(
        self: Consumer[bytes, bytes],
        cluster: Cluster,
        *,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes, V],
        cluster: Cluster,
        *,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, bytes],
        cluster: Cluster,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, V],
        cluster: Cluster,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        assignors: Sequence[str | Assignor] = ("range", "cooperative-sticky"),
        times: GroupTimes | None = None,
        auto_offset_reset: str = "latest",
        isolation_level: str = "read_uncommitted",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        max_poll_records: int = 500,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        allow_individual_commit: bool = True,
        max_num_ranges_to_commit: int = 10_000,
        explicit_done: bool = False,
        share_host: str = "",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        self._cluster = checked_cluster(cluster, "Consumer")
        self._coordinator = None if group_id is None else Coordinator(cluster, group_id)
        self._instance_id = group_instance_id
        self._assignors = assignors_of(assignors)
        leasing = is_leasing(self._assignors, group_id)
        self._times = times or GroupTimes()
        if isolation_level not in ISOLATION_LEVELS:
            raise ValueError("isolation_level must be read_uncommitted or read_committed")
        self._isolation = ISOLATION_LEVELS[isolation_level]
        self._max_poll_records = max_poll_records
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._member: Member | None = None
        self._generation, self._listener = Generation(), RebalanceListener()
        self._topics: frozenset[str] = frozenset()
        self._filter: TopicFilter | None = None
        self._look_at = 0.0
        if explicit_done and group_id is None:
            raise ValueError("explicit_done needs a group_id")
        self._explicit_done, self._done_count = explicit_done, 0
        self._max_num_ranges = max_num_ranges_to_commit
        self._sharing = (allow_individual_commit, share_host)
        self._shares = ConsumerShares(
            self._coordinator,
            explicit=explicit_done,
            auto_commit=enable_auto_commit,
            leasing=leasing,
            may_be_cut=allow_individual_commit and keeps_what_is_cut(self._assignors),
        )
        self._reading = Reading(
            cluster,
            self._shares,
            lambda: FetchedRecords(key_deserializer, value_deserializer, self._shares.ledgers),
            auto_offset_reset=auto_offset_reset,
            isolation=self._isolation,
            as_whom=self._as_whom if leasing else lambda _: None,
            max_wait_ms=fetch_max_wait_ms,
            max_bytes=fetch_max_bytes,
            max_partition_bytes=max_partition_fetch_bytes,
        )
        self._joining: asyncio.Task[Shares] | None = None
        self._wake = asyncio.Event()
        self._commits: Commits | None = None
        if self._coordinator is not None:
            self._commits = Commits(
                self._coordinator,
                auto_commit_interval_ms,
                self._committing,
                auto=enable_auto_commit,
            )
        self._streams: Streams | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the consumer; after an error what was handed out last isn't committed."""
        if error is not None:
            self._reading.give_up_what_is_in_hand()
        await self.close()

    # -- what to read

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | TopicFilter,
        *,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Shares these topics (or all that a filter or a pattern allows) with the group.

        Replaces what was subscribed to; takes effect in the next `poll`. Topics that don't exist
        yet are read when they do: a filter is asked again every `metadata_max_age_ms`.
        """
        if self._coordinator is None:
            raise ValueError("subscribing needs a group_id")
        if self._member is None and self._reading.assigned:
            raise ValueError("partitions were assigned by hand: unsubscribe() first")
        if isinstance(topics, str):
            raise TypeError("subscribe takes a list of topics or a TopicFilter, not one str")
        if self._streams is not None and self._member is not None:
            raise ValueError(
                "there are streams: unsubscribe() first, then streams() of other topics"
            )
        if isinstance(topics, re.Pattern):
            topics = TopicFilter(topics)
        if isinstance(topics, TopicFilter):
            self._filter, self._topics = topics, frozenset()
        else:
            self._filter, self._topics = None, frozenset(topics)
        self._listener = listener or RebalanceListener()
        self._look_at = 0.0
        if self._member is None:
            self._member = Member(
                self._cluster,
                self._coordinator,
                self._assignors,
                self._times,
                instance_id=self._instance_id,
                allow_key_share=self._sharing[0] and self._streams is None,
                share_host=self._sharing[1],
                changed=self._wake.set,
            )
            self._generation = self._member.generation
        self._member.needs_join = True

    @overload
    def streams(
        self, topics: Mapping[str, int], *, listener: RebalanceListener | None = None
    ) -> dict[str, list[RecordStream[K, V]]]: ...

    @overload
    def streams(
        self, topics: TopicFilter, count: int = 1, *, listener: RebalanceListener | None = None
    ) -> list[RecordStream[K, V]]: ...

    def streams(
        self,
        topics: Mapping[str, int] | TopicFilter,
        count: int = 1,
        *,
        listener: RebalanceListener | None = None,
    ) -> dict[str, list[RecordStream[K, V]]] | list[RecordStream[K, V]]:
        """Subscribes, and returns so many streams of each topic, or `count` for all that a filter
        allows: each for a task of its own, in place of `poll`.

        Partitions come whole. See `streams` for which stream has which and what is processed when.
        """
        if self._member is not None or self._streams is not None or self._reading.assigned:
            raise ValueError("the consumer has something to read already: unsubscribe() first")
        self._shares.refuse_leasing("streams")
        counts = counts_of(topics, count)
        self._group_commits()
        streams = self._streams = Streams(
            self._reading,
            advance=self._advance,
            wait=self._wait,
            wake=self._wake.set,
            commit=self.commit,
        )
        self._shares.one_by_one = not self._explicit_done
        wanted = topics if isinstance(topics, TopicFilter) else list(topics)
        self.subscribe(wanted, listener=listener)
        made = streams.make(counts)
        if isinstance(topics, TopicFilter):
            return made[None]
        return {topic: made[topic] for topic in topics}

    def assign(
        self,
        partitions: Iterable[Partition] | Mapping[Partition, Sequence[tuple[int, int]]],
    ) -> None:
        """Reads these partitions, without the group; committed offsets are used if there is one.

        A mapping names slices of them: the first and last of the hashes (`key_hash`) whose records
        are wanted, [] for all. Who else reads the others is for the caller to know.
        """
        if self._member is not None:
            raise ValueError("topics are subscribed to: unsubscribe() first")
        self._shares.refuse_leasing("assign")
        if not isinstance(partitions, Mapping | str):
            partitions = list(partitions)
        check_partitions(partitions, "assign")
        ranges = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, ())
        wanted = {name: slices_of(list(each)) for name, each in ranges.items()}
        self._reading.forget(self._reading.assigned - wanted.keys())
        self._reading.have(wanted)

    async def unsubscribe(self) -> None:
        """Leaves the group, or forgets the partitions assigned by hand; streams end."""
        await self._end_streams()
        try:
            await self._leave()
        finally:
            self._topics, self._filter = frozenset(), None

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this consumer has now."""
        return self._reading.assigned

    @property
    def shares(self) -> Ranges:
        """The slices that this consumer has: first and last hashes, [] for a whole partition."""
        return self._shares.ranges

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; for a filter those that it allowed last."""
        return self._topics

    @property
    def generation(self) -> Generation:
        """The membership that the assignment is of, and that commits are made with.

        It changes in `poll` alone. Whoever has been replaced and doesn't know it yet commits as the
        member that it was, and is refused (KIP-447).
        """
        return self._generation

    @property
    def group_metadata(self) -> GroupMetadata:
        """As whom a transaction commits this consumer's offsets: see `generation`.

        And what: of parts of partitions, and with `explicit_done`, claims.
        """
        if self._coordinator is None:
            raise ValueError("committing needs a group_id")
        return GroupMetadata(self._coordinator.group_id, self.generation, self._done)

    async def _end_streams(self) -> None:
        if self._streams is not None:
            await self._streams.end()
            self._streams = None
            self._shares.one_by_one = False

    # -- records

    async def poll(
        self, timeout_ms: int = 500, *, max_records: int | None = None
    ) -> list[ConsumerRecord[K, V]]:
        """The next records, those of a partition in order; [] if none come in time.

        Callbacks of a rebalance run in here, and may take longer than `timeout_ms`. Raises what
        retries don't cure: KafkaError and `ConnectionError` of the group and of reading.
        """
        if self._streams is not None:
            raise ValueError(
                "the records go to streams: iterate over those, or unsubscribe() first"
            )
        deadline = time.monotonic() + timeout_ms / 1000
        self._reading.count_as_processed()
        while True:
            await self._advance()
            had = bool(self._reading) and not self._leaving and not self._may_be_replaced()
            if had:
                records = self._reading.take(max_records or self._max_poll_records)
                if records:
                    return records
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            if not had:
                await self._wait(left_s)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        self._check_open()
        while not self._closed:
            for record in await self.poll(_ITERATION_POLL_MS, max_records=1):
                yield record

    def _may_be_replaced(self) -> bool:
        """Whether others may have what this consumer reads, if it has heard of it yet or not."""
        member = self._member
        return member is not None and (
            member.lost or (self._shares.in_part and not member.in_touch)
        )

    async def _wait(self, timeout_s: float) -> None:
        """Waits until something is done that `_advance` acts upon."""
        woken = asyncio.ensure_future(self._wake.wait())
        tasks: list[asyncio.Task[Any]] = [woken]
        if not self._leaving:
            tasks += self._reading.tasks
        if self._joining is not None:
            tasks.append(self._joining)
        try:
            await asyncio.wait(
                tasks,
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            woken.cancel()
        self._wake.clear()

    async def _advance(self) -> None:
        """Acts on everything that happened, and sees that what has to go on goes on."""
        self._check_open()
        if self._leaving:
            return
        if self._member is not None:
            self._member.polled()
            await self._advance_membership(self._member)
        if self._commits is not None:
            at_once = self._done_count > self._max_num_ranges
            self._commits.auto_commit_if_due(self._done, at_once=at_once)
            self._commits.claim_holes_if_due(self._holes)
        try:
            self._reading.advance(self._generation)
        except KafkaError as error:
            if self._member is None or error.code not in MEMBERSHIP_ERRORS:
                raise
            self._committing(error)

    async def close(self) -> None:
        """Commits what was processed (with auto commit), leaves the group, gives everything up."""
        if self._closed:
            return
        try:
            await self._end_streams()
            await self._leave()
        finally:
            self._closed = True
            if self._commits is not None:
                await self._commits.finish()
            await self._reading.close()
            if self._coordinator is not None:
                await self._coordinator.close()

    # -- commits

    def _done(self, offsets: Mapping[Partition, Offset] | None = None) -> Done:
        self._reading.count_as_processed(offsets)
        if offsets is not None:
            return self._shares.done_by(offsets)
        self._done_count = 0
        return self._shares.done_of(self._reading.processed, self._reading.assigned)

    def _as_whom(self, generation: Generation) -> Cooperation:
        assert self._coordinator is not None
        timeout_ms = self._times.session_timeout_ms
        return cooperation_of(self._coordinator.group_id, generation, timeout_ms)
