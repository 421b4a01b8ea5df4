"""Incremental fetch sessions (KIP-227).

Rules:

* A session belongs to one client and counts epochs; a request of a wrong epoch or of an unknown
  session gets INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_ID_NOT_FOUND and the client starts over
  with a full request.
* A session ends with the connection that used it last: clients begin a new one on a new connection.
* Bounded: sessions (`max.incremental.fetch.session.cache.slots`) and their partitions, of one
  connection and of all. A partition that doesn't exist is one like any other, since its consumer
  waits for it; a name that no topic can have isn't kept.
* Where there is no room, a session that was idle for EVICT_AFTER_MS gives way, else one as old that
  is smaller than the new one (as in Kafka). Else the request is served without a session, and one
  that makes a session outgrow the room gets FETCH_SESSION_ID_NOT_FOUND.
* An incremental response carries only partitions with data, an error, or moved watermarks;
  partitions that had data move to the end, so that none starves.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence

from kraftpy.core.metadata.topic_commands import NAME_LENGTH_MAX
from kraftpy.core.security.principals import ANONYMOUS, Principal
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.key_index import KeyRanges

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICT_AFTER_MS = 120_000
# What one connection's sessions may hold. A partition takes about 300 bytes, beside its name.
CONNECTION_PARTITIONS_MAX = 100_000
CONNECTION_SESSIONS_MAX = 10
# All sessions together hold so many for each slot, and one session as large as one may be.
PARTITIONS_PER_SLOT = 200

Key = tuple[str | bytes, int]


def random_session_ids() -> Iterator[int]:
    """Ids that nobody can guess."""
    source = random.SystemRandom()
    while True:
        yield source.randrange(1, 2**31)


class FetchPartition:
    """What a client wants of one partition, and what it was last told.

    `topic` is a name up to Fetch v12 and an id (16 bytes) from v13. `key_ranges` are the slices of
    it that are wanted, None for all.
    """

    __slots__ = (
        "current_leader_epoch",
        "error",
        "fetch_offset",
        "high_watermark",
        "index",
        "key_ranges",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "stable_offset",
        "topic",
    )

    def __init__(
        self,
        topic: str | bytes,
        index: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        key_ranges: KeyRanges | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.key_ranges = key_ranges
        self.high_watermark = -1
        self.stable_offset = -1
        self.log_start_offset = -1
        self.error = 0

    @property
    def key(self) -> Key:
        return self.topic, self.index

    def must_answer(self, error: int, high: int, stable: int, start: int, has_data: bool) -> bool:
        """Whether an incremental response has to name the partition; remembers what it says."""
        changed = (
            has_data
            or error != 0
            or self.error != error
            or self.high_watermark != high
            or self.stable_offset != stable
            or self.log_start_offset != start
        )
        self.error, self.high_watermark = error, high
        self.stable_offset, self.log_start_offset = stable, start
        return changed


class FetchSession:
    """A client's interest set, in the order in which partitions are served.

    `by_id`: whether its topics are ids; the requests of one session are all of one kind (KIP-516).
    `connection` is the one that used it last. `rank` is its place among those that a larger one may
    evict, None while it is too young. `ranged`: some of its partitions had `key_ranges` in its
    last fetch. `principal` is who has begun it.
    """

    __slots__ = (
        "by_id",
        "connection",
        "created_ms",
        "epoch",
        "id",
        "last_used_ms",
        "partitions",
        "principal",
        "ranged",
        "rank",
    )

    def __init__(
        self, session_id: int, partitions: Sequence[FetchPartition], connection: str, now_ms: int
    ) -> None:
        self.id = session_id
        self.connection = connection
        self.created_ms = now_ms
        self.rank: tuple[int, int] | None = None
        self.by_id = isinstance(partitions[0].topic, bytes)
        self.epoch = 1
        self.ranged = False
        self.principal = ANONYMOUS
        self.last_used_ms = now_ms
        self.partitions: dict[Key, FetchPartition] = {p.key: p for p in partitions}

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[Key]) -> None:
        """Adds, changes and removes partitions as an incremental request says."""
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is None:
                self.partitions[partition.key] = partition
            else:
                known.fetch_offset = partition.fetch_offset
                known.max_bytes = partition.max_bytes
                known.current_leader_epoch = partition.current_leader_epoch
                known.last_fetched_epoch = partition.last_fetched_epoch
                known.key_ranges = partition.key_ranges
        for key in forgotten:
            self.partitions.pop(key, None)

    def served(self, key: Key) -> None:
        """The partition had data: the others go first next time."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition

    def __iter__(self) -> Iterator[FetchPartition]:
        return iter(list(self.partitions.values()))


