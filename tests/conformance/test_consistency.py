"""`kraftpy consistency run --bootstrap`: the same workloads and checkers judge Apache Kafka."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kraftpy.testing.consistency import HistoryReader
from kraftpy.testing.consistency.clients import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.report import judge
from kraftpy.testing.consistency.runner import Plan, run
from kraftpy.testing.consistency.workloads import PLAYS
from tests.apache_kafka import ApacheKafka
from tests.processes import running

LOAD_S, GROUPS_LOAD_S = 2.0, 5.0  # members need their time to join
RATE = 200.0
CLIENTS = {"confluent-kafka", "kafka-python", "kraftpy"}
SETTINGS = {
    f"group_consumer_{bound}{name}_ms": value
    for name, value in (
        ("session_timeout", SESSION_TIMEOUT_MS),
        ("heartbeat_interval", HEARTBEAT_INTERVAL_MS),
    )
    for bound in ("min_", "")
}


def test_apache_kafka_keeps_every_promise(tmp_path: Path) -> None:
    """All workloads without faults, through all clients; what they asked for was really done."""
    (tmp_path / "kafka").mkdir()
    with running(ApacheKafka(tmp_path / "kafka", **SETTINGS)) as kafka:
        for workload in PLAYS:
            plan = Plan(
                workload,
                tmp_path / workload,
                time_limit_s=GROUPS_LOAD_S if workload == "groups" else LOAD_S,
                rate=RATE,
                seed=11,
                bootstrap=kafka.bootstrap,
            )
            result = run(plan, say=print)
            assert (result.dead, result.killed, result.kept) == (0, 0, None), workload
    for workload in PLAYS:
        _look_at(workload, HistoryReader(tmp_path / workload / "history.jsonl"))


def _look_at(workload: str, history: HistoryReader) -> None:
    outcome, report = judge(history)
    assert outcome.valid, (workload, [each for each in outcome.verdicts if not each.valid])
    assert report["clients"].keys() == CLIENTS & set(PLAYS[workload].final.clients)
    done: Counter[tuple[str, str]] = Counter()
    owners = set()
    for each in pair(history):
        if isinstance(each, Operation) and each.outcome == "ok" and each.client:
            done[each.client, each.f] += 1
            if each.f == "assigned" and each.value["keys"]:
                owners.add((each.client, each.value["group"].rpartition("-")[2]))
    for name in CLIENTS:
        match workload:
            case "queue":
                assert done[name, "send"] > 10
                assert done[name, "drain"] == 1
            case "offsets":
                assert min(done[name, "commit"], done[name, "fetch"]) > 3
            case "groups":
                assert (name, "classic") in owners
            case "metadata" if name != "kafka-python":
                assert min(done[name, "create"], done[name, "describe"]) > 3
    if workload == "groups":
        assert ("confluent-kafka", "consumer") in owners
    assert "Every promise was kept" in render(report)
