"""The checker finds what is planted, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.protocol.records import build_batch
from tests.torture.checker import (
    History,
    Led,
    check_epochs,
    check_partition,
    check_reader,
    check_replicas,
    read_log,
)

Log = list[tuple[int, bytes]]

A, B = ([b"%s-%d" % (name, i) for i in range(6)] for name in (b"a", b"b"))
# Both writers' last value was under way when all ended.
LOG: Log = list(enumerate([A[0], B[0], A[1], A[2], B[1], B[2], A[3], B[3], A[4], B[4]]))
HISTORIES = [
    History(values, {value: offset for offset, value in LOG if value in values})
    for values in (A, B)
]


def renumbered(log: Log) -> Log:
    return [(offset, value) for offset, (_, value) in enumerate(log)]


def swapped(log: Log, i: int, j: int) -> Log:
    values = [value for _, value in log]
    values[i], values[j] = values[j], values[i]
    return list(enumerate(values))


def test_a_good_partition() -> None:
    assert check_partition(HISTORIES, LOG) == []
    assert check_partition(HISTORIES, [*LOG, (10, B[5]), (11, A[5])]) == []
    assert check_partition([], []) == []


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda log: log[:9], "lost"),
        (lambda log: renumbered(log[:3] + log[4:]), "lost"),
        (lambda log: log[:3] + log[4:], "gap"),
        (lambda log: renumbered([*log, log[4]]), "duplicate"),
        (lambda log: renumbered([*log[:3], log[2], *log[3:]]), "duplicate"),
        (lambda log: swapped(log, 2, 3), "reordered"),  # both of one writer
        (lambda log: swapped(log, 0, 1), "misplaced"),
        (lambda log: [*log, (10, b"c-0")], "invented"),
    ],
)
def test_a_planted_fault_in_a_partition(plant: Callable[[Log], Log], kind: str) -> None:
    assert kind in {anomaly.kind for anomaly in check_partition(HISTORIES, plant(LOG))}


def test_a_good_reader() -> None:
    assert check_reader(LOG, LOG, once=True) == []
    assert check_reader([*LOG[:5], *LOG[3:]], LOG, once=False) == []  # a group was rebalanced


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([*LOG[:4], (4, B[2]), *LOG[5:]], "dirty read"),
        ([*LOG, (10, A[5])], "dirty read"),  # of a record that was cut off later
        (LOG[:4] + LOG[5:], "unseen"),
        ([*LOG[:5], *LOG[4:]], "read twice"),
    ],
)
def test_a_planted_fault_of_a_reader(seen: Log, kind: str) -> None:
    assert {anomaly.kind for anomaly in check_reader(seen, LOG, once=True)} == {kind}


def batch(first: int, values: list[bytes], epoch: int = 0) -> bytes:
    records = [(1_700_000_000_000, None, value, []) for value in values]
    return bytes(build_batch(records, base_offset=first, leader_epoch=epoch))


CONTENT = batch(0, A[:3]) + batch(3, B[:2], epoch=1) + batch(5, A[3:5], epoch=1)


def test_good_replicas() -> None:
    assert read_log(CONTENT) == list(enumerate([*A[:3], *B[:2], *A[3:5]]))
    assert check_replicas({1: CONTENT, 2: CONTENT, 3: CONTENT}, 7) == []
    # Above the high watermark they may differ.
    assert check_replicas({1: CONTENT, 2: CONTENT + batch(7, [b"x"]), 3: CONTENT}, 7) == []


@pytest.mark.parametrize(
    "damaged",
    [
        CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]),
        batch(0, A[:3]) + batch(3, B[:2], epoch=2) + batch(5, A[3:5], epoch=1),
        batch(0, A[:3]) + batch(3, B[:2], epoch=1),
        batch(0, A[:3]) + batch(3, [*B[:2], *A[3:5]], epoch=1),
    ],
    ids=["a byte", "an epoch", "a batch missing", "other batches"],
)
@pytest.mark.parametrize("node", [1, 3])
def test_a_replica_that_diverged(damaged: bytes, node: int) -> None:
    contents = {1: CONTENT, 2: CONTENT, 3: CONTENT} | {node: damaged}
    assert {anomaly.kind for anomaly in check_replicas(contents, 7)} == {"diverged"}


LED = [Led("metadata", 0, 1), Led("metadata", 1, 2), Led("metadata", 2, 1), Led("broker 3", 1, 2)]
BATCHES = [(0, 0), (1, 3), (1, 5)]
CHECKPOINT = [(0, 0), (1, 3)]


def test_good_epochs() -> None:
    checkpoints = {1: [*CHECKPOINT, (2, 7)], 2: CHECKPOINT, 3: CHECKPOINT}
    assert check_epochs(LED, checkpoints, BATCHES) == []


@pytest.mark.parametrize(
    ("led", "checkpoint", "batches", "kind"),
    [
        ([*LED, Led("broker 1", 1, 1)], CHECKPOINT, BATCHES, "two leaders"),
        (LED, [(0, 0), (1, 4)], BATCHES, "epochs"),
        (LED, [(0, 0)], BATCHES, "epochs"),
        (LED, [*CHECKPOINT, (3, 7)], BATCHES, "epochs"),
        (LED, CHECKPOINT, [*BATCHES, (0, 7)], "epochs"),
        (LED, [*CHECKPOINT, (3, 7)], [*BATCHES, (3, 7)], "epochs"),
    ],
    ids=["two", "another start", "missing", "unknown", "falling", "records of nobody"],
)
def test_a_planted_fault_in_epochs(
    led: list[Led], checkpoint: list[tuple[int, int]], batches: list[tuple[int, int]], kind: str
) -> None:
    assert {anomaly.kind for anomaly in check_epochs(led, {1: checkpoint}, batches)} == {kind}
