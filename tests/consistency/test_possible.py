"""What a machine lacks for faults: left out of all, refused by name, shown by list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import consistency
from kraftpy.cli.common import Failure
from kraftpy.testing import clocks
from kraftpy.testing.consistency import runner
from kraftpy.testing.consistency.faults import FAULTS, cluster_options, kinds, lacking
from kraftpy.testing.consistency.plan import Plan, RunError
from kraftpy.testing.networks import choice
from kraftpy.testing.networks.choice import PROXIES, Choice, choose
from kraftpy.testing.networks.hub import NetworkError

CLOCKS = {"clock-forward", "clock-back", "clock-drift"}


def command(*args: str) -> Result:
    return CliRunner().invoke(consistency.command, args, standalone_mode=False)


@pytest.fixture
def without_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "library", lambda: "")


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "in_the_way", lambda: "nobody may")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans of runs, none of which is made."""
    plans: list[Plan] = []

    def note(plan: Plan, **_: Any) -> None:
        plans.append(plan)
        raise RunError("enough is known")

    monkeypatch.setattr(runner, "run", note)
    return plans


@pytest.mark.usefixtures("without_clocks")
def test_clocks_are_left_out_of_all_and_the_report_says_why(
    planned: list[Plan], tmp_path: Path
) -> None:
    done = command("run", "--faults", "all", "--network", "proxy", "--out", str(tmp_path))
    (plan,) = planned
    assert set(plan.faults) == FAULTS.keys() - CLOCKS - lacking(FAULTS).keys()
    assert plan.left_out.keys() >= CLOCKS
    for name in CLOCKS:
        assert "apt-get install faketime" in plan.left_out[name]
        assert f"left out {name}" in done.output
    assert (plan.network, plan.network.text()) == (
        PROXIES,
        "TCP proxies between the nodes (it was asked for)",
    )


@pytest.mark.usefixtures("without_clocks")
def test_a_fault_that_cannot_be_had_is_refused_by_name(planned: list[Plan]) -> None:
    done = command("run", "--faults", "kill,kill+clock-back", "--network", "proxy")
    assert planned == []
    assert isinstance(done.exception, Failure)
    assert done.exception.code == 2
    assert "clock-back can't be had here: libfaketime isn't installed" in done.exception.message


@pytest.mark.usefixtures("without_clocks", "without_namespaces")
def test_list_says_what_can_be_had() -> None:
    answer = json.loads(command("list", "-o", "json").output)
    assert answer["missing"].keys() >= CLOCKS
    assert "kill" not in answer["missing"]
    assert answer["networks"]["namespaces"] == "not here: nobody may"
    shown = command("list").output
    assert "not here: libfaketime isn't installed: apt-get install faketime" in shown


def test_a_cluster_is_told_what_its_faults_need() -> None:
    assert cluster_options(kinds(["kill+clock-back", "partition"])) == {"clocks": True}
    assert cluster_options(["kill", "partition"]) == {}


@pytest.mark.usefixtures("without_namespaces")
def test_where_there_are_no_namespaces_there_are_proxies() -> None:
    assert choose("auto") == Choice("proxy", "network namespaces don't work here: nobody may")
    assert choose("proxy") == PROXIES
    with pytest.raises(NetworkError, match="don't work here: nobody may"):
        choose("namespaces")


def test_where_they_work_they_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "in_the_way", lambda: "")
    assert choose("auto") == Choice("namespaces", "they work here")
    assert "network namespaces between the nodes" in choose("namespaces").text()
