"""Drives a `GroupMachine` with both its logs, of which either may be ahead of the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from kraftpy.core.groups import GroupConfig, GroupMachine, GroupMemory, Write
from kraftpy.core.groups import decode_record as decode_offset
from kraftpy.core.groups import encode_record as encode_offset
from kraftpy.core.groups.consumer.topics import Topic
from kraftpy.core.groups.individual.coverage import Coverage
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.pending import TransactionalClaims
from kraftpy.core.groups.individual.places import TWIN, ClaimsLog
from kraftpy.core.groups.individual.records import (
    ClaimRecord,
    decode_record,
    encode_record,
)
from kraftpy.core.groups.pending_offsets import TransactionEnds
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import (
    DISCARD_FROM_TAG,
    EXPECTED_OFFSET_TAG,
    LAST_STABLE_OFFSET_TAG,
    OFFSET_RANGES_TAG,
    SLICES_TAG,
    WAIT_FOR_STABLE_TAG,
    YES,
    decode_int64,
    encode_int64,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.key_hash import HASH_MAX

from .topics import KnownTopics, topic_id

TOPICS = {"t": 10, "u": 10}
HALF = HASH_MAX // 2
LOW, HIGH = (0, HALF), (HALF + 1, HASH_MAX)
"""The draft's two slices."""

KEY = ("g", "t", 0)

Log = list[tuple[Any, ...]]
"""Keys and values; of the claims' log each with its producer, if it's a transaction's, and markers:
None, whether it commits, and the producer.
"""
_Request = messages.OffsetCommitRequest


def partitions_of(topic: str) -> range:
    return range(TOPICS.get(topic, 0))


def ranges(*pairs: tuple[int, int]) -> dict[int, bytes]:
    """Claims for all hashes."""
    return {OFFSET_RANGES_TAG: encode_ranges(pairs)}


def sliced(*slices: tuple[tuple[int, int], Sequence[tuple[int, int]]]) -> dict[int, bytes]:
    """Claims for some hashes."""
    return {SLICES_TAG: encode_slices([(*hashes, pairs) for hashes, pairs in slices])}


def discard_from(offset: int) -> dict[int, bytes]:
    return {DISCARD_FROM_TAG: encode_int64(offset)}


class Topics(KnownTopics):
    """Topics that may be made anew."""

    def __init__(self, **counts: int) -> None:
        super().__init__(**counts)
        self._lives: dict[str, int] = {}

    def create(self, name: str) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1

    def find(self, name: str) -> Topic | None:
        found = super().find(name)
        life = self._lives.get(name, 0)
        return None if found is None else found._replace(topic_id=topic_id(f"{name}-{life}"))


