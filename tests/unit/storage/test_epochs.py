"""The leader epoch cache: the tables of KIP-101 and KIP-279 (docs/rules.md, rules 1-6)."""

from __future__ import annotations

import pytest

from kraftpy.storage.epochs import LeaderEpochs

ENTRIES = [(2, 10), (4, 20), (7, 20 + 15)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 35)),
        (6, (4, 35)),
        (7, (7, 50)),
        (8, (-1, -1)),
    ],
)
def test_end_offset_is_that_of_the_largest_epoch_not_above(
    asked: int, answer: tuple[int, int]
) -> None:
    assert LeaderEpochs(ENTRIES).end_offset_for(asked, 50) == answer


def test_end_offset_without_epochs() -> None:
    assert LeaderEpochs().end_offset_for(3, 50) == (-1, -1)


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (7, 40, ENTRIES),  # known already
        (8, 40, [*ENTRIES, (8, 40)]),
        (8, 35, [(2, 10), (4, 20), (8, 35)]),  # epoch 7 had no record
        (7, 30, [(2, 10), (4, 20), (7, 30)]),
        (8, 15, [(2, 10), (8, 15)]),
        (3, 60, [(2, 10), (3, 60)]),
        (1, 5, [(1, 5)]),
    ],
)
def test_assign(epoch: int, start: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.assign(epoch, start)
    assert epochs.entries() == expected
    assert epochs.changed == (expected != ENTRIES)


@pytest.mark.parametrize(
    ("end", "expected"),
    [(100, ENTRIES), (36, ENTRIES), (35, ENTRIES[:2]), (11, ENTRIES[:1]), (10, []), (0, [])],
)
def test_truncate_from_end(end: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.truncate_from_end(end)
    assert epochs.entries() == expected
    assert epochs.changed == (expected != ENTRIES)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (5, ENTRIES),
        (10, ENTRIES),
        (15, [(2, 15), (4, 20), (7, 35)]),
        (20, [(4, 20), (7, 35)]),
        (36, [(7, 36)]),
    ],
)
def test_truncate_from_start(start: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.truncate_from_start(start)
    assert epochs.entries() == expected


def test_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert [epochs.epoch_for(offset) for offset in (9, 10, 19, 20, 34, 35, 99)] == [
        -1,
        2,
        2,
        4,
        4,
        7,
        7,
    ]
