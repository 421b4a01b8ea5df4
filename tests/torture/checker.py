"""Decides from plain data whether anything went wrong; tested with planted faults.

* `check_partition`: one partition's log against what its writers know
* `check_reader`: what a consumer saw against that log
* `check_replicas`: the logs of all replicas against one another, byte by byte
* `check_epochs`: who led in which epoch, by the metadata, by what brokers said, by what is on disk
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kraftpy.protocol.records import (
    BatchHeader,
    iter_records,
    read_batch_header,
    split_batches,
)
from tests.consistency.checker import Anomaly


@dataclass
class History:
    """What a writer knows of one partition: values as they were sent, the offsets it was given."""

    sent: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, int] = field(default_factory=dict)


class Led(NamedTuple):
    """Somebody says that `leader` led in `epoch`."""

    source: str
    epoch: int
    leader: int


Log = Sequence[tuple[int, bytes]]

UNKNOWN_OFFSET = -1
"""What a broker may answer for a batch that it recognizes as sent again (KIP-98)."""


def check_partition(histories: Iterable[History], log: Log) -> list[Anomaly]:
    """Everything acknowledged is there once, where it was acknowledged, in its writer's order."""
    found = []
    writer_of: dict[bytes, tuple[int, int]] = {}  # value -> (writer, position)
    histories = list(histories)
    for writer, history in enumerate(histories):
        writer_of.update((value, (writer, place)) for place, value in enumerate(history.sent))
    places: dict[bytes, int] = {}
    last = [-1] * len(histories)
    for expected, (offset, value) in enumerate(log, log[0][0] if log else 0):
        if offset != expected:
            found.append(Anomaly("gap", f"offset {offset} comes where {expected} should"))
            break
        if value not in writer_of:
            found.append(Anomaly("invented", f"{_short(value)} at {offset} was never sent"))
            continue
        if value in places:
            found.append(Anomaly("duplicate", f"{_short(value)} at {places[value]} and {offset}"))
            continue
        places[value] = offset
        writer, place = writer_of[value]
        if place < last[writer]:
            found.append(Anomaly("reordered", f"{_short(value)} at {offset} after a later one"))
        last[writer] = max(last[writer], place)
    for history in histories:
        for value, offset in history.acknowledged.items():
            if value not in places:
                found.append(Anomaly("lost", f"{_short(value)}, acknowledged at {offset}"))
            elif offset not in (places[value], UNKNOWN_OFFSET):
                detail = f"{_short(value)} is at {places[value]}, acknowledged at {offset}"
                found.append(Anomaly("misplaced", detail))
    return found


def check_reader(seen: Log, log: Log, *, once: bool) -> list[Anomaly]:
    """What a consumer saw is what is there, and it saw all of it; with `once` in order, once."""
    there = dict(log)
    found = [
        Anomaly("dirty read", f"offset {offset} was read as {_short(value)}")
        for offset, value in seen
        if there.get(offset) != value
    ]
    offsets = [offset for offset, _ in seen]
    if unseen := there.keys() - set(offsets):
        found.append(Anomaly("unseen", f"{len(unseen)} offsets from {min(unseen)} on"))
    if once:
        for before, after in pairwise(offsets):
            if after <= before:
                found.append(Anomaly("read twice", f"offset {after} came after {before}"))
    return found


def check_replicas(contents: Mapping[int, bytes], high_watermark: int) -> list[Anomaly]:
    """The batches below the high watermark are the same bytes in each replica's log."""
    pieces = {node: _batches_below(content, high_watermark) for node, content in contents.items()}
    (reference, expected), *others = sorted(pieces.items())
    found = []
    for node, batches in others:
        if batches == expected:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(batches, expected, strict=False)) if a != b),
            min(len(batches), len(expected)),
        )
        mine, theirs = (
            _describe(side[place]) if place < len(side) else "nothing"
            for side in (batches, expected)
        )
        detail = f"node {node} has {mine} where node {reference} has {theirs}"
        found.append(Anomaly("diverged", detail))
    return found


def _batches_below(content: bytes, high_watermark: int) -> list[bytes]:
    return [
        content[position : position + header.size_bytes]
        for position, header in walk(content)
        if header.base_offset < high_watermark
    ]


def walk(content: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch, believing the headers: CRCs are `read_log`'s to check."""
    position = 0
    while position < len(content):
        header = read_batch_header(content, position)
        yield position, header
        position += header.size_bytes


def _describe(batch: bytes) -> str:
    header = read_batch_header(batch)
    return (
        f"offsets {header.base_offset} to {header.base_offset + header.last_offset_delta} of epoch "
        f"{header.partition_leader_epoch} in {len(batch)} bytes (CRC {header.crc:08x})"
    )


def check_epochs(
    led: Iterable[Led],
    checkpoints: Mapping[int, Sequence[tuple[int, int]]],
    batches: Sequence[tuple[int, int]],
) -> list[Anomaly]:
    """One leader in each epoch, and each epoch starts at the same offset wherever it is noted.

    Args:
        led: what metadata and brokers say
        checkpoints: node -> (epoch, start offset) as in its leader-epoch-checkpoint
        batches: (epoch, base offset) of the batches that all replicas have
    """
    found = []
    leaders: dict[int, Led] = {}
    for each in led:
        known = leaders.setdefault(each.epoch, each)
        if known.leader != each.leader:
            detail = f"epoch {each.epoch} was led by {known.leader}, says {known.source}, and by "
            found.append(Anomaly("two leaders", f"{detail}{each.leader}, says {each.source}"))
    starts: dict[int, int] = {}
    newest = -1
    for epoch, offset in batches:
        if epoch < newest:
            detail = f"epoch {epoch} at offset {offset} comes after epoch {newest}"
            found.append(Anomaly("epochs", detail))
        newest = max(newest, epoch)
        starts.setdefault(epoch, offset)
    found += [
        Anomaly("epochs", f"nobody led in epoch {epoch}, which has records from {start} on")
        for epoch, start in starts.items()
        if epoch not in leaders
    ]
    for node, entries in checkpoints.items():
        noted = dict(entries)
        found += [
            Anomaly(
                "epochs",
                f"node {node} notes {noted.get(epoch)} as the start of epoch {epoch},"
                f" which is {start}",
            )
            for epoch, start in starts.items()
            if noted.get(epoch) != start
        ]
        found += [
            Anomaly("epochs", f"node {node} notes epoch {epoch}, in which nobody led")
            for epoch in noted
            if epoch not in leaders
        ]
    return found


def read_log(content: bytes) -> list[tuple[int, bytes]]:
    """(offset, value) of a log's bytes; raises DecodeError where they are damaged."""
    return [
        (record.offset, bytes(record.value or b""))
        for position, _ in split_batches(content)
        for record in iter_records(content, position)
    ]


def _short(value: bytes) -> str:
    return repr(value[:40])
