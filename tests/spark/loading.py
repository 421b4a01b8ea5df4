"""A topic of two partitions and lakes that it is loaded into, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import Lake, clock_ms
from kraftpy.pipeline.load import Limits, Loader, Outcome
from kraftpy.pipeline.table import read_lake
from tests.spark.topics import fill, numbered

Format = Literal["kraftpy", "kafka"]
SMALL = Limits(max_records_per_task=300)
ROWS = 2000
"""How many the tests of faults have in both partitions."""


class Loading:
    """A topic of two partitions, and lakes that it is loaded into."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic
        self.folder = folder
        self.options: dict[str, str] = {}

    def fill(self, count: int, first: int = 0) -> None:
        fill(self.bootstrap, self.topic, numbered(count, 2, first), compression="lz4")

    def loader(
        self, name: str = "lake", door: Format = "kraftpy", limits: Limits = SMALL
    ) -> Loader:
        lake = Lake.at(str(self.folder / name), create=True)
        way = Door(self.bootstrap, door, self.options)
        return Loader(lake, way, self.topic, lambda: self.spark, limits)

    def load(
        self, name: str = "lake", end: str = "latest", door: Format = "kraftpy"
    ) -> Outcome | None:
        loader = self.loader(name, door)
        plan = loader.plan_load(Bound.read("lake"), Bound.read(end))
        return loader.run(plan) if plan else None

    def lake(self, name: str = "lake") -> Lake:
        return Lake.at(str(self.folder / name))

    def rows(self, name: str = "lake") -> list[tuple[Any, ...]]:
        table = read_lake(self.spark, self.lake(name), self.topic)
        columns = ("partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
        found = table.select(*columns).orderBy("partition", "offset").collect()
        return [tuple(row) for row in found]


def assert_each_once(loading: Loading) -> None:
    """The next run finishes what there is to finish; all rows are there, nothing is left over."""
    loader = loading.loader()
    for plan in loader.unfinished():
        loader.run(plan)
    loading.load()
    assert [row[:2] for row in loading.rows()] == [(p, n) for p in (0, 1) for n in range(ROWS // 2)]
    lake = loading.lake()
    lake.sweep(now_ms=clock_ms(), keep_ms=0)
    files = {str(path.relative_to(lake.folder)) for path in lake.folder.rglob("*.parquet")}
    assert files == lake.latest().files.keys()
    assert not list(lake.folder.glob("_kraftpy/plans/*.json"))
