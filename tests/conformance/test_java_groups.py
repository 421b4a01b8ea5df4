"""Groups of the Java client, in both protocols, killed with their coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.testing.consistency import HistoryReader, check
from kraftpy.testing.consistency.clients.java import JARS
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.runner import run
from tests.apache_kafka import fetch_jars

FAULTS = [
    "move-coordinator",
    "freeze-client",
    "kill-coordinator+leave-client",
    "kill-client",
    "kill-coordinator",
]
ROLES = ["send", "look", "join", "join-cooperative", "join-consumer"]


@pytest.mark.timeout(400)
def test_groups_of_the_java_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members each with range, with cooperative-sticky, and with KIP-848 beside librdkafka."""
    monkeypatch.setenv(JARS, str(fetch_jars()))
    plan = Plan(
        "groups",
        tmp_path / "run",
        FAULTS,
        time_limit_s=36,
        rate=120,
        concurrency=8,
        seed=2152,
        clients=["java", "confluent-kafka"],
        roles=ROLES,
    )
    result = run(plan, say=print)
    assert (result.dead, result.killed, result.unhealthy) == (0, 0, "")
    assert result.faults.keys() == {name for each in FAULTS for name in each.split("+")}
    history = HistoryReader(plan.history)
    outcome = check(history)
    assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
    done = {
        each.value["group"].rpartition("-")[2]
        for each in pair(history)
        if isinstance(each, Operation) and each.f == "processed" and each.client == "java"
    }
    assert done == {"classic", "cooperative", "consumer"}
    said = {each.checker: next(iter(each.counts.values())) for each in outcome.verdicts}
    assert said["stale-commit"] > 20  # there was load, and it was processed
    assert said["needless-rebalance"] >= 3
