"""The clock that data is deleted by: a step forward counts only when it has lasted."""

from __future__ import annotations

import pytest

from kraftpy.storage.clock import SETTLE_MS, STEP_MS, SettledClock

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000


class Machine:
    """A wall clock that can be set, and one that can't."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.monotonic_ms = 5_000
        self.settled = SettledClock(lambda: self.wall_ms / 1000, lambda: self.monotonic_ms / 1000)

    def wait(self, ms: int, *, drift: float = 0.0) -> int:
        """Look at it every second for so long."""
        for _ in range(ms // 1000):
            self.wall_ms += round(1000 * (1 + drift))
            self.monotonic_ms += 1000
            self.settled.now_ms()
        return self.settled.now_ms()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_goes_with_the_wall_clock(machine: Machine) -> None:
    assert machine.settled.now_ms() == START_MS
    assert machine.wait(DAY_MS // 24) == machine.wall_ms
    assert machine.wait(DAY_MS // 24, drift=0.2) == machine.wall_ms
    assert machine.wait(DAY_MS // 24, drift=-0.2) == machine.wall_ms
    machine.wall_ms += STEP_MS
    assert machine.settled.now_ms() == machine.wall_ms


def test_a_step_forward_counts_when_it_has_lasted(machine: Machine) -> None:
    machine.wall_ms += 10 * DAY_MS
    assert machine.settled.now_ms() == START_MS
    assert machine.wait(SETTLE_MS - 1000) == START_MS + SETTLE_MS - 1000
    assert machine.wait(1000) == machine.wall_ms == START_MS + 10 * DAY_MS + SETTLE_MS


def test_a_step_forward_that_is_taken_back_never_counts(machine: Machine) -> None:
    for _ in range(5):
        machine.wall_ms += 10 * DAY_MS
        machine.wait(SETTLE_MS // 2)
        machine.wall_ms -= 10 * DAY_MS
        assert machine.wait(SETTLE_MS // 2) == machine.wall_ms


def test_another_step_begins_the_wait_anew(machine: Machine) -> None:
    for _ in range(5):
        machine.wall_ms += DAY_MS
        machine.wait(SETTLE_MS // 2)
        assert machine.settled.now_ms() < START_MS + DAY_MS
    assert machine.wait(SETTLE_MS // 2 + 1000) == machine.wall_ms


def test_a_step_back_counts_at_once_and_is_made_up_for_late(machine: Machine) -> None:
    machine.wall_ms -= 10 * DAY_MS
    assert machine.settled.now_ms() == machine.wall_ms
    machine.wall_ms += 10 * DAY_MS
    assert machine.settled.now_ms() == START_MS - 10 * DAY_MS
    assert machine.wait(SETTLE_MS) == machine.wall_ms
