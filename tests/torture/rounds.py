"""One round of torture: three brokers, stock clients at work, faults; then peace and judgment.

What a round checks, at the end, when all faults are over:

* every record is answered, and nothing acknowledged is lost, doubled, moved or out of its writer's
  order; readers saw what is there, the one without a group each offset once and in order
* the logs of the three replicas are the same bytes below the high watermark
* each leader epoch had one leader: by the committed metadata, by what brokers told clients all the
  time, and with the start offsets that the replicas note in leader-epoch-checkpoint
* no process of a node ended by itself
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.errors import DecodeError
from kraftpy.testing import Cluster, ClusterError, Node
from kraftpy.testing.process import is_alive
from kraftpy.testing.view import ask_metadata
from tests.replication.support import wait_until
from tests.torture.checker import Led, check_partition, check_reader
from tests.torture.evidence import Evidence
from tests.torture.faults import inflict, schedule
from tests.torture.load import (
    ConfluentReader,
    ConfluentWriter,
    KafkaPythonReader,
    KafkaPythonWriter,
    Reader,
    Writer,
)

TOPIC = "torture"
PARTITIONS = 3
SEGMENT_BYTES = 1 << 20  # small, so that some faults hit the moment of a roll
TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.1
LOOK_TIMEOUT_S = 0.5


@dataclass
class Report:
    """What one round showed; `events` is what was done, in words, with the time of each."""

    seed: int
    acknowledged: int = 0
    faults: int = 0
    seconds: float = 0.0
    anomalies: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict, repr=False)

    def summary(self) -> str:
        verdict = "; ".join(self.anomalies[:3]) or "all there, once, in order, the same everywhere"
        return (
            f"seed {self.seed}: {self.faults} faults, {self.acknowledged:,} records acknowledged "
            f"in {self.seconds:.0f} s: {verdict}"
        )

    def full(self) -> str:
        """Everything, for a failure."""
        return "\n".join(
            [
                f"seed {self.seed}; again with: python -m tests.torture --seed {self.seed}",
                *self.events,
                *(f"ANOMALY {anomaly}" for anomaly in self.anomalies[:50]),
            ]
        )


class Observer:
    """Asks a broker again and again who leads: what clients are told."""

    def __init__(self, node: Node) -> None:
        self.seen: dict[int, dict[tuple[int, int], Led]] = {}  # partition -> (epoch, leader)
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                view = ask_metadata(self._node.host, self._node.port, LOOK_TIMEOUT_S)
            except (OSError, DecodeError):
                continue
            for (topic, partition), state in view.partitions.items():
                if topic == TOPIC and state.leader >= 0:
                    seen = self.seen.setdefault(partition, {})
                    key = (state.leader_epoch, state.leader)
                    seen.setdefault(key, Led(f"broker {self._node.id}", *key))


class Round:
    """`Round(seed).play(seconds)`; the schedule follows from the seed, the timing doesn't."""

    def __init__(self, seed: int, *, say: Callable[[str], None] = lambda _: None) -> None:
        self.report = Report(seed)
        self._say_aloud = say
        self._started = time.monotonic()

    def play(self, seconds: float) -> Report:
        """`seconds` of faults, and what it takes before and after."""
        report = self.report
        try:
            with Cluster(3) as cluster:
                self._say(f"up after {cluster.start_s:.2f} s in {cluster.dir}")
                try:
                    self._torture(cluster, seconds)
                finally:
                    self._keep_logs(cluster)
        except ClusterError as error:
            report.anomalies.append(str(error))
        report.seconds = time.monotonic() - self._started
        return report

    def _say(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:7.2f} s  {text}"
        self.report.events.append(line)
        self._say_aloud(line)

    def _torture(self, cluster: Cluster, seconds: float) -> None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        configs = {"segment.bytes": str(SEGMENT_BYTES)}
        topic = NewTopic(TOPIC, PARTITIONS, replication_factor=3, config=configs)
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        cluster.wait_healthy(TIMEOUT_S)
        writers, readers = _clients(cluster.bootstrap, self.report.seed)
        observers = [Observer(node) for node in cluster.nodes.values()]
        with contextlib.ExitStack() as cleanup:
            for each in [*writers, *readers, *observers]:
                each.start()
                cleanup.callback(each.stop)
            # kafka-python gives up for good if it can't get its producer id at the first attempt.
            wait_until(lambda: all(w.answered for w in writers), "a first answer for all")
            self._inflict(cluster, seconds)
            self._say("peace")
            cluster.wait_healthy(TIMEOUT_S)
            self._say("healthy")
            for writer in writers:
                writer.stop()
                writer.settle(TIMEOUT_S)
            ends = _ends(cluster.bootstrap)
            self._say(f"every record answered; the partitions end at {ends}")
            for reader in readers:
                reader.wait_for(ends, TIMEOUT_S)
            cluster.wait_healthy(TIMEOUT_S)
        for node in cluster.nodes.values():
            cluster.stop(node.id)
        self._say("stopped")
        self._judge(cluster, writers, readers, observers, ends)

    def _keep_logs(self, cluster: Cluster) -> None:
        """The folder of a cluster goes with it."""
        for node in cluster.nodes.values():
            self.report.logs[f"node{node.id}.log"] = node.log_path.read_text(errors="replace")

    def _inflict(self, cluster: Cluster, seconds: float) -> None:
        end = time.monotonic() + seconds
        for fault in itertools.takewhile(
            lambda _: time.monotonic() < end, schedule(self.report.seed)
        ):
            inflict(cluster, fault, TOPIC, self._say)
            self.report.faults += 1
            for node in cluster.nodes.values():
                if node.running and not is_alive(node.pid):
                    raise ClusterError(f"broker {node.id} ended by itself")

    def _judge(
        self,
        cluster: Cluster,
        writers: Sequence[Writer],
        readers: Sequence[Reader],
        observers: Sequence[Observer],
        ends: Sequence[int],
    ) -> None:
        report = self.report
        for client in [*writers, *readers]:
            report.anomalies += client.failures
        evidence = Evidence({node.id: node.log_dir for node in cluster.nodes.values()})
        for partition, end in enumerate(ends):
            told = [led for each in observers for led in each.seen.get(partition, {}).values()]
            log = evidence.log_of(TOPIC, partition, end, told)
            found = check_partition([each.histories[partition] for each in writers], log)
            for reader in readers:
                found += [
                    anomaly._replace(detail=f"{reader.name}: {anomaly.detail}")
                    for anomaly in check_reader(reader.seen[partition], log, once=reader.once)
                ]
            report.anomalies += [f"{TOPIC}-{partition}: {anomaly}" for anomaly in found]
        report.anomalies += evidence.anomalies
        report.acknowledged = sum(
            len(history.acknowledged) for writer in writers for history in writer.histories
        )
        self._say("judged")


