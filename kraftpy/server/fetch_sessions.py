"""Incremental fetch sessions (KIP-227).

Rules: a session belongs to one client and counts epochs; a request of a wrong epoch or of an
unknown session gets INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_ID_NOT_FOUND and the client
starts over with a full request. At most `max.incremental.fetch.session.cache.slots` sessions live;
when they are taken, one that was idle for EVICT_AFTER_MS gives way, else the request is served
without a session. An incremental response carries only partitions with data, an error, or moved
watermarks; partitions that had data move to the end, so that none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kraftpy.protocol.errors import ErrorCode, KafkaError

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICT_AFTER_MS = 120_000
MAX_PARTITIONS = 100_000

Key = tuple[str | bytes, int]


class FetchPartition:
    """What a client wants of one partition, and what it was last told.

    `topic` is a name up to Fetch v12 and an id (16 bytes) from v13.
    """

    __slots__ = (
        "current_leader_epoch",
        "error",
        "fetch_offset",
        "high_watermark",
        "index",
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
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
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
    """

    __slots__ = ("by_id", "epoch", "id", "last_used_ms", "partitions")

    def __init__(self, session_id: int, partitions: Sequence[FetchPartition], now_ms: int) -> None:
        self.id = session_id
        self.by_id = isinstance(partitions[0].topic, bytes)
        self.epoch = 1
        self.last_used_ms = now_ms
        self.partitions: dict[Key, FetchPartition] = {p.key: p for p in partitions}

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[Key]) -> None:
        """Adds, changes and removes partitions as an incremental request says."""
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is None:
                self.partitions[partition.key] = partition
                if len(self.partitions) > MAX_PARTITIONS:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"more than {MAX_PARTITIONS} partitions in a session",
                    )
            else:
                known.fetch_offset = partition.fetch_offset
                known.max_bytes = partition.max_bytes
                known.current_leader_epoch = partition.current_leader_epoch
                known.last_fetched_epoch = partition.last_fetched_epoch
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
    """All sessions of a broker; ids come from `random_int31`, an injected source of randomness."""

    def __init__(self, slots: int, random_int31: Iterator[int]) -> None:
        self._slots = slots
        self._random = random_int31
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, partitions: list[FetchPartition], now_ms: int) -> FetchSession | None:
        """A new session, or None when all slots are taken by active ones."""
        if not partitions or len(partitions) > MAX_PARTITIONS:
            return None
        if len(self._sessions) >= self._slots and not self._evict(now_ms):
            return None
        session_id = next(self._random)
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = next(self._random)
        session = self._sessions[session_id] = FetchSession(session_id, partitions, now_ms)
        return session

    def resume(self, session_id: int, epoch: int, now_ms: int) -> FetchSession:
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
        # Insertion order is use order: the first session is the one that was idle longest.
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def _evict(self, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms < EVICT_AFTER_MS:
            return False
        del self._sessions[oldest.id]
        return True
