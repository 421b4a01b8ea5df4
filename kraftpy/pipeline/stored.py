"""A partition's log as it is stored, batch by batch in the order of the file, damaged or not.

Brokers answer fetches with bytes of their files and look at no checksum. Rules:

* Where a batch can't be read, the next bytes that are one whole batch with a right checksum are
  looked for, first in the answer, then by asking for later and later offsets.
* Answers overlap: each begins with a batch that was seen before, and goes on behind the last one
  that was seen. So a batch that stands twice, or behind its place, isn't lost between two answers.
* A broker that finds damage while it looks for an offset (CORRUPT_MESSAGE) is asked for more bytes
  from an earlier offset first: what it sends as a whole it doesn't look at.
* No more than `MAX_ANSWER_BYTES` and one batch are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, TypeAlias

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    EndTxnMarker,
    check_batch,
    read_batch_header,
    read_end_txn_marker,
)

FIRST_ANSWER_BYTES: Final = 1 << 20
ANSWER_BYTES: Final = 8 << 20
MAX_ANSWER_BYTES: Final = 48 << 20

_SEEN_MAX: Final = 4096
_MAGIC_AT: Final = 16
_FRONT: Final = Struct(">qi")  # base offset, length of what follows
_SHORTEST: Final = RECORD_BATCH_OVERHEAD - _FRONT.size


class Stored(NamedTuple):
    """What stands at one place of the log.

    `first` and `end` (exclusive) are the offsets that it says it has, -1 where nothing says so.
    `damage` tells what is wrong with its bytes; `header` is None if they don't begin as batches do.
    """

    first: int
    end: int
    header: BatchHeader | None
    damage: str | None = None
    marker: EndTxnMarker | None = None
    front: bytes = b""


Fetch: TypeAlias = Callable[[int, int], Buffer | None]
"""What the file has from the batch with an offset on, about so many bytes of it, at least a batch.

