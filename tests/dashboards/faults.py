"""The fault that each alert is about: how it is made, and how it is healed.

A fault is a context manager: what it does when it is entered makes its alerts fire, as long as it
isn't left, and leaving it heals. All do to the nodes what happens to nodes; only the slow disk, the
defect, the old certificate and the limit of offsets, which would take 100,000 of them in every
scrape, are asked of a build that can have them (`breakable`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.dashboards.breakable import DEFECT, FEW_OFFSETS, NO_TWIN, OLD_CERTIFICATE, SLOW_DISK
from tests.dashboards.ground import Fault, Ground, elsewhere, others, placed, until_it_holds, wait
from tests.dashboards.load import TIMEOUT_S
from tests.endpoints import metrics_address

CONNECTIONS = 30
MEMBERS_MAX_POLL_MS = 60_000
STALLED_RECORDS = 20_000
METADATA_COMMANDS = 1_200
HELD_S = 1800
OFFSETS = "__consumer_offsets"


# -- nodes


@contextlib.contextmanager
def _dead_node(ground: Ground) -> Iterator[None]:
    """kill -9, with a partition that only it has, and one that is to move to it."""
    cluster = ground.cluster
    victim = others(ground, cluster.controller())[0]
    home = others(ground, victim)[0]
    placed(ground, "only-there", [victim])
    placed(ground, "moving", [home])
    cluster.kill(victim)
    until_it_holds(lambda: elsewhere(ground, "moving", [victim]))
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
    node = cluster.nodes[others(ground, cluster.controller())[0]]
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
    pid = ground.cluster.nodes[others(ground, ground.cluster.controller())[0]].pid

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
    victim = others(ground, ground.cluster.controller())[0]

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
    victim = others(ground, cluster.controller())[0]
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
    behind, ahead = others(ground, cluster.controller())
    placed(ground, "risky", [ahead, behind], min_insync_replicas="1")
    until_it_holds(lambda: load.produce("risky", 10))
    cluster.kill(behind)
    wait(lambda: _isr(ground, "risky") == {ahead}, "the ISR has shrunk")
    until_it_holds(lambda: load.produce("risky", 10))
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

    until_it_holds(elect)
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
    placed(
        ground,
        "damaged",
        replicas,
        cleanup_policy="compact",
        internal_segment_bytes="20000",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="5000",
    )
    until_it_holds(lambda: load.produce("damaged", 2000))
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
    node = others(ground, cluster.controller())[0]
    placed(ground, "doomed", [node])
    until_it_holds(lambda: load.produce("doomed", 100))
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


# -- claims


@contextlib.contextmanager
def _log_of_claims_behind(ground: Ground) -> Iterator[None]:
    """A broker comes back, and leads __consumer_offsets again, but not the log of the claims."""
    cluster, load = ground.cluster, ground.load
    victim = others(ground, cluster.controller())[0]
    first = {
        number: partition.replicas[0]
        for number, partition in load.admin.list_topics(OFFSETS, timeout=TIMEOUT_S)
        .topics[OFFSETS]
        .partitions.items()
    }
    place = TopicPartition(OFFSETS, next(each for each in first if first[each] == victim))
    switch = ground.switches / NO_TWIN
    switch.write_text(str(victim))

    def leads() -> bool:
        with contextlib.suppress(KafkaException):
            load.admin.elect_leaders(ElectionType.PREFERRED, [place]).result(TIMEOUT_S)
        return cluster.leader_of(OFFSETS, place.partition) == victim

    try:
        cluster.kill(victim)
        cluster.restart(victim)
        wait(leads, "the broker leads again")
        yield
    finally:
        switch.unlink()
    cluster.kill(victim)
    cluster.restart(victim)
    cluster.wait_healthy(60)


# -- transactions


@contextlib.contextmanager
def _undeliverable_marker(ground: Ground) -> Iterator[None]:
    """A transaction is to end while a partition of it has no leader."""
    cluster, load = ground.cluster, ground.load
    victim = others(ground, cluster.controller())[0]
    placed(ground, "unmarked", [victim])
    producer = load.producer(transactional_id="unmarked", transaction_timeout_ms="5000")
    until_it_holds(lambda: producer.init_transactions(TIMEOUT_S))
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
    until_it_holds(lambda: producer.init_transactions(TIMEOUT_S))
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
    """More than max.connections.per.ip of a broker, which is set low for the while."""
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
    entry = ConfigEntry("max.connections.per.ip", value or None, incremental_operation=operation)
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
def _set(event: threading.Event) -> Iterator[None]:
    event.set()
    try:
        yield
    finally:
        event.clear()


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
    Fault(
        "a certificate is old",
        ("KraftpyCertificateExpires",),
        lambda ground: _switched_on(ground, OLD_CERTIFICATE),
    ),
    Fault("the limit of open files is lowered", ("KraftpyOpenFiles",), _few_files),
    Fault(
        "a transaction ends while a partition of it has no leader",
        ("KraftpyTransactionMarkersStuck", "KraftpyTransactionsLate"),
        _undeliverable_marker,
    ),
    Fault("a broker lacks the log of the claims", ("KraftpyTwinsApart",), _log_of_claims_behind),
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
        "the member of a share group takes no more records",
        ("KraftpyShareGroupStalled",),
        lambda ground: _set(ground.load.leases_nothing),
    ),
    Fault(
        "the member of a share group fails at all records",
        ("KraftpyShareRecordsArchived",),
        lambda ground: _set(ground.load.accepts_nothing),
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
    Fault(
        "a producer falls silent",
        ("KraftpyTopicSilent",),
        lambda ground: _set(ground.load.silent),
    ),
)