class ClaimsDriver:
    """One machine and its logs. With `commits` off, writes stay in flight until `settle`."""

    def __init__(
        self,
        *,
        commits: bool = True,
        opened: bool = True,
        memory: ClaimMemory | None = None,
        topics: Topics | None = None,
        **config: Any,
    ) -> None:
        self.config = GroupConfig(**config)
        self.topics = topics or Topics(**TOPICS)
        self.claim_memory = memory or ClaimMemory(1 << 30)
        self.machine = self._new_machine()
        self.now_ms = 1_000_000
        self.commits = commits
        self.in_flight: tuple[deque[Write], deque[Write]] = deque(), deque()
        self.logs: tuple[Log, Log] = [], []
        self.replies: dict[object, Any] = {}
        self._number = 0
        self._is_settling = False
        if opened:
            self.carry_out(self.machine.log_opened(TWIN, self.now_ms))

    def _new_machine(self) -> GroupMachine:
        return GroupMachine(
            self.config, self.topics, GroupMemory(1 << 40), claim_memory=self.claim_memory
        )

    # -- the shell

    def carry_out(self, effects: Any) -> None:
        for write in effects.writes:
            self.in_flight[write.log].append(write)
        for token, response in effects.replies:
            assert token not in self.replies, f"{token} is answered twice"
            self.replies[token] = response
        if self.commits and not self._is_settling:
            self._is_settling = True
            self.settle_all()
            self._is_settling = False

    def settle(self, number: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """Ends the oldest write in flight of a log."""
        write = self.in_flight[number].popleft()
        if error is ErrorCode.NONE:
            self.logs[number].extend(encoded(write))
            self.carry_out(self.machine.committed(write, self.now_ms))
        else:
            self.carry_out(self.machine.failed(write, error, self.now_ms))

    def settle_all(self) -> None:
        """All that is in flight lands, and what waits for a turn has it."""
        while any(self.in_flight) or self.has_turn:
            if any(self.in_flight):
                self.settle(int(not self.in_flight[0]))
            else:
                self.take_turn()

    @property
    def has_turn(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self.machine.claims._turns._waiting)

    def take_turn(self) -> None:
        self.now_ms += 1
        self.carry_out(self.machine.handle_timers(self.now_ms))

    def reloaded(
        self,
        *,
        opened: bool = True,
        kept: tuple[int, int] = (0, 0),
        memory: ClaimMemory | None = None,
    ) -> ClaimsDriver:
        """Another broker takes over; of what was in flight so many writes are in each log."""
        other = ClaimsDriver(opened=False, topics=self.topics, memory=memory)
        other.config = self.config
        other.machine = other._new_machine()
        other.now_ms = self.now_ms
        for number, log in enumerate(self.logs):
            other.logs[number].extend(log)
            for write in list(self.in_flight[number])[: kept[number]]:
                other.logs[number].extend(encoded(write))
        other._read()
        if opened:
            other.carry_out(other.machine.log_opened(TWIN, other.now_ms))
        return other

    def _read(self) -> None:
        for key, value in self.logs[0]:
            offset = decode_offset(key, value)
            assert offset is not None
            self.machine.load(offset)
        self.carry_out(self.machine.finish_load(self.now_ms))
        self.machine.log_closed(TWIN, self.now_ms, exists=True)
        for key, value, producer_id in self.logs[TWIN]:
            if key is None:
                self.machine.load_claims_marker(producer_id, committed=value)
                continue
            record = decode_record(key, value)
            assert record is not None
            if producer_id is None:
                self.machine.load_claims([record])
            else:
                self.machine.load_pending_claims(producer_id, [record])

    def claims_log(self) -> list[ClaimRecord]:
        """Without what is aborted."""
        records = [decode_record(*each[:2]) for each in self._decided() if each[0] is not None]
        return [record for record in records if record is not None]

    def _decided(self) -> Log:
        """The log without the records of transactions that are aborted."""
        left: Log = []
        for each in self.logs[TWIN]:
            if each[0] is None and not each[1]:
                left = [one for one in left if one[2] != each[2] or one[0] is None or one[3:]]
            elif each[0] is None:
                left = [(*one, "decided") if one[2] == each[2] else one for one in left]
            left.append(each)
        return [one[:3] for one in left]

    def compact(self) -> None:
        """Cleans the claims' log: of each key the last record stays that isn't aborted."""
        log = self._decided()
        last = {key: number for number, (key, *_) in enumerate(log)}
        self.logs[TWIN][:] = [
            each for number, each in enumerate(log) if each[0] is None or last[each[0]] == number
        ]

    # -- requests

    def commit(
        self,
        *partitions: tuple[int, int, dict[int, bytes] | None],
        group: str = "g",
        topic: str = "t",
        member: str = "",
        generation: int = -1,
        epoch: int = 7,
    ) -> str:
        """Partition, offset and tags of each; gives the token."""
        self._number += 1
        token = f"request-{self._number}"
        request = _Request(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[
                _Request.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        _Request.OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            committed_metadata="",
                            _tags=tags,
                        )
                        for index, offset, tags in partitions
                    ],
                )
            ],
        )
        self.carry_out(self.machine.commit(token, request, partitions_of, self.now_ms))
        return token

    def claim(self, tags: dict[int, bytes], **request: Any) -> str:
        return self.commit((0, -1, tags), **request)

    def plain(self, offset: int, **request: Any) -> str:
        return self.commit((0, offset, None), **request)

    def begin(self, offset: int, **request: Any) -> str:
        """The first offset."""
        tags = {EXPECTED_OFFSET_TAG: encode_int64(-1)}
        return self.commit((0, offset, tags), **request)

    def answer(self, token: str) -> tuple[ErrorCode, int | None]:
        """Error and stable offset of the only partition."""
        ((partition,),) = [topic.partitions for topic in self.replies[token].topics]
        tag = (partition._tags or {}).get(LAST_STABLE_OFFSET_TAG)
        return ErrorCode(partition.error_code), None if tag is None else decode_int64(tag)

    def answers(self, token: str) -> list[tuple[ErrorCode, int | None]]:
        found = []
        for partition in self.replies[token].topics[0].partitions:
            tag = (partition._tags or {}).get(LAST_STABLE_OFFSET_TAG)
            stable = None if tag is None else decode_int64(tag)
            found.append((ErrorCode(partition.error_code), stable))
        return found

    # -- transactions

    def claim_in(
        self, producer_id: int, tags: dict[int, bytes], *, version: int = 5, **more: Any
    ) -> str:
        """A TxnOffsetCommit of one partition; gives the token."""
        token, request = self._request_in(producer_id, tags, **more)
        self.carry_out(
            self.machine.commit_in_transaction(
                token, request, partitions_of, self.now_ms, api_version=version
            )
        )
        return token

    def wait_in(
        self, producer_id: int, tags: dict[int, bytes], *, timeout_ms: int = 5_000, **more: Any
    ) -> str:
        """What has to come before such a commit that wants what lies below to be done."""
        tags = tags | {WAIT_FOR_STABLE_TAG: YES}
        token, request = self._request_in(producer_id, tags, **more)
        self.carry_out(
            self.machine.wait_for_stable(token, request, partitions_of, self.now_ms, timeout_ms)
        )
        return token

    def _request_in(
        self,
        producer_id: int,
        tags: dict[int, bytes],
        *,
        offset: int = -1,
        epoch: int = 0,
        member: str = "",
        generation: int = -1,
    ) -> tuple[str, messages.TxnOffsetCommitRequest]:
        self._number += 1
        kinds = messages.TxnOffsetCommitRequest
        partition = kinds.TxnOffsetCommitRequestPartition(0, offset, 7, "", _tags=tags)
        request = kinds(
            transactional_id="x",
            group_id="g",
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member,
            topics=[kinds.TxnOffsetCommitRequestTopic("t", [partition])],
        )
        return f"request-{self._number}", request

    def mark(self, producer_id: int, *, committed: bool) -> str:
        """The marker of the producer's transaction is in the claims' log."""
        self._number += 1
        token = f"request-{self._number}"
        write = self.machine.markers(token, [(producer_id, committed)], TWIN)
        self.in_flight[TWIN].append(write)
        if self.commits:
            self.settle_all()
        return token

    def read(self, asker: str | None = None) -> int | ErrorCode:
        """The offset that a fetch gives which requires stable ones, or its error."""
        found = self.machine.fetch("g", [("t", [0])], require_stable=True, asker=asker)
        row = found[0][1][0]
        return ErrorCode(row[4]) if len(row) > 4 else row[1]

    # -- looking

    @property
    def stable(self) -> int:
        return self.machine.claims.stable_offset(KEY)

    def claimed(self, key: tuple[str, str, int] = KEY) -> Sequence[tuple[int, int, int, int]]:
        """Slice and range of each claim."""
        return list(self.machine.claims.coverage(key) or Coverage())

    def whole(self) -> list[tuple[int, int]]:
        """The ranges that are claimed for all hashes at once."""
        assert all((low, high) == (0, HASH_MAX) for low, high, *_ in self.claimed())
        return [(first, last) for _, _, first, last in self.claimed()]

    def living(self) -> set[tuple[int, int, int]]:
        """Slice and first offset of each key of the claims' log that is no tombstone."""
        return {key[0] for key, transaction in self._keys().items() if transaction is None}

    def living_in(self) -> set[tuple[int, int, int]]:
        """The same of keys that are a transaction's."""
        return {key[0] for key, transaction in self._keys().items() if transaction is not None}

    def _keys(self) -> dict[Any, Any]:
        state = {(r[3:6], r.transaction): (r.state, r.transaction) for r in self.claims_log()}
        return {key: each[1] for key, each in state.items() if each[0] is not None}

    @property
    def state(self) -> ClaimsLog:
        return self.machine.claims.state


def encoded(write: Write) -> Iterable[tuple[Any, ...]]:
    records: Any = write.records
    if isinstance(records, TransactionEnds):
        return [(None, committed, producer_id) for producer_id, committed in records.ends]
    if isinstance(records, TransactionalClaims):
        return [(*encode_record(record), records.transaction[0]) for record in records]
    if write.log == TWIN:
        return [(*encode_record(record), None) for record in records]
    return [encode_offset(record) for record in records]
