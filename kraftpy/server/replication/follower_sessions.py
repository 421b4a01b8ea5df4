"""What follower brokers fetch here: one session each, answered without a look at the idle ones.

A follower's fetch covers thousands of partitions of which few have news. So a session (KIP-227)
keeps two lists: the partitions with records or an error to send, and those of which only the
watermarks moved. Appends and watermarks put partitions on them; a request takes from them. A fetch
costs what there is to say and not what is followed.

Rules that it keeps:

* A partition that was sent is sent again only after the follower named it in a request, with the
  offset that it has got to: so requests may overlap, and a fetch that adds partitions ends the one
  that waits.
* A moved watermark alone ends no wait, unless consumers read from followers here (KIP-392).
* A partition whose leadership ends is answered with the error at once (docs/rules.md, rule
  13), and leaves the session.
* One session per follower: a new one ends the old one, as a new life of the broker does.
* A session has one timer for all its fetches: most are answered long before their time, and a timer
  that is started and cancelled costs more than the news.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    import asyncio

Key = tuple[bytes, int]

NEVER_MS = -(2**62)


class ParkedFetch(Protocol):
    """A follower's fetch that waits for something to say."""

    def wake(self) -> None:
        """Something became ready."""

    def finish(self) -> None:
        """Answers now, with what there is."""


class FollowedPartition:
    """A partition as one follower fetches it.

    `due`: the follower has told where it is and was sent nothing since. `sent_offset` is where the
    records began that it was sent last. `error` is why it can't be fetched here any more.
    `caught_up_ms` is when it last asked while it had everything.
    """

    __slots__ = (
        "caught_up_ms",
        "due",
        "error",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "offset",
        "partition",
        "sent_offset",
        "session",
        "told_high_watermark",
        "topic_id",
    )

    def __init__(self, session: FollowerSession, topic_id: bytes, partition: Partition) -> None:
        self.session = session
        self.topic_id = topic_id
        self.index = partition.index
        self.partition = partition
        self.offset = self.sent_offset = -1
        self.last_fetched_epoch = -1
        self.max_bytes = 0
        self.due = False
        self.caught_up_ms = NEVER_MS
        self.told_high_watermark = -1
        self.error = ErrorCode.NONE

    @property
    def replica_id(self) -> int:
        return self.session.replica_id

    def appended(self) -> None:
        """There may be records for the follower now."""
        session = self.session
        if self.due and self not in session.ready:
            self.caught_up_ms = session.heard_ms
            session.set_ready(self)

    def moved(self, *, at_once: bool = False) -> None:
        """A watermark has moved; the follower learns of it with its next answer, or `at_once`."""
        session = self.session
        session.moved[self] = None
        if session.parked is not None:
            if at_once:
                session.parked.finish()
            elif session.eager:
                session.parked.wake()

    def failed(self, error: ErrorCode) -> None:
        """The partition isn't led here any more."""
        self.error = error
        self.session.set_ready(self)


class FollowerSession:
    """The fetch session of one life of a follower broker.

    `ready` are the partitions that have something to send, first come first served; `moved` those
    with other watermarks than the follower was told. `parked` is the fetch that waits, if one does.
    `eager`: the follower serves consumers, so it is to hear of watermarks at once. `heard_ms` is
    when it asked last.
    """

    __slots__ = (
        "_entries",
        "_parked_until_s",
        "_timer",
        "_timer_due_s",
        "eager",
        "epoch",
        "heard_ms",
        "id",
        "moved",
        "parked",
        "ready",
        "replica_id",
    )

    def __init__(self, session_id: int, replica_id: int, *, eager: bool) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.eager = eager
        self.heard_ms = NEVER_MS
        self.epoch = 1
        self.ready: dict[FollowedPartition, None] = {}
        self.moved: dict[FollowedPartition, None] = {}
        self.parked: ParkedFetch | None = None
        self._parked_until_s = self._timer_due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._entries: dict[Key, FollowedPartition] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_moved(self) -> bool:
        """Whether a watermark is another one than the follower was told."""
        return any(
            entry.due and entry.told_high_watermark != entry.partition.high_watermark
            for entry in self.moved
        )

    def park(self, fetch: ParkedFetch, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        """`fetch` is woken by news, and finished when it has waited for so long."""
        self.parked = fetch
        self._parked_until_s = loop.time() + wait_s
        if self._timer is not None and self._timer_due_s > self._parked_until_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._start_timer(loop)

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer_due_s = self._parked_until_s
        self._timer = loop.call_at(self._timer_due_s, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """The fetch that the timer was started for may have been answered, and others since."""
        self._timer = None
        if self.parked is None:
            return
        if self._parked_until_s > self._timer_due_s:
            self._start_timer(loop)
        else:
            self.parked.finish()

    def set_ready(self, entry: FollowedPartition) -> None:
        self.ready[entry] = None
        if self.parked is not None:
            self.parked.wake()

    def sent(self, entry: FollowedPartition) -> None:
        """The follower is sent something of the partition; what comes next is for it to say."""
        entry.due = False
        self.ready.pop(entry, None)
        self.moved.pop(entry, None)

    def followed(self, topic_id: bytes, index: int) -> FollowedPartition | None:
        """The entry of a partition that is led here since the follower first named it."""
        entry = self._entries.get((topic_id, index))
        return None if entry is None or entry.error is not ErrorCode.NONE else entry

    def follow(self, topic_id: bytes, partition: Partition) -> FollowedPartition:
        """The entry of a partition that a request names, made if it is new."""
        entry = self._entries.get((topic_id, partition.index))
        if entry is not None:
            if entry.partition is partition and entry.error is ErrorCode.NONE:
                return entry
            self.drop(entry)
        entry = self._entries[topic_id, partition.index] = FollowedPartition(
            self, topic_id, partition
        )
        partition.add_follower(entry)
        self.moved[entry] = None
        return entry

    def forget(self, keys: Iterable[Key]) -> None:
        """The follower no longer wants these."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self.drop(entry)

    def drop(self, entry: FollowedPartition) -> None:
        self._entries.pop((entry.topic_id, entry.index), None)
        self.ready.pop(entry, None)
        self.moved.pop(entry, None)
        entry.partition.remove_follower(entry)

    def close(self) -> None:
        """Ends the session and the fetch that waits in it."""
        for entry in list(self._entries.values()):
            self.drop(entry)
        if self.parked is not None:
            self.parked.finish()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FollowerSessions:
    """The sessions of all followers, by broker id; ids come from `random_int31`."""

    def __init__(self, random_int31: Iterator[int], *, eager: bool) -> None:
        self._random = random_int31
        self._eager = eager
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, replica_id: int) -> FollowerSession:
        """A new session in place of the one that the follower had."""
        self.close(replica_id)
        session = FollowerSession(next(self._random), replica_id, eager=self._eager)
        self._sessions[replica_id] = session
        return session

    def resume(self, replica_id: int, session_id: int, epoch: int) -> FollowerSession:
        """The session of an incremental request; its epoch advances.

        Raises FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
        """
        session = self._sessions.get(replica_id)
        if session is None or session.id != session_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        return session

    @property
    def heard_ms(self) -> int:
        """When a follower that is known here fetched last, by `Broker.monotonic_ms`; 0: never."""
        return max((session.heard_ms for session in self._sessions.values()), default=0)

    def close(self, replica_id: int) -> None:
        session = self._sessions.pop(replica_id, None)
        if session is not None:
            session.close()
