"""Loads of topics that lose records or are made anew, and of runs that others end."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.lake import DoesNotFitError, LakeError
from kraftpy.spark.brokers import Brokers, DataLossError
from tests.spark.loading import ROWS, Loading, assert_each_once
from tests.spark.topics import delete_before, delete_topic

WRITE_FILES = "kraftpy.pipeline.table.write_files"


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.fill(ROWS)
    return loading


def test_a_load_goes_on_only_where_the_topic_does(loading: Loading) -> None:
    loading.load(end="100")
    delete_before(loading.bootstrap, loading.topic, 1, 150)
    with pytest.raises(DataLossError, match="starts at 150, after offset 100"):
        loading.load()
    assert loading.loader().unfinished() == []
    loading.options = {"failOnDataLoss": "false"}
    outcome = loading.load()
    assert outcome is not None
    assert outcome.rows == ROWS - 200 - 50
    assert loading.load() is None


def test_a_plan_is_not_done_on_another_topic_of_the_name(loading: Loading) -> None:
    """Nor is its lake loaded further."""
    from tests.spark.topics import create_topic

    loader = loading.loader()
    plan = loader.plan_load(Bound.read("lake"), Bound.read("latest"))
    assert plan is not None
    loader.run(plan)
    late = loader.plan_rerun_of(plan.run)
    delete_topic(loading.bootstrap, loading.topic)
    create_topic(loading.bootstrap, loading.topic, 2)
    loading.fill(ROWS + 100)
    before = loading.lake().latest()
    with pytest.raises(DoesNotFitError, match="deleted and created again"):
        loader.run(late)
    with pytest.raises(DoesNotFitError, match="load it into another lake"):
        loading.load()
    assert loading.lake().latest() == before


def test_a_run_that_was_rolled_back_meanwhile_has_not_ended_well(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kraftpy.pipeline import load

    loader = loading.loader()
    plan = loader.plan_load(Bound.read("lake"), Bound.read("latest"))
    assert plan is not None

    def abandoned(*arguments: Any) -> Any:
        files = write_ranges(*arguments)
        loader.roll_back(plan)
        loading.lake().sweep(now_ms=1, keep_ms=0)
        return files

    write_ranges = load.write_ranges  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(load, "write_ranges", abandoned)
        with pytest.raises(LakeError, match="rolled back"):
            loader.run(plan)
    assert_each_once(loading)


@pytest.mark.parametrize("lost", ["start", "end"])
def test_a_rerun_takes_nothing_from_a_lake_that_the_topic_has_lost(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Nor does who finishes one that was begun, whatever the options say."""
    loading.options = {"failondataloss": "false"}
    outcome = loading.load()
    assert outcome is not None
    before, version = loading.rows(), loading.lake().latest()
    loader = loading.loader()
    begun = loader.plan_rerun_of(outcome.run)
    if lost == "start":
        delete_before(loading.bootstrap, loading.topic, 0, 50)
        words = rf"\[0, {ROWS // 2}\) is to be read, and the log starts at 50 now"
    else:
        ends = {(loading.topic, 0): ROWS // 2, (loading.topic, 1): 30}
        monkeypatch.setattr(Brokers, "latest", lambda _, names: {one: ends[one] for one in names})
        words = rf"\[0, {ROWS // 2}\) is to be read, and the log ends at 30 now"
    with pytest.raises(DataLossError, match=words + r".*--from and --to") as raised:
        loader.plan_rerun_of(outcome.run)
    assert "failOnDataLoss" not in str(raised.value)
    with pytest.raises(DataLossError, match=words):
        loader.plan_rerun(Bound.read('{"0": 0, "1": 0}'), Bound.read("lake"))
    with pytest.raises(DataLossError, match=words):
        loader.run(begun)
    assert loader.unfinished() == []
    loading.lake().freeze(begun)
    with pytest.raises(DataLossError, match=words + r".*begun.*--abandon"):
        loader.run(begun)
    assert loading.lake().latest() == version
    assert loading.rows() == before


def test_what_is_gone_while_a_rerun_reads_ends_it(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kraftpy.pipeline import load

    loading.options = {"failOnDataLoss": "false"}
    outcome = loading.load()
    assert outcome is not None
    before, loader = loading.rows(), loading.loader()
    plan = loader.plan_rerun_of(outcome.run)
    write_ranges = load.write_ranges  # type: ignore[attr-defined]

    def late(*arguments: Any) -> Any:
        delete_before(loading.bootstrap, loading.topic, 0, 50)
        return write_ranges(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(load, "write_ranges", late)
        with pytest.raises(DataLossError):
            loader.run(plan)
    assert loading.rows() == before
