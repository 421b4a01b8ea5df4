"""Bulk reading of offset records gives what reading them one by one does, or leaves them alone."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.groups import CommittedOffset, OffsetRecord, decode_record, encode_record
from kraftpy.core.groups.offset_runs import (
    OffsetRun,
    OffsetRuns,
    _deltas,
    build_offset_batch,
    read_offset_runs,
)
from kraftpy.protocol.records import (
    RecordInput,
    batch_data,
    build_batch,
    iter_records,
    read_batch_header,
)

NOW_MS = 1_700_000_000_000

some_names = st.sampled_from(["", "a", "b", "ä", "long" * 30])
plain = st.builds(
    CommittedOffset,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.just(""),
    st.integers(NOW_MS, NOW_MS + 10),
    st.just(-1),
)
odd = st.none() | st.builds(
    CommittedOffset,
    st.integers(0, 9),
    st.integers(-1, 9),
    st.sampled_from(["", "m", "12"]),
    st.just(NOW_MS),
    st.integers(-1, 9),
)


def offset_records(
    committed: st.SearchStrategy[CommittedOffset | None],
) -> st.SearchStrategy[list[OffsetRecord]]:
    record = st.builds(OffsetRecord, some_names, some_names, st.integers(0, 2**31 - 1), committed)
    return st.lists(record, min_size=1, max_size=20)


def batch_of(records: list[OffsetRecord], times_ms: list[int]) -> bytes:
    inputs: list[RecordInput] = []
    for number, record in enumerate(records):
        key, value = encode_record(record)
        inputs.append((times_ms[number % len(times_ms)], key, value, []))
    return bytes(build_batch(inputs))


def runs_of(batch: bytes) -> list[OffsetRecord] | None:
    """The batch's runs as records again."""
    header = read_batch_header(batch)
    runs = read_offset_runs(batch_data(header, batch), header.records_count)
    if runs is None:
        return None
    return [
        OffsetRecord(run.group_id, run.topic, partition, CommittedOffset(offset, epoch, "", ms, -1))
        for run in runs
        for partition, offset, epoch, ms in zip(*run[2:], strict=True)
    ]


@given(offset_records(plain), st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_plain_offsets_of_any_order(records: list[OffsetRecord], times_ms: list[int]) -> None:
    assert runs_of(batch_of(records, times_ms)) == records


@given(offset_records(plain | odd))
def test_others_are_left_to_the_slow_way(records: list[OffsetRecord]) -> None:
    is_plain = all(
        record.committed is not None and record.committed[2::2] == ("", -1) for record in records
    )
    assert runs_of(batch_of(records, [0])) == (records if is_plain else None)


@given(offset_records(plain | odd), st.integers(0, 2**62))
def test_batches_are_those_that_are_built_from_records(
    records: list[OffsetRecord], time_ms: int
) -> None:
    built = build_offset_batch(records, time_ms)
    is_plain = all(
        record.committed is not None and record.committed[2::2] == ("", -1) for record in records
    )
    assert built == (batch_of(records, [time_ms]) if is_plain else None)


def test_records_kept_as_runs_are_the_same_records_in_the_same_batch() -> None:
    """Offset deltas of one and two bytes in one run and across runs."""
    columns = [
        (list(range(count)), [7] * count, [3] * count, [NOW_MS] * count) for count in (1, 99)
    ]
    runs = [OffsetRun("g", topic, *each) for topic, each in zip("tu", columns, strict=True)]
    kept = OffsetRuns(runs)
    records = [
        OffsetRecord("g", topic, index, CommittedOffset(7, 3, "", NOW_MS, -1))
        for topic, count in (("t", 1), ("u", 99))
        for index in range(count)
    ]
    assert list(kept) == records
    assert (len(kept), kept[0], kept[-1], kept[1:3]) == (100, records[0], records[-1], records[1:3])
    assert build_offset_batch(kept, NOW_MS) == batch_of(records, [NOW_MS])


def test_a_commit_of_many_partitions_is_few_runs() -> None:
    for count in (1, 63, 64, 65, 100, 9000):
        committed = CommittedOffset(7, 1, "", NOW_MS, -1)
        records = [OffsetRecord("group", "topic", index, committed) for index in range(count)]
        batch = batch_of(records, [NOW_MS])
        header = read_batch_header(batch)
        runs = read_offset_runs(batch_data(header, batch), count)
        assert runs is not None
        assert len(runs) <= 3  # the offset delta takes one to three bytes
        assert runs_of(batch) == records
        assert build_offset_batch(records, NOW_MS) == batch


def test_what_is_kept_to_write_commits_is_bounded() -> None:
    """Whatever numbers of partitions clients choose to commit."""
    _deltas.cache_clear()
    tracemalloc.start()
    try:
        for count in range(5_000, 5_040):
            columns = [7] * count, [3] * count, [NOW_MS] * count
            build_offset_batch(OffsetRuns([OffsetRun("g", "t", range(count), *columns)]), NOW_MS)
        del columns
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 3 << 20


@given(
    offset_records(plain),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
    st.integers(0, 40),
)
@settings(max_examples=300)
def test_damage_is_left_to_the_slow_way(
    records: list[OffsetRecord], damage: list[tuple[int, int]], cut: int
) -> None:
    """Whatever the bytes are: the same records as one by one, or none at all."""
    batch = batch_of(records, [0])
    header = read_batch_header(batch)
    data = bytearray(batch_data(header, batch))
    for place, byte in damage:
        data[place % len(data)] = byte
    del data[len(data) - cut % len(data) :]
    runs = read_offset_runs(bytes(data), header.records_count)
    if runs is not None:
        assert sum(len(run.partitions) for run in runs) == header.records_count


def test_the_slow_way_reads_the_same() -> None:
    records = [
        OffsetRecord("g", "t", index, CommittedOffset(index, 0, "", NOW_MS + index, -1))
        for index in range(300)
    ]
    batch = batch_of(records, [5, 6])
    slow = [decode_record(each.key, each.value) for each in iter_records(batch)]
    assert runs_of(batch) == slow == records
