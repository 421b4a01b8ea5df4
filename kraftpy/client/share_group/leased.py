"""Records that a leader has leased to this member, and for how long.

Rules:

* A lease is over when its time certainly is, by this client's clock; and when the session is, in
  which it was given. What is over isn't handed out, and nothing is said of it to the leader.
* An answer has whole batches, and says which offsets of them are leased. Those of them that have
  no record for anybody are gaps: compacted ones, and markers of transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.offsets import Partition
from kraftpy.client.serializing import K, V
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    Record,
    iter_records,
    read_batch_header,
)

Key = tuple[bytes, int]
"""A partition by its topic's id."""

Run = tuple[int, int]
"""Offsets, the last one in."""


class Tenure:
    """A session with a leader while it lasts; `lost` says why it doesn't any more."""

    __slots__ = ("lost", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.lost: ConnectionError | KafkaError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """What was leased of a partition at one time; `deadline_s` is of the event loop's clock."""

    key: Key
    name: Partition
    tenure: Tenure
    deadline_s: float

    def why_over(self, now_s: float) -> ConnectionError | KafkaError | None:
        """Why the leader has given it to somebody else, or is about to; None while it hasn't."""
        if self.tenure.lost is None and now_s > self.deadline_s:
            return KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "the lease has timed out: be quicker, take fewer records at a time "
                "(max_poll_records), or renew() it",
            )
        return self.tenure.lost


@dataclass(slots=True)
class ShareRecord(ConsumerRecord[K, V]):
    """A record as the consumer hands it out, for the `delivery_count`th time.

    `lease` is None as soon as it is acknowledged.
    """

    delivery_count: int
    lease: Lease | None = field(default=None, repr=False, compare=False)


class Leased(NamedTuple):
    """What an answer leases of a partition.

    Each record with its delivery count; `missing` are offsets whose batches didn't come along.
    """

    records: list[tuple[Record, int]]
    gaps: list[Run]
    missing: list[Run]


def read_leased(data: Any) -> Leased:
    """What a partition's part of an answer leases. Raises `DecodeError`."""
    runs = sorted((r.first_offset, r.last_offset, r.delivery_count) for r in data.acquired_records)
    records: list[tuple[Record, int]] = []
    end = -1
    if runs:
        found, end = _records(data.records or b"", runs[0][0], runs[-1][1])
        at = 0
        for record in found:
            while at < len(runs) and runs[at][1] < record.offset:
                at += 1
            if at == len(runs):
                break
            if record.offset >= runs[at][0]:
                records.append((record, runs[at][2]))
    gaps: list[Run] = []
    missing: list[Run] = []
    at = 0
    for first, last, _ in runs:
        expected = first
        while at < len(records) and records[at][0].offset <= last:
            offset = records[at][0].offset
            if expected < offset:
                gaps.append((expected, offset - 1))
            expected = offset + 1
            at += 1
        if expected <= min(last, end):
            gaps.append((expected, min(last, end)))
        if max(expected, end + 1) <= last:
            missing.append((max(expected, end + 1), last))
    return Leased(records, gaps, missing)


def _records(buf: Any, first: int, last: int) -> tuple[list[Record], int]:
    """Records of the batches that have some of these offsets, and the last offset of all."""
    records: list[Record] = []
    position, end = 0, -1
    while position + RECORD_BATCH_OVERHEAD <= len(buf):
        header = read_batch_header(buf, position)
        if position + header.size_bytes > len(buf):
            break
        end = max(end, header.last_offset)
        if header.last_offset >= first and header.base_offset <= last and not header.is_control:
            records += iter_records(buf, position)
        position += header.size_bytes
    return records, end


def runs_of(offsets: Iterable[int]) -> list[Run]:
    """Sorted offsets as runs."""
    runs: list[Run] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs
