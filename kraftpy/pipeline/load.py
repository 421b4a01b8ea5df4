"""`load`, `stream` and `rerun`: records of a topic into a lake, each once.

Rules:

* What a run reads is frozen in its plan before it reads: who finishes it later loads the same.
* A run that was begun and not ended is finished first, before anything new is planned.
* Brokers that have answered once are waited for when they are away later, be it between two runs.
* A name may come to stand for another topic at any time: it is looked up before a run reads and
  before it commits.
* A rerun reads its ranges from the topic again and replaces exactly them; the rows that a file has
  besides are written anew beside them. Offsets that are gone from the topic always end it: it
  would take from the lake what nobody else has any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kraftpy.pipeline.bounds import Bound, check_ends, find_loss, resolve
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import DoesNotFitError, Lake, LakeError, RunEndedError, clock_ms, new_run
from kraftpy.pipeline.manifests import DataFile, Kind, Plan
from kraftpy.pipeline.parquet import Target
from kraftpy.pipeline.ranges import OffsetRange, Spans, missing
from kraftpy.pipeline.rewrite import keep_besides, rewrite
from kraftpy.pipeline.table import write_ranges
from kraftpy.spark.brokers import Brokers, DataLossError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Limits:
    """How a run is cut up. They decide how files look, not which records are in them."""

    max_records_per_task: int = 1_000_000
    max_file_size_bytes: int = 256 << 20
    max_records: int | None = None
    """The most offsets of all partitions together that one run takes; None: all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did, as `kraftpy pipeline` reports it."""

    run: str
    kind: str
    version: int
    finished_earlier_run: bool
    rows: int
    files: int
    size_bytes: int
    ranges: tuple[OffsetRange, ...]
    seconds: float


class Loader:
    """Loads one topic into one lake. `spark` is called when there is something to read."""

    def __init__(
        self,
        lake: Lake,
        door: Door,
        topic: str,
        spark: Callable[[], SparkSession],
        limits: Limits = Limits(),
    ) -> None:
        self._lake = lake
        self._door = door
        self._topic = topic
        self._spark = spark
        self._limits = limits
        self._reached = False

    def unfinished(self) -> list[Plan]:
        """The plans for this topic that somebody began and nobody ended."""
        return [
            plan
            for plan in self._lake.unfinished()
            if self._topic in plan.topics and plan.kind in ("load", "stream", "rerun")
        ]

    def plan_load(
        self,
        start: Bound,
        end: Bound,
        kind: Kind = "load",
        *,
        until: Mapping[int, int] | None = None,
        begun: Iterable[OffsetRange] = (),
    ) -> Plan | None:
        """What a load would do now; None if there is nothing new. Nothing is stored.

        `until`: offsets that partitions aren't read beyond; nothing of those that aren't in it.
        `begun`: what counts as in the lake besides.
        """
        return self._plan(kind, start, end, until, begun)

    def log_ends(self) -> dict[int, int]:
        """Where the topic's partitions end now."""
        with self._brokers() as brokers:
            _, partitions = self._door.describe(brokers, self._topic)
            found = brokers.latest([(self._topic, partition) for partition in partitions])
        return {partition: end for (_, partition), end in found.items()}

    def plan_rerun(
        self, start: Bound, end: Bound, *, begun: Iterable[OffsetRange] = ()
    ) -> Plan | None:
        """What replacing the offsets between two bounds would do; None if there are none.

        `begun`: what counts as in the lake besides.
        Raises DataLossError if the topic doesn't have them any more.
        """
        plan = self._plan("rerun", start, end, begun=begun)
        if plan is not None:
            self._check_rerun(plan)
        return plan

    def plan_rerun_of(self, run: str) -> Plan:
        """What doing a run's work again would do.

        Raises LakeError if it didn't end well, DataLossError as `plan_rerun`.
        """
        change = self._lake.find(run)
        if change is None:
            raise LakeError(f"no run {run} has ended in this lake: see `kraftpy pipeline runs`")
        if change.kind == "write":
            raise LakeError(f"run {run} wrote rows to a topic; only what was loaded can be again")
        ours = tuple(one for one in change.ranges if one.topic == self._topic)
        if not ours:
            raise LakeError(f"run {run} loaded nothing of {self._topic}")
        with self._brokers() as brokers:
            identity, _ = self._door.describe(brokers, self._topic)
        plan = Plan(new_run(), "rerun", {self._topic: identity}, ours, {}, clock_ms())
        self._check_rerun(plan)
        return plan

    def run(self, plan: Plan) -> Outcome:
        """Does what a plan says, and ends its run.

        Raises LakeError, DataLossError (the plan stays unfinished), OSError, and Spark's errors.
        """
        earlier = any(plan.run == begun.run for begun in self._lake.unfinished())
        began = time.monotonic()
        self._check_identity(plan)
        if plan.kind == "rerun":
            self._check_rerun(plan, begun=earlier)
        plan = self._lake.freeze(plan)
        files = self._write(plan)
        self._check_identity(plan)
        version = self._commit(plan, files)
        change = self._lake.read(version)
        if change.kind == "rollback":
            raise LakeError(f"run {plan.run} was rolled back by somebody while it was under way")
        return Outcome(
            run=plan.run,
            kind=plan.kind,
            version=version,
            finished_earlier_run=earlier,
            rows=sum(file.rows for file in change.add),
            files=len(change.add),
            size_bytes=sum(file.size_bytes for file in change.add),
            ranges=plan.ranges,
            seconds=time.monotonic() - began,
        )

    def roll_back(self, plan: Plan) -> None:
        """Ends a run without a result; what it has written is swept later."""
        self._lake.roll_back(plan.run, now_ms=clock_ms())

    def ends(self) -> Mapping[int, int]:
        """Where the lake ends in each partition of the topic."""
        version = self._lake.latest()
        return {
            partition: spans[-1][1]
            for (topic, partition), spans in version.covered.items()
            if topic == self._topic and spans
        }

    @contextmanager
    def _brokers(self) -> Iterator[Brokers]:
        with self._door.brokers(self._topic, patiently=self._reached) as brokers:
            yield brokers
        self._reached = True

    def _check_identity(self, plan: Plan) -> None:
        with self._brokers() as brokers:
            identity, _ = self._door.describe(brokers, self._topic)
        if identity != plan.topics[self._topic]:
            raise DoesNotFitError(
                f"topic {self._topic} isn't the one that run {plan.run} was planned for: it was"
                " deleted and created again, or is of another cluster; drop the run with --abandon"
            )

    def _check_rerun(self, plan: Plan, *, begun: bool = False) -> None:
        with self._brokers() as brokers:
            lost = find_loss(brokers, plan.ranges)
        if lost is not None:
            advice = (
                f"run {plan.run}, which was begun, can't end: drop it with --abandon"
                if begun
                else "name what the topic has yet with --from and --to"
            )
            raise DataLossError(lost, f"A rerun would take these rows from the lake; {advice}")

    def _plan(
        self,
        kind: Kind,
        start: Bound,
        end: Bound,
        until: Mapping[int, int] | None = None,
        begun: Iterable[OffsetRange] = (),
    ) -> Plan | None:
        version = self._lake.latest().covering(begun)
        with self._brokers() as brokers:
            identity, partitions = self._door.describe(brokers, self._topic)
            version.check_topics({self._topic: identity})
            starts = resolve(start, brokers, self._topic, partitions, version)
            ends = resolve(end, brokers, self._topic, partitions, version)
            if kind != "rerun":
                check_ends(brokers, self._topic, starts, fail=self._door.fails_on_data_loss())
        if until is not None:
            ends = {one: min(last, until.get(one, 0)) for one, last in ends.items()}
        ranges = [
            OffsetRange(self._topic, partition, starts[partition], ends[partition])
            for partition in partitions
            if starts[partition] < ends[partition]
        ]
        if kind != "rerun":
            ranges = [one for each in ranges for one in self._absent(each, version.covered)]
        ranges = _at_most(ranges, self._limits.max_records)
        if not ranges:
            return None
        return Plan(new_run(), kind, {self._topic: identity}, tuple(ranges), {}, clock_ms())

    def _absent(
        self, wanted: OffsetRange, covered: Mapping[tuple[str, int], Spans]
    ) -> list[OffsetRange]:
        """Those parts of the range that aren't in the lake."""
        spans = covered.get((wanted.topic, wanted.partition), ())
        return [
            OffsetRange(wanted.topic, wanted.partition, start, end)
            for start, end in missing(spans, wanted.start, wanted.end)
        ]

    def _write(self, plan: Plan) -> list[DataFile]:
        if not any(one.start < one.end for one in plan.ranges):
            return []
        target = Target(self._lake.folder, plan.run, self._limits.max_file_size_bytes)
        most = self._limits.max_records_per_task
        door = self._door.strict() if plan.kind == "rerun" else self._door
        return write_ranges(self._spark(), door, plan.ranges, target, most)

    def _commit(self, plan: Plan, files: list[DataFile]) -> int:
        """The version with which the run ended, be it ours or that of who was faster."""
        remove: list[DataFile] = []
        if plan.kind == "rerun":
            remove = self._lake.latest().overlapping(plan.ranges)
            target = Target(self._lake.folder, plan.run, self._limits.max_file_size_bytes)
            files = [*files, *rewrite(self._spark, target, keep_besides(remove, plan.ranges))]
        try:
            version = self._lake.commit(
                plan, now_ms=clock_ms(), add=files, remove=[file.path for file in remove]
            )
        except RunEndedError as error:
            return error.version
        except DoesNotFitError:
            if plan.kind != "rerun":
                # Others loaded the same meanwhile: it will never fit, and would be tried for ever.
                self.roll_back(plan)
            raise
        return version.number


def _at_most(ranges: list[OffsetRange], records: int | None) -> list[OffsetRange]:
    """The beginnings of the ranges, in proportion, so that they have at most that many offsets."""
    total = sum(one.end - one.start for one in ranges)
    if records is None or total <= records:
        return ranges
    # Rounded up, so that every partition moves on; the largest error is one for each partition.
    return [
        one._replace(end=one.start - (-(one.end - one.start) * records // total)) for one in ranges
    ]
