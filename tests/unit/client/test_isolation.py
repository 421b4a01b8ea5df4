"""Which batches a reader of committed records gets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.client.isolation import Aborted, Admission
from kraftpy.protocol.records import (
    EndTxnMarker,
    InvalidBatch,
    build_end_txn_marker,
    read_batch_header,
)

from .peer import batch


def data(offset: int, producer_id: int, count: int = 1, *, transactional: bool = True) -> bytes:
    return batch(offset, *[b"v"] * count, producer_id=producer_id, transactional=transactional)


def marker(offset: int, producer_id: int, *, committed: bool) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(committed, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
    )


def admitted(batches: Sequence[bytes], *aborted: tuple[int, int]) -> list[int]:
    """The base offsets of the batches that are for the reader."""
    admission = Admission(Aborted(*each) for each in aborted)
    found = []
    for each in batches:
        header = read_batch_header(each)
        if admission.admits(header, each, 0):
            found.append(header.base_offset)
    return found


def test_what_a_transaction_wrote_is_left_out_up_to_its_marker() -> None:
    log = [
        data(0, 1),
        data(1, 2),
        data(2, 1),
        marker(3, 1, committed=False),
        data(4, 1),
        marker(5, 2, committed=True),
        marker(6, 1, committed=True),
    ]
    assert admitted(log, (1, 0)) == [1, 4]
    assert admitted(log) == [0, 1, 2, 4]


def test_the_same_producer_can_abort_again() -> None:
    log = [
        data(0, 1),
        marker(1, 1, committed=False),
        data(2, 1),
        marker(3, 1, committed=True),
        data(4, 1),
        marker(5, 1, committed=False),
    ]
    assert admitted(log, (1, 0), (1, 4)) == [2]
    assert admitted(log, (1, 4), (1, 0)) == [2]


def test_it_may_have_begun_before_the_answer() -> None:
    assert admitted([data(7, 1), marker(8, 1, committed=False), data(9, 1)], (1, 3)) == [9]


def test_a_batch_that_is_no_transactions_is_the_readers() -> None:
    log = [data(0, 1), data(1, 1, transactional=False)]
    assert admitted(log, (1, 0)) == [1]


def test_a_transaction_that_begins_inside_a_batch_leaves_it_out() -> None:
    """As a cleaner leaves them: the first record is gone, and the batch keeps its offsets."""
    assert admitted([data(0, 1, 3)], (1, 2)) == []


def test_a_marker_that_makes_no_sense_is_damage() -> None:
    broken = batch(1, b"no marker", control=True, transactional=True, producer_id=1)
    with pytest.raises(InvalidBatch):
        admitted([data(0, 1), broken], (1, 0))


@given(st.data())
def test_readers_get_what_is_committed(choices: st.DataObject) -> None:
    """Transactions of a few producers, interleaved, and from any offset on."""
    log: list[bytes] = []
    open_since: dict[int, int] = {}
    written: dict[int, list[int]] = {}
    aborted: list[tuple[int, int, int]] = []
    gone: set[int] = set()
    for offset in range(choices.draw(st.integers(1, 30))):
        producer = choices.draw(st.integers(1, 3))
        if producer in open_since and choices.draw(st.booleans()):
            committed = choices.draw(st.booleans())
            log.append(marker(offset, producer, committed=committed))
            if not committed:
                aborted.append((producer, open_since[producer], offset))
                gone.update(written[producer])
            del open_since[producer]
        else:
            log.append(data(offset, producer))
            open_since.setdefault(producer, offset)
            if open_since[producer] == offset:
                written[producer] = []
            written[producer].append(offset)
    stable = min(open_since.values(), default=len(log))
    start = choices.draw(st.integers(0, stable))
    told = [
        (producer, first) for producer, first, last in aborted if last >= start and first < stable
    ]
    expected = [
        offset
        for offset in range(start, stable)
        if offset not in gone and not read_batch_header(log[offset]).is_control
    ]
    assert admitted(log[start:stable], *told) == expected
