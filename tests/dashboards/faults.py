"""The fault that each alert is about: how it is made, and how it is healed.

A fault is a context manager: what it does when it is entered makes its alerts fire, as long as it
isn't left, and leaving it heals. All do to the nodes what happens to nodes; only the slow disk, the
defect and the limit of offsets, which would take 100,000 of them in every scrape, are asked of a
build that can have them (`breakable`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kraftpy.client.cluster import Cluster as ClientCluster
from kraftpy.client.cluster_admin import ClusterAdmin, PartitionName
from kraftpy.testing import Cluster
from tests.dashboards.breakable import DEFECT, FEW_OFFSETS, SLOW_DISK
from tests.dashboards.load import TIMEOUT_S, Load
from tests.dashboards.prometheus import Prometheus
from tests.endpoints import metrics_address

CONNECTIONS = 30
MEMBERS_MAX_POLL_MS = 60_000
STALLED_RECORDS = 20_000
METADATA_COMMANDS = 1_200
HELD_S = 1800


@dataclass(slots=True)
class Ground:
    """What faults happen to. `disk` is the file system that all data is on."""

    cluster: Cluster
    load: Load
    prometheus: Prometheus
    disk: Path
    switches: Path


class Fault(NamedTuple):
    """`during(ground)` is the context manager."""

    what: str
    alerts: tuple[str, ...]
    during: Callable[[Ground], contextlib.AbstractContextManager[None]]


def mend(cluster: Cluster) -> None:
    """For a fault that failed half-way: everybody is back."""
    for node in cluster.nodes.values():
        if node.paused:
            cluster.resume(node.id)
    down = [node.id for node in cluster.nodes.values() if not node.running]
    if down:
        cluster.restart(*down)
    cluster.wait_healthy(60)


def wait(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Until the condition holds; RuntimeError with what was waited for if it doesn't."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in {timeout_s:g} s: {what}")
        time.sleep(0.1)


def _others(ground: Ground, *nodes: int | None) -> list[int]:
    return [node for node in ground.cluster.nodes if node not in nodes]


def _until_it_holds(action: Callable[[], object]) -> None:
    """Again while a leader or coordinator is on its way."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            action()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _elsewhere(ground: Ground, topic: str, replicas: list[int]) -> None:
    """Moves partition 0 of a topic; on return that has begun."""

    async def move() -> None:
        async with ClientCluster(ground.cluster.bootstrap) as cluster:
            admin = ClusterAdmin(cluster)
            await admin.alter_reassignments({PartitionName(topic, 0): replicas})

    asyncio.run(move())


def _placed(ground: Ground, name: str, replicas: list[int], **config: str) -> None:
    """A new topic of one partition with exactly these replicas."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    ground.load.create(NewTopic(name, 1, replica_assignment=[replicas], config=settings))


# -- nodes


@contextlib.contextmanager
def _dead_node(ground: Ground) -> Iterator[None]:
    """kill -9, with a partition that only it has, and one that is to move to it."""
    cluster = ground.cluster
    victim = _others(ground, cluster.controller())[0]
    home = _others(ground, victim)[0]
    _placed(ground, "only-there", [victim])
    _placed(ground, "moving", [home])
    cluster.kill(victim)
    _until_it_holds(lambda: _elsewhere(ground, "moving", [victim]))
    commands = threading.Thread(target=_many_commands, args=(ground,), daemon=True)
    commands.start()
    yield
    commands.join(TIMEOUT_S)
    cluster.restart(victim)
    cluster.wait_healthy(60)


def _many_commands(ground: Ground) -> None:
    """Metadata that a dead voter lacks."""
    for number in range(METADATA_COMMANDS):
        with contextlib.suppress(KafkaException):
            ground.load.alter_topic("moving", "retention.ms", str(10**9 + number))


@contextlib.contextmanager
def _dead_majority(ground: Ground) -> Iterator[None]:
    cluster = ground.cluster
    victims = list(cluster.nodes)[:2]
    for victim in victims:
        cluster.kill(victim)
    yield
    cluster.restart(*victims)
    cluster.wait_healthy(60)


@contextlib.contextmanager
def _stopped_process(ground: Ground) -> Iterator[None]:
    """SIGSTOP of one broker's process; its controller and exporter live."""
    cluster = ground.cluster
    node = cluster.nodes[_others(ground, cluster.controller())[0]]
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)
    cluster.wait_healthy(60)


@contextlib.contextmanager
def _repeatedly(act: Callable[[], None]) -> Iterator[None]:
    """In a thread, until the end of the block."""
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(TIMEOUT_S)


