"""One run: groups of real consumers on three brokers, faults, then peace and judgment.

1. All members join while a producer keeps writing to all partitions; the groups settle.
2. Only the coordinator moves: its broker is killed, and comes back. No group may rebalance.
3. Members join, leave and are killed, coordinators are killed and paused: `faults.schedule`.
4. The groups settle, everything that was written is processed and committed, all members leave.

Then `checker.check` judges each group's history.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Cluster, ClusterError
from kraftpy.testing.process import is_alive
from tests.groups.checker import check
from tests.groups.faults import inflict, schedule
from tests.groups.history import read_folder
from tests.groups.party import Party, Times
from tests.groups.wire import UNANSWERED, ask, committed, coordinator_of

TOPIC = "t"
PARTITIONS = 30
LOOK_EVERY_S = 0.2
HEALTHY_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 120.0
WRITE_EVERY_S = 0.1
QUIET_MARGIN_S = 2.0  # beyond the session timeout: who would be thrown out has been by then


class UnsettledError(Exception):
    """A group did not come to rest in time; its history says so too."""


@dataclass
class Report:
    """What one run showed; `folder` has the histories, and all logs if something was wrong."""

    name: str
    seed: int
    folder: Path
    faults: int = 0
    records: int = 0
    commits: int = 0
    moves: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    anomalies: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def summary(self) -> str:
        verdict = (
            "; ".join(self.anomalies[:3]) or "one owner each, all processed, nothing went back"
        )
        return (
            f"{self.name}: {self.faults} faults, {self.records:,} records, "
            f"{self.commits:,} commits, {self.moves:,} partitions moved, "
            f"settled within {self.slowest_s:.1f} s, "
            f"in {self.seconds:.0f} s: {verdict}"
        )


class Watcher:
    """Asks for a group's committed offsets all the time, and notes them."""

    def __init__(self, cluster: Cluster, party: Party) -> None:
        self.offsets: dict[int, int] = {}
        self._cluster = cluster
        self._party = party
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            began = time.monotonic()
            try:
                offsets = committed(self._cluster, self._party.name)
            except UNANSWERED:
                continue
            if offsets is not None:
                self._party.story.note("read", began=began, offsets=offsets)
                self.offsets = offsets

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Writer:
    """Writes to all partitions in turn until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(WRITE_EVERY_S):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"x", partition=partition, on_delivery=self._done)
            self._producer.poll(0)

    def _done(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failures.append(f"a record was refused: {error}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if left := self._producer.flush(HEALTHY_TIMEOUT_S):
            self.failures.append(f"{left} records not answered in {HEALTHY_TIMEOUT_S:.0f} s")


class Run:
    """`Run(seed, kinds, size).play(faults)`; the schedule follows from the seed, timing doesn't.

    Args:
        kinds: the groups: names of `party.KINDS`
        size: how many members each of them has
    """

    def __init__(
        self,
        seed: int,
        kinds: Sequence[str],
        size: int,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        folder = folder or Path(tempfile.mkdtemp(prefix="groups-"))
        members = "member" if size == 1 else "members"
        name = f"{size} {members}, {', '.join(kinds)}, seed {seed}"
        self.report = Report(name, seed, folder)
        # Many members share few cores: they need not be faster than that.
        busy = len(kinds) * size > 20
        self._times = Times(1000, 10_000, 2000) if busy else Times(300, 6000, 500)
        self._parties = [
            Party(kind, size, self._times, TOPIC, PARTITIONS, folder / "groups") for kind in kinds
        ]
        self._say_aloud = say
        self._started = time.monotonic()

    def play(self, faults: int) -> Report:
        """The report; the folder is there afterwards if there is something to look at."""
        report = self.report
        times = self._times
        settings = {
            "group_initial_rebalance_delay_ms": 500,
            "group_consumer_session_timeout_ms": times.session_timeout_ms,
            "group_consumer_min_session_timeout_ms": times.session_timeout_ms,
            "group_consumer_heartbeat_interval_ms": times.heartbeat_interval_ms,
            "group_consumer_min_heartbeat_interval_ms": times.heartbeat_interval_ms,
        }
        try:
            with Cluster(3, links=False, **settings) as cluster:
                try:
                    self._play(cluster, faults)
                finally:
                    for node in cluster.nodes.values():
                        shutil.copy(node.log_path, report.folder / f"node{node.id}.log")
        except UnsettledError:
            self._say("not settled")
        except ClusterError as error:
            report.anomalies.append(f"cluster: {error}")
        finally:
            for party in self._parties:
                party.close()
        self._judge()
        report.seconds = time.monotonic() - self._started
        if report.anomalies:
            text = "\n".join([report.name, *report.story, *map(str, report.anomalies)])
            (report.folder / "report").write_text(text + "\n")
        else:
            shutil.rmtree(report.folder)
        return report

    def _say(self, what: str) -> None:
        now = time.monotonic()
        self.report.story.append(f"{now:.3f} {now - self._started:6.2f} {what}")
        self._say_aloud(f"{now - self._started:6.2f} {what}")

    def _play(self, cluster: Cluster, faults: int) -> None:
        _create_topic(cluster)
        self._say(f"up after {cluster.start_s:.1f} s")
        watchers = [Watcher(cluster, party) for party in self._parties]
        writer = Writer(cluster.bootstrap)
        try:
            for party in self._parties:
                party.fill(cluster.bootstrap)
            self._settle(cluster)
            self._move_coordinator(cluster)
            for fault in schedule(self.report.seed, faults):
                inflict(cluster, self._parties, fault, self._say)
                self.report.faults += 1
                for node in cluster.nodes.values():
                    if node.running and not is_alive(node.pid):
                        raise ClusterError(f"broker {node.id} ended by itself")
            for party in self._parties:
                party.fill(cluster.bootstrap)
            self.report.slowest_s = self._settle(cluster)
            writer.stop()
            self._drain(cluster, watchers)
            for party in self._parties:
                party.leave()
            self._say("all left")
        finally:
            writer.stop()
            self.report.anomalies += writer.failures
            for watcher in watchers:
                watcher.stop()

    def _move_coordinator(self, cluster: Cluster) -> None:
        """Kill the broker of the first group's coordinator, and have it back: nobody rebalances."""
        first = self._parties[0]
        victim = coordinator_of(cluster, first.name)
        if victim is None:
            raise ClusterError(f"nobody coordinates {first.name}")
        for party in self._parties:
            party.story.note("moving", what=f"broker {victim} killed")
        self._say(f"only broker {victim} is killed, the coordinator of {first.name}")
        cluster.kill(victim)
        self._settle(cluster)
        cluster.restart(victim)
        cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        self._say("it is back")
        time.sleep(self._times.session_timeout_ms / 1000 + QUIET_MARGIN_S)
        self._settle(cluster)
        for party in self._parties:
            party.story.note("moved")

    def _settle(self, cluster: Cluster) -> float:
        """Wait until all groups are at rest; returns how long the slowest took."""
        started = time.monotonic()
        restless = list(self._parties)
        while restless:
            for party in list(restless):
                party.watch()
                view = party.view(cluster)
                after = time.monotonic() - started
                if view is not None and party.is_settled(view):
                    party.story.note("settled", after=after, owners=view.owners)
                    restless.remove(party)
                elif after > SETTLE_TIMEOUT_S:
                    party.story.note("unsettled", detail=party.describe_state(view))
                    raise UnsettledError
            time.sleep(0.1)
        self._say(f"settled after {after:.1f} s, {party.name} last")
        return after

    def _drain(self, cluster: Cluster, watchers: Sequence[Watcher]) -> None:
        """Wait until all groups have committed the end of all partitions."""
        ends = _ends(cluster.bootstrap)
        self.report.records = sum(ends.values())
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while any(watcher.offsets != ends for watcher in watchers):
            if time.monotonic() > deadline:
                self._say("not everything is committed")
                break
            time.sleep(0.1)
        else:
            self._say("everything is committed")
        for party in self._parties:
            party.story.note("written", ends=ends)

    def _judge(self) -> None:
        report = self.report
        for party in self._parties:
            events = read_folder(party.folder)
            anomalies = check(
                events,
                partitions=PARTITIONS,
                session_timeout_s=self._times.session_timeout_ms / 1000,
                classic=party.classic,
            )
            report.anomalies += [f"{party.name}: {anomaly}" for anomaly in anomalies]
            for event in events:
                if event["event"] == "committed":
                    report.commits += 1
                elif event["event"] == "assigned":
                    report.moves += len(event["partitions"])


def _create_topic(cluster: Cluster) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=PARTITIONS, replication_factor=3
    )
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    answer = ask(cluster.nodes[1], ApiKey.CREATE_TOPICS, 5, request)
    if answer.topics[0].error_code:
        raise ClusterError(f"no topic: {answer.topics[0].error_message}")
    cluster.wait_healthy(HEALTHY_TIMEOUT_S)


def _ends(bootstrap: str) -> dict[int, int]:
    """The high watermark of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0})
    try:
        return {
            i: consumer.get_watermark_offsets(
                TopicPartition(TOPIC, i), HEALTHY_TIMEOUT_S, cached=False
            )[1]
            for i in range(PARTITIONS)
        }
    finally:
        consumer.close()
