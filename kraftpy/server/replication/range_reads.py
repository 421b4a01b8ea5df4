"""Reads the records of a partition whose keys are in some slices: what others read isn't sent.

Rules:

* It saves bytes, and who asks filters again: so more may be sent than was asked for. Whole go
  control batches, batches most of which is wanted, those that can't be opened, and all while
  answers that were cut and aren't sent yet take `max.bytes.fetcher.filtering`.
* A read moves: it ends at its limit of bytes to send, at SCANNED_TIMES that of bytes that were
  looked through, or where the reader may see no further. `RangeRead.offset` is where it goes on,
  match or no match.
* A batch is indexed by whoever reads it first (`core.filter_cache`), never at produce. Its checksum
  is checked before it gets a new one.
* All reads together have the event loop for TURN_S, then others have it. What would take longer at
  a stretch is done in the process that opens batches.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kraftpy.core.filter_cache import HOT_BYTES, BatchKey, FilterCache, FilterEntry
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.key_index import KeyRanges, Part, Records, index_records
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    LENGTH_END,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    check_batch,
    read_batch_header,
)
from kraftpy.protocol.record_walk import check_records_count, max_uncompressed_bytes, open_batch
from kraftpy.server.network.long_answers import Turns
from kraftpy.server.replication.record_policy import opens_quickly
from kraftpy.storage.files import storage_failure
from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    from kraftpy.core.config import BrokerConfig
    from kraftpy.server.replication.opening import BatchOpener
    from kraftpy.server.replication.partition import Partition

TURN_S: Final = 0.002
SCANNED_TIMES: Final = 8
# So much is looked for in the log at a time.
_CHUNK_BYTES: Final = 8 << 20
# What is indexed and what is cut on the event loop: each takes a millisecond or two.
_QUICK_TO_INDEX: Final = 1500
_QUICK_TO_CUT: Final = 5000
_QUICK_BYTES: Final = 512 << 10


# Each batch asks for them, and looking a member up in its enumeration takes several times as long.
_NONE: Final = Part.NONE
_CUT: Final = Part.CUT
_WHOLE: Final = Part.WHOLE

Cut = tuple[bytes, bytes]
"""A batch that was cut, in two pieces."""


class _Held:
    """How many bytes there are of batches that were cut."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class CutRecords(bytearray):
    """Batches that were cut, one behind the other; they count as long as somebody holds them."""

    def __init__(self, held: _Held) -> None:
        self._held = held

    def __del__(self) -> None:
        self._held.size_bytes -= len(self)


class RangeRead:
    """How far one read has come.

    `offset` is the next to look at, `size_bytes` how much there is to be sent; `full`: there is
    more to look at than one answer may take.
    """

    __slots__ = (
        "_cut",
        "_records",
        "full",
        "limit_bytes",
        "offset",
        "ranges",
        "scanned_bytes",
        "size_bytes",
    )

    def __init__(self, ranges: KeyRanges, offset: int, limit_bytes: int) -> None:
        self.ranges = ranges
        self.offset = offset
        self.limit_bytes = limit_bytes
        self._records: list[memoryview | FileSlice] = []
        self._cut: CutRecords | None = None
        self.size_bytes = 0
        self.scanned_bytes = 0
        self.full = False

    @property
    def records(self) -> list[memoryview | FileSlice]:
        """What is to be sent; what is found later is behind that."""
        if self._cut is not None:
            self._records.append(memoryview(self._cut))
            self._cut = None
        return self._records

    def add(self, cut: Cut, length: int, held: _Held) -> None:
        """What is to be sent next, so many bytes."""
        records = self._cut
        if records is None:
            records = self._cut = CutRecords(held)
        records += cut[0]
        records += cut[1]
        held.size_bytes += length
        self.size_bytes += length

    def add_whole(self, batch: FileSlice) -> None:
        records = self.records
        last = records[-1] if records else None
        if (
            isinstance(last, FileSlice)
            and last.file is batch.file
            and last.position + last.size == batch.position
        ):
            records[-1] = FileSlice(last.file, last.position, last.size + batch.size)
        else:
            records.append(batch)
        self.size_bytes += batch.size