None if the broker doesn't answer because of damage.
"""


class StoredLog:
    """The batches of the offsets `start` to `end` (exclusive); iterate once."""

    def __init__(self, fetch: Fetch, start: int, end: int) -> None:
        self._fetch = fetch
        self._start, self._end = start, end
        self.reached = start
        """Behind the last offset that was seen."""
        self._seen: list[Stored] = []
        """The last ones, in which the next answer begins."""

    def __iter__(self) -> Iterator[Stored]:
        """Raises what `fetch` does."""
        at = answered = self._start
        size = FIRST_ANSWER_BYTES
        while True:
            answer = self._ask(at, size)
            new, beyond = self._new([] if answer is None else self._parse(answer))
            if answer is not None and not new and size == MAX_ANSWER_BYTES:
                new, beyond = self._new(self._parse(answer, stuck=True))
            yield from new
            ended = self.reached >= self._end
            # What lies beyond may have a wrong offset: what comes behind it tells.
            if beyond and (ended or (not new and size == MAX_ANSWER_BYTES)):
                return
            following = self._overlap() if new else None
            if following is not None and following > at:
                at, answered, size = following, at, ANSWER_BYTES
            elif ended and not new and size == MAX_ANSWER_BYTES:
                return
            elif size < MAX_ANSWER_BYTES:
                size = MAX_ANSWER_BYTES if size == ANSWER_BYTES else ANSWER_BYTES
                at = answered if answer is None else at
            else:
                found = self._jump(at)
                if found is None or found > self.reached:
                    yield Stored(-1, -1, None, "the broker finds no batch that it could send")
                if found is None:
                    return
                at, answered, size, self._seen = found, found, ANSWER_BYTES, []

    def _ask(self, at: int, size: int) -> memoryview | None:
        answer = self._fetch(at, size)
        return None if answer is None else memoryview(answer)

    # An answer's bytes

    def _parse(self, view: memoryview, *, stuck: bool = False) -> list[Stored]:
        """What an answer consists of, without a batch that it cuts off.

        `stuck`: a larger answer won't bring more of such a batch, so its length may be wrong.
        """
        found: list[Stored] = []
        position, size = 0, len(view)
        while position < size:
            try:
                header = check_batch(view, position)
                marker = read_end_txn_marker(view, position) if header.is_control else None
            except DecodeError:
                position = self._parse_damaged(view, position, found, stuck=stuck)
                continue
            front = bytes(view[position : position + RECORD_BATCH_OVERHEAD])
            first, end = header.base_offset, header.last_offset + 1
            found.append(Stored(first, end, header, None, marker, front))
            position += header.size_bytes
        return found

    def _parse_damaged(
        self, view: memoryview, position: int, found: list[Stored], *, stuck: bool
    ) -> int:
        """Adds what is at `position` to `found`; returns where to go on."""
        size = len(view)
        front = bytes(view[position : position + RECORD_BATCH_OVERHEAD])
        damaged = Stored(-1, -1, None, _no_batch(front), None, front)
        try:
            header = read_batch_header(view, position)
        except DecodeError:
            cut = len(front) <= _MAGIC_AT or (
                len(front) < RECORD_BATCH_OVERHEAD and front[_MAGIC_AT] == 2
            )
        else:
            first, end = header.base_offset, header.last_offset + 1
            damaged = Stored(first, end, header, "its checksum is wrong", None, front)
            after = position + header.size_bytes
            cut = after > size
            if after == size or (not cut and _begins(view, after)):
                found.append(damaged)
                return after
        if cut and not stuck:
            return size
        following = self._next_batch(view, position + 1)
        if following is None:
            return size
        found.append(damaged)
        return following

    def _next_batch(self, view: memoryview, position: int) -> int | None:
        """Where the first whole batch of the wanted offsets begins, from a position on."""
        data = view.tobytes()
        while (magic := data.find(b"\2", position + _MAGIC_AT)) >= 0:
            position = magic - _MAGIC_AT
            first, length = _FRONT.unpack_from(data, position)
            room = len(data) - position - _FRONT.size
            if self._start <= first < self._end and _SHORTEST <= length <= room:
                try:
                    check_batch(view, position)
                except DecodeError:
                    pass
                else:
                    return position
            position += 1
        return None

    # -- one answer after the other

    def _new(self, answer: Sequence[Stored]) -> tuple[list[Stored], bool]:
        """(what wasn't seen before, whether the log goes on behind the wanted offsets)."""
        ours = len(answer)
        while ours and answer[ours - 1].first >= self._end:
            ours -= 1
        new = list(answer[self._seen_before(answer) : ours])
        self.reached = max([self.reached, *(one.end for one in new if one.first < self._end)])
        self._seen += new
        del self._seen[:-_SEEN_MAX]
        return new, ours < len(answer)

    def _seen_before(self, answer: Sequence[Stored]) -> int:
        """How many of the answer's batches are known from the answers before."""
        seen = [one.front for one in self._seen]
        fronts = [one.front for one in answer]
        for number, front in enumerate(seen):
            if fronts and front == fronts[0]:
                both = min(len(seen) - number, len(fronts))
                if seen[number : number + both] == fronts[:both]:
                    return both
        # The first answer, or the cleaner was there: an answer may begin before what was wanted.
        number = 0
        while number < len(answer) and 0 <= answer[number].end <= self.reached:
            number += 1
        return number

    def _overlap(self) -> int | None:
        """The offset to go on from: that of the last batch that is surely where it belongs."""
        seen = self._seen
        for number in range(len(seen) - 1, -1, -1):
            one = seen[number]
            before = seen[number - 1] if number else None
            if one.damage is not None or (before is not None and before.damage is not None):
                continue
            if number == len(seen) - 1:
                sure = before is None or before.end == one.first
            else:
                behind = before is None or before.end <= one.first
                sure = behind and one.end <= seen[number + 1].first
            if sure and self._start < one.end <= self._end:
                return max(one.first, self._start)
        return None

    def _jump(self, at: int) -> int | None:
        """The least offset behind the damage from which the broker sends a batch again."""
        low, step = self.reached - 1, 1
        while not self._readable(high := min(low + step, self._end - 1), at):
            if high == self._end - 1:
                return None
            low, step = high, step * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._readable(middle, at) else (middle, high)
        return high

    def _readable(self, offset: int, at: int) -> bool:
        """Whether a fetch of this offset brings a sound batch that wasn't seen yet."""
        answer = self._ask(offset, FIRST_ANSWER_BYTES) if offset > at else None
        if answer is None:
            return False
        return any(one.damage is None and one.end > self.reached for one in self._parse(answer)[:1])


def _no_batch(front: bytes) -> str:
    if len(front) > _MAGIC_AT and front[_MAGIC_AT] != 2:
        return f"what stands here is no batch: its magic is {front[_MAGIC_AT]}"
    length = _FRONT.unpack_from(front)[1] if len(front) >= _FRONT.size else len(front)
    return f"what stands here is no batch: it says that it has {length} bytes"


def _begins(view: memoryview, position: int) -> bool:
    """Whether a batch seems to begin here."""
    if len(view) - position < RECORD_BATCH_OVERHEAD:
        return False
    first, length = _FRONT.unpack_from(view, position)
    return view[position + _MAGIC_AT] == 2 and first >= 0 and length >= _SHORTEST
