"""The metadata quorum as its users see it: one committed log, an active controller that changes.

Raft itself has its own tests; this model keeps its promises and no others. A proposal is committed
after a while, in any order with others; if the active controller is deposed meanwhile it may be
committed by the next one, without an answer, or be lost. Brokers get the log late, several commands
at once, in order. The active controller's soft state is who was heard when: nobody heard for the
session time is fenced, and so is who lost its connection for longer than the grace time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata import LEVEL, MetadataState, PartitionChanged, PartitionState, Result
from tests.simulation.invariants import brief

if TYPE_CHECKING:
    from tests.simulation.world import World

Answer = Callable[[Result], None]

COMMIT_MS = 3.0
TICK_MS = 50.0
GRACE_MS = 100.0
ELECTION_MS = 120.0


class Quorum:
    """`active` is the node of the active controller, None while there is none."""

    def __init__(self, world: World, voters: list[int]) -> None:
        self.world = world
        self.state = MetadataState()
        self.log: list[dict[str, Any]] = []
        self.partitions_at: dict[int, list[PartitionState]] = {}
        self.voters = voters
        self.active: int | None = voters[0]
        self.term = 1
        self._results: dict[object, Result] = {}
        self._heard: dict[int, float] = {}
        self._broken: dict[int, float] = {}
        self._lonely_since: float | None = None

    @property
    def committed_index(self) -> int:
        return len(self.log)

    def start(self) -> None:
        self.raise_level()
        self.world.schedule.after(TICK_MS, self._tick)

    def raise_level(self) -> None:
        """A new cluster's first command."""
        self.apply({"type": "raise_level", "level": LEVEL})

    # -- proposals

    def propose(self, node: int, request: object, command: dict[str, Any], answer: Answer) -> None:
        """From a broker on `node`; retries of one `request` are carried out once."""
        if self.active is not None:
            self.world.network.send(
                node, self.active, self._arrived, node, request, command, answer
            )

    def _arrived(self, node: int, request: object, command: dict[str, Any], answer: Answer) -> None:
        if self.active is not None and self._has_majority(self.active):
            delay_ms = self.world.rng.expovariate(1 / COMMIT_MS)
            self.world.schedule.after(
                delay_ms, self._commit, self.term, node, request, command, answer
            )

    def _commit(
        self, term: int, node: int, request: object, command: dict[str, Any], answer: Answer
    ) -> None:
        deposed = term != self.term
        if deposed and self.world.rng.random() < 0.5:
            return
        result = self._results.get(request)
        if result is None:
            result = self._results[request] = self.apply(command)
        if not deposed and self.active is not None:
            self.world.network.send(self.active, node, answer, result)

    def apply(self, command: dict[str, Any]) -> Result:
        """Commits a command, and sends it on its way to the brokers."""
        self.log.append(command)
        index = len(self.log)
        result = self.state.apply(index, command)
        self.partitions_at[index] = self.world.invariants.all_partitions(self.state)
        if self.world.trace is not None:
            self.world.note(f"#{index} {_brief(command)} -> {result.error.name}")
            for change in result.changes:
                if isinstance(change, PartitionChanged):
                    where = f"{change.topic.name}-{change.index}"
                    self.world.note(f"    {where}: {brief(change.new)}")
        self.world.invariants.committed(command, result)
        for broker in self.world.brokers.values():
            if self.active is not None and broker.registered:
                self.world.network.to_broker(self.active, broker, broker.hear_of, index)
        return result

    def ask(self, command: dict[str, Any]) -> Result:
        """Commits a command of an administrator at once."""
        return self.apply(command)

    # -- liveness of brokers and of the active controller

    def heartbeat(self, broker_id: int, broker_epoch: int) -> None:
        """Arrived at the active controller."""
        known = self.state.brokers.get(broker_id)
        if self.active is None or known is None:
            return
        broker = self.world.brokers[broker_id]
        if known.epoch != broker_epoch:  # STALE_BROKER_EPOCH
            self.world.network.to_broker(self.active, broker, broker.superseded, broker_epoch)
            return
        self._heard[broker_id] = self.world.schedule.now
        self._broken.pop(broker_id, None)
        self.world.network.to_broker(
            self.active, broker, broker.heartbeat_answered, self.committed_index
        )

    def connection_broke(self, broker_id: int) -> None:
        self._broken.setdefault(broker_id, self.world.schedule.now)

    def _tick(self) -> None:
        self.world.schedule.after(TICK_MS, self._tick)
        now = self.world.schedule.now
        if self.active is None:
            return
        if not self._has_majority(self.active):
            self._lonely_since = self._lonely_since or now
            if now - self._lonely_since > ELECTION_MS:
                self.depose()
            return
        self._lonely_since = None
        for broker in list(self.state.brokers.values()):
            silent_ms = now - self._heard.setdefault(broker.id, now)
            broken_ms = now - self._broken.get(broker.id, now)
            if not broker.fenced and (
                silent_ms > self.world.config.session_timeout_ms or broken_ms > GRACE_MS
            ):
                self.apply(
                    {"type": "fence_broker", "broker_id": broker.id, "broker_epoch": broker.epoch}
                )

    def _has_majority(self, node: int) -> bool:
        world = self.world
        together = sum(
            each == node or (world.is_up(each) and world.network.connected(node, each))
            for each in self.voters
        )
        return world.is_up(node) and together * 2 > len(self.voters)

    def depose(self) -> None:
        """The active controller isn't any more; another one is elected after a while."""
        self.term += 1
        self.active = None
        self._lonely_since = None
        self.world.schedule.after(self.world.rng.uniform(20, ELECTION_MS), self._elect)

    def _elect(self) -> None:
        if self.active is not None:
            return
        able = [node for node in self.voters if self._has_majority(node)]
        if not able:
            self.world.schedule.after(ELECTION_MS, self._elect)
            return
        self.active = self.world.rng.choice(able)
        self._heard.clear()
        self._broken.clear()
        self.world.note(f"controller {self.active} in term {self.term}")


def _brief(command: dict[str, Any]) -> str:
    """A command for a trace."""
    kind = command["type"]
    if kind == "register_broker":
        marker = command["previous_broker_epoch"]
        return f"{kind} {command['broker_id']}, marker {marker}"
    if kind == "alter_partition":
        (topic,) = command["topics"]
        (item,) = topic["partitions"]
        isr = [(each["broker_id"], each["broker_epoch"]) for each in item["isr"]]
        epochs = f"{item['leader_epoch']}, {item['partition_epoch']}"
        where = f"{topic['topic_id'][-1]}-{item['index']}"
        return f"{kind} by {command['broker_id']} of {where} in epochs {epochs}: {isr}"
    return f"{kind} { {key: value for key, value in command.items() if key != 'type'} }"
