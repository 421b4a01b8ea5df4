"""Reading: records from given offsets on.

Rules:

* A fetch at an offset inside a batch returns the whole batch; records before the wanted offset are
  dropped. Control batches (transaction markers) are never shown, nor under READ_COMMITTED those of
  aborted transactions (`isolation`), but the position moves past them.
* A response may end with a part of a batch (the size limit cut it off), which is fetched again.
* One fetch per broker is under way; the next one leaves before the records of the last are decoded.
* `positions` may be changed at any time. What was fetched for another position is thrown away.
* A partition with a ledger is fetched lane by lane (`ledger`), and brokers that know slices are
  asked for these alone, while its topic allows it. More may come: whoever hands records out looks
  at each.
* With a `cooperation` partitions are leased by the batch (`leases`): the leader says what of its
  answer is this member's, wherever that lies, and nothing else is kept.
* A partition that fails holds up no other: it is tried again, and its error raised once no
  partition has anything to give, or at once if it isn't retriable.
* A position outside the log raises KafkaError(OFFSET_OUT_OF_RANGE), or with `auto_offset_reset`
  goes to the log's start or end, as Kafka's consumer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kraftpy.client.cluster import Cluster, Retry, check, is_retriable, new_lane
from kraftpy.client.isolation import Aborted, Admission
from kraftpy.client.leases import (
    LEASED_BYTES,
    Leased,
    LeaseLedger,
    acquired_in,
    check_level,
    partition_tags,
    request_tags,
)
from kraftpy.client.ledger import WHOLE, Lane, Ledger
from kraftpy.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
    list_offsets,
)
from kraftpy.client.spans import contains
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
    KEY_RANGES_MAX,
    KEY_RANGES_TAG,
    SCANNED_OFFSET_TAG,
    Cooperation,
    decode_int64,
    encode_ranges,
)
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    Record,
    iter_records,
    read_batch_header,
)

_REFRESH_PAUSE_S = 0.1
_NO_SLICES = ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one partition, in offset order; `position` is the offset to go on from.

    `lane` is what of the partition was asked for, if that isn't all.
    """

    topic: str
    partition: int
    records: list[Record]
    position: int
    high_watermark: int
    lane: Lane | None = None