@contextlib.contextmanager
def _stutter(ground: Ground, stopped_s: float) -> Iterator[None]:
    """A broker that stops for so long again and again: SIGSTOP and SIGCONT in turn."""
    pid = ground.cluster.nodes[_others(ground, ground.cluster.controller())[0]].pid

    def act() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.15)

    with _repeatedly(act):
        yield


@contextlib.contextmanager
def _stalling_follower(ground: Ground) -> Iterator[None]:
    """A node that stalls for longer than replica.lag.time.max.ms, comes back, and stalls again."""
    victim = _others(ground, ground.cluster.controller())[0]

    def act() -> None:
        ground.cluster.pause(victim)
        time.sleep(2.5)
        ground.cluster.resume(victim)
        time.sleep(1.0)

    with _repeatedly(act):
        yield
    ground.cluster.wait_healthy(60)


@contextlib.contextmanager
def _stalling_leaders(ground: Ground) -> Iterator[None]:
    """Whoever leads the quorum stalls until another one does."""
    cluster = ground.cluster

    def act() -> None:
        leader = cluster.controller()
        if leader is None:
            time.sleep(0.1)
            return
        cluster.pause(leader)
        try:
            wait(lambda: cluster.controller() not in (leader, None), "another controller")
        finally:
            cluster.resume(leader)

    with _repeatedly(act):
        yield
    cluster.wait_healthy(60)


@contextlib.contextmanager
def _crash_loop(ground: Ground) -> Iterator[None]:
    """A broker that is seen, dies, and is started again, three times."""
    cluster, prometheus = ground.cluster, ground.prometheus
    victim = _others(ground, cluster.controller())[0]
    query = f"process_start_time_seconds{{{_broker_of(ground, victim)}}}"

    def started() -> list[float]:
        return [sample.value for sample in prometheus.query(query)]

    for _ in range(3):
        before = started()
        cluster.kill(victim)
        cluster.restart(victim)
        wait(lambda before=before: started() not in (before, []), "a scrape")  # type: ignore[misc]
    yield
    cluster.wait_healthy(60)


def _instance_of(ground: Ground, node: int) -> str:
    return f'instance="{metrics_address(ground.cluster.nodes[node].config)}"'


def _broker_of(ground: Ground, node: int) -> str:
    """What chooses a node's broker among the series."""
    return f'{_instance_of(ground, node)},process="broker"'


# -- data


@contextlib.contextmanager
def _unclean_election(ground: Ground) -> Iterator[None]:
    """The only replica in sync is lost, and an operator takes the other one."""
    cluster, load = ground.cluster, ground.load
    behind, ahead = _others(ground, cluster.controller())
    _placed(ground, "risky", [ahead, behind], min_insync_replicas="1")
    _until_it_holds(lambda: load.produce("risky", 10))
    cluster.kill(behind)
    wait(lambda: _isr(ground, "risky") == {ahead}, "the ISR has shrunk")
    _until_it_holds(lambda: load.produce("risky", 10))
    cluster.kill(ahead)
    cluster.restart(behind)
    # The counter has to be seen at 0 before it counts.
    seen = f"max_over_time(kraftpy_unclean_elections_total{{{_instance_of(ground, behind)}}}[2s])"
    wait(lambda: [sample.value for sample in ground.prometheus.query(seen)] == [0], "a scrape")
    partition = TopicPartition("risky", 0)

    def elect() -> None:
        answer = load.admin.elect_leaders(ElectionType.UNCLEAN, [partition]).result(TIMEOUT_S)
        if answer[partition] is not None:
            raise KafkaException(answer[partition])

    _until_it_holds(elect)
    yield
    cluster.restart(ahead)
    cluster.wait_healthy(60)
    load.delete("risky")


def _isr(ground: Ground, topic: str) -> set[int]:
    found = ground.load.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    return set(found.partitions[0].isrs)


def _partition_folder(ground: Ground, node: int, topic: str) -> Path:
    return ground.cluster.nodes[node].log_dir / f"{topic}-0"


@contextlib.contextmanager
def _damaged_segments(ground: Ground) -> Iterator[None]:
    """A bit of a compacted topic's closed segments flips, on a follower."""
    cluster, load = ground.cluster, ground.load
    replicas = list(cluster.nodes)[:2]
    _placed(
        ground,
        "damaged",
        replicas,
        cleanup_policy="compact",
        internal_segment_bytes="20000",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="5000",
    )
    _until_it_holds(lambda: load.produce("damaged", 2000))
    for segment in sorted(_partition_folder(ground, replicas[1], "damaged").glob("*.log"))[:-1]:
        with segment.open("r+b") as file:
            file.seek(200)
            byte = file.read(1)
            file.seek(200)
            file.write(bytes([byte[0] ^ 0x10]))
    yield
    load.delete("damaged")


