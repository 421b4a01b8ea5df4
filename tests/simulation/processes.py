"""What processes and coordinators have of time in a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """`life` numbers its processes; even while it is down, odd while it is up."""

    world: World

    def __init__(self) -> None:
        self.life = 0
        self.paused_until = 0.0

    @property
    def up(self) -> bool:
        return self.life % 2 == 1

    def run(self, life: int, function: Callable[..., None], *args: Any) -> None:
        """Runs what is due, in this life only, and not while the process is stopped."""
        if life != self.life:
            return
        paused_ms = self.paused_until - self.world.schedule.now
        if paused_ms > 0:
            self.world.schedule.after(paused_ms, self.run, life, function, *args)
        else:
            function(*args)


class Coordinating(Replica):
    """A partition of a coordinators' log at one broker; `machine` while that coordinates."""

    machine: Any = None

    @property
    def now_ms(self) -> int:
        return self.world.now_ms

    def _later(self, delay_ms: float, act: Callable[..., None], *args: object) -> None:
        """As long as it is this coordinator's time."""
        machine = self.machine

        def come() -> None:
            if self.machine is machine:
                act(*args)

        self.world.schedule.after(delay_ms, self.broker.run, self.broker.life, come)