class Fetcher:
    """Follows partitions from given offsets; `async for fetched in fetcher`, or `await poll()`.

    `positions` (topic and partition to next offset) moves as records are handed out; for partitions
    with `ledgers` these say where to go on. With `ahead`
    the next records are fetched while those are dealt with; `lane` is one of the cluster to use.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[Partition, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        max_partition_bytes: int = 1024 * 1024,
        auto_offset_reset: str = "none",
        isolation: int = READ_UNCOMMITTED,
        ahead: bool = True,
        lane: str | None = None,
    ) -> None:
        if auto_offset_reset not in ("none", "earliest", "latest"):
            raise ValueError("auto_offset_reset must be none, earliest or latest")
        self.positions: dict[Partition, int] = dict(positions)
        self.ledgers: dict[Partition, Ledger] = {}
        self.cooperation: Cooperation | None = None
        self._cluster = cluster
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._max_partition_bytes = max_partition_bytes
        self._auto_offset_reset = auto_offset_reset
        self._isolation = isolation
        self._ahead = ahead
        self._own_lane = lane is None
        self._lane = new_lane("fetch") if lane is None else lane
        self._fetches: dict[int, asyncio.Task[tuple[_Wanted, Any]]] = {}
        self._retry: Retry | None = None
        self._refresh_at = 0.0
        self._failure: Exception | None = None
        self._not_in_slices: set[Partition] = set()

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives up the fetches under way, and closes their connections if the lane isn't shared."""
        await self._give_up()
        if self._own_lane:
            await self._cluster.close_lane(self._lane)

    async def _give_up(self) -> None:
        fetches, self._fetches = self._fetches, {}
        for task in fetches.values():
            task.cancel()
        await asyncio.gather(*fetches.values(), return_exceptions=True)
        for ledger in self.ledgers.values():
            if isinstance(ledger, LeaseLedger):
                ledger.answer_lost()

    def drop(self, topic: str, partition: int) -> None:
        """Stops following a partition."""
        self.positions.pop((topic, partition), None)
        self._not_in_slices.discard((topic, partition))

    async def __aiter__(self) -> AsyncIterator[Fetched]:
        while self.positions:
            for fetched in await self.poll():
                yield fetched

    async def poll(self) -> list[Fetched]:
        """Waits for records of some partitions, at most about `max_wait_ms`; [] if there were none.

        Broken connections and partitions without a leader are tried again for the cluster's request
        timeout; then the last error is raised. KafkaError(CORRUPT_MESSAGE) for records that are
        damaged.
        """
        if not self.positions:
            return []
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        try:
            await self._start_fetches()
            await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
            found: list[_Data] = []
            for node_id in [node_id for node_id, task in self._fetches.items() if task.done()]:
                try:
                    found += await self._collect(*await self._fetches.pop(node_id))
                except (ConnectionError, KafkaError) as error:
                    if not found:
                        raise
                    self._put_off(error)
            self._retry = None
        except (ConnectionError, KafkaError) as error:
            await self._recover(error)
            return []
        if found and self._ahead:
            # An error of this is met again by the next poll.
            with contextlib.suppress(ConnectionError, KafkaError):
                await self._start_fetches()
        return self._decode_all(found)

    async def _recover(self, error: Exception) -> None:
        self._retry = self._retry or Retry(self._cluster.request_timeout_ms)
        try:
            await self._retry.wait(error)
        except (ConnectionError, KafkaError):
            self._retry = None
            raise
        await self._give_up()
        self._mistrust_metadata()

    def _mistrust_metadata(self) -> None:
        """Asks for the leaders again before the next fetch, but not too often."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_PAUSE_S
            for topic in {topic for topic, _ in self.positions}:
                self._cluster.topics.pop(topic, None)

    def _put_off(self, error: Exception) -> None:
        """Deals with a partition's error after others have given their records."""
        if is_retriable(error):
            self._mistrust_metadata()
        else:
            self._failure = self._failure or error

    async def _start_fetches(self) -> None:
        """Sends a fetch to every leader that has none under way."""
        for topic in {topic for topic, _ in self.positions}:
            await self._cluster.topic(topic)
        by_leader: dict[int, _Wanted] = {}
        missing: KafkaError | None = None
        for name, position in self.positions.items():
            try:
                wanted = by_leader.setdefault(self._cluster.leader(*name), _Wanted({}, {}, {}))
                wanted.positions[name] = position
            except KafkaError as error:
                missing = error
        if missing is not None:
            if not by_leader:
                raise missing
            self._mistrust_metadata()
        for node_id, wanted in by_leader.items():
            if node_id not in self._fetches:
                if self.ledgers:
                    self._take_turns(wanted)
                self._fetches[node_id] = asyncio.create_task(self._fetch(node_id, wanted))

    def _take_turns(self, wanted: _Wanted) -> None:
        for name in wanted.positions:
            ledger = self.ledgers.get(name)
            if ledger is not None:
                lane = wanted.lanes[name] = ledger.turn()
                wanted.positions[name] = self.positions[name] = lane.position

    async def _fetch(self, node_id: int, wanted: _Wanted) -> tuple[_Wanted, Any]:
        kinds = messages.FetchRequest
        topics: dict[str, list[Any]] = {}
        tags: dict[Partition, dict[int, bytes] | None] = {}
        cooperation, max_bytes = self.cooperation, self._max_partition_bytes
        if cooperation is not None:
            await self._cluster.connection(node_id, self._lane)
            check_level(self._cluster.feature(COOPERATIVE_FEATURE))
            max_bytes = min(max_bytes, LEASED_BYTES)
            for name in wanted.positions:
                ledger = self.ledgers.get(name)
                if isinstance(ledger, LeaseLedger):
                    done = ledger.to_tell
                    until_s = time.monotonic() + cooperation.session_timeout_ms / 1000
                    wanted.leases[name] = _Asked(ledger, until_s, done)
                    tags[name] = partition_tags(done)
        elif wanted.lanes:
            await self._cluster.connection(node_id, self._lane)
            if self._cluster.feature(COOPERATIVE_FEATURE):
                in_slices = wanted.lanes.keys() - self._not_in_slices
                tags = {name: _key_ranges(wanted.lanes[name]) for name in in_slices}
        for (topic, number), offset in wanted.positions.items():
            partition = kinds.FetchPartition(
                partition=number,
                fetch_offset=offset,
                partition_max_bytes=max_bytes,
                _tags=tags.get((topic, number)) if tags else None,
            )
            topics.setdefault(topic, []).append(partition)
        request = kinds(
            replica_id=-1,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation,
            session_epoch=-1,
            topics=[
                kinds.FetchTopic(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
            _tags=None if cooperation is None else request_tags(cooperation),
        )
        response = await self._cluster.request(
            request,
            node_id=node_id,
            lane=self._lane,
            timeout_ms=self._max_wait_ms + self._cluster.request_timeout_ms,
        )
        return wanted, response

    async def _collect(self, wanted: _Wanted, response: Any) -> list[_Data]:
        """Checks a response and moves the positions past its batches, without decoding records.

        Raises the first error if there are no records besides.
        """
        check(response.error_code)
        found: list[_Data] = []
        failures: list[Exception] = []
        for topic in response.responses:
            for data in topic.partitions:
                name = (topic.topic, data.partition_index)
                if wanted.leases:
                    self._collect_leases(name, wanted.leases.get(name), data, found, failures)
                    continue
                offset = self.positions.get(name)
                if offset is None or offset != wanted.positions.get(name):
                    continue
                lane = wanted.lanes.get(name) if wanted.lanes else None
                if self.ledgers and lane is None and name in self.ledgers:
                    continue  # It was asked for before there was one.
                try:
                    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        await self._reset(name, offset)
                    elif lane is not None and data.error_code == _NO_SLICES:
                        self._not_in_slices.add(name)  # All of it comes with the next fetch.
                    elif data.error_code:
                        code = error_code(data.error_code)
                        raise KafkaError(code, f"{name[0]}-{name[1]}: {code.message}")
                    else:
                        records = data.records or b""
                        aborted = aborted_of(data) if self._isolation == READ_COMMITTED else ()
                        batches, end = _batches(records, offset, Admission(aborted))
                        if lane is not None:
                            end = self._fetched(name, lane, max(end, scanned_of(data)), data)
                        if end > offset:
                            self.positions[name] = end
                            found.append(
                                _Data(
                                    name, offset, end, records, batches, data.high_watermark, lane
                                )
                            )
                except DecodeError as error:
                    failures.append(_corrupt(name, offset, error))
                except (ConnectionError, KafkaError) as error:
                    failures.append(error)
        if failures and not found:
            raise failures[0]
        for failure in failures:
            self._put_off(failure)
        if (
            wanted.leases
            and not found
            and any(data.error_code for topic in response.responses for data in topic.partitions)
        ):
            await asyncio.sleep(_REFRESH_PAUSE_S)  # of what passes by itself
        return found

    def _collect_leases(
        self,
        name: Partition,
        asked: _Asked | None,
        data: Any,
        found: list[_Data],
        failures: list[Exception],
    ) -> None:
        """The same of a partition whose leader leases its batches."""
        if asked is None or self.ledgers.get(name) is not asked.ledger:
            return  # It was given up meanwhile, and what was leased goes to others.
        try:
            ranges = acquired_in(name, data, asked.ledger, asked.done)
            leased = None if ranges is None else asked.ledger.acquired(ranges, asked.until_s)
            if ranges is None or leased is None:
                return
            records = data.records or b""
            aborted = aborted_of(data) if self._isolation == READ_COMMITTED else ()
            # What is in hand comes again, behind an answer that was lost: it's due here, too.
            batches, _ = _batches(records, min(ranges)[0], Admission(aborted))
        except DecodeError as error:
            asked.ledger.rewind()
            failures.append(_corrupt(name, asked.ledger.position, error))
        except KafkaError as error:
            failures.append(error)
        else:
            begin, end = leased.spans[0][0], leased.spans[-1][1]
            found.append(_Data(name, begin, end, records, batches, data.high_watermark, leased))

    def _fetched(self, name: Partition, lane: Lane, end: int, data: Any) -> int:
        ledger = self.ledgers.get(name)
        if ledger is None:
            return lane.position  # It was given up meanwhile.
        return ledger.fetched(lane, end, data.high_watermark)

    async def _reset(self, name: Partition, offset: int) -> None:
        """Goes elsewhere, if the leader says, too, that its log doesn't have the offset.

        Who said it may have been one no longer, and lack the log's end. Raises KafkaError.
        """
        start = (await list_offsets(self._cluster, {name: EARLIEST}))[name]
        end = (await list_offsets(self._cluster, {name: LATEST}))[name]
        if start <= offset <= end:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"a replica of {name[0]}-{name[1]} lacks offset {offset}, and the leader has it",
            )
        if self._auto_offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside the log of {name[0]}-{name[1]}",
            )
        when = EARLIEST if self._auto_offset_reset == "earliest" else LATEST
        found = await list_offsets(self._cluster, {name: when}, isolation=self._isolation)
        if self.positions.get(name) == offset:
            self.positions.update(found)
            ledger = self.ledgers.get(name)
            if ledger is not None and found[name] > offset:
                ledger.skip_to(found[name], start)
            elif ledger is not None:
                ledger.fall_back(found[name])

    def _decode_all(self, found: list[_Data]) -> list[Fetched]:
        decoded: list[Fetched] = []
        for data in found:
            name = data.name
            try:
                records = [
                    record
                    for position in data.batches
                    for record in iter_records(data.records, position)
                    if record.offset >= data.offset
                ]
                if isinstance(data.lane, Leased):
                    spans = data.lane.spans
                    records = [record for record in records if contains(spans, record.offset)]
                elif data.lane is not None:
                    records = [record for record in records if record.offset < data.end]
            except DecodeError as error:
                if name in self.positions:
                    self.positions[name] = data.offset
                if name in self.ledgers:
                    self.ledgers[name].rewind()
                failure = _corrupt(name, data.offset, error)
                if not decoded and data is found[-1]:
                    raise failure from error
                self._failure = self._failure or failure
            else:
                decoded.append(Fetched(*name, records, data.end, data.high_watermark, data.lane))
        return decoded