@contextlib.contextmanager
def _refused_rename(ground: Ground) -> Iterator[None]:
    """A file system that refuses to rename a segment which is to be deleted."""
    cluster, load = ground.cluster, ground.load
    node = _others(ground, cluster.controller())[0]
    _placed(ground, "doomed", [node])
    _until_it_holds(lambda: load.produce("doomed", 100))
    folder = _partition_folder(ground, node, "doomed")
    (segment,) = folder.glob("*.log")
    obstacle = segment.with_name(segment.name + ".deleted")
    (obstacle / "in-the-way").mkdir(parents=True)
    load.admin.delete_records([TopicPartition("doomed", 0, 100)])
    yield
    (obstacle / "in-the-way").rmdir()
    obstacle.rmdir()
    cluster.restart(node)
    load.delete("doomed")
    cluster.wait_healthy(60)


@contextlib.contextmanager
def _filled(ground: Ground, left: float) -> Iterator[None]:
    """A file that leaves this share of the disk."""
    ballast = ground.disk / "ballast"
    disk = os.statvfs(ground.disk)
    size = disk.f_bavail * disk.f_frsize - int(left * disk.f_blocks * disk.f_frsize)
    try:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _switched_on(ground: Ground, switch: str) -> Iterator[None]:
    path = ground.switches / switch
    path.touch()
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def _defect(ground: Ground) -> Iterator[None]:
    def act() -> None:
        with contextlib.suppress(KafkaException):
            ground.load.admin.list_consumer_groups(request_timeout=2).result(5)
        time.sleep(0.2)

    with _switched_on(ground, DEFECT), _repeatedly(act):
        yield


# -- transactions


@contextlib.contextmanager
def _undeliverable_marker(ground: Ground) -> Iterator[None]:
    """A transaction is to end while a partition of it has no leader."""
    cluster, load = ground.cluster, ground.load
    victim = _others(ground, cluster.controller())[0]
    _placed(ground, "unmarked", [victim])
    producer = load.producer(transactional_id="unmarked", transaction_timeout_ms="5000")
    _until_it_holds(lambda: producer.init_transactions(TIMEOUT_S))
    producer.begin_transaction()
    producer.produce("unmarked", b"x")
    producer.flush(TIMEOUT_S)
    cluster.kill(victim)
    # Whether that is heard or the timeout comes first: what was decided can't be told.
    with contextlib.suppress(KafkaException):
        producer.commit_transaction(TIMEOUT_S / 3)
    yield
    cluster.restart(victim)
    cluster.wait_healthy(60)
    load.delete("unmarked")


@contextlib.contextmanager
def _held_open(ground: Ground) -> Iterator[None]:
    """A transaction whose last record is from half an hour ago, by its own time."""
    load = ground.load
    load.create(NewTopic("held", 1, 3))
    producer = load.producer(transactional_id="held", transaction_timeout_ms="900000")
    _until_it_holds(lambda: producer.init_transactions(TIMEOUT_S))
    producer.begin_transaction()
    producer.produce("held", b"x", timestamp=int(1000 * (time.time() - HELD_S)))
    producer.flush(TIMEOUT_S)
    yield
    producer.abort_transaction(TIMEOUT_S)
    load.delete("held")


# -- limits


@contextlib.contextmanager
def _few_files(ground: Ground) -> Iterator[None]:
    """A broker that may open hardly more files than it has."""
    pid = ground.cluster.nodes[1].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (int(used * 1.15), limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def _many_connections(ground: Ground) -> Iterator[None]:
    """More than max.connections of a broker, which is set low for the while."""
    node = ground.cluster.nodes[1]
    _limit_connections(ground, "1", AlterConfigOpType.SET)
    try:
        with contextlib.ExitStack() as stack, _repeatedly(lambda: time.sleep(0.1)):
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((node.host, node.port)))
                time.sleep(0.1)
            yield
    finally:
        _limit_connections(ground, "", AlterConfigOpType.DELETE)