def _clients(bootstrap: str, seed: int) -> tuple[list[Writer], list[Reader]]:
    rng = random.Random(seed + 1)

    def source() -> random.Random:
        return random.Random(rng.getrandbits(64))

    writers = [
        ConfluentWriter(bootstrap, "confluent-1", TOPIC, PARTITIONS, source()),
        ConfluentWriter(bootstrap, "confluent-2", TOPIC, PARTITIONS, source()),
        KafkaPythonWriter(bootstrap, "kafka-python", TOPIC, PARTITIONS, source()),
    ]
    readers = [
        ConfluentReader(bootstrap, "confluent-reader", TOPIC, PARTITIONS),
        KafkaPythonReader(bootstrap, "kafka-python-reader", TOPIC, PARTITIONS),
    ]
    return writers, readers


def _ends(bootstrap: str) -> list[int]:
    """The high watermark of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, i), TIMEOUT_S, cached=False)[1]
            for i in range(PARTITIONS)
        ]
    finally:
        consumer.close()


def keep_story(report: Report, parent: Path) -> Path:
    """Write the full report of a failed round and the logs of its nodes; the folder."""
    folder = parent / f"torture-{report.seed}"
    folder.mkdir(exist_ok=True)
    (folder / "report").write_text(report.full() + "\n")
    for name, text in report.logs.items():
        (folder / name).write_text(text)
    return folder
