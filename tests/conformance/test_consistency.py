"""`kraftpy consistency run --bootstrap`: the same workloads and checkers judge Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.testing.consistency import HistoryReader
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.report import judge
from kraftpy.testing.consistency.runner import GROUP_TIMES, run
from kraftpy.testing.consistency.workloads import PLAYS
from tests.apache_kafka import ApacheKafka
from tests.processes import running

LOAD_S, GROUPS_LOAD_S = 2.0, 5.0  # members need their time to join
RATE = 200.0
WANTED = {
    "queue": ("send", "poll", "drain"),
    "replicas": ("send", "poll", "drain"),
    "offsets": ("commit", "fetch"),
    "commits": ("commit-all", "fetch-all"),
    "groups": ("classic", "processed", "commit", "fetch"),
    "list-append": ("txn", "poll", "drain"),
    "transform": ("txn", "poll", "drain"),
    "bank": ("txn", "poll", "drain"),
    "metadata": ("create", "alter", "delete", "describe"),
    # Members of whole partitions, with our client and a stock one.
    "cooperative": ("progress",),
    "share": ("lease", "hold", "acknowledge", "starts", "ends"),
}


@pytest.mark.timeout(400)
def test_apache_kafka_keeps_every_promise(tmp_path: Path) -> None:
    """All workloads without faults, through all clients; what they asked for was really done."""
    (tmp_path / "kafka").mkdir()
    with running(ApacheKafka(tmp_path / "kafka", **GROUP_TIMES)) as kafka:
        for workload in PLAYS:
            # On a busy machine clients need longer than the load lasts to start: give it more then.
            for times in (1, 3, 8):
                undone = _run(workload, tmp_path / f"{workload}{times}", kafka.bootstrap, times)
                if not undone:
                    break
            assert not undone, workload


def _run(workload: str, folder: Path, bootstrap: str, times: int) -> set[tuple[str, str]]:
    """Make a run and judge it; what each client should have done at least once, and didn't."""
    load_s = times * (LOAD_S if not PLAYS[workload].members else GROUPS_LOAD_S)
    plan = Plan(workload, folder, time_limit_s=load_s, rate=RATE, seed=11, bootstrap=bootstrap)
    result = run(plan, say=print)
    assert (result.dead, result.killed, result.kept) == (0, 0, None), workload
    history = HistoryReader(plan.history)
    outcome, report = judge(history)
    assert "metadata.version " in report["versions"]["peer features"]  # which tells its release
    assert outcome.valid is not False, [each for each in outcome.verdicts if not each.valid]
    done = set()
    for each in pair(history):
        if isinstance(each, Operation) and each.outcome == "ok" and each.client:
            done.add((each.client, each.f))
            if each.f == "assigned" and each.value["keys"]:
                done.add((each.client, each.value["group"].rpartition("-")[2]))
    wanted = {(name, f) for name in PLAYS[workload].final.clients for f in WANTED[workload]}
    if workload == "cooperative":
        wanted |= {("kraftpy", "claim"), ("kraftpy", "processed")}
    if workload == "groups":
        wanted |= {("confluent-kafka", "consumer"), ("aiokafka", "classic")}
    if wanted <= done:
        assert outcome.valid
        assert "Every promise was kept" in render(report)
    return wanted - done
