"""Damage is told by its name and offsets, and what is legal isn't damage."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kraftpy.pipeline import stored
from kraftpy.pipeline.inspector import FINDINGS_MAX, WINDOW, Counts, Inspector
from kraftpy.pipeline.stored import StoredLog
from kraftpy.protocol.records import EndTxnMarker, Record, build_batch, build_end_txn_marker
from tests.unit.pipeline.damage import Damage, File, Told, batch, flipped, stamped


def marker(offset: int, *, committed: bool) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(committed, 0),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


def inspect(
    batches: list[bytes],
    end: int,
    *,
    start: int = 0,
    compacted: bool = False,
    whole_batches: bool = True,
) -> tuple[Counts, Told]:
    inspector = Inspector(start, end, compacted)
    for one in StoredLog(File(b"".join(batches), whole_batches).fetch, start, end):
        inspector.take(one)
    inspector.finish()
    return inspector.counts, [(one.kind, one.first, one.last) for one in inspector.findings]


def test_a_whole_log_has_no_findings() -> None:
    counts, told = inspect([batch(0, 9), batch(10, 10), batch(11, 30)], 31)
    assert told == []
    assert (counts.batches, counts.records) == (3, 31)


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([batch(0, 9), batch(20, 39)], [("gap", 10, 19)]),
        ([batch(0, 9), batch(20, 29), batch(10, 19), batch(30, 39)], [("order", 10, 19)]),
        (
            [batch(*span) for span in ((0, 4), (30, 34), (10, 19), (20, 29), (5, 9), (35, 39))],
            [("order", 5, 9), ("order", 30, 34)],
        ),
        ([batch(0, 9), batch(10, 19), batch(10, 19), batch(20, 39)], [("duplicate", 10, 19)]),
        ([batch(0, 19), batch(15, 24), batch(25, 39)], [("duplicate", 15, 19)]),
        ([batch(0, 9), flipped(batch(10, 19)), batch(20, 39)], [("crc", 10, 19)]),
        (
            [flipped(batch(0, 9)), flipped(batch(10, 19)), batch(20, 39)],
            [("crc", 0, 9), ("crc", 10, 19)],
        ),
        (
            [batch(0, 4, sequence=0), batch(5, 9, sequence=5), batch(10, 39, sequence=5)],
            [("duplicate", 10, 39)],
        ),
        ([batch(0, 9), b"\0" * 100], [("unreadable", 10, 39)]),
        ([batch(0, 9), b"\0" * 100, batch(20, 39)], [("unreadable", 10, 19)]),
        ([batch(0, 9), stamped(batch(10, 19), 1000, 3), batch(20, 39)], [("offset", 10, 19)]),
        # One that was written over by another is gone, and that one is there twice.
        (
            [batch(0, 9), batch(30, 39), batch(20, 29), batch(30, 39)],
            [("gap", 10, 19), ("duplicate", 30, 39)],
        ),
        (
            [batch(0, 9), batch(10, 19, leader_epoch=2), batch(20, 39), batch(40, 49)],
            [("epoch", 10, 19)],
        ),
        (
            [batch(0, 9), batch(10, 19, leader_epoch=9), batch(20, 39), batch(40, 49)],
            [("epoch", 10, 19)],
        ),
        (
            [batch(0, 9, sequence=0, producer_epoch=2), batch(10, 39, sequence=0)],
            [("order", 10, 39)],
        ),
    ],
)
def test_damage_is_named(batches: list[bytes], told: Told) -> None:
    for whole_batches in (True, False):
        assert inspect(batches, 40, whole_batches=whole_batches)[1] == told


@pytest.fixture
def small_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("FIRST_ANSWER", 400), ("ANSWER", 700), ("MAX_ANSWER", 100_000)):
            patch.setattr(stored, f"{name}_BYTES", size)
        yield


KINDS = ("gap", "duplicate", "order", "crc", "magic", "epoch", "offset", "length")


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.usefixtures("small_answers")
def test_exactly_what_was_planted_is_told(data: st.DataObject) -> None:
    """Any damage at any places, in answers of a few batches each."""
    draw = data.draw
    first = start = draw(st.integers(0, 1 << 40))
    batches = []
    for _ in range(draw(st.integers(8, 60))):
        last = first + draw(st.integers(0, 4))
        batches.append(batch(first, last, sequence=first - start))
        first = last + 1
    damage = Damage(batches)
    places = st.integers(1, (len(batches) - 4) // 4)
    for place in sorted(draw(st.sets(places, max_size=5))):
        number = place * 4 + draw(st.integers(0, 1))
        kind = draw(st.sampled_from(KINDS))
        if kind == "length":
            length = draw(st.sampled_from((0, 48, 49, 60, 200, 1 << 20, (1 << 31) - 1, -1)))
            damage.length(number, length)
        elif kind == "epoch":
            damage.epoch(number, draw(st.sampled_from((0, 2, 4, 1 << 20))))
        else:
            getattr(damage, kind)(number)
    whole = draw(st.booleans())
    found = inspect([damage.file()], first, start=start, whole_batches=whole)[1]
    assert found == sorted(damage.told, key=lambda one: one[1])


def test_disorder_over_a_distance_is_told_in_few_words() -> None:
    batches = [batch(n, n) for n in range(3000)]
    batches[100], batches[2900] = batches[2900], batches[100]
    assert inspect(batches, 3000)[1] == [("order", 100, 100), ("order", 2900, 2900)]


def test_new_leaders_are_legal() -> None:
    batches = [batch(n, n, leader_epoch=n // 7) for n in range(500)]
    assert inspect(batches, 500)[1] == []
    assert inspect([batch(0, 9, leader_epoch=-1), batch(10, 19)], 20)[1] == []


def test_what_the_cleaner_removed_is_legal_in_a_compacted_topic_only() -> None:
    kept = [Record(offset, 0, b"k", b"v", []) for offset in (20, 23, 29)]
    log = [batch(0, 9), build_batch(kept, base_offset=20)]
    counts, told = inspect(log, 30, compacted=True)
    assert told == []
    assert (counts.records, counts.compacted) == (13, 17)
    assert inspect(log, 30)[1] == [("gap", 10, 19), ("gap", 20, 29)]


def test_damage_in_a_compacted_topic_is_not_as_wide_as_its_gaps() -> None:
    log = [batch(n, n + 1) for n in range(0, 500, 5)]
    log[7] = flipped(log[7])
    log[20] *= 2
    log[30], log[31] = log[31], log[30]
    told = [("crc", 35, 36), ("duplicate", 100, 101), ("order", 150, 151)]
    counts, found = inspect(log, 497, compacted=True)
    assert found == told
    assert (counts.records, counts.compacted) == (99 * 2, 99 * 3)


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
    assert inspect([batch(0, 9), batch(10, 19)], 20, start=5)[1] == []


def test_memory_does_not_grow_with_the_log() -> None:
    """What is remembered of batches, gaps, producers and findings is bounded."""
    inspector = Inspector(0, 1 << 40, compacted=False)
    one = next(iter(StoredLog(File(batch(0, 0, sequence=0), True).fetch, 0, 1)))
    for number in range(150_000):
        header = copy.copy(one.header)
        assert header is not None
        header.base_offset, header.producer_id = number * 2, number
        inspector.take(one._replace(first=number * 2, end=number * 2 + 1, header=header))
        assert len(inspector._held) <= WINDOW
    inspector.finish()
    assert inspector.counts.findings == 150_000
    assert len(inspector.findings) == FINDINGS_MAX
    kept = (inspector._checksums, inspector._producers, inspector._gaps)
    assert max(map(len, kept)) <= 100_000
