"""What the page shows, and what is wrong with it. Nothing here asks or waits.

A number that isn't known is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kraftpy.frozen import NamedTuple
from kraftpy.page.rates import UNKNOWN, Trend

VOTER_SILENT_MS = 5_000
"""A voter that its leader hasn't heard of for so long is reported; it answers every 0.1 s or so."""
NO_ANSWER = "no answer"
"""The state of a group whose coordinator says nothing."""
FREE_MIN = 0.1
"""The part of a disk that should be free."""

TRANSACTIONS_TOPIC = "__transaction_state"
"""Without it there was no transaction yet."""

TopicPartition = tuple[str, int]


class Trouble(IntEnum):
    """How a partition is, the worst first."""

    OFFLINE = 0
    UNDER_MIN_ISR = 1
    UNDER_REPLICATED = 2
    MOVING = 3
    NONE = 4

    @property
    def key(self) -> str:
        """In JSON."""
        return "ok" if self is Trouble.NONE else self.name.lower()

    @property
    def text(self) -> str:
        """For a person."""
        words = {
            Trouble.UNDER_MIN_ISR: "under min ISR",
            Trouble.UNDER_REPLICATED: "under-replicated",
        }
        return words.get(self, self.key)


class Partition(NamedTuple):
    """A partition as the metadata has it; `leader` is -1 if there is none."""

    number: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    adding: list[int]
    removing: list[int]

    def trouble(self, min_isr: int) -> Trouble:
        """What is wrong with it; as `kraftpy cluster health` judges."""
        if self.leader < 0:
            return Trouble.OFFLINE
        if len(self.isr) < min(min_isr, len(self.replicas)):
            return Trouble.UNDER_MIN_ISR
        if any(each not in self.isr and each not in self.adding for each in self.replicas):
            return Trouble.UNDER_REPLICATED
        return Trouble.MOVING if self.adding or self.removing else Trouble.NONE


class Topic:
    """A topic; `counts` says how many of its partitions are in which trouble."""

    def __init__(
        self, name: str, internal: bool, min_isr: int, partitions: list[Partition]
    ) -> None:
        self.name = name
        self.internal = internal
        self.min_isr = min_isr
        self.partitions = partitions
        self.counts: dict[Trouble, int] = {}
        for each in partitions:
            trouble = each.trouble(min_isr)
            self.counts[trouble] = self.counts.get(trouble, 0) + 1

    @property
    def worst(self) -> Trouble:
        return min(self.counts, default=Trouble.NONE)

    @property
    def leaders(self) -> list[int]:
        """The brokers that lead any of it."""
        return sorted({each.leader for each in self.partitions if each.leader >= 0})

    @property
    def replicas(self) -> int:
        return sum(len(each.replicas) for each in self.partitions)

    @property
    def in_sync(self) -> int:
        return sum(len(each.isr) for each in self.partitions)


@dataclass(frozen=True)
class Broker:
    """A registered broker; `fenced` ones serve nothing."""

    id: int
    epoch: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    shutting_down: bool

    @property
    def state(self) -> str:
        return "fenced" if self.fenced else "shutting down" if self.shutting_down else "up"


@dataclass(frozen=True)
class BrokerProcess:
    """How this node's own broker is."""

    state: str
    in_touch: bool
    heard_ms: int
    leader: int | None
    address: tuple[str, int] | None


@dataclass(frozen=True)
class ControllerProcess:
    """This node's own voter; `progress` has id, end of log and milliseconds since it was heard."""

    role: str
    leader: int | None
    term: int
    committed: int
    voters: dict[int, str]
    progress: list[tuple[int, int, int | None]]


@dataclass(frozen=True)
class Event:
    """Something that happened in one of this node's processes.

    `time_ms` is since 1970, `level` that of `logging`; `number` counts the process's events.
    """

    time_ms: int
    process: str
    number: int
    level: int
    name: str
    fields: dict[str, str]


@dataclass(frozen=True)
class Node:
    """This node, and the metadata as it has it. `silent` are its processes that don't answer."""

    id: int
    cluster: str | None = None
    broker: BrokerProcess | None = None
    controller: ControllerProcess | None = None
    silent: tuple[str, ...] = ()
    index: int = 0
    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def roles(self) -> str:
        """What the node is."""
        parts = {"broker": self.broker, "controller": self.controller}
        return " and ".join(name for name, is_so in parts.items() if is_so or name in self.silent)

    @property
    def has_quorum(self) -> bool:
        """Whether a majority of the voters has a leader, as far as this node can tell."""
        if self.broker is not None and self.broker.in_touch:
            return True
        controller = self.controller
        if controller is None:
            return False
        return controller.leader is not None and (
            self.broker is None or self.broker.state == "starting"
        )

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def troubled(self, at_least: Trouble) -> list[tuple[Topic, Partition]]:
        """The partitions that are in such trouble or worse, the worst first."""
        found = [
            (each.trouble(topic.min_isr), topic, each)
            for topic in self.topics.values()
            if topic.worst <= at_least
            for each in topic.partitions
        ]
        listed = [each for each in found if each[0] <= at_least]
        listed.sort(key=lambda each: (each[0], each[1].name, each[2].number))
        return [(topic, partition) for _, topic, partition in listed]

    def seats(self) -> tuple[Counter[int], Counter[int]]:
        """How many partitions each broker leads, and of how many it has a replica."""
        leads: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        for topic in self.topics.values():
            for each in topic.partitions:
                leads[each.leader] += 1
                replicas.update(each.replicas)
        return leads, replicas

    def count(self, trouble: Trouble) -> int:
        """How many partitions of the cluster are in this trouble."""
        return sum(topic.counts.get(trouble, 0) for topic in self.topics.values())


