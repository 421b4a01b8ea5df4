"""The checker finds what is planted, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import build_batch
from tests.consistency.checker import check, read_segments

Log = list[tuple[int, bytes]]

SENT = [b"value-%d" % i for i in range(10)]
LOG: Log = list(enumerate(SENT[:9]))  # the last one was under way when the broker died
ACKNOWLEDGED = {value: offset for offset, value in LOG[:7]}


def kinds(log: Log, start: int = 0) -> set[str]:
    return {anomaly.kind for anomaly in check(SENT, ACKNOWLEDGED, log, start)}


def test_a_good_history() -> None:
    assert kinds(LOG) == set()
    assert kinds(LOG[:7]) == set()  # what was never acknowledged may be missing
    assert kinds([*LOG, (9, SENT[9])]) == set()
    assert kinds(LOG[4:], start=4) == set()


def renumbered(log: Log) -> Log:
    return [(offset, value) for offset, (_, value) in enumerate(log)]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda log: log[:6], "lost"),
        (lambda log: renumbered(log[:3] + log[4:]), "lost"),
        (lambda log: log[:3] + log[4:], "gap"),
        (lambda log: [(offset + 1, value) for offset, value in log], "gap"),
        (lambda log: [*log, (9, SENT[2])], "duplicate"),
        (lambda log: renumbered([*log[:5], log[4], *log[5:]]), "misplaced"),
        (lambda log: renumbered([*log[:7], log[8], log[7]]), "reordered"),
        (lambda log: [*log, (9, b"value-99")], "invented"),
    ],
)
def test_a_planted_anomaly(plant: Callable[[Log], Log], kind: str) -> None:
    assert kind in kinds(plant(LOG))


def segment(first: int, values: list[bytes]) -> bytes:
    records = [(1_700_000_000_000, None, value, []) for value in values]
    return bytes(build_batch(records, base_offset=first))


def test_raw_segments() -> None:
    first, second = segment(0, SENT[:4]) + segment(4, SENT[4:6]), segment(6, SENT[6:])
    assert read_segments([(0, first), (6, second)]) == list(enumerate(SENT))
    flipped = bytearray(first)
    flipped[-3] ^= 1
    with pytest.raises(DecodeError):
        read_segments([(0, bytes(flipped)), (6, second)])
    with pytest.raises(DecodeError):
        read_segments([(0, first[:-1])])
    with pytest.raises(ValueError, match="segment 5 starts with offset 6"):
        read_segments([(5, second)])
