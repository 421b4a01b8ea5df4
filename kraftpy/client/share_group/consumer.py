"""The share consumer: records that a share group leases to this member, and what it says of them.

Rules:

* What was handed out last is accepted when the next records are asked for, at `commit` and when the
  consumer is closed, but for what something else was said of; with
  share.acknowledgement.mode=explicit nothing is accepted unless it is said. Whoever leaves
  `async with` by an exception accepts nothing: what was handed out last is released.
* Heartbeats go on in between; everything else only while somebody polls, commits or closes.
* Nothing that is said is lost without a word: see `acknowledgements`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Generic, Self, Unpack, overload

from kraftpy.client.arguments import check_names, checked_cluster
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer_records import Deserializer
from kraftpy.client.offsets import Partition
from kraftpy.client.options import ShareConsumerOptions
from kraftpy.client.serializing import K, V
from kraftpy.client.share_group.acknowledgements import (
    AcknowledgementCallback,
    Acknowledgements,
    Refusal,
)
from kraftpy.client.share_group.fetching import ACKNOWLEDGED_AFTER_S, ShareFetching
from kraftpy.client.share_group.leased import ShareRecord
from kraftpy.client.share_group.membership import ShareMember
from kraftpy.client.share_group.session import FetchOptions
from kraftpy.protocol.acknowledge_type import AcknowledgeType

_ITERATION_POLL_MS = 1_000
_MODES = ("implicit", "explicit")
_ACQUIRE_MODES = ("batch_optimized", "record_limit")


class ShareConsumer(Generic[K, V]):
    """Reads topics as a member of a share group, which shares single records (KIP-932).

        async with ShareConsumer(cluster, group_id="mails") as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    A record counts as done when the next one is asked for. `release` has it delivered again,
    to whoever asks, `reject` to nobody, and `renew` keeps it for longer.

    Options, with Kafka's names and defaults: group.id, share.acknowledgement.mode (implicit, or
    explicit: only what `accept` says is done), share.acquire.mode (batch_optimized, or
    record_limit: never more than max_poll_records), max.poll.records, max.poll.interval.ms and the
    fetch sizes. `acknowledgement_callback` is called with a partition, runs of offsets (first and
    last) and None, or why what was said of them doesn't count. Where a new group begins is the
    group's own configuration: share.auto.offset.reset.
    """

    @overload
    def __init__(
        self: ShareConsumer[bytes, bytes],
        cluster: Cluster,
        *,
        group_id: str,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **options: Unpack[ShareConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ShareConsumer[bytes, V],
        cluster: Cluster,
        *,
        group_id: str,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[ShareConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ShareConsumer[K, bytes],
        cluster: Cluster,
        *,
        group_id: str,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        **options: Unpack[ShareConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ShareConsumer[K, V],
        cluster: Cluster,
        *,
        group_id: str,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[ShareConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        share_acknowledgement_mode: str = "implicit",
        share_acquire_mode: str = "batch_optimized",
        acknowledgement_callback: AcknowledgementCallback | None = None,
        max_poll_records: int = 500,
        max_poll_interval_ms: int = 300_000,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        cluster = checked_cluster(cluster, "ShareConsumer")
        if not group_id:
            raise ValueError("a share consumer needs a group_id")
        if share_acknowledgement_mode not in _MODES:
            raise ValueError(f"share_acknowledgement_mode must be {' or '.join(_MODES)}")
        if share_acquire_mode not in _ACQUIRE_MODES:
            raise ValueError(f"share_acquire_mode must be {' or '.join(_ACQUIRE_MODES)}")
        if max_poll_records < 1:
            raise ValueError("max_poll_records must be at least 1")
        self._explicit = share_acknowledgement_mode == "explicit"
        self._max_poll_records = max_poll_records
        self._wake = asyncio.Event()
        self._topics: frozenset[str] = frozenset()
        self._in_hand: list[ShareRecord[K, V]] = []
        self._closed = False
        self._member = ShareMember(
            cluster,
            group_id,
            max_poll_interval_ms=max_poll_interval_ms,
            changed=self._wake.set,
        )
        self._acknowledgements = Acknowledgements(group_id, acknowledgement_callback)
        options = FetchOptions(
            fetch_max_wait_ms,
            fetch_min_bytes,
            fetch_max_bytes,
            max_poll_records,
            share_acquire_mode == "record_limit",
        )
        self._make_fetching = partial(
            ShareFetching,
            cluster,
            group_id,
            self._member.id,
            self._acknowledgements,
            options,
            (key_deserializer, value_deserializer),
            self._wake.set,
        )
        self._fetching = self._make_fetching()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._say_of_hand(AcknowledgeType.RELEASE)
        await self.close()

    # -- what to read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Reads these topics with the group, instead of those before.

        Topics that don't exist yet are read when they do.
        """
        check_names(topics, "subscribe")
        self._check_open()
        names = frozenset(topics)
        if not names:
            raise ValueError("there is no topic to subscribe to: unsubscribe() leaves the group")
        self._topics = names
        self._member.subscribe(names)

    async def unsubscribe(self) -> None:
        """Says what there is to be said, gives back what it has, and leaves the group."""
        if not self._explicit:
            self._say_of_hand(AcknowledgeType.ACCEPT)
        self._topics = frozenset()
        fetching, self._fetching = self._fetching, self._make_fetching()
        try:
            await fetching.close()
        finally:
            await self._member.leave()

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return self._topics

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this member fetches from; others may fetch from them, too."""
        names = self._fetching.names(self._topics)
        return frozenset(
            (names[topic_id], number)
            for topic_id, number in self._member.assignment
            if topic_id in names
        )

    @property
    def member_id(self) -> str:
        """As whom the group knows this consumer."""
        return self._member.id

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long a record is leased, as a leader said last; None before it has."""
        return self._fetching.lock_ms

    # -- records

    async def poll(
        self, timeout_ms: int = 500, *, max_records: int | None = None
    ) -> list[ShareRecord[K, V]]:
        """The next records; [] if none come in time. Those of the last poll are accepted.

        Raises what retries don't cure: KafkaError and `ConnectionError`; and what a deserializer
        raises, whose record is released then.
        """
        self._check_open()
        if not self._topics:
            raise ValueError("there is nothing to read: subscribe() first")
        if not self._explicit:
            self._say_of_hand(AcknowledgeType.ACCEPT)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            self._wake.clear()
            self._member.polled()
            if self._member.failure is not None:
                raise self._member.failure
            self._fetching.advance(self._member.assignment, self._topics)
            records = self._fetching.take(max_records or self._max_poll_records)
            if records:
                if not self._explicit:
                    self._in_hand = records
                return records
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return []
            try:
                async with asyncio.timeout(min(left_s, ACKNOWLEDGED_AFTER_S)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def __aiter__(self) -> AsyncIterator[ShareRecord[K, V]]:
        self._check_open()
        while not self._closed:
            for record in await self.poll(_ITERATION_POLL_MS, max_records=1):
                yield record

    # -- what became of them

    def accept(self, record: ShareRecord[K, V]) -> None:
        """It is done: nobody gets it again. Sent with the next `poll` or `commit`.

        ValueError if something was said of it already.
        """
        self._say(record, AcknowledgeType.ACCEPT)

    def release(self, record: ShareRecord[K, V]) -> None:
        """It isn't done: it's for whoever asks next, up to the group's limit of deliveries."""
        self._say(record, AcknowledgeType.RELEASE)

    def reject(self, record: ShareRecord[K, V]) -> None:
        """It can't be done: nobody gets it again."""
        self._say(record, AcknowledgeType.REJECT)

    def renew(self, record: ShareRecord[K, V]) -> None:
        """It needs more time: its lease begins anew when that is sent, by `commit` at once.

        What becomes of it is said later.
        """
        self._say(record, AcknowledgeType.RENEW)

    async def commit(self) -> dict[Partition, Refusal | None]:
        """Sends what was said, and says what became of everything since the last commit.

        None of a partition if all of it counts, else the first error: KafkaError if it was refused
        (INVALID_RECORD_STATE: too late), `ConnectionError` if nobody knows. Those records come
        again, unless it counted after all. What was handed out last is accepted by this, but for
        those that are to be renewed, unless the mode is explicit.
        """
        self._check_open()
        if not self._explicit:
            self._say_of_hand(AcknowledgeType.ACCEPT, renewing=True)
        self._acknowledgements.commits += 1
        try:
            await self._fetching.commit()
        finally:
            self._acknowledgements.commits -= 1
        return self._acknowledgements.outcomes()

    def _say(self, record: ShareRecord[K, V], what: AcknowledgeType) -> None:
        self._check_open()
        self._acknowledgements.say(record, what)

    def _say_of_hand(self, what: AcknowledgeType, *, renewing: bool = False) -> None:
        """Says it of what was handed out last and nothing was said of."""
        in_hand, self._in_hand = self._in_hand, []
        for record in in_hand:
            if renewing and self._acknowledgements.is_renewed(record):
                self._in_hand.append(record)
            elif record.lease is not None:
                self._acknowledgements.say(record, what)

    # -- ending

    async def close(self) -> None:
        """Says what there is to be said, gives back what it has, and leaves the group."""
        if self._closed:
            return
        self._closed = True
        await self.unsubscribe()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the consumer is closed")
