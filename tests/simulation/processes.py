"""What processes and coordinators have of time in a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.core.coordination import Effects, Write
from kraftpy.core.replication import Leadership
from kraftpy.protocol.errors import ErrorCode
from tests.simulation.log import header_of, stamped
from tests.simulation.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.world import World


WRITE_TIMEOUT_MS = 400.0


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


class OneLog(Coordinating):
    """A coordinator that keeps all it knows in this partition.

    `_begin` makes the machine and loads it, `_carry_out` does what it asks for, `_moved` hears that
    the high watermark has, and `_refuse` that a write can't be taken.
    """

    def _after_change(self, moved: bool) -> None:
        super()._after_change(moved)
        if moved:
            self._moved()
        role = self.role
        if not isinstance(role, Leadership):
            return
        if self.machine is None:
            if role.settled:
                self._writes: list[tuple[int, Write[Any]]] = []
                self._begin(role)
            return
        while self._writes and self._writes[0][0] <= role.high_watermark:
            end_offset, write = self._writes.pop(0)
            write.offset = end_offset - len(write.records)
            self._carry_out(self.machine.committed(write, self.now_ms))

    def _write(self, write: Write[Any]) -> None:
        role = self.role
        if self.machine is None:
            return
        assert isinstance(role, Leadership)
        if error := role.acks_all_error:
            self._refuse(write, error)
            return
        values = tuple(write.records)
        self._writes.append((self.log.log_end_offset + len(values), write))
        self.append(
            stamped(header_of(len(values)), self.log.log_end_offset, role.leader_epoch), values
        )
        self._later(WRITE_TIMEOUT_MS, self._time_out, write)

    def _time_out(self, write: Write[Any]) -> None:
        if self.machine is not None and any(write is each for _, each in self._writes):
            self._carry_out(self.machine.timed_out(write, self.now_ms))

    def _moved(self) -> None:
        raise NotImplementedError

    def _begin(self, role: Leadership) -> None:
        raise NotImplementedError

    def _carry_out(self, effects: Effects[Any]) -> None:
        raise NotImplementedError

    def _refuse(self, write: Write[Any], error: ErrorCode) -> None:
        raise NotImplementedError
