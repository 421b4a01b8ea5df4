"""The boards as files: made from their descriptions, sound, and of metrics that there are."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from dashboards.generator import grafana
from dashboards.generator.boards import FOLDER, files
from kraftpy.metrics.catalog import CATALOG, Kind
from tests.dashboards import shipped
from tests.dashboards.coverage import problems

BOARDS = shipped.boards()
EVERY = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
UNITS = {"s", "bytes", "binBps", "cps", "percentunit", "short", "none", "dateTimeFromNow"}
KINDS = {"stat", "timeseries", "heatmap"}


def test_the_files_are_what_the_generator_makes() -> None:
    made = files()
    boards = {f"grafana/{path.name}" for path in (FOLDER / "grafana").iterdir()}
    assert {*boards, "METRICS.md"} == set(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"{name} is old: make docs"


@EVERY
def test_ids_are_unique_and_panels_do_not_overlap(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] + place["w"] <= grafana.COLUMNS
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert not cells & taken, panel["title"]
        taken |= cells


@EVERY
def test_every_panel_says_what_it_shows(board: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in shipped.panels(board):
        assert panel["type"] in KINDS
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == grafana.DATASOURCE
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        steps = [step["value"] for step in defaults["thresholds"]["steps"]]
        assert steps[0] is None
        assert steps[1:] == sorted(steps[1:])
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for target in panel["targets"]:
            assert target["expr"]
            assert target["legendFormat"]
            assert target["datasource"] == grafana.DATASOURCE


@EVERY
def test_the_board_can_be_imported_anywhere(board: dict[str, Any]) -> None:
    """Nothing in it belongs to one Grafana: no ids, and data comes from where a variable says."""
    assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
    assert "id" not in board
    assert board["schemaVersion"] >= 39
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[:3] == ["datasource", "job", "instance"]
    known = {*names, "__rate_interval"}
    for variable in board["templating"]["list"]:
        assert variable["label"]
        assert set(re.findall(r"\$\{?(\w+)", str(variable["query"]))) <= known
    for panel in shipped.panels(board):
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert {"job", "instance"} <= used <= known, (panel["title"], used)
    for link in board["links"]:
        assert f"{link['url'].removeprefix('/d/')}.json" in BOARDS


def test_boards_have_names_of_their_own() -> None:
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(f"{board['uid']}.json" == name for name, board in BOARDS.items())


def test_boards_and_catalogue_agree() -> None:
    shown = {name for _, expr in shipped.all_expressions() for name in shipped.metrics_in(expr)}
    assert problems(shown, set(CATALOG)) == []


def test_a_disagreement_is_found_both_ways() -> None:
    shown = {name for _, expr in shipped.all_expressions() for name in shipped.metrics_in(expr)}
    assert problems({*shown, "kraftpy_imaginary"}, set(CATALOG))
    assert problems(shown - {"kraftpy_connections"}, set(CATALOG))
    assert problems(shown, {*CATALOG, "kraftpy_new"})
    assert problems({*shown, "kafka_broker_info"}, set(CATALOG))
    assert problems(shown, set(CATALOG) - {"kafka_broker_info"})


def test_labels_are_those_of_the_catalogue() -> None:
    """A typing error in a matcher finds nothing, and nobody notices."""
    scraped = {"job", "instance", "le"}
    checked = 0
    for where, expr in shipped.all_expressions():
        for series, inside in re.findall(r"([a-z_][a-z0-9_:]*)\{([^}]*)\}", expr):
            metric = CATALOG.get(shipped.metric_of(series))
            if metric is None:
                continue
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside):
                checked += 1
                assert label in {*metric.labels, *scraped}, f"{where}: {series} has no {label}"
    assert checked > 100


def test_counters_are_rated_and_gauges_are_not() -> None:
    for where, expr in shipped.all_expressions():
        for function, series in re.findall(r"\b(rate|increase)\(([a-z_:]+)", expr):
            metric = CATALOG[shipped.metric_of(series)]
            grows = metric.kind is not Kind.GAUGE or "offset" in metric.name
            assert grows, f"{where}: {function} of the gauge {series}"
