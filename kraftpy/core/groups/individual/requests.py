"""What a commit claims, and an OffsetFetch tells of that, as their tagged fields say.

Rules: ranges ascend and don't overlap, and neither do slices; offsets are 0 or more, with room for
the next one; a commit has `RANGES_MAX` ranges in all. Whatever else is INVALID_REQUEST, for the
partition that it stands at. A partition with claims has the offset -1.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence

from kraftpy.core.groups.individual.coverage import WHOLE, Claim, Coverage
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.extensions import (
    DISCARD_FROM_TAG,
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    SLICES_TAG,
    WAIT_FOR_STABLE_TAG,
    YES,
    Slice,
    cut_ranges,
    cut_slices,
    decode_int64,
    decode_one_slice,
    decode_ranges,
    decode_slices,
    encode_epoch_ranges,
    encode_epoch_slices,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.key_hash import HASH_MAX

_TAGS = frozenset({OFFSET_RANGES_TAG, SLICES_TAG, DISCARD_FROM_TAG})
_CLAIMS = frozenset({OFFSET_RANGES_TAG, SLICES_TAG})
_NO_OFFSET = -1
_LAST_MAX = (1 << 63) - 2


def has_claims(tags: Mapping[int, bytes] | None) -> bool:
    """Whether a partition of a commit claims something, or gives claims up."""
    return tags is not None and not _TAGS.isdisjoint(tags)


def waits(tags: Mapping[int, bytes] | None) -> bool:
    """Whether a partition of a transaction's commit is to wait for what lies below its claims."""
    return tags is not None and tags.get(WAIT_FOR_STABLE_TAG) == YES


def claim_tags(coverage: Coverage | None) -> dict[int, bytes] | None:
    """The tagged fields by which an OffsetFetch tells of claims; None if there are none."""
    if coverage is None:
        return None
    tags = {}
    slices = coverage.slices()
    whole = [ranges for low, high, ranges in slices if (low, high) == WHOLE]
    parts = [each for each in slices if each[:2] != WHOLE]
    if whole:
        tags[OFFSET_RANGES_TAG] = encode_epoch_ranges(whole[0])
    if parts:
        tags[SLICES_TAG] = encode_epoch_slices(parts)
    return tags


class Claimed(NamedTuple):
    """What a commit claims of a partition; claims from `discard_from` on are void."""

    claims: Sequence[Claim]
    discard_from: int | None


def one_claim(offset: int, tags: Mapping[int, bytes] | None) -> Claim | None:
    """What a partition claims that has one range of one slice, as nearly all have; else None."""
    if offset != _NO_OFFSET or tags is None or len(tags) != 1:
        return None
    one = decode_one_slice(tags.get(SLICES_TAG, b""))
    if one is None:
        return None
    low, high, first, last = one
    is_sound = 0 <= low <= high <= HASH_MAX and 0 <= first <= last <= _LAST_MAX
    return Claim(low, high, first, last) if is_sound else None


class ManyClaims(Exception):
    """There is more in a commit than is taken at once: it's to be made in parts (`Cutter`)."""


class Reader:
    """Reads what one commit claims, and raises ManyClaims beyond so many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._left = RANGES_MAX
        self._left_bytes = max_bytes

    def read(self, offset: int, tags: Mapping[int, bytes]) -> Claimed | None:
        """What a partition's tags say; None if that can't be."""
        whole_data = tags.get(OFFSET_RANGES_TAG)
        slices_data = tags.get(SLICES_TAG)
        discard_data = tags.get(DISCARD_FROM_TAG)
        for data in (whole_data, slices_data, discard_data):
            if data is not None:
                self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ManyClaims
        slices: list[Slice] = []
        discard_from = None
        try:
            if whole_data is not None:
                slices.append((*WHOLE, decode_ranges(whole_data, self._left)))
                self._left -= len(slices[0][2])
            if slices_data is not None:
                parts = decode_slices(slices_data, self._left)
                if not _ascend([each[:2] for each in parts], HASH_MAX):
                    return None
                slices += parts
                self._left -= sum([len(ranges) or 1 for _, _, ranges in parts])
            if discard_data is not None:
                discard_from = decode_int64(discard_data)
        except DecodeError:
            return None
        claims = []
        for low, high, ranges in slices:
            if not _ascend(ranges, _LAST_MAX):
                return None
            claims += [Claim(low, high, first, last) for first, last in ranges]
        if offset != _NO_OFFSET or (discard_from is not None and discard_from < 0):
            return None
        return Claimed(claims, discard_from)


def _ascend(ranges: Iterable[tuple[int, int]], last_max: int) -> bool:
    expected = 0
    for first, last in ranges:
        if not expected <= first <= last <= last_max:
            return False
        expected = last + 1
    return True


Parts = list[dict[int, bytes]]
"""Tags of several commits, which together claim what those of one did."""

IMPOSSIBLE = {OFFSET_RANGES_TAG: b""}
"""What stands for claims that can't be."""


class Cutter:
    """Cuts what one commit claims into parts with so many ranges at most."""

    def __init__(self, together: int) -> None:
        self._together = together
        self._left = RANGES_MAX

    def cut(self, tags: Mapping[int, bytes]) -> Generator[None, None, Parts]:
        """The parts of a partition's claims; gives way now and then."""
        parts: Parts = []
        try:
            yield from self._cut_ranges(tags.get(OFFSET_RANGES_TAG, b"\1"), parts)
            yield from self._cut_slices(tags.get(SLICES_TAG, b"\1"), parts)
        except DecodeError:
            return [IMPOSSIBLE]
        others = {tag: data for tag, data in tags.items() if tag not in _CLAIMS}
        parts = [others | part for part in parts or [{}]]
        for part in parts[1:]:  # What is void is so before anything is claimed.
            part.pop(DISCARD_FROM_TAG, None)
        return parts

    def _cut_ranges(self, data: bytes, parts: Parts) -> Generator[None, None, None]:
        expected = 0
        for some in cut_ranges(data, self._left, self._together):
            yield
            expected = _check(some, expected)
            self._left -= len(some)
            parts.append({OFFSET_RANGES_TAG: encode_ranges(some)})

    def _cut_slices(self, data: bytes, parts: Parts) -> Generator[None, None, None]:
        end, expected = -1, 0
        count = self._together
        slices: list[tuple[int, int, Sequence[tuple[int, int]]]] = []
        for low, high, ranges, begins in cut_slices(data, self._left, self._together):
            if begins:
                if not end < low <= high <= HASH_MAX:
                    raise DecodeError("slices ascend")
                end, expected = high, 0
            expected = _check(ranges, expected)
            size = max(1, len(ranges))
            self._left -= size
            if slices and count + size > self._together:
                yield
                parts.append({SLICES_TAG: encode_slices(slices)})
                slices, count = [], 0
            slices.append((low, high, ranges))
            count = size if len(slices) == 1 else count + size
        if slices:
            parts.append({SLICES_TAG: encode_slices(slices)})


def _check(ranges: Sequence[tuple[int, int]], expected: int) -> int:
    """Raises DecodeError unless they ascend from an offset on; gives what may come next."""
    if ranges and (ranges[0][0] < expected or not _ascend(ranges, _LAST_MAX)):
        raise DecodeError("ranges ascend")
    return ranges[-1][1] + 1 if ranges else expected