class FetchSessionCache:
    """All sessions of a broker; ids come from `random_int31`, an injected source of randomness.

    `connection` is what names a connection: its peer's address and port.
    """

    def __init__(self, slots: int, random_int31: Iterator[int]) -> None:
        self._slots = slots
        self._partitions_max = max(CONNECTION_PARTITIONS_MAX, slots * PARTITIONS_PER_SLOT)
        self._random = random_int31
        # In the order of their use: the first is the one that was idle longest.
        self._sessions: dict[int, FetchSession] = {}
        self._of_connection: dict[str, dict[int, FetchSession]] = {}
        # Old enough for a larger one to take their place, the smallest first.
        self._ranked: list[tuple[int, int]] = []
        self.partitions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self, partitions: list[FetchPartition], connection: str, now_ms: int
    ) -> FetchSession | None:
        """A new session, or None where there is no room for it."""
        if not partitions or not _may_exist(partitions):
            return None
        session = FetchSession(NO_SESSION_ID, partitions, connection, now_ms)
        size = len(session.partitions)
        if not self._fits_connection(connection, size, 1) or not self._make_room(size, now_ms):
            return None
        while session.id == NO_SESSION_ID or session.id in self._sessions:
            session.id = next(self._random)
        self._sessions[session.id] = session
        self._of_connection.setdefault(connection, {})[session.id] = session
        self.partitions_count += size
        return session

    def is_of_another(self, session_id: int, principal: Principal) -> bool:
        """Whether somebody else has begun the session."""
        session = self._sessions.get(session_id)
        return session is not None and session.principal != principal

    def resume(self, session_id: int, epoch: int, connection: str, now_ms: int) -> FetchSession:
        """The session of an incremental request; its epoch advances.

        Raises FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        if session.connection != connection:
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, {})[session_id] = session
        if session.rank is None and now_ms - session.created_ms >= EVICT_AFTER_MS:
            self._rank(session)
        return session

    def update(
        self,
        session: FetchSession,
        wanted: Collection[FetchPartition],
        forgotten: Iterable[Key],
        now_ms: int,
    ) -> None:
        """Changes what a session holds as an incremental request says.

        Raises FETCH_SESSION_ID_NOT_FOUND where there is no room, and ends the session.
        """
        before = len(session.partitions)
        session.update(wanted, forgotten)
        grown = len(session.partitions) - before
        if not grown:
            return
        self.partitions_count += grown
        if session.rank is not None:
            self._rank(session)
        if grown > 0 and not (
            _may_exist(wanted)
            and self._fits_connection(session.connection, 0, 0)
            and self._make_room(0, now_ms, session)
        ):
            self.close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions_count -= len(session.partitions)
            self._leave_connection(session)
            self._unrank(session)

    def connection_closed(self, connection: str) -> None:
        """Ends the sessions that this connection used last."""
        for session_id in list(self._of_connection.get(connection, ())):
            self.close(session_id)

    def _leave_connection(self, session: FetchSession) -> None:
        sessions = self._of_connection[session.connection]
        del sessions[session.id]
        if not sessions:
            del self._of_connection[session.connection]

    # -- room

    def _fits_connection(self, connection: str, partitions: int, sessions: int) -> bool:
        """Whether a connection may have so many more partitions and sessions."""
        own = self._of_connection.get(connection, {})
        held = sum(len(each.partitions) for each in own.values())
        return (
            held + partitions <= CONNECTION_PARTITIONS_MAX
            and len(own) + sessions <= CONNECTION_SESSIONS_MAX
        )

    def _make_room(self, size: int, now_ms: int, grown: FetchSession | None = None) -> bool:
        """Evicts what may be so that a new session of `size` fits, or one that has `grown`."""
        slots = len(self._sessions) + (grown is None) - self._slots
        partitions = self.partitions_count + size - self._partitions_max
        evicted = []
        for session in self._evictable(size if grown is None else len(grown.partitions), now_ms):
            if slots <= 0 and partitions <= 0:
                break
            evicted.append(session.id)
            slots -= 1
            partitions -= len(session.partitions)
        if slots > 0 or partitions > 0:
            return False
        for session_id in evicted:
            self.close(session_id)
        return True

    def _evictable(self, size: int, now_ms: int) -> Iterator[FetchSession]:
        """The sessions that may give way to one of `size`, in that order."""
        for session in self._sessions.values():
            if now_ms - session.last_used_ms < EVICT_AFTER_MS:
                break
            yield session
        for smaller, session_id in self._ranked:
            if smaller >= size:
                break
            session = self._sessions[session_id]
            if now_ms - session.last_used_ms < EVICT_AFTER_MS:
                yield session

    def _rank(self, session: FetchSession) -> None:
        self._unrank(session)
        session.rank = len(session.partitions), session.id
        insort(self._ranked, session.rank)

    def _unrank(self, session: FetchSession) -> None:
        if session.rank is not None:
            del self._ranked[bisect_left(self._ranked, session.rank)]
            session.rank = None


def _may_exist(partitions: Iterable[FetchPartition]) -> bool:
    """Whether all topics have ids, or names that are possible."""
    names = {partition.topic for partition in partitions}
    return all(
        isinstance(name, bytes) or (len(name) <= NAME_LENGTH_MAX and name.isascii())
        for name in names
    )