@dataclass(frozen=True)
class Voter:
    """A voter of the quorum, as the leader sees it; `lag` counts log entries."""

    id: int
    role: str
    address: str | None
    lag: int | None
    heard_ms: int | None


@dataclass(frozen=True)
class Quorum:
    """The metadata quorum; `told_by` is the node that said so. No leader: nobody can say more."""

    leader: int | None
    term: int
    committed: int
    told_by: int
    voters: tuple[Voter, ...]


@dataclass(frozen=True)
class Folder:
    """A data folder of a broker; what there is of room, and what its replicas take."""

    path: str
    used_bytes: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Disks:
    """What lies where. `silent` are brokers that should have said so and didn't.

    `rates`: by how many bytes a second the logs of a topic grow at their leaders.
    """

    folders: dict[int, list[Folder]]
    replicas: dict[int, dict[TopicPartition, int]]
    topics: dict[str, int]
    silent: frozenset[int]
    rates: dict[str, float] = field(default_factory=dict)

    def size_of(self, name: TopicPartition, brokers: Iterable[int]) -> int | None:
        """Of the first of these brokers that has said it."""
        for broker in brokers:
            size_bytes = self.replicas.get(broker, {}).get(name)
            if size_bytes is not None:
                return size_bytes
        return None


@dataclass(frozen=True)
class Ends:
    """By how many offsets a second topics grow; so many partitions were `asked` about."""

    rates: dict[str, float]
    asked: int = 0


@dataclass(frozen=True)
class Group:
    """A group. `topics` has the lag of each topic that it committed offsets of.

    `trend` is how its lag goes.
    """

    id: str
    type: str
    state: str
    coordinator: int
    members: int | None
    topics: dict[str, int | None] | None
    trend: Trend = UNKNOWN

    @property
    def lag(self) -> int | None:
        """The sum; None if that of one topic isn't known."""
        return total_lag(self.topics)


@dataclass(frozen=True)
class Groups:
    """The groups of the brokers that answered; `silent` are those that didn't."""

    groups: dict[str, Group]
    silent: frozenset[int]


@dataclass(frozen=True)
class Transaction:
    """A transaction that isn't over, `open_ms` after its first partition."""

    id: str
    state: str
    coordinator: int
    open_ms: int
    timeout_ms: int
    partitions: int

    @property
    def is_late(self) -> bool:
        """Whether it should be over by now."""
        return self.open_ms > self.timeout_ms


@dataclass(frozen=True)
class Transactions:
    """Those of the brokers that answered; `silent` are those that didn't.

    `preparing` ones are decided and wait for their markers, `late` ones should be over; `oldest`
    are those that last for longest, if that is long.
    """

    open: int
    preparing: int
    late: int
    oldest: tuple[Transaction, ...]
    silent: frozenset[int]


def total_lag(topics: Mapping[str, int | None] | None) -> int | None:
    """The sum; None if there is anything that isn't known."""
    if topics is None:
        return None
    total = 0
    for lag in topics.values():
        if lag is None:
            return None
        total += lag
    return total


def ranked(topics: Mapping[str, int | None]) -> list[tuple[str, int | None]]:
    """The largest lag first, what isn't known last."""
    return sorted(topics.items(), key=lambda each: -1 if each[1] is None else each[1], reverse=True)


@dataclass(frozen=True)
class Position:
    """A partition in a group: what it committed, where the log ends, who reads it.

    A share group begins at its `offset`, and is done with some records above that: `told_lag` is
    without them.
    """

    topic: str
    partition: int
    offset: int | None
    end: int | None
    member: str | None
    told_lag: int | None = None

    @property
    def lag(self) -> int | None:
        if self.told_lag is not None:
            return self.told_lag
        if self.offset is None or self.end is None:
            return None
        return max(0, self.end - self.offset)

    @property
    def done_above(self) -> int | None:
        """How many records above the offset of a share group it is done with."""
        if self.offset is None or self.end is None or self.told_lag is None:
            return None
        return max(0, self.end - self.offset - self.told_lag)


