"""The aborted transactions of one segment: Kafka's bytes, searches, damage."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.producers import CompletedTransaction
from kraftpy.storage import transaction_index
from kraftpy.storage.index import IndexFileError
from kraftpy.storage.transaction_index import TransactionIndex


def aborted(producer_id: int, first: int, last: int, stable: int) -> CompletedTransaction:
    return CompletedTransaction(producer_id, first, last, stable, committed=False)


SOME = [aborted(7, 0, 5, 2), aborted(8, 2, 9, 10), aborted(7, 12, 20, 21)]


def test_bytes_are_kafkas(tmp_path: Path) -> None:
    data = TransactionIndex(SOME).to_bytes()
    assert data[:34] == struct.pack(">hqqqq", 0, 7, 0, 5, 2)
    assert len(data) == 3 * 34
    path = tmp_path / "0.txnindex"
    path.write_bytes(data)
    again = TransactionIndex.load(path)
    assert list(again) == SOME
    assert again.to_bytes() == data
    assert again.size_bytes == 3 * 32


def test_no_file_and_an_empty_one_have_none(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    assert not TransactionIndex.load(path)
    path.touch()
    assert not TransactionIndex.load(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 33,
        struct.pack(">hqqqq", 1, 7, 0, 5, 6),
        struct.pack(">hqqqq", 0, -1, 0, 5, 6),
        struct.pack(">hqqqq", 0, 7, 5, 5, 6),
        struct.pack(">hqqqq", 0, 7, -1, 5, 6),
        struct.pack(">hqqqq", 0, 7, 0, 5, 7),
        struct.pack(">hqqqq", 0, 7, 0, 5, -1),
        struct.pack(">hqqqq", 0, 7, 0, 5, 6) * 2,
        b"\0" * 34,
    ],
)
def test_entries_that_cannot_be_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(data)
    with pytest.raises(IndexFileError, match=r"0\.txnindex"):
        TransactionIndex.load(path)


def test_a_cut_drops_the_markers_behind_it() -> None:
    index = TransactionIndex(SOME)
    assert not index.truncate(21)
    assert index.truncate(20)
    assert list(index) == SOME[:2]
    assert not index.truncate(10)
    assert index.truncate(0)
    assert not index


def test_a_search_ends_where_nothing_later_can_count() -> None:
    index = TransactionIndex(SOME)
    found: list[CompletedTransaction] = []
    assert index.collect(3, 10, found)
    assert found == SOME[:2]
    found.clear()
    assert not index.collect(6, 100, found)
    assert found == SOME[1:]


class Counted(array):  # type: ignore[type-arg]
    """Numbers that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def test_a_transaction_that_stays_open_has_reads_look_at_few_of_the_others() -> None:
    many = 20_000
    index = TransactionIndex(aborted(7, 10 + 2 * n, 11 + 2 * n, 5) for n in range(many))
    index.append(aborted(8, 5, 10 + 2 * many, 11 + 2 * many))
    counted = index._fields = Counted("q", index._fields)
    found: list[CompletedTransaction] = []
    assert index.collect(20, 30, found)
    assert [each.first_offset for each in found] == [20, 22, 24, 26, 28, 5]
    assert counted.looks < many / 5


@pytest.mark.parametrize("keep", range(8))
def test_a_cut_anywhere_in_a_block(keep: int) -> None:
    some = [aborted(7, 9 - n if n % 2 else n, 10 + n, 0) for n in range(8)]
    with mock.patch.object(transaction_index, "_BLOCK", 3):
        index = TransactionIndex(some)
        assert index.truncate(10 + keep)
        left, added = some[:keep], aborted(7, 4, 30, 31)
        for _ in range(2):
            for upper in range(10):
                found: list[CompletedTransaction] = []
                index.collect(0, upper, found)
                assert found == [each for each in left if each.first_offset < upper]
            index.append(added)
            left = [*left, added]


lengths = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["data", "data", "abort", "commit"])), max_size=30
)


@given(lengths, st.lists(st.integers(0, 30), max_size=3))
def test_what_a_read_may_meet_matches_a_scan(log: list[tuple[int, str]], bounds: list[int]) -> None:
    """One entry an offset, cut into segments at `bounds`."""
    with mock.patch.object(transaction_index, "_BLOCK", 2):
        matches_a_scan(log, bounds)


def matches_a_scan(log: list[tuple[int, str]], bounds: list[int]) -> None:
    segments = [TransactionIndex() for _ in range(len(bounds) + 1)]
    starts = [0, *sorted(bounds)]
    open_: dict[int, int] = {}
    ended: list[CompletedTransaction] = []
    for offset, (producer_id, kind) in enumerate(log):
        if kind == "data":
            open_.setdefault(producer_id, offset)
        elif producer_id in open_:
            first = open_.pop(producer_id)
            if kind == "abort":
                entry = aborted(producer_id, first, offset, min([*open_.values(), offset + 1]))
                number = max(n for n, start in enumerate(starts) if start <= offset)
                segments[number].append(entry)
                ended.append(entry)
    for fetch_offset in range(len(log)):
        number = max(n for n, start in enumerate(starts) if start <= fetch_offset)
        # Nobody reads beyond the first record of an open transaction.
        for upper in range(fetch_offset, min([*open_.values(), len(log)]) + 1):
            found: list[CompletedTransaction] = []
            for index in segments[number:]:
                if index.collect(fetch_offset, upper, found):
                    break
            assert found == [
                t for t in ended if t.last_offset >= fetch_offset and t.first_offset < upper
            ]
