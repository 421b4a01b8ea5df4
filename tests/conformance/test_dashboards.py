"""Boards and rules as Prometheus takes them. What needs faults is `make dashboards`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kraftpy.testing import Cluster
from tests.dashboards.__main__ import JOB
from tests.dashboards.expressions import check_boards, check_recorded
from tests.dashboards.load import Load
from tests.dashboards.prometheus import Prometheus
from tests.dashboards.shipped import RULES
from tests.endpoints import metrics_address

DATA_TIMEOUT_S = 30.0
BOARDS = ("kraftpy-overview.json", "kraftpy-groups.json")


def promtool(*args: str) -> None:
    done = subprocess.run(
        ["promtool", *args], cwd=RULES, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_sound() -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")


def test_every_alert_fires_in_time_and_only_then() -> None:
    promtool("test", "rules", "alerts_test.yml")


def test_expressions_return_data_of_a_cluster_under_load(tmp_path: Path) -> None:
    with Cluster(3, links=False) as cluster, Load(cluster.bootstrap):
        targets = [metrics_address(node.config) for node in cluster.nodes.values()]
        with Prometheus(tmp_path / "prometheus", {JOB: targets}) as prometheus:
            checked = check_boards(prometheus, DATA_TIMEOUT_S, BOARDS)
            checked += check_recorded(prometheus, DATA_TIMEOUT_S)
            assert len(checked) > 50
            assert [each for each in checked if each.problem] == []
            assert prometheus.broken_rules() == []
