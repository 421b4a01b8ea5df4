"""What a fault works on, and what one is made of."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from kraftpy.testing.cluster import Cluster, ClusterError
from kraftpy.testing.consistency.faults.frames import Frames

OFFSETS_TOPIC = "__consumer_offsets"
SHARE_STATE_TOPIC = "__share_group_state"
_IN_SYNC_TIMEOUT_S = 15.0
_POLL_S = 0.05


class Client(Protocol):
    """A process that loads the cluster."""

    @property
    def name(self) -> str: ...

    def crash(self) -> None:
        """SIGKILL."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""

    def leave(self) -> None:
        """Has it finish, and nobody replace it yet."""

    def come_back(self) -> None:
        """Has somebody replace it."""

    @property
    def role(self) -> str: ...

    @property
    def identity(self) -> int | None:
        """As whom it was to write in transactions; None if it doesn't."""

    def take_identity(self, identity: int) -> None:
        """Has it write as somebody else, or as itself again."""


@dataclass(slots=True)
class Ground:
    """Where faults happen: a cluster, the topics (name -> partitions) under load, and its clients.

    `busy` are the nodes that a fault begun together with others has chosen already. `frames` is
    what clients reach the cluster through, None for nothing.
    """

    cluster: Cluster
    topics: dict[str, int]
    rng: random.Random
    target: str = "any"
    busy: set[int] = field(default_factory=set)
    clients: Sequence[Client] = ()
    frames: Frames | None = None

    def victims(self, count: int) -> list[int]:
        """Nodes, the target first; not those that another fault works on, if there are others."""
        nodes = sorted(self.cluster.nodes)
        self.rng.shuffle(nodes)
        found = self._find()
        order = sorted(nodes, key=lambda node: (node in self.busy, node != found))
        self.busy.update(order[:count])
        return order[:count]

    def all_in_sync(self) -> bool:
        """Whether every replica of everything is, or is soon, in sync.

        Only then may one of them lose what it acknowledged.
        """
        try:
            self.cluster.wait_healthy(_IN_SYNC_TIMEOUT_S)
        except ClusterError:
            return False
        return True

    def wait_until_out_of_sync(self, node: int) -> None:
        """Until a node that is down is in no ISR any more."""
        cluster = self.cluster
        deadline = time.monotonic() + _IN_SYNC_TIMEOUT_S
        while any(node in cluster.in_sync(*each) for each in self._partitions()):
            if time.monotonic() > deadline:
                raise ClusterError(f"broker {node} is down, and stays in sync")
            time.sleep(_POLL_S)

    def _partitions(self) -> list[tuple[str, int]]:
        return self.cluster.partitions_of(OFFSETS_TOPIC, *self.topics)

    def _find(self) -> int | None:
        try:
            match self.target:
                case "leader" if self.topics:
                    topic, partitions = self.rng.choice(sorted(self.topics.items()))
                    return self.cluster.leader_of(topic, self.rng.randrange(partitions))
                case "coordinator":
                    return self._coordinator()
                case "controller":
                    return self.cluster.controller()
        except ClusterError:
            return None  # nobody who answers knows: anybody then
        return None

    def _coordinator(self) -> int | None:
        """Who leads the partition of groups' offsets, or state, that was written to last."""
        written: dict[str, float] = {}
        logs = [f"{topic}-*/*.log" for topic in (OFFSETS_TOPIC, SHARE_STATE_TOPIC)]
        for node in self.cluster.nodes.values():
            for path in (path for log in logs for path in node.log_dir.glob(log)):
                if not path.parent.name.rpartition("-")[2].isdigit():
                    continue  # a replica that was damaged, and put aside
                with contextlib.suppress(OSError):  # it may be compacted away meanwhile
                    stat = path.stat()
                    if stat.st_size:
                        name = path.parent.name
                        written[name] = max(written.get(name, 0.0), stat.st_mtime)
        if not written:
            return None
        newest = max(written, key=written.__getitem__)
        topic, _, partition = newest.rpartition("-")
        return self.cluster.leader_of(topic, int(partition))


class Part(IntEnum):
    """What of a cluster a kind of fault works on, or its clients.

    Of faults that overlap the last begins last and ends first: a process that has ended doesn't
    come back while its links are cut.
    """

    REPLICAS = 1
    CLOCKS = 2
    PROCESSES = 3
    LINKS = 4
    CLIENTS = 5


class LeftOut(str):
    """What `Act.begin` returns of a fault that was not what its name says, and why.

    It may have done a part of it, killed a node for instance, and is ended like all others; but it
    doesn't count as come.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Act:
    """A fault whose victims are chosen: what begins it, and what ends it.

    `detail` says in words what it is; `begin` may return more that is known only then: what
    happened, or as a `LeftOut` why it didn't.
    """

    targets: Sequence[int]
    detail: str
    begin: Callable[[], str | None]
    end: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Need:
    """What a kind of fault takes that not every machine has.

    `option` is the one of `Cluster` that makes use of it; `missing` says why it isn't there and
    what to do, empty if it is. That may take a moment.
    """

    option: str
    missing: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """`nodes` is how many there have to be; `need` what else, None for nothing.

    Kinds that work on different `part`s of a cluster can happen at the same time; those with none
    only alone. A fault lasts for `least_s`, whatever the schedule says. Groups come to rest before
    one that is `calm`, and nothing else happens to them while it lasts.
    """

    about: str
    plan: Callable[[Ground], Act]
    nodes: int = 1
    part: Part | None = None
    need: Need | None = None
    least_s: float = 0.0
    calm: bool = False