@dataclass(frozen=True)
class Member:
    """A member of a group, with what it has been given."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: dict[str, list[int]]


@dataclass(frozen=True)
class Slice:
    """Slots of a shared partition, and who has them; if nobody, from whom they are `draining`."""

    topic: str
    partition: int
    first_slot: int
    last_slot: int
    member: str | None
    draining: str | None


@dataclass(frozen=True)
class GroupDetail:
    """One group, asked for by name; `shares` are those of partitions that nobody has whole."""

    id: str
    type: str
    state: str
    assignor: str
    epoch: int | None
    coordinator: int
    members: tuple[Member, ...]
    positions: tuple[Position, ...]
    shares: tuple[Slice, ...] = ()
    trend: Trend = UNKNOWN

    @property
    def topics(self) -> dict[str, int | None]:
        """The lag of each topic."""
        lags: dict[str, int | None] = {}
        for each in self.positions:
            if each.offset is None:
                continue
            before = lags.get(each.topic, 0)
            lags[each.topic] = None if before is None or each.lag is None else before + each.lag
        return lags


@dataclass(frozen=True)
class TopicDetail:
    """What is asked of one topic: where partitions start and end, what was set on it."""

    starts: dict[int, int]
    ends: dict[int, int]
    settings: dict[str, str]


class Level(IntEnum):
    """How bad a problem is."""

    BAD = 0
    WARN = 1


class Problem(NamedTuple):
    """Something that somebody should look at, in a sentence."""

    level: Level
    text: str


def problems(
    node: Node, quorum: Quorum | None, disks: Disks | None, transactions: Transactions | None
) -> list[Problem]:
    """What is wrong, the worst first; as `kraftpy cluster health`, and what else a node sees."""
    found = [Problem(Level.BAD, f"This node's {name} doesn't answer.") for name in node.silent]
    found += _quorum_problems(node, quorum)
    if node.broker is not None and node.broker.state != "up":
        found.append(Problem(Level.WARN, f"This node's broker is {node.broker.state}."))
    for broker in node.brokers.values():
        if broker.fenced:
            found.append(Problem(Level.BAD, f"Broker {broker.id} is down (fenced)."))
        elif broker.shutting_down:
            found.append(Problem(Level.WARN, f"Broker {broker.id} is shutting down."))
        elif disks is not None and broker.id in disks.silent:
            found.append(Problem(Level.BAD, f"Broker {broker.id} doesn't answer this node."))
    if not node.brokers and not node.silent:
        found.append(Problem(Level.WARN, "No broker has registered yet."))
    found += _partition_problems(node)
    for broker_id, folders in (disks.folders if disks is not None else {}).items():
        for folder in folders:
            if folder.total_bytes and folder.free_bytes < FREE_MIN * folder.total_bytes:
                left = f"{100 * folder.free_bytes / folder.total_bytes:.0f} %"
                text = f"Broker {broker_id} has {left} of its disk left: {folder.path}"
                found.append(Problem(Level.WARN, text))
    if transactions is not None and transactions.late:
        found.append(Problem(Level.WARN, _late_text(transactions.late)))
    return sorted(found, key=lambda problem: problem.level)


def _late_text(count: int) -> str:
    if count == 1:
        return "1 transaction isn't over though its timeout is: readers of committed records wait."
    return (
        f"{count:,} transactions aren't over though their timeouts are: readers of committed "
        "records wait."
    )


def _quorum_problems(node: Node, quorum: Quorum | None) -> list[Problem]:
    if not (node.broker or node.controller):
        return []
    if not node.has_quorum:
        voters = len(node.controller.voters) if node.controller is not None else 0
        majority = f" ({voters // 2 + 1} of {voters})" if voters else ""
        heard = ""
        if node.broker is not None and node.broker.state != "starting":
            heard = f" This node last heard of one {node.broker.heard_ms / 1000:.0f} s ago."
        return [
            Problem(
                Level.BAD,
                "The metadata quorum has no leader that this node knows of, so nothing can be "
                f"changed and nobody takes over from a broker that dies.{heard} It needs a "
                f"majority of its voters{majority}. What is below is how it was then.",
            )
        ]
    silent = []
    for voter in quorum.voters if quorum is not None else ():
        if quorum is not None and quorum.leader is None:
            break
        if voter.heard_ms is None:
            silent.append(f"Voter {voter.id} hasn't been heard of in this term.")
        elif voter.heard_ms > VOTER_SILENT_MS:
            silent.append(f"Voter {voter.id} hasn't been heard of for {voter.heard_ms // 1000} s.")
    return [Problem(Level.WARN, text) for text in silent]


def _partition_problems(node: Node) -> list[Problem]:
    sentences = {
        Trouble.OFFLINE: (Level.BAD, "no leader: they can't be written or read"),
        Trouble.UNDER_MIN_ISR: (Level.BAD, "too few replicas in sync: acks=all fails"),
        Trouble.UNDER_REPLICATED: (Level.WARN, "replicas out of sync"),
    }
    found = []
    for trouble, (level, what) in sentences.items():
        count = node.count(trouble)
        if count == 1:
            found.append(Problem(level, f"1 partition has {what.replace('they', 'it')}."))
        elif count:
            found.append(Problem(level, f"{count:,} partitions have {what}."))
    return found
