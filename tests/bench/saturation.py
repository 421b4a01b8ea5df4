"""`make bench ARGS=saturation`: a broker with more to do than it can, and the quorum beside it.

For a minute each core has a producer of small batches and a reader of large fetches, all on one
partition; its leader leads the metadata quorum as well. The quorum must go on as if nothing were:
no election, no fenced broker, commits with a p99 of 30 ms at most.

    python -m tests.bench.saturation produce|fetch HOST:PORT TOPIC SECONDS

is one of those clients; it prints how many bytes went through.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests.bench import figures
from tests.bench.commits import Commits
from tests.bench.measure import Say
from tests.bench.probe import Watch, percentile
from tests.bench.replay import replay_fetch, replay_produce
from tests.bench.replicated import TIMEOUT_S
from tests.processes import cpu_seconds
from tests.quorums import KraftpyQuorum

SECONDS = 60.0
TOPIC = "saturated"
COMMITS_TOPIC = "commits"
BATCH_BYTES = 1024
FETCH_BYTES = 1 << 20
FETCH_BATCHES = 30_000
REQUESTS_AT_A_TIME = 2_000


class _Address:
    """What the replays need of a broker; whose CPU it is nobody asks here."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def pids(self) -> list[int]:
        return []


def client(kind: str, address: str, topic: str, seconds: float) -> int:
    """Works until the time is over; returns the bytes of records that went through."""
    broker, total = _Address(address), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if kind == "produce":
            total += replay_produce(broker, topic, BATCH_BYTES, REQUESTS_AT_A_TIME).bytes
        else:
            total += replay_fetch(broker, topic, BATCH_BYTES, FETCH_BATCHES, FETCH_BYTES).bytes
    return total


def run(say: Say) -> str:
    """Plays it; returns the table."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        quorum = KraftpyQuorum(Path(folder))
        try:
            quorum.start()
            return figures.layout(["", "", "", "", ""], _measure(quorum, say))
        finally:
            quorum.stop()


def _measure(quorum: KraftpyQuorum, say: Say) -> list[list[str]]:
    leader = quorum.controller()
    others = [node for node in quorum.running if node != leader]
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
    topics = [
        NewTopic(TOPIC, 1, replica_assignment=[[leader, *others]]),
        NewTopic(COMMITS_TOPIC, 1, 3),
    ]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    quorum.wait_in_sync()
    address = quorum.addresses[leader]
    replay_produce(_Address(address), TOPIC, BATCH_BYTES, FETCH_BATCHES)
    cores = os.cpu_count() or 1
    say(f"{cores} producers and {cores} readers for {SECONDS:.0f} s")
    watch = Watch(quorum)
    cpu = {node: cpu_seconds(quorum.pids(node)) for node in quorum.running}
    clients = [(kind, _start(kind, address)) for kind in ("produce", "fetch") for _ in range(cores)]
    commits = Commits(quorum, COMMITS_TOPIC, SECONDS).times_ms()
    bytes_through = {"produce": 0, "fetch": 0}
    for kind, process in clients:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise BrokerError(f"a client that was to {kind} has failed")
        bytes_through[kind] += int(output)
    watch.stop()
    elections = watch.term() - watch.first_term
    p99 = percentile(commits, 99)
    rows = [
        ["produced", f"{bytes_through['produce'] / BATCH_BYTES / SECONDS:,.0f}", "requests/s"],
        ["fetched", f"{bytes_through['fetch'] / SECONDS / 1e6:,.0f}", "MB/s"],
        ["quorum commit, p50", figures.number(percentile(commits, 50)), "ms"],
        ["quorum commit, p99", figures.number(p99), "ms", "<= 30", _verdict(p99 <= 30)],
        ["quorum commit, longest", figures.number(max(commits)), "ms"],
        ["elections of a controller", str(elections), "", "0", _verdict(not elections)],
        ["a broker was fenced", f"{watch.missing_s:.1f}", "s", "0", _verdict(not watch.missing_s)],
    ]
    for node in quorum.running:
        used = (cpu_seconds(quorum.pids(node)) - cpu[node]) / SECONDS * 100
        what = "leads all" if node == leader else "follows"
        rows.append([f"CPU of node {node} ({what})", f"{used:.0f}", "%"])
    return [[*row, *[""] * (5 - len(row))] for row in rows]


def _verdict(good: bool) -> str:
    return "met" if good else "MISSED"


def _start(kind: str, address: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.bench.saturation", kind, address, TOPIC, str(SECONDS)]
    return subprocess.Popen(program, stdout=subprocess.PIPE)


if __name__ == "__main__":
    print(client(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
