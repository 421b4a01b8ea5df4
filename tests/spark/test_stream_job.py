"""`kraftpy pipeline stream`: loads that follow a topic, with the lake as their checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.groups import commit_ends
from kraftpy.pipeline.lake import DoesNotFitError
from kraftpy.pipeline.load import Limits, Loader
from kraftpy.pipeline.stream import StoppedError, stream
from kraftpy.spark.brokers import DataLossError
from kraftpy.testing import Broker
from tests.spark.loading import Loading
from tests.spark.outages import outage
from tests.spark.topics import create_topic, delete_before, fill, on_cluster


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.fill(100)
    return loading


def follow(loading: Loading, most: int | None = None) -> list[int]:
    loader = loading.loader(limits=Limits(max_records=most))
    runs = stream(loader, every_s=None, stop=threading.Event())
    return [outcome.rows for outcome in runs]


def test_what_is_there_now_is_loaded_in_parts_and_no_more(loading: Loading) -> None:
    loader = loading.loader(limits=Limits(max_records=60))
    runs = stream(loader, every_s=None, stop=threading.Event())
    assert next(runs).rows == 60
    loading.fill(40, first=100)
    assert [outcome.rows for outcome in runs] == [40]
    assert follow(loading) == [40]
    assert follow(loading) == []
    assert {change.kind for change in map(loading.lake().read, (1, 2, 3))} == {"stream"}


def test_it_goes_on_until_it_is_stopped_and_takes_new_partitions(loading: Loading) -> None:
    stop = threading.Event()
    runs = stream(loading.loader(), every_s=0.1, stop=stop)
    assert next(runs).rows == 100
    on_cluster(
        loading.bootstrap, lambda cluster: Admin(cluster).create_partitions(loading.topic, 3)
    )
    fill(loading.bootstrap, loading.topic, [{"value": b"new", "partition": 2}])
    assert next(runs).rows == 1
    stop.set()
    assert list(runs) == []


def test_brokers_that_are_away_between_two_loads_are_waited_for(spark: Any, tmp_path: Path) -> None:
    with Broker(dir=tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "t", 2)
        loading = Loading(spark, broker.bootstrap, "t", tmp_path)
        loading.fill(10)
        runs = stream(loading.loader(), every_s=0.1, stop=threading.Event())
        assert next(runs).rows == 10
        with outage(broker, lambda: loading.fill(20, first=10)):
            loaded = next(runs).rows
        while loaded < 20:
            loaded += next(runs).rows
        assert [row[:2] for row in loading.rows()] == [(p, n) for p in (0, 1) for n in range(15)]


class ThreeLoads:
    """A loader with three runs of work that is told to stop in one of them."""

    def __init__(self, stop_in: int) -> None:
        self.stop = threading.Event()
        self.left = 3
        self._stop_at = 3 - stop_in

    def log_ends(self) -> dict[int, int]:
        return {0: 3}

    def unfinished(self) -> list[int]:
        return []

    def plan_load(self, *_: Any, until: dict[int, int]) -> int | None:
        assert until == self.log_ends()
        return self.left or None

    def run(self, plan: int) -> int:
        self.left -= 1
        if self.left == self._stop_at:
            self.stop.set()
        return plan


def test_it_says_if_it_was_stopped_before_all_was_loaded() -> None:
    early, late = ThreeLoads(stop_in=2), ThreeLoads(stop_in=3)
    with pytest.raises(StoppedError):
        list(stream(cast("Loader", early), every_s=None, stop=early.stop))
    assert early.left == 1
    assert len(list(stream(cast("Loader", late), every_s=None, stop=late.stop))) == 3


def test_of_two_loads_of_the_same_records_one_counts_and_none_is_left(loading: Loading) -> None:
    """Both were planned before either was frozen."""
    plans = []
    for loader in (loading.loader(), loading.loader()):
        plan = loader.plan_load(Bound("lake"), Bound("latest"))
        assert plan is not None
        plans.append((loader, plan))
    (first, first_plan), (late, late_plan) = plans
    assert first.run(first_plan).rows == 100
    with pytest.raises(DoesNotFitError, match="are in the lake already"):
        late.run(late_plan)
    assert late.unfinished() == []
    assert follow(loading) == []
    assert len(loading.rows()) == 100


def test_lost_records_end_it_or_are_left_out(loading: Loading) -> None:
    follow(loading)
    loading.fill(100, first=100)
    delete_before(loading.bootstrap, loading.topic, 0, 70)
    with pytest.raises(DataLossError):
        follow(loading)
    loading.options = {"failOnDataLoss": "false"}
    assert follow(loading) == [80]


def test_a_group_gets_where_the_lake_ends(loading: Loading) -> None:
    follow(loading)
    door = Door(loading.bootstrap)

    def committed() -> dict[int, int]:
        found = on_cluster(loading.bootstrap, lambda cluster: GroupAdmin(cluster).committed("lag"))
        return {partition: each.offset for (_, partition), each in found.items()}

    for _ in range(2):
        commit_ends(door, loading.topic, "lag", loading.loader().ends())
        assert committed() == {0: 50, 1: 50}
