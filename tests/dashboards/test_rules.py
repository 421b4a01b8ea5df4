"""Alert and recording rules as files; what they do is proven by promtool and `make dashboards`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.dashboards import shipped

ALERTS = {rule["alert"]: rule for rule in shipped.rules("alerts")}
EVERY = pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS.keys())


@EVERY
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["alert"].startswith("Kraftpy")
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    assert len(notes["summary"]) < 120
    assert notes["description"].endswith(".")
    guide = shipped.GUIDE.relative_to(shipped.ROOT)
    assert notes["runbook"] == f"{guide}#{rule['alert'].lower()}"


@EVERY
def test_the_operations_guide_has_the_alert(rule: dict[str, Any]) -> None:
    assert rule["alert"].lower() in shipped.anchors(shipped.GUIDE.read_text())


def test_alerts_have_names_of_their_own() -> None:
    assert len(ALERTS) == len(shipped.rules("alerts"))


def test_every_alert_is_tested_by_promtool() -> None:
    """Healthy before its time, firing after it, in one block of its name (make conformance)."""
    tests = yaml.safe_load((shipped.RULES / "alerts_test.yml").read_text())["tests"]
    tested = {test["name"]: test for test in tests}
    assert tested.keys() == ALERTS.keys()
    for name, test in tested.items():
        before, after = test["promql_expr_test"]
        assert before["exp_samples"] == []
        assert len(after["exp_samples"]) == 1
        assert f'alertname="{name}"' in after["expr"] == before["expr"]


def test_recording_rules_say_their_labels() -> None:
    """level:metric:operations, the level being the labels that are left."""
    for record, expr in shipped.recorded().items():
        level, metric, operations = record.split(":")
        assert operations
        assert shipped.metric_of(metric) in shipped.metrics_in(expr) or metric in expr
        grouped = re.search(r"by \(([^)]*)\)", expr)
        if grouped is not None:
            labels = {label.strip() for label in grouped[1].split(",")} - {"le"}
            assert set(level.split("_")) == labels


def test_recording_rules_are_used() -> None:
    """In an alert, or because the docs name them as worth asking for."""
    used = {name for rule in ALERTS.values() for name in shipped.names_in(rule["expr"])}
    readme = (shipped.FOLDER / "README.md").read_text()
    for record in shipped.recorded():
        assert record in used or record in readme, record
