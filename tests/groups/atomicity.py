"""Commits of 100 partitions while their coordinator is killed with -9, round after round.

    python -m tests.groups.atomicity --rounds 200

On three brokers, writers commit as fast as they can, each for a group of its own: every commit sets
all partitions to its number. One goes to the coordinator itself, the others through any broker.
Readers fetch all partitions of some group through any broker all the time. In a round the
coordinator of one of the groups is killed at a random moment; where a commit's outcome is unknown,
the writer looks for what became of it before it goes on. The round ends when every group has been
committed to again, and the killed broker is back. `commit_checker` judges.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kraftpy.core.groups import partition_for
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.groups.commit_checker import Commit, History, Read, check
from tests.replication.support import leader_of, wait_until
from tests.server.wire import Closed, Wire

TOPIC = "read"
PARTITIONS = 100
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 3
GROUPS = 3
READERS = 2
KILL_WITHIN_S = 0.1
CALM_S = 0.02  # between two commits while a broker comes back
SEGMENT_BYTES = 1 << 20  # so that the log is rolled, and compacted, on the way
CLEANER_BACKOFF_MS = 1000

PASSING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class Refused(Exception):
    """An answer that nothing in this test explains."""


class Client:
    """Connections to brokers that may be killed at any moment."""

    def __init__(self, cluster: Cluster, source: random.Random) -> None:
        self._cluster = cluster
        self._random = source
        self._wires: dict[int, Wire] = {}

    def pick(self) -> int:
        """Any broker that runs."""
        nodes = [node.id for node in self._cluster.nodes.values() if node.running]
        return self._random.choice(nodes)

    def call(self, node_id: int, key: ApiKey, version: int, request: object) -> object:
        """Raises Closed or OSError if the broker dies meanwhile."""
        try:
            wire = self._wires.get(node_id)
            if wire is None:
                node = self._cluster.nodes[node_id]
                wire = self._wires[node_id] = Wire(node.host, node.port)
            return wire.call(key, version, request)
        except (Closed, OSError):
            if node_id in self._wires:
                self._wires.pop(node_id).sock.close()
            raise

    def close(self) -> None:
        for wire in self._wires.values():
            wire.sock.close()

    def read(self, group: str) -> Read | None:
        """What some broker says is committed, None if it can't tell."""
        kinds = messages.OffsetFetchRequest
        topics = [kinds.OffsetFetchRequestTopic(TOPIC, list(range(PARTITIONS)))]
        node_id, began_s = self.pick(), time.monotonic()
        try:
            answer = self.call(node_id, ApiKey.OFFSET_FETCH, 7, kinds(group, topics))
        except (Closed, OSError):
            return None
        assert isinstance(answer, messages.OffsetFetchResponse)
        error = ErrorCode(answer.error_code)
        if error in PASSING:
            return None
        if error is not ErrorCode.NONE:
            raise Refused(f"a read of {group} was answered with {error.name}")
        partitions = answer.topics[0].partitions
        if len(partitions) != PARTITIONS:
            raise Refused(f"a read of {group} shows {len(partitions)} partitions")
        offsets = frozenset(partition.committed_offset for partition in partitions)
        return Read(offsets, began_s, time.monotonic(), node_id)


