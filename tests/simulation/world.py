"""One run: a configuration drawn from the seed, faults, healing, and what must be true then."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kraftpy.core.metadata import PartitionState, Result
from tests.simulation.broker import Broker
from tests.simulation.clients import Consumer, Member, Producer, rack_of
from tests.simulation.faults import Faults
from tests.simulation.invariants import Invariants, Violation, brief
from tests.simulation.log import SimLog
from tests.simulation.network import Network
from tests.simulation.quorum import Quorum
from tests.simulation.replica import Name, Replica
from tests.simulation.schedule import Schedule

FAULTS_MS = 6_000.0
HEALING_MS = 12_000.0
SNAPSHOT_EVERY_MS = 700.0


@dataclass(frozen=True, slots=True)
class Config:
    """What a seed decides beforehand; times in ms."""

    brokers: int
    partitions: int
    replication_factor: int
    min_isr: int
    flush_each: bool
    reckless: bool  # more may go wrong at once than replication promises to survive
    unclean: bool
    latency_ms: float
    flush_ms: float
    write_back: float
    lag_max_ms: int
    session_timeout_ms: float
    tick_ms: float
    fetch_wait_ms: float
    proposal_timeout_ms: float
    produce_every_ms: float
    fault_every_ms: float

    @classmethod
    def draw(cls, rng: random.Random) -> Config:
        brokers = rng.choice([3, 3, 3, 4, 5])
        replication_factor = rng.choice([1, 2, 3, 3, 3, 3])
        reckless = rng.random() < 0.3
        return cls(
            brokers=brokers,
            partitions=rng.randint(1, 2),
            replication_factor=replication_factor,
            min_isr=rng.choice([1, 2, 2, 2, 3]),
            flush_each=rng.random() < 0.3,
            reckless=reckless,
            unclean=reckless and rng.random() < 0.3,
            latency_ms=rng.choice([1.0, 3.0, 10.0]),
            flush_ms=rng.choice([0.5, 5.0]),
            write_back=rng.choice([0.0, 0.02, 0.2]),
            lag_max_ms=rng.choice([150, 400, 1000]),
            session_timeout_ms=rng.choice([300.0, 600.0, 1200.0]),
            tick_ms=rng.choice([40.0, 70.0]),
            fetch_wait_ms=rng.choice([40.0, 120.0]),
            proposal_timeout_ms=rng.choice([30.0, 300.0]),
            produce_every_ms=rng.choice([15.0, 40.0, 90.0]),
            fault_every_ms=rng.choice([60.0, 150.0, 400.0]),
        )


class Outcome(NamedTuple):
    """What a run was like."""

    seed: int
    violation: str | None
    events: int
    acknowledged: int
    read: int
    commands: int
    elections: int
    losses: int
    completed: int = 0
    """Transactions; in a run without them there are none."""
    claimed: int = 0
    """Claims that were committed, in a run whose members share partitions."""
    cooperative: bool = False
    leased: int = 0
    """Records that members accepted, in a run with leases."""
    leasing: bool = False


class World:
    """All parts of a run; `trace` takes a line for each thing that happens, if it is there."""

    DATA = "data"
    OFFSETS = "offsets"
    INTERNAL: tuple[str, ...] = (OFFSETS,)
    FAULTS = Faults

    def __init__(
        self, seed: int, config: Config | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.trace = trace
        self.config = config or Config.draw(self.rng)
        self.schedule = Schedule(self.rng)
        self.network = Network(self.schedule, self.config.latency_ms, 0.0, 0.0)
        self.invariants = Invariants(self)
        self.brokers: dict[int, Broker] = {}
        ids = list(range(1, self.config.brokers + 1))
        self.quorum = Quorum(self, ids[:3])
        self.brokers = {id_: Broker(self, id_) for id_ in ids}
        self.snapshot: dict[str, Any] = self.quorum.state.snapshot()
        self.producing = True
        self.acknowledged = 0
        self.records_read = 0
        self.events = 0
        self._producer_ids = 0

    @property
    def now_ms(self) -> int:
        return int(self.schedule.now)

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.schedule.now:9.1f}  {line}")

    def replica_of(self, name: Name) -> type[Replica]:
        """What a broker has of a partition."""
        return Replica

    def is_up(self, node: int) -> bool:
        broker = self.brokers.get(node)
        return broker is not None and broker.up and broker.paused_until <= self.schedule.now

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def partition(self, name: Name) -> PartitionState:
        """As the controller has it."""
        return self.quorum.state.topics[name[0]].partitions[name[1]]

    def names(self) -> list[Name]:
        topics = self.quorum.state.sorted_topics()
        return [(topic.name, index) for topic in topics for index in topic.partitions]

    def log_of(self, broker_id: int, name: Name) -> SimLog:
        """What a broker has of a partition, whether it is up or not."""
        return self.brokers[broker_id].disk.logs.get(name) or SimLog()

    def watermark_of(self, broker_id: int, name: Name) -> int:
        broker = self.brokers[broker_id]
        replica = broker.replicas.get(name)
        if replica is not None:
            return replica.high_watermark
        return min(broker.disk.watermarks.get(name, 0), self.log_of(broker_id, name).log_end_offset)

    def registration(self, broker: Broker, clean_epoch: int) -> dict[str, Any]:
        return {
            "type": "register_broker",
            "broker_id": broker.id,
            "incarnation_id": (broker.id * 1_000_000 + broker.life).to_bytes(16, "big"),
            "previous_broker_epoch": clean_epoch,
            "rack": rack_of(broker.id),
            "endpoints": [],
            "directories": [broker.disk.directory],
        }

    def set_config(self, topic: str, key: str, value: str) -> Result:
        resource = {"type": 2, "name": topic, "ops": [[key, 0, value]]}
        return self.quorum.ask({"type": "alter_configs", "resources": [resource]})

    # -- a run

    def start(self) -> None:
        """Brokers, topics."""
        self.quorum.start()
        for broker in self.brokers.values():
            broker.start()
        self.run_until(self._all_active, "all brokers are active", 5_000.0)
        config = self.config
        settings = {"min.insync.replicas": str(config.min_isr)}
        if config.unclean:
            settings["unclean.leader.election.enable"] = "true"
        topics = [
            (self.DATA, config.partitions, settings),
            *((name, 1, settings) for name in self.INTERNAL),
        ]
        answer = self.quorum.ask(
            {
                "type": "create_topics",
                "seed": self.rng.randrange(1000),
                "topics": [
                    {
                        "name": name,
                        "topic_id": bytes(12) + number.to_bytes(4, "big"),
                        "partitions": partitions,
                        "replication_factor": config.replication_factor,
                        "configs": configs,
                    }
                    for number, (name, partitions, configs) in enumerate(topics, start=100)
                ],
            }
        )
        assert all(not item["error"] for item in answer.value["topics"]), answer

    def run(self) -> None:
        """Raises `Violation`."""
        self.start()
        self.schedule.after(SNAPSHOT_EVERY_MS, self._take_snapshot)
        producers = []
        for number, name in enumerate(self.names()):
            if name[0] != self.DATA:
                self._use(name)
                continue
            producers += [Producer(self, name, 2 * number), Producer(self, name, 2 * number + 1)]
            Consumer(self, name, "").start()
            Consumer(self, name, rack_of(self.rng.randint(1, 3))).start()
        for producer in producers:
            producer.start()
        faults = self.FAULTS(self)
        faults.start()
        self.run_for(FAULTS_MS)
        self.note("== healing")
        faults.heal()
        self.producing = False
        self.run_until(
            lambda: self._all_led() and not any(producer.pending for producer in producers),
            "every write is answered",
            HEALING_MS,
        )
        self._settle()
        self.run_until(self._in_sync, "all replicas are in sync", HEALING_MS)
        self.run_until(self._logs_equal, "all logs are equal", HEALING_MS)
        self.invariants.check_end()

    def _use(self, name: Name) -> None:
        """Starts the clients of an internal topic's partition."""
        Member(self, name, -1).start()

    def run_for(self, duration_ms: float) -> None:
        end = self.schedule.now + duration_ms
        step = self.schedule.step
        while step(end):
            self.events += 1

    def run_until(self, condition: Callable[[], bool], what: str, limit_ms: float) -> None:
        """Liveness: fails if the condition doesn't come true in time."""
        end = self.schedule.now + limit_ms
        while not condition():
            if self.schedule.now >= end:
                raise Violation(f"not within {limit_ms:.0f} ms: {what}\n{self.describe()}")
            self.run_for(50.0)

    def _settle(self) -> None:
        """Waits for what is to end by itself once nobody writes any more."""

    def _take_snapshot(self) -> None:
        self.snapshot = self.quorum.state.snapshot()
        self.schedule.after(SNAPSHOT_EVERY_MS, self._take_snapshot)

    def _all_active(self) -> bool:
        known = self.quorum.state.brokers
        return len(known) == len(self.brokers) and all(
            each.active and each.epoch == self.brokers[each.id].epoch for each in known.values()
        )

    def _all_led(self) -> bool:
        """What the last disk took with it is given up by hand, as an administrator would."""
        if not self._all_active():
            return False
        for name in self.names():
            state = self.partition(name)
            if state.leader < 0:
                if not (state.isr or state.elr):
                    topics = [{"name": name[0], "partitions": [name[1]]}]
                    self.quorum.ask({"type": "elect_leaders", "election_type": 1, "topics": topics})
                return False
        return True

    def _in_sync(self) -> bool:
        return self._all_active() and all(
            set(state.isr) == set(state.replicas) and not state.adding and not state.removing
            for state in map(self.partition, self.names())
        )

    def _logs_equal(self) -> bool:
        for name in self.names():
            replicas = [
                self.brokers[id_].replicas.get(name) for id_ in self.partition(name).replicas
            ]
            ends = {None if each is None else each.log.log_end_offset for each in replicas}
            watermarks = {None if each is None else each.high_watermark for each in replicas}
            if len(ends) > 1 or watermarks != ends:
                return False
        return True

    def describe(self) -> str:
        """Where everybody is, for a failure's message."""
        lines = [f"{self.config}", f"controller {self.quorum.active} in term {self.quorum.term}"]
        lines += [
            f"broker {each.id}: epoch {each.epoch}, fenced {each.fenced}, "
            f"shutting down {each.in_controlled_shutdown}"
            for each in self.quorum.state.brokers.values()
        ]
        for name in self.names():
            lines.append(f"{name}: {brief(self.partition(name))}")
            for broker in self.brokers.values():
                replica = broker.replicas.get(name)
                if replica is not None:
                    log = replica.log
                    lines.append(
                        f"  broker {broker.id}: {type(replica.role).__name__} of epoch "
                        f"{replica.leader_epoch}, {log.log_start_offset}..{log.log_end_offset}, "
                        f"watermark {replica.high_watermark}, knows {broker.metadata.applied_index}"
                    )
        return "\n".join(lines)


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs one seed."""
    return play(World(seed, trace=trace), trace)


def play(world: World, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs a world; a violation, or an exception out of kraftpy, is in the outcome."""
    violation = None
    try:
        world.run()
    except Exception as error:  # whatever the rules do wrong, the seed has to be named
        violation = f"{type(error).__name__}: {error}"
        if trace is not None:
            raise
    invariants = world.invariants
    return Outcome(
        world.seed,
        violation,
        world.events,
        world.acknowledged,
        world.records_read,
        world.quorum.committed_index,
        sum(state.leader_epoch for state in map(world.partition, world.names())),
        invariants.losses,
    )