def _limit_connections(ground: Ground, value: str, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry("max.connections", value or None, incremental_operation=operation)
    resource_ = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    for future in ground.load.admin.incremental_alter_configs([resource_]).values():
        future.result(TIMEOUT_S)


# -- clients


@contextlib.contextmanager
def _stalled_member(ground: Ground) -> Iterator[None]:
    load = ground.load
    load.stalled.set()
    try:
        load.produce("ticker", STALLED_RECORDS)
        yield
    finally:
        load.stalled.clear()


@contextlib.contextmanager
def _member_that_never_rejoins(ground: Ground) -> Iterator[None]:
    """A second member joins while the first one hangs in its own work."""
    settings = {"max_poll_interval_ms": MEMBERS_MAX_POLL_MS, "session_timeout_ms": 20_000}
    first, second = (ground.load.consumer("restless", **settings) for _ in range(2))
    try:
        first.subscribe(["orders"])
        wait(lambda: first.poll(0.1) is not None, "the first member reads")
        second.subscribe(["orders"])
        with _repeatedly(lambda: second.poll(0.1)):
            yield
    finally:
        first.close()
        second.close()


@contextlib.contextmanager
def _silent_producer(ground: Ground) -> Iterator[None]:
    ground.load.silent.set()
    try:
        yield
    finally:
        ground.load.silent.clear()


FAULTS = (
    Fault(
        "a node is killed (kill -9)",
        (
            "KraftpyNodeDown",
            "KraftpyBrokerFenced",
            "KraftpyOfflinePartitions",
            "KraftpyUnderMinIsr",
            "KraftpyUnderReplicated",
            "KraftpyProduceErrors",
            "KraftpyVoterBehind",
            "KraftpyReassignmentStuck",
        ),
        _dead_node,
    ),
    Fault(
        "two of three nodes are killed",
        ("KraftpyNoActiveController", "KraftpyBrokerOutOfTouch"),
        _dead_majority,
    ),
    Fault(
        "a broker's process is stopped (SIGSTOP)",
        ("KraftpyProcessDown", "KraftpyProbeFailing"),
        _stopped_process,
    ),
    Fault(
        "a broker stops for 0.3 s again and again",
        ("KraftpyEventLoopLag",),
        lambda ground: _stutter(ground, 0.3),
    ),
    Fault(
        "a broker stops for 1.3 s again and again",
        ("KraftpyProduceSlow",),
        lambda ground: _stutter(ground, 1.3),
    ),
    Fault("a follower stalls again and again", ("KraftpyIsrUnstable",), _stalling_follower),
    Fault("leaders of the quorum stall one by one", ("KraftpyElections",), _stalling_leaders),
    Fault("a broker crashes three times", ("KraftpyCrashLoop",), _crash_loop),
    Fault(
        "the only replica in sync is lost for good", ("KraftpyUncleanElection",), _unclean_election
    ),
    Fault(
        "every fsync takes 1.2 s longer",
        ("KraftpyFsyncSlow", "KraftpyQuorumSlow"),
        lambda ground: _switched_on(ground, SLOW_DISK),
    ),
    Fault("the disk fills to 90 %", ("KraftpyDiskFillingUp",), lambda ground: _filled(ground, 0.1)),
    Fault(
        "the disk fills to 97 %", ("KraftpyDiskAlmostFull",), lambda ground: _filled(ground, 0.03)
    ),
    Fault("a rename is refused", ("KraftpyLogsOffline",), _refused_rename),
    Fault("bits flip in a compacted topic", ("KraftpyCompactionFailing",), _damaged_segments),
    Fault("a handler of requests has a defect", ("KraftpyDefect",), _defect),
    Fault("more connections than may be", ("KraftpyConnectionsRefused",), _many_connections),
    Fault("the limit of open files is lowered", ("KraftpyOpenFiles",), _few_files),
    Fault(
        "a transaction ends while a partition of it has no leader",
        ("KraftpyTransactionMarkersStuck", "KraftpyTransactionsLate"),
        _undeliverable_marker,
    ),
    Fault(
        "nobody ends a transaction",
        ("KraftpyTransactionsHanging",),
        _held_open,
    ),
    Fault(
        "a member hangs and commits nothing",
        ("KraftpyConsumerStalled", "KraftpyConsumerLag"),
        _stalled_member,
    ),
    Fault(
        "more offsets are committed than are served",
        ("KraftpyLagIncomplete",),
        lambda ground: _switched_on(ground, FEW_OFFSETS),
    ),
    Fault(
        "a member doesn't rejoin its group",
        ("KraftpyGroupRebalancing",),
        _member_that_never_rejoins,
    ),
    Fault("a producer falls silent", ("KraftpyTopicSilent",), _silent_producer),
)
