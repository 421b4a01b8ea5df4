"""Runs of every workload: green with faults on a sound build, red on builds that are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.testing import Cluster
from kraftpy.testing.consistency import HistoryReader, Outcome, check
from kraftpy.testing.consistency.history import Phase
from kraftpy.testing.consistency.runner import Plan, Result, run

from .broken import broken_cluster

# Seeds whose first fault comes early: for a few seconds, or for longer than a session of a broker.
SHORT_SEED, LONG_SEED = 58, 26
CONFLUENT = ("confluent-kafka", "kraftpy")


def judged(plan: Plan, result: Result) -> Outcome:
    assert not result.unhealthy
    assert not result.dead
    assert sum(result.faults.values()) >= 1
    reader = HistoryReader(plan.history)
    outcome = check(reader)
    assert [e.name for e in reader if isinstance(e, Phase)] == ["load", "heal", "final"]
    return outcome


@pytest.mark.parametrize(
    ("workload", "fault"),
    [("queue", "kill"), ("offsets", "pause"), ("groups", "kill"), ("metadata", "partition")],
)
def test_promises_are_kept_under_a_fault(tmp_path: Path, workload: str, fault: str) -> None:
    plan = Plan(workload, tmp_path, [fault], time_limit_s=6, seed=SHORT_SEED)
    outcome = judged(plan, run(plan, say=print, make_cluster=Cluster))
    assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
    assert outcome.operations > 200
    assert outcome.header.options["clients"] == ["confluent-kafka", "kafka-python", "kraftpy"]


@pytest.mark.parametrize(
    ("build", "workload", "fault", "broken"),
    [
        ("acks_before_replication", "queue", "partition", "lost-write"),
        ("offsets_before_replication", "offsets", "partition", "offset-regression"),
        ("no_deduplication_after_failover", "queue", "partition-one-way", "duplicate"),
    ],
)
def test_a_broken_build_is_caught(
    tmp_path: Path, build: str, workload: str, fault: str, broken: str
) -> None:
    plan = Plan(
        workload, tmp_path, [fault], time_limit_s=7.5, seed=LONG_SEED, clients=CONFLUENT, rate=150
    )
    outcome = judged(plan, run(plan, say=print, make_cluster=broken_cluster(build)))
    assert broken in [each.checker for each in outcome.verdicts if each.valid is False]