class RangeNumbers:
    """What reads of slices have done, for metrics."""

    __slots__ = ("cut", "none", "scanned_bytes", "sent_bytes", "whole")

    def __init__(self) -> None:
        self.scanned_bytes = 0
        self.sent_bytes = 0
        self.none = 0
        self.cut = 0
        self.whole = 0

    @property
    def batches(self) -> dict[Part, int]:
        """How many were looked through, by how much of them was sent."""
        return {_NONE: self.none, _CUT: self.cut, _WHOLE: self.whole}


class RangeReads:
    """Reads of slices at one broker: what they share."""

    def __init__(self, config: BrokerConfig, opener: BatchOpener) -> None:
        self._opener = opener
        self._turns = Turns()
        self.cache = FilterCache(config.max_bytes_key_range_cache)
        # What is being indexed elsewhere.
        self._indexing: dict[BatchKey, asyncio.Future[FilterEntry]] = {}
        self._held = _Held()
        self._held_max_bytes = config.max_bytes_fetcher_filtering
        self.numbers = RangeNumbers()

    async def go_on(
        self,
        read: RangeRead,
        partition: Partition,
        upper_offset: int,
        *,
        min_one: bool,
        until_s: float,
    ) -> None:
        """Takes the read to its limit, or as far as who sees up to `upper_offset` may read.

        With `min_one` a first piece larger than the limit comes all the same. Behind `until_s` (of
        `perf_counter`) one batch is looked at and no more. Raises KafkaError as `ReadableLog.read`
        does, if nothing was found before.
        """
        pace: _Pace | None = None
        sent_before = read.size_bytes
        try:
            while not read.full:
                left = SCANNED_TIMES * read.limit_bytes - read.scanned_bytes
                if left <= 0 and read.scanned_bytes:
                    read.full = True
                    break
                found = partition.log.read(
                    read.offset, max(min(left, _CHUNK_BYTES), 0), upper_offset=upper_offset
                )
                if not found.slices:
                    break
                if pace is None:
                    await self._turns.next()
                    pace = _Pace(self._turns, until_s)
                for piece in found.slices:
                    await self._look_through(read, partition, piece, min_one, pace)
                    if read.full:
                        break
                else:
                    read.offset = max(read.offset, found.next_offset)
        except KafkaError:
            if not read.size_bytes:
                raise
            read.full = True
        finally:
            self.numbers.sent_bytes += read.size_bytes - sent_before

    async def _look_through(
        self, read: RangeRead, partition: Partition, piece: FileSlice, min_one: bool, pace: _Pace
    ) -> None:
        """Takes what is wanted of some batches; ends where the read is full. Raises KafkaError."""
        ranges, numbers, cache, held = read.ranges, self.numbers, self.cache, self._held
        at = 0
        previous: FilterEntry | None = None
        while at < piece.size and not read.full:
            try:
                key = _key(partition, piece, at, previous)
                entry = cache.get(key)
                if entry is None:
                    entry, header = await self._first_look(partition, key, piece, at)
                    size, last_offset = header.batch_length + LENGTH_END, header.last_offset
                else:
                    size, last_offset = entry.batch_bytes, entry.last_offset
                if entry is None:
                    taken: Part | Cut | None = _WHOLE if header.records_count else _NONE
                else:
                    taken = self._take_now(ranges, partition, key, entry, piece, at)
                if taken is None:
                    taken = await self._take_elsewhere(ranges, partition, piece, at, size)
            except DecodeError as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition}: {error}") from None
            except OSError as error:
                raise storage_failure(f"can't read {partition}", error) from error
            if taken is _NONE:
                numbers.none += 1
            else:
                length = len(taken[0]) + len(taken[1]) if isinstance(taken, tuple) else size
                if read.size_bytes + length > read.limit_bytes and (read.size_bytes or not min_one):
                    read.full = True
                    return
                if isinstance(taken, tuple):
                    read.add(taken, length, held)
                    numbers.cut += 1
                else:
                    read.add_whole(FileSlice(piece.file, piece.position + at, size))
                    numbers.whole += 1
            if entry is not None:
                cache.serve(key, entry, ranges)
            previous = entry
            numbers.scanned_bytes += size
            read.scanned_bytes += size
            if last_offset >= read.offset:
                read.offset = last_offset + 1
            at += size
            if perf_counter() >= pace.look_up_s and not await pace.keep():
                read.full = True

    # -- one batch

    async def _first_look(
        self, partition: Partition, key: BatchKey, piece: FileSlice, at: int
    ) -> tuple[FilterEntry | None, BatchHeader]:
        """What is known of a batch from now on; None of one that goes whole, if it has records.

        Raises OSError, DecodeError.
        """
        header = read_batch_header(key[2])
        if header.is_control or not header.records_count:
            return None, header
        try:
            if header.records_count <= _QUICK_TO_INDEX:
                entry = self._index_here(partition, key, header, piece, at)
                if entry is not None:
                    return entry, header
            return await self._entry(partition, key, header, piece, at), header
        except (DecodeError, KafkaError):  # it can't be opened
            return None, header

    def _index_here(
        self, partition: Partition, key: BatchKey, header: BatchHeader, piece: FileSlice, at: int
    ) -> FilterEntry | None:
        """What is found out of a batch at once; None if that takes long.

        Raises OSError, DecodeError.
        """
        batch = piece.read_part(at, header.batch_length + LENGTH_END)
        if not opens_quickly(header, batch, _QUICK_BYTES):
            return None
        index, records = index_records(header, *_opened(header, batch))
        entry = FilterEntry(header, index)
        self.cache.put(key, entry)
        self._hold(partition, key, records)
        return entry

    def _take_now(
        self,
        ranges: KeyRanges,
        partition: Partition,
        key: BatchKey,
        entry: FilterEntry,
        piece: FileSlice,
        at: int,
    ) -> Part | Cut | None:
        """How much of a batch is sent, or what is if it is cut; None if that takes long.

        Raises OSError.
        """
        wanted = entry.index.wanted(ranges, _QUICK_TO_CUT)
        if wanted is _NONE or wanted is _WHOLE:
            return wanted
        if self._held.size_bytes >= self._held_max_bytes:
            return _WHOLE
        if wanted is _CUT:
            return None
        records = entry.records
        try:
            if records is None:
                records = self._records(partition, key, entry, piece, at)
                if records is None:
                    return None
            pieces = entry.index.pieces(records, wanted)
            if entry.compressed and sum(map(len, pieces)) > _QUICK_BYTES:
                return None
            return entry.cutter.cut(pieces)
        except DecodeError:
            return _WHOLE

    def _records(
        self, partition: Partition, key: BatchKey, entry: FilterEntry, piece: FileSlice, at: int
    ) -> Records | None:
        """Those of a batch of which they aren't there any more; None if that takes long.

        Raises OSError, DecodeError.
        """
        batch = piece.read_part(at, entry.batch_bytes)
        header = read_batch_header(batch)
        if entry.compressed and not opens_quickly(header, batch, _QUICK_BYTES):
            return None
        data, start = _opened(header, batch)
        quick = len(entry.index) <= _QUICK_TO_INDEX
        records: Records = entry.index.split(data, start) if quick else data[start:]
        self._hold(partition, key, records)
        return records

    async def _take_elsewhere(
        self, ranges: KeyRanges, partition: Partition, piece: FileSlice, at: int, size: int
    ) -> Part | Cut:
        """The same of a batch that is cut in the process for that. Raises OSError."""
        limit = max_uncompressed_bytes(partition.config.max_message_bytes)

        async def cut() -> bytes:
            return await self._opener.cut(piece.read_part(at, size), ranges, limit)

        try:
            return await self._opener.read_and_open(cut), b""
        except KafkaError:  # it can't be opened
            return _WHOLE

    async def _entry(
        self, partition: Partition, key: BatchKey, header: BatchHeader, piece: FileSlice, at: int
    ) -> FilterEntry:
        """What is found out of a batch elsewhere, once for all who ask.

        Raises OSError, KafkaError.
        """
        waiting = self._indexing.get(key)
        if waiting is None:
            indexing = self._opener.read_and_open(
                partial(self._index_elsewhere, key, partition, header, piece, at)
            )
            waiting = self._indexing[key] = asyncio.ensure_future(indexing)
            waiting.add_done_callback(partial(self._indexed, key))
        return await asyncio.shield(waiting)

    async def _index_elsewhere(
        self, key: BatchKey, partition: Partition, header: BatchHeader, piece: FileSlice, at: int
    ) -> FilterEntry:
        limit = max_uncompressed_bytes(partition.config.max_message_bytes)
        batch = piece.read_part(at, header.batch_length + LENGTH_END)
        index, data = await self._opener.key_index(batch, limit, HOT_BYTES)
        entry = FilterEntry(header, index)
        if not header.attributes & COMPRESSION_MASK:
            data = batch[RECORD_BATCH_OVERHEAD:]
        for size_bytes in (entry.size_bytes, entry.size_bytes + len(data)):
            while self.cache.make_room(size_bytes):
                await self._turns.next()
        self.cache.put(key, entry)
        if data:
            self._hold(partition, key, data)
        return entry

    def _indexed(self, key: BatchKey, done: asyncio.Future[FilterEntry]) -> None:
        del self._indexing[key]
        if not done.cancelled():
            done.exception()  # it is for those who wait, and they may all have left

    def _hold(self, partition: Partition, key: BatchKey, records: Records) -> None:
        self.cache.hold(key, records, lasting=partition.config.reserve_message_value_range_fetch)


def _key(partition: Partition, piece: FileSlice, at: int, previous: FilterEntry | None) -> BatchKey:
    """Of the batch that is there, behind that `previous` one. Raises OSError.

    Whoever comes second needn't read its header, as long as nothing was taken from the file.
    """
    version = piece.file.version
    if previous is not None:
        following = previous.following
        if following is not None and following[0] == version:
            return following[1]
    key = partition.topic_id, partition.index, piece.read_part(at, RECORD_BATCH_OVERHEAD)
    if previous is not None:
        previous.following = version, key
    return key


class _Pace:
    """Passes the loop on to others when a turn is over, and knows when everything is."""

    __slots__ = ("_end_s", "_turns", "_until_s", "look_up_s")

    def __init__(self, turns: Turns, until_s: float) -> None:
        self._turns = turns
        self._until_s = until_s
        self._begin()

    def _begin(self) -> None:
        self._end_s = perf_counter() + TURN_S
        self.look_up_s = min(self._end_s, self._until_s)
        """Before, there is no need to `keep`."""

    async def keep(self) -> bool:
        """Whether there is time left."""
        now_s = perf_counter()
        if now_s >= self._until_s:
            return False
        if now_s >= self._end_s:
            await self._turns.next()
            self._begin()
        return True


def _opened(header: BatchHeader, batch: bytes) -> tuple[bytes, int]:
    """What has the batch's records, checked and uncompressed, and where they begin in that.

    Raises DecodeError.
    """
    check_batch(batch)
    if not header.attributes & COMPRESSION_MASK:
        check_records_count(header)
        return batch, RECORD_BATCH_OVERHEAD
    return open_batch(header, batch, 0, max(_QUICK_BYTES, len(batch))), 0
