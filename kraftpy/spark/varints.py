"""Zigzag varints and the walk from record to record, for many at once.

Where a record of a batch begins is known only when the one before it has been looked at, so a walk
has as many steps as its longest batch has records. All batches of a chunk take their steps
together, one numpy call for all of them; the last few batches, too few to be worth calls, are
walked by plain Python.

* Numbers of one or two bytes, nearly all there are, come out of a table of 65,536 entries.
* A number of more than 32 bits (64 for `varlongs`), a negative length and a step out of the data
  raise `InvalidBatch`, as `kraftpy.protocol.records` does. Nothing is read outside of the data.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kraftpy.protocol.records import InvalidBatch, read_varint

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]

# With fewer batches than this, numpy's calls cost more than a loop over their records.
LOCKSTEP_MIN = 24

_LONG = 0x8080  # both bytes say that another one follows
_pairs = np.arange(1 << 16, dtype=np.int64)
_two = (_pairs & 0x80) != 0
_raw = np.where(_two, _pairs & 0x7F | (_pairs >> 8 & 0x7F) << 7, _pairs & 0x7F)
_VALUES: Numbers = (_raw >> 1) ^ -(_raw & 1)
_SIZES: Numbers = np.where(_two, 2, 1)
# From a record's length to the next record's; more than there ever is if it isn't that simple.
_FAR = 1 << 40
_ADVANCES: Numbers = np.where((_VALUES < 0) | (_pairs & _LONG == _LONG), _FAR, _SIZES + _VALUES)
del _pairs, _two, _raw


def pairs_of(data: Bytes) -> NDArray[np.uint16]:
    """Each byte together with the one after it, without a copy."""
    if len(data) < 2:
        return np.empty(0, np.uint16)
    return np.ndarray((len(data) - 1,), "<u2", buffer=data, strides=(1,))


def varints(
    data: Bytes, pairs: NDArray[np.uint16], positions: Numbers, max_bits: int = 32
) -> tuple[Numbers, Numbers]:
    """(numbers at the positions, positions after them); IndexError outside of the data.

    A byte has to follow each number of one byte, as it does everywhere but at a record's end.
    """
    found = pairs[positions]
    values = _VALUES[found]
    after = positions + _SIZES[found]
    more = np.flatnonzero((found & _LONG) == _LONG)
    if len(more):
        values[more], after[more] = _long_varints(data, positions[more], max_bits)
    return values, after


def _long_varints(data: Bytes, positions: Numbers, max_bits: int) -> tuple[Numbers, Numbers]:
    raw = np.zeros(len(positions), np.uint64)
    after = positions.copy()
    left = np.arange(len(positions))
    for shift in range(0, max_bits, 7):
        byte = data[after[left]].astype(np.uint64)
        after[left] += 1
        bits = byte & np.uint64(0x7F)
        if shift + 7 > max_bits and np.any(bits >> np.uint64(max_bits - shift)):
            break
        raw[left] |= bits << np.uint64(shift)
        left = left[byte >= 0x80]
        if not len(left):
            sign = (raw & np.uint64(1)).astype(np.int64)
            return (raw >> np.uint64(1)).astype(np.int64) ^ -sign, after
    raise InvalidBatch(f"variable-length number of more than {max_bits} bits")


def find_records(
    data: Bytes, first: Numbers, last: Numbers, counts: Numbers
) -> tuple[Numbers, Numbers]:
    """(begin, end) of every record of every batch, behind the record's own length.

    Batch `i` has `counts[i]` records in the bytes from `first[i]` to `last[i]`. Raises InvalidBatch
    unless the records take up exactly these bytes.
    """
    slots = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=slots[1:])
    starts = np.empty(slots[-1], np.int64)
    order = np.argsort(-counts, kind="stable")
    falling = -counts[order]
    slot, position = slots[order], first[order]
    pairs = pairs_of(data)
    step = 0
    try:
        while (active := int(np.searchsorted(falling, -step))) >= LOCKSTEP_MIN:
            position = position[:active]
            starts[slot[:active] + step] = position
            advance = _ADVANCES[pairs[position]]
            if np.maximum.reduce(advance) >= _FAR:
                length, begin = varints(data, pairs, position)
                advance = begin + _checked(length) - position
            position = position + advance
            step += 1
        for index in range(active):
            batch = order[index]
            start, stop = int(position[index]), int(last[batch])
            if start > stop:
                raise InvalidBatch("record reaches past the end of its batch")
            here = starts[int(slot[index]) + step : int(slots[batch + 1])]
            _walk(data[start:stop].tobytes(), start, here)
        length, begins = varints(data, pairs, starts)
    except IndexError:
        raise InvalidBatch("record reaches past the end of its batch") from None
    ends = begins + _checked(length)
    filled = counts > 0
    reached = first.copy()
    reached[filled] = ends[slots[1:][filled] - 1]
    if np.any(reached != last):
        raise InvalidBatch("the records do not add up to the size of their batch")
    return begins, ends


def _checked(lengths: Numbers) -> Numbers:
    if lengths.min(initial=0) < 0:
        raise InvalidBatch(f"record of {lengths.min()} bytes")
    return lengths


def _walk(raw: bytes, start: int, starts: Numbers) -> None:
    """Fills in where the lengths of the records in `raw` are, which begins at `start`."""
    found: list[int] = []
    add = found.append
    pos = 0
    for _ in range(len(starts)):
        add(pos)
        length = raw[pos]
        if length < 0x80:
            pos += (length >> 1) + 1
        elif (high := raw[pos + 1]) < 0x80:
            pos += ((length & 0x7F | high << 7) >> 1) + 2
        else:
            length, pos = read_varint(raw, pos)
            pos += max(length, 0)
    starts[:] = found
    starts += start
