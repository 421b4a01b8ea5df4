"""Each waiter is told once its own offset is reached, whoever else waits for more."""

from __future__ import annotations

import random

from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.replication.waiters import Waiters


class Told:
    """Waiters that note who was told what."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self.calls: list[tuple[int, int, ErrorCode]] = []

    def add(self, offset: int, number: int = 0) -> None:
        self.waiters.add(offset, lambda error: self.calls.append((offset, number, error)))


def test_a_far_waiter_holds_up_nobody() -> None:
    told = Told()
    for offset in (1_000, 10, 500):
        told.add(offset)
    told.waiters.advance(499)
    assert told.calls == [(10, 0, ErrorCode.NONE)]
    told.waiters.advance(500)
    assert told.calls[1:] == [(500, 0, ErrorCode.NONE)]
    told.waiters.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told.calls[2:] == [(1_000, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert not told.waiters


def test_any_order_of_offsets() -> None:
    source = random.Random(1)
    for _ in range(50):
        told = Told()
        offsets = [source.randrange(20) for _ in range(40)]
        for number, offset in enumerate(offsets):
            told.add(offset, number)
        for watermark in range(21):
            told.waiters.advance(watermark)
            expected = sorted((o, number) for number, o in enumerate(offsets) if o <= watermark)
            assert [(o, number) for o, number, _ in told.calls] == expected


def test_who_is_told_may_wait_again() -> None:
    told = Told()
    told.waiters.add(10, lambda _error: told.add(5))
    told.add(20)
    told.waiters.advance(10)
    assert told.calls == [(5, 0, ErrorCode.NONE)]