class Worker(threading.Thread):
    """Calls `step` again and again; what it raises ends the run."""

    def __init__(self, name: str, step: Callable[[], None], failures: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._step = step
        self._failures = failures
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except Exception as error:
            self._failures.append(f"{self.name}: {error!r}")

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Writer:
    """Commits to one group, through its coordinator if `direct`, else through any broker."""

    def __init__(
        self, cluster: Cluster, history: History, source: random.Random, *, direct: bool
    ) -> None:
        self.hurry = threading.Event()
        self.acknowledged = 0
        self.unknown_there = 0
        self.unknown_not_there = 0
        self._cluster = cluster
        self._history = history
        self._client = Client(cluster, source)
        self._direct = direct
        self._node_id = -1
        self._number = 0

    @property
    def coordinator(self) -> int:
        index = partition_for(self._history.group, OFFSETS_PARTITIONS)
        return leader_of(self._cluster, OFFSETS_TOPIC, index)

    def step(self) -> None:
        """One commit, and if its outcome is unknown a look at what became of it."""
        if not self.hurry.is_set():
            time.sleep(CALM_S)
        if not self._direct:
            self._node_id = self._client.pick()
        elif self._node_id < 0:
            self._node_id = self.coordinator
        self._number += 1
        commit = Commit(self._number, time.monotonic())
        self._history.commits.append(commit)
        kinds = messages.OffsetCommitRequest
        partitions = [
            kinds.OffsetCommitRequestPartition(p, self._number) for p in range(PARTITIONS)
        ]
        topics = [kinds.OffsetCommitRequestTopic(TOPIC, partitions=partitions)]
        request = kinds(self._history.group, topics=topics)
        try:
            answer = self._client.call(self._node_id, ApiKey.OFFSET_COMMIT, 8, request)
        except (Closed, OSError):
            self._look(commit)
            return
        assert isinstance(answer, messages.OffsetCommitResponse)
        errors = {ErrorCode(partition.error_code) for partition in answer.topics[0].partitions}
        if errors == {ErrorCode.NONE}:
            commit.acknowledged_s = time.monotonic()
            self.acknowledged += 1
        elif errors <= PASSING and len(errors) == 1:
            self._look(commit)
        else:
            raise Refused(f"a commit was answered with {sorted(error.name for error in errors)}")

    def _look(self, commit: Commit) -> None:
        found: list[Read] = []

        def is_read() -> bool:
            read = self._client.read(self._history.group)
            found.extend([] if read is None else [read])
            return read is not None

        wait_until(is_read, f"a read of {self._history.group}")
        self._node_id = -1
        self._history.reads.append(found[0])
        if commit.number in found[0].offsets:
            self.unknown_there += 1
        else:
            self.unknown_not_there += 1


@dataclass
class Report:
    """What a run showed."""

    rounds: int = 0
    acknowledged: int = 0
    unknown_there: int = 0
    unknown_not_there: int = 0
    reads: int = 0
    outages_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    log: str = field(default="", repr=False)

    def summary(self) -> str:
        verdict = f"{len(self.violations)} violations" if self.violations else "every commit whole"
        unknown = self.unknown_there + self.unknown_not_there
        outages_s = sorted(self.outages_s) or [0.0]
        return (
            f"{self.rounds} rounds, {self.acknowledged:,} commits of {PARTITIONS} partitions "
            f"acknowledged, {unknown} of unknown outcome ({self.unknown_there} there, "
            f"{self.unknown_not_there} not), {self.reads:,} reads, back after "
            f"{outages_s[len(outages_s) // 2]:.2f} s (longest {outages_s[-1]:.2f} s): {verdict}"
        )


class Torture:
    """`Torture(seed).play(rounds)`; the schedule follows from the seed, the timing doesn't."""

    def __init__(self, seed: int, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._random = random.Random(seed)
        self._say = say
        self._failures: list[str] = []
        self._histories = [History(f"group-{number}") for number in range(GROUPS)]
        self._new_reads: list[tuple[History, Read]] = []
        self.report = Report()

    def play(self, rounds: int) -> Report:
        with Cluster(
            3,
            links=False,
            offsets_topic_num_partitions=OFFSETS_PARTITIONS,
            offsets_topic_replication_factor=3,
            offsets_topic_segment_bytes=SEGMENT_BYTES,
            log_cleaner_backoff_ms=CLEANER_BACKOFF_MS,
        ) as cluster:
            self._create_topic(cluster)
            writers = [
                Writer(cluster, history, self._source(), direct=number == 0)
                for number, history in enumerate(self._histories)
            ]
            workers = [Worker(f"writer {n}", w.step, self._failures) for n, w in enumerate(writers)]
            clients = [Client(cluster, self._source()) for _ in range(READERS)]
            workers += [
                Worker(f"reader {n}", lambda client=client: self._read(client), self._failures)
                for n, client in enumerate(clients)
            ]
            for worker in workers:
                worker.start()
            try:
                self._await_commits(writers)
                for number in range(1, rounds + 1):
                    self._round(cluster, writers)
                    self._say(f"round {number}: back after {self.report.outages_s[-1]:.2f} s")
            finally:
                for worker in workers:
                    worker.stop()
                self._judge(writers)
                self.report.log = cluster.log_tail()
        return self.report

    def _source(self) -> random.Random:
        return random.Random(self._random.getrandbits(64))

    def _create_topic(self, cluster: Cluster) -> None:
        kinds = messages.CreateTopicsRequest
        request = kinds([kinds.CreatableTopic(TOPIC, PARTITIONS, 1)], timeout_ms=10_000)
        node = cluster.nodes[1]
        with Wire(node.host, node.port) as wire:
            created = wire.call(ApiKey.CREATE_TOPICS, 7, request)
            assert created.topics[0].error_code == 0, created.topics[0].error_message
            # The first request about a group makes the offsets topic.
            wire.call(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest("group-0"))
        cluster.wait_healthy()

    def _read(self, client: Client) -> None:
        history = self._random.choice(self._histories)
        read = client.read(history.group)
        if read is not None:
            self._new_reads.append((history, read))

    def _round(self, cluster: Cluster, writers: list[Writer]) -> None:
        victim = self._random.choice(writers).coordinator
        for writer in writers:
            writer.hurry.set()
        time.sleep(self._random.uniform(0, KILL_WITHIN_S))
        killed_s = time.monotonic()
        cluster.kill(victim)
        self._await_commits(writers)
        self.report.outages_s.append(time.monotonic() - killed_s)
        for writer in writers:
            writer.hurry.clear()
        cluster.restart(victim)
        cluster.wait_healthy()
        self.report.rounds += 1

    def _await_commits(self, writers: list[Writer]) -> None:
        before = [writer.acknowledged for writer in writers]

        def all_committed() -> bool:
            assert not self._failures, self._failures
            return all(w.acknowledged > n + 1 for w, n in zip(writers, before, strict=True))

        wait_until(all_committed, "commits to every group")

    def _judge(self, writers: list[Writer]) -> None:
        report = self.report
        for history, read in self._new_reads:
            history.reads.append(read)
        for history in self._histories:
            report.violations += check(history)
            report.reads += len(history.reads)
        report.violations += self._failures
        for writer in writers:
            report.acknowledged += writer.acknowledged
            report.unknown_there += writer.unknown_there
            report.unknown_not_there += writer.unknown_not_there


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.groups.atomicity")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}: whom the kills hit follows from it, the timing doesn't")
    started_s = time.monotonic()
    report = Torture(options.seed, say=lambda line: print(line, flush=True)).play(options.rounds)
    print("\n".join(report.violations[:20]), end="\n" if report.violations else "")
    print(f"{report.summary()} in {time.monotonic() - started_s:.0f} s")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
