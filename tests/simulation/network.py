"""Messages between nodes: delayed, lost, sent twice, overtaken, and not at all where a link is cut.

Less kind than TCP, which neither duplicates nor reorders: who survives this survives that. Where
the protocol needs the order (several Produce requests in flight), `Connection` keeps it. A message
is for one life of a process; a later one doesn't get it. A paused process gets it late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.schedule import Schedule

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

Message = Callable[..., None]

LATE_MS = 1500.0  # up to how much later a duplicate comes


class Network:
    """`latency_ms` on average; `loss` and `duplication` are probabilities."""

    def __init__(
        self, schedule: Schedule, latency_ms: float, loss: float, duplication: float
    ) -> None:
        self._schedule = schedule
        self._rng = schedule.rng
        self.latency_ms = latency_ms
        self.loss = loss
        self.duplication = duplication
        self.cut: set[tuple[int, int]] = set()  # (from, to)

    def connected(self, one: int, other: int) -> bool:
        """Whether messages pass both ways."""
        return (one, other) not in self.cut and (other, one) not in self.cut

    def heal(self) -> None:
        self.cut.clear()
        self.loss = self.duplication = 0.0

    def _arrivals(self) -> list[float]:
        rng = self._rng
        if self.loss and rng.random() < self.loss:
            return []
        arrivals = [rng.expovariate(1 / self.latency_ms)]
        if self.duplication and rng.random() < self.duplication:
            arrivals.append(rng.uniform(0.0, LATE_MS))
        return arrivals

    def to_broker(self, source: int, broker: Broker, message: Message, *args: Any) -> None:
        """To a broker's process. `source` is a broker's id, or -1 for a client."""
        if broker.up and (source, broker.id) not in self.cut:
            for delay_ms in self._arrivals():
                self._schedule.after(delay_ms, broker.receive, broker.life, message, args)

    def send(self, source: int, target: int, message: Message, *args: Any) -> None:
        """To anything else that is on node `target` or, with -1, on a client's machine."""
        if (source, target) not in self.cut:
            for delay_ms in self._arrivals():
                self._schedule.after(delay_ms, message, *args)


class Connection:
    """To a broker and back: in order, nothing twice, and after the first loss nothing any more.

    From a client, or from the broker `source`.
    """

    def __init__(self, network: Network, broker: Broker, source: int = -1) -> None:
        self._network = network
        self._source = source
        self._broker = broker
        self._life = broker.life
        self._last_arrival = self._last_answer = 0.0
        self._broken = False

    def leads_to(self, broker: Broker) -> bool:
        """Whether what is sent still gets there."""
        return self._broker is broker and self._life == broker.life and not self._broken

    def send(self, message: Message, *args: Any) -> None:
        network, schedule = self._network, self._network._schedule
        arrivals = network._arrivals()
        is_cut = (self._source, self._broker.id) in network.cut
        if self._broken or is_cut or not arrivals:
            self._broken = True
            return
        self._last_arrival = max(self._last_arrival, schedule.now + arrivals[0])
        schedule.after(
            self._last_arrival - schedule.now, self._broker.receive, self._life, message, args
        )

    def answer(self, message: Message, *args: Any) -> None:
        """Back from the broker."""
        network, schedule = self._network, self._network._schedule
        arrivals = network._arrivals()
        is_cut = (self._broker.id, self._source) in network.cut
        if self._broken or is_cut or not arrivals:
            self._broken = True
            return
        self._last_answer = max(self._last_answer, schedule.now + arrivals[0])
        schedule.after(self._last_answer - schedule.now, message, *args)
