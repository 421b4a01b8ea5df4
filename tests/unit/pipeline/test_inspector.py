"""Damage is told by its name and offsets, and what is legal isn't damage."""

from __future__ import annotations

import pytest

from kraftpy.pipeline.inspector import Counts, Inspector
from kraftpy.protocol.records import EndTxnMarker, Record, build_batch, build_end_txn_marker

Told = list[tuple[str, int, int]]


def batch(first: int, last: int, *, sequence: int = -1, **more: object) -> bytes:
    rows = [(1_700_000_000_000 + n, b"k", b"v", []) for n in range(first, last + 1)]
    producer = 7 if sequence >= 0 else -1
    more = {"producer_id": producer, "producer_epoch": 0, **more}
    return build_batch(rows, base_offset=first, base_sequence=sequence, **more)  # type: ignore[arg-type]


def marker(offset: int, *, committed: bool) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(committed, 0),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


def inspect(batches: list[bytes], end: int, *, compacted: bool = False) -> tuple[Counts, Told]:
    inspector = Inspector(0, compacted)
    data, offset = b"".join(batches), 0
    while offset < end:
        moved = inspector.look(data, offset, end)
        if moved == offset:
            break
        offset = moved
    inspector.finish()
    return inspector.counts, [(one.kind, one.first, one.last) for one in inspector.findings]


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_whole_log_has_no_findings() -> None:
    counts, told = inspect([batch(0, 9), batch(10, 10), batch(11, 30)], 31)
    assert told == []
    assert (counts.batches, counts.records) == (3, 31)


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([batch(0, 9), batch(20, 29)], [("gap", 10, 19)]),
        ([batch(0, 9), batch(20, 29), batch(10, 19), batch(30, 39)], [("order", 10, 19)]),
        ([batch(0, 9), batch(10, 19), batch(10, 19), batch(20, 29)], [("duplicate", 10, 19)]),
        ([batch(0, 9), damaged(batch(10, 19)), batch(20, 29)], [("crc", 10, 19)]),
        ([damaged(batch(0, 9)), damaged(batch(10, 19))], [("crc", 0, 9), ("crc", 10, 19)]),
        (
            [batch(0, 4, sequence=0), batch(5, 9, sequence=5), batch(10, 14, sequence=5)],
            [("duplicate", 10, 14)],
        ),
        (
            [batch(0, 9), b"\0" * 100],
            [("unreadable", 10, 39)],
        ),
    ],
)
def test_damage_is_named(batches: list[bytes], told: Told) -> None:
    assert inspect(batches, 40)[1] == told


def test_what_the_cleaner_removed_is_legal_in_a_compacted_topic_only() -> None:
    kept = [Record(offset, 0, b"k", b"v", []) for offset in (20, 23, 29)]
    log = [batch(0, 9), build_batch(kept, base_offset=20)]
    counts, told = inspect(log, 30, compacted=True)
    assert told == []
    assert (counts.records, counts.compacted) == (13, 17)
    assert inspect(log, 30)[1] == [("gap", 10, 19), ("gap", 20, 29)]


def test_markers_and_aborted_records_are_no_gaps() -> None:
    log = [
        batch(0, 4, sequence=0, transactional=True),
        marker(5, committed=False),
        batch(6, 8, sequence=5, transactional=True),
        marker(9, committed=True),
        batch(10, 10, sequence=8, transactional=True),
    ]
    counts, told = inspect(log, 11)
    assert told == []
    assert (counts.control, counts.aborted, counts.open, counts.records) == (2, 5, 1, 9)


def test_the_end_of_the_audit_is_not_the_end_of_the_log() -> None:
    counts, told = inspect([batch(0, 9), batch(10, 19), batch(40, 49)], 30)
    assert told == [("gap", 20, 29)]
    assert counts.batches == 2


def test_sequences_wrap_around() -> None:
    last = (1 << 31) - 2
    log = [batch(0, 3, sequence=last), batch(4, 5, sequence=2), batch(6, 7, sequence=4)]
    assert inspect(log, 8)[1] == []


def test_a_log_may_begin_in_the_middle_of_a_batch() -> None:
    inspector = Inspector(5, compacted=False)
    assert inspector.look(batch(0, 9) + batch(10, 19), 5, 20) == 20
    inspector.finish()
    assert inspector.findings == []
