"""What is known of batches that several consumers read slices of, until all slices are served.

Rules:

* Bounded (`max.bytes.key.range.cache`): where there is no room, what was used longest ago goes, and
  what alone doesn't fit isn't kept, for which nothing else goes. Who brings much makes room for it
  in turns: a hundred thousand small entries may have to go. Every entry counts with what it takes
  besides its records.
* The records of a batch themselves, uncompressed, are kept with it where the topic wants that
  (`reserve.message.value.range.fetch`), else for a moment: the last HOT_BYTES of them, as those who
  share a partition mostly read the same of it at the same time.
* An entry goes when the slices that were served from it cover all hashes: nobody is expected again.
  What is noted of them counts, too, and is forgotten where it has more than SERVED_MAX bounds: so
  many gaps the members of a group don't leave, but anybody may ask for.
* A batch is known by its partition and its header, which has its first offset and its checksum. So
  what is there after a log was cut, compacted, or made anew is another batch, and nothing has to be
  taken back. What comes behind it is known as long as nothing is taken from its file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final

from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.protocol.key_index import RECORD_BYTES, BatchCutter, KeyIndex, KeyRanges, Records
from kraftpy.protocol.record_batch import COMPRESSION_MASK, LENGTH_END, BatchHeader

ENTRY_BYTES: Final = 1400
"""What an entry takes besides its records, about, with SERVED_STEP bounds of what was served."""

BOUND_BYTES: Final = 44
"""What each takes that is more: a number and a place in a list."""

TOGETHER_MAX: Final = 1000
"""So many entries go in one go where somebody makes room: it takes a millisecond or two."""

SERVED_STEP: Final = 8
SERVED_MAX: Final = 256

HOT_BYTES: Final = 32 << 20
"""What is kept of records where no topic asks for it."""

RECORD_OBJECT_BYTES: Final = 48
"""What a record takes besides its bytes where it's kept by itself, about."""

BatchKey = tuple[bytes, int, bytes]
"""Topic id, partition, the batch's encoded header."""

_ALL_HASHES: Final = [0, HASH_MAX + 1]


class FilterEntry:
    """What is known of one batch: its index and, if they are kept, its checked records."""

    __slots__ = (
        "batch_bytes",
        "compressed",
        "cutter",
        "following",
        "index",
        "kept_bytes",
        "last_offset",
        "records",
        "served",
        "served_room",
    )

    def __init__(self, header: BatchHeader, index: KeyIndex) -> None:
        self.index = index
        self.cutter = BatchCutter(header)
        self.batch_bytes = header.batch_length + LENGTH_END
        self.last_offset = header.last_offset
        self.compressed = bool(header.attributes & COMPRESSION_MASK)
        self.records: Records | None = None
        self.kept_bytes = 0
        """What these take."""
        self.following: tuple[int, BatchKey] | None = None
        """What comes behind it in its file, of which the number is the version."""
        self.served: list[int] = []
        """Where hashes that have been served begin, where they end, and so on."""
        self.served_room = SERVED_STEP
        """How many of these bounds are counted."""

    @property
    def size_bytes(self) -> int:
        more = BOUND_BYTES * (self.served_room - SERVED_STEP)
        return ENTRY_BYTES + RECORD_BYTES * len(self.index) + self.kept_bytes + more


class FilterCache:
    """Entries by their batch, the one that was used last at the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # A plain dictionary looks for its first one behind all that have gone.
        self._entries: OrderedDict[BatchKey, FilterEntry] = OrderedDict()
        # Those whose records are kept for a moment, the one that came first in front.
        self._hot: OrderedDict[BatchKey, int] = OrderedDict()
        self._hot_bytes = 0
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: BatchKey) -> FilterEntry | None:
        """What is known of the batch, which thereby is the last to go."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def make_room(self, size_bytes: int) -> bool:
        """Lets go of some so that so much fits; whether that isn't enough yet, but will be."""
        if size_bytes > self._limit_bytes:
            return False
        cost = 0
        while self._entries and self.used_bytes + size_bytes > self._limit_bytes:
            if cost >= TOGETHER_MAX:
                return True
            key, entry = next(iter(self._entries.items()))
            cost += 1 + len(entry.index) // 50  # which it may have one by one
            self.discard(key)
        return False

    def put(self, key: BatchKey, entry: FilterEntry) -> None:
        """Keeps it, in the place of what was known of that batch."""
        self.discard(key)
        if entry.size_bytes > self._limit_bytes:
            return
        self._entries[key] = entry
        self._take(entry.size_bytes)

    def hold(self, key: BatchKey, records: Records, *, lasting: bool) -> None:
        """Keeps the records of a batch with its entry, if there is one; `lasting` as long as it."""
        entry = self._entries.get(key)
        if entry is None or entry.records is not None:
            return
        size_bytes = len(records)
        if isinstance(records, list):
            size_bytes = sum(map(len, records)) + RECORD_OBJECT_BYTES * len(records)
        most_bytes = self._limit_bytes - entry.size_bytes
        if size_bytes > (most_bytes if lasting else min(most_bytes, HOT_BYTES)):
            return
        entry.records, entry.kept_bytes = records, size_bytes
        if not lasting:
            self._hot[key] = size_bytes
            self._hot_bytes += size_bytes
            while self._hot_bytes > HOT_BYTES:
                self._cool(next(iter(self._hot)))
        self._take(size_bytes)

    def serve(self, key: BatchKey, entry: FilterEntry, ranges: KeyRanges) -> None:
        """Notes that these slices of a batch have been served; its entry goes when all are."""
        served = entry.served
        for low, high in ranges:
            first, end = bisect_left(served, low), bisect_right(served, high + 1)
            # At an odd place what has been served goes on.
            served[first:end] = ([] if first & 1 else [low]) + ([] if end & 1 else [high + 1])
        if served == _ALL_HASHES:
            self.discard(key)
        elif len(served) > entry.served_room:
            self._make_room(key, entry)

    def _make_room(self, key: BatchKey, entry: FilterEntry) -> None:
        """Counts the bounds that have come, or forgets them."""
        if len(entry.served) > SERVED_MAX:
            entry.served.clear()
        elif self._entries.get(key) is entry:
            before = entry.size_bytes
            entry.served_room = -(-len(entry.served) // SERVED_STEP) * SERVED_STEP
            self._take(entry.size_bytes - before)

    def discard(self, key: BatchKey) -> None:
        self._cool(key)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry.size_bytes

    def _cool(self, key: BatchKey) -> None:
        """Lets go of records that are kept for a moment."""
        size_bytes = self._hot.pop(key, 0)
        if size_bytes:
            entry = self._entries[key]
            entry.records, entry.kept_bytes = None, 0
            self._hot_bytes -= size_bytes
            self.used_bytes -= size_bytes

    def _take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        while self.used_bytes > self._limit_bytes:
            self.discard(next(iter(self._entries)))
