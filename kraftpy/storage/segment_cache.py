"""Which segments are open: a bound on files, and on the indexes of sealed ones in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Cached(Protocol):
    """A segment, as its cache knows it. `uses` counts what was appended since it was looked at."""

    uses: int

    @property
    def loaded_index_bytes(self) -> int: ...

    def close(self) -> None: ...

    def __hash__(self) -> int: ...


class SegmentCache:
    """Bounds what is open: files, and the indexes of sealed segments in memory.

    Sealed segments that were not read for longest are closed. Of those that take appends the file
    is closed when there are more than `max_written` and nothing was appended lately (a clock with
    one hand: exact order would cost every append).
    """

    def __init__(
        self, max_written: int, max_sealed: int = 256, max_index_bytes: int = 64 << 20
    ) -> None:
        self._max_written = max_written
        self._max_sealed = max_sealed
        self._max_index_bytes = max_index_bytes
        self._index_bytes = 0
        self._sealed: OrderedDict[Cached, int] = OrderedDict()
        self._written: OrderedDict[Cached, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sealed) + len(self._written)

    def touch(self, segment: Cached) -> None:
        """The sealed `segment` was read just now."""
        index_bytes = segment.loaded_index_bytes
        self._index_bytes += index_bytes - self._sealed.get(segment, 0)
        self._sealed[segment] = index_bytes
        self._sealed.move_to_end(segment)
        while len(self._sealed) > 1 and (
            len(self._sealed) > self._max_sealed or self._index_bytes > self._max_index_bytes
        ):
            oldest, freed = self._sealed.popitem(last=False)
            self._index_bytes -= freed
            oldest.close()

    def opened(self, segment: Cached) -> None:
        """The file of `segment`, which takes appends, was opened just now."""
        self._written[segment] = None
        segment.uses = -1  # the append that it was opened for is no sign of more to come
        while len(self._written) > self._max_written:
            oldest, _ = self._written.popitem(last=False)
            if oldest.uses:
                oldest.uses = 0
                self._written[oldest] = None
            else:
                oldest.close()

    def clear(self) -> None:
        """Closes all that is open."""
        for segment in (*self._sealed, *self._written):
            segment.close()
        self._sealed.clear()
        self._written.clear()
        self._index_bytes = 0

    def forget(self, segment: Cached) -> None:
        self._index_bytes -= self._sealed.pop(segment, 0)
        self._written.pop(segment, None)