class _Data(NamedTuple):
    """What a response has of a partition between two offsets; `batches` are places in `records`."""

    name: Partition
    offset: int
    end: int
    records: Any
    batches: list[int]
    high_watermark: int
    lane: Lane | None


class _Asked(NamedTuple):
    """Leases that are asked for, when they end, and what the leader is told beside it."""

    ledger: LeaseLedger
    until_s: float
    done: list[tuple[int, int]]


class _Wanted(NamedTuple):
    """What is asked of a broker: partitions and offsets, of some of them only slices, or leases."""

    positions: dict[Partition, int]
    lanes: dict[Partition, Lane]
    leases: dict[Partition, _Asked]


def _key_ranges(lane: Lane) -> dict[int, bytes] | None:
    """The tagged field that asks for a lane's slices; more than may be asked for are as one."""
    slices = lane.slices
    if slices == WHOLE:
        return None
    if len(slices) > KEY_RANGES_MAX:
        slices = [(slices[0][0], slices[-1][1])]
    return {KEY_RANGES_TAG: encode_ranges([(low, end - 1) for low, end in slices])}


def scanned_of(data: Any) -> int:
    """The offset up to which the broker looked for records of slices, -1 if it didn't."""
    scanned = (data._tags or {}).get(SCANNED_OFFSET_TAG)
    return -1 if scanned is None else decode_int64(scanned)


def _corrupt(name: Partition, wanted: int, error: DecodeError) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"{name[0]}-{name[1]} from offset {wanted}: {error}"
    )


def aborted_of(data: Any) -> list[Aborted]:
    """The aborted transactions that a partition's part of an answer names."""
    return [
        Aborted(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
    ]


def _batches(buf: Any, wanted: int, admission: Admission) -> tuple[list[int], int]:
    """Positions of the admitted batches at or after offset `wanted`, and the offset behind all.

    Raises DecodeError if offsets don't ascend. No checksum covers where a batch begins; what a bad
    disk made of that would hide records, or show those of transactions that were aborted.
    """
    positions = []
    position, next_offset = 0, wanted
    while position + RECORD_BATCH_OVERHEAD <= len(buf):
        header = read_batch_header(buf, position)
        if position + header.size_bytes > len(buf):
            break
        first, last = header.base_offset, header.last_offset
        if last < wanted or (position and first < next_offset):
            raise DecodeError(
                f"a batch has offsets {first} to {last} where {next_offset} and higher are due"
            )
        if admission.admits(header, buf, position):
            positions.append(position)
        next_offset = last + 1
        position += header.size_bytes
    return positions, next_offset
