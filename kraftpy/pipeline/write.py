"""`write`: what is in a lake into a topic, which may be of any cluster.

    <lake>/_kraftpy/written/<run>/<number>.json     a part that is in the target, and its rows

Rules:

* A run's plan is frozen before it sends: the version of the lake, the target, the parts in order.
  Files of that version stay while the run is under way.
* A part is noted, durably, once the brokers have acknowledged all of it and before anything of the
  next is sent. So who finishes a run sends again what was under way when it died, and no more.
* With the option exactlyOnce a part is a transaction, and committed with it is a marker: its
  number. So one that was committed and not noted is known, and isn't sent again. A run goes on as
  it was begun, with transactions or without.
* One task writes what goes into a partition, part by part. Where keys choose partitions, one task
  writes what comes from a partition. So rows keep their order (see `kraftpy.spark.delivery` for
  what that means when some are sent twice).
* A run ends by a version of the lake that tells what was written where. What a target has of a
  partition, by the runs that have ended, isn't written to it again.
* A target has one writer at a time: a second one would take the first one's work for crashed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kraftpy.pipeline.alone import alone
from kraftpy.pipeline.folder import numbered, put_if_absent
from kraftpy.pipeline.lake import (
    META,
    DoesNotFitError,
    Lake,
    LakeError,
    LakeVersion,
    clock_ms,
    new_run,
)
from kraftpy.pipeline.manifests import DataFile, ManifestError, Plan, TopicIdentity
from kraftpy.pipeline.parts import Files, cut, read_rows
from kraftpy.pipeline.ranges import OffsetRange, Spans, merged, missing, spans_of
from kraftpy.pipeline.session import refuse_speculation
from kraftpy.pipeline.target import Target, TargetTopic
from kraftpy.pipeline.tasks import run_tasks
from kraftpy.spark.delivery import Part, deliver_parts, deliver_parts_once
from kraftpy.spark.encoder import partitions_of_keys
from kraftpy.spark.exactly_once import Series, take_over
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
_DONE = "rows bigint"
_BY_KEY = "partitions by key"
_ONCE = "exactly once"


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What a run did, as `kraftpy pipeline` reports it; `reads` is the version that it wrote."""

    run: str
    kind: str
    version: int
    reads: int
    finished_earlier_run: bool
    rows: int
    parts: int
    parts_of_earlier_run: int
    ranges: tuple[OffsetRange, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a lake is to be in the target.

    `topics`: those of the lake, () for the only one; `version`: None for the newest; `by_key`: keys
    choose partitions, else rows keep theirs.
    """

    topics: Sequence[str] = ()
    version: int | None = None
    by_key: bool = False


class Writer:
    """Writes one lake to one topic. `spark` is called when there is something to send."""

    def __init__(
        self,
        lake: Lake,
        target: Target,
        spark: Callable[[], SparkSession],
        max_part_rows: int = 100_000,
    ) -> None:
        self._lake = lake
        self._target = target
        self._spark = spark
        self._max_part_rows = max_part_rows

    def write(self, wanted: Wanted, *, abandon: bool = False) -> Iterator[WriteOutcome]:
        """Finishes runs that were begun, or ends them with what they have written; then a new one.

        Raises what `plan` and `run` do.
        """
        with self._alone():
            self._sweep()
            for begun in self.unfinished():
                if abandon:
                    self._note_committed(begun)
                    self._end(begun, self._noted(begun, whole=False))
                else:
                    yield self.run(begun)
            plan = self.plan(wanted)
            if plan is not None:
                yield self.run(plan)

    def preview(self, wanted: Wanted, *, abandon: bool = False) -> list[Plan]:
        """The plans of the runs that `write` would do now. Nothing is stored."""
        begun = self.unfinished()
        sent = [part for plan in begun for part in (self.noted(plan) if abandon else plan.ranges)]
        plan = self.plan(wanted, sent)
        return [*([] if abandon else begun), *([plan] if plan is not None else [])]

    def _alone(self) -> AbstractContextManager[None]:
        """Nobody else writes from this lake to this target meanwhile. Raises BusyError."""
        target = f"{self._cluster_id()} {self._target.topic}"
        name = hashlib.sha256(target.encode()).hexdigest()[:16]
        return alone(
            self._notes / f"{name}.lock",
            f"another process writes from this lake to {self._target.topic} now: wait for its end",
        )

    def unfinished(self) -> list[Plan]:
        """The plans for this target that somebody began and nobody ended."""
        here = self._cluster_id()
        found = []
        for plan in self._lake.unfinished():
            identity = plan.targets.get(self._target.topic)
            if plan.kind == "write" and identity is not None and identity.cluster_id == here:
                found.append(plan)
        return found

    def plan(self, wanted: Wanted, sent: Iterable[OffsetRange] = ()) -> Plan | None:
        """What a run would do now; None if the target has all of it.

        `sent`: what counts as written besides. Nothing is stored. Raises OptionError, LakeError.
        """
        number = wanted.version
        version = self._lake.latest() if number is None else self._lake.version(number)
        topics = _chosen(wanted.topics, version)
        target = self._describe()
        self._check_other(version, topics, target)
        parts = self._parts(version, topics, self._written_to(target.identity, sent))
        if not parts:
            return None
        self._check_fits(version, parts, target, by_key=wanted.by_key)
        return Plan(
            run=new_run(),
            kind="write",
            topics={topic: version.topics[topic] for topic in topics},
            ranges=tuple(parts),
            options=self._plan_options(target, by_key=wanted.by_key),
            created_at_ms=clock_ms(),
            targets={self._target.topic: target.identity},
            reads=version.number,
        )

    def _plan_options(self, target: TargetTopic, *, by_key: bool) -> dict[str, str]:
        options = {_BY_KEY: str(target.partitions)} if by_key else {}
        if self._target.settings().exactly_once:
            options[_ONCE] = "true"
        return options

    def run(self, plan: Plan) -> WriteOutcome:
        """Sends what a plan says and isn't noted yet, and ends its run.

        Raises LakeError (the run stays unfinished), OptionError, KafkaError, OSError, and Spark's
        errors.
        """
        self._check_identity(plan)
        before = set(numbered(self._notes / plan.run))
        if len(before) < len(plan.ranges):
            refuse_speculation(self._spark())
        earlier = any(plan.run == begun.run for begun in self._lake.unfinished())
        plan = self._lake.freeze(plan)
        began = time.monotonic()
        self._send(plan, before)
        self._check_identity(plan)
        rows = self._noted(plan)
        version = self._end(plan, rows)
        return WriteOutcome(
            run=plan.run,
            kind=plan.kind,
            version=version.number,
            reads=plan.reads,
            finished_earlier_run=earlier,
            rows=sum(rows.values()),
            parts=len(rows),
            parts_of_earlier_run=len(before),
            ranges=merged(plan.ranges),
            seconds=time.monotonic() - began,
        )

    def noted(self, plan: Plan) -> list[OffsetRange]:
        """Those of the plan's parts that are in the target."""
        return [plan.ranges[number] for number in sorted(numbered(self._notes / plan.run))]

    @property
    def _notes(self) -> Path:
        return self._lake.folder / META / "written"

    def _cluster_id(self) -> str:
        with self._target.brokers() as brokers:
            return self._target.cluster_id(brokers)

    def _describe(self) -> TargetTopic:
        with self._target.brokers() as brokers:
            return self._target.describe(brokers)

    def _check_identity(self, plan: Plan) -> None:
        found = self._describe()
        if found.identity != plan.targets[self._target.topic]:
            raise DoesNotFitError(
                f"topic {self._target.topic} isn't the one that run {plan.run} was writing to: it"
                " was deleted and created again; end the run with --abandon"
            )

    def _written_to(
        self, target: TopicIdentity, sent: Iterable[OffsetRange]
    ) -> dict[tuple[str, int], Spans]:
        """What the target has, by the runs that have ended, and what was sent besides."""
        # By name as well: brokers before Kafka 2.8 know no ids, so all topics of one have the same.
        name = self._target.topic
        runs = (one for one in self._lake.history() if one.targets.get(name) == target)
        return spans_of(itertools.chain(sent, *(one.ranges for one in runs)))

    def _parts(
        self,
        version: LakeVersion,
        topics: Sequence[str],
        done: Mapping[tuple[str, int], Spans],
    ) -> list[OffsetRange]:
        """What isn't in the target, in parts, in order."""
        found = []
        files = _by_partition(version)
        for name in sorted(files, key=lambda name: name[1]):
            if name[0] in topics:
                spans = version.covered[name]
                had = done.get(name, ())
                wanted = tuple(span for start, end in spans for span in missing(had, start, end))
                parts = cut(files[name].files, wanted, self._max_part_rows)
                found += [OffsetRange(*name, start, end) for start, end in parts]
        return sorted(found, key=lambda part: (topics.index(part.topic), part.partition))

    def _check_other(
        self, version: LakeVersion, topics: Sequence[str], target: TargetTopic
    ) -> None:
        name = self._target.topic
        if name in topics and version.topics[name] == target.identity:
            raise OptionError(
                f"the rows of {name} in the lake come from this very topic, which would get them a"
                " second time: name another topic, or another cluster with -b"
            )

    def _check_fits(
        self,
        version: LakeVersion,
        parts: Iterable[OffsetRange],
        target: TargetTopic,
        *,
        by_key: bool,
    ) -> None:
        largest = max(part.partition for part in parts)
        if not by_key and largest >= target.partitions:
            name = self._target.topic
            raise OptionError(
                f"topic {name} has {target.partitions} partitions, and the lake has rows of"
                f" partition {largest}: type `kraftpy topic alter {name} -b"
                f" {self._target.bootstrap} -p {largest + 1}` first, or let keys choose with"
                " --by-key"
            )
        times_ms = [file.min_timestamp_ms for file in version.overlapping(parts)]
        oldest_ms = min((each for each in times_ms if each >= 0), default=clock_ms())
        self._target.warn_of_age(target, oldest_ms, clock_ms())

    def _send(self, plan: Plan, done: set[int]) -> None:
        chains = _chains(plan, self._lake.version(plan.reads), done)
        if not chains:
            return
        with self._target.brokers() as brokers:
            self._target.await_known(brokers, 1)
        work = self._work(plan)
        run_tasks(self._spark(), [partial(work.run, chain) for chain in chains], _DONE)

    def _work(self, plan: Plan) -> _Work:
        return _Work(
            folder=self._lake.folder,
            plan=self._lake.plan_path(plan.run),
            notes=self._notes / plan.run,
            settings=replace(self._target.settings(), exactly_once=_ONCE in plan.options),
            by_key=int(plan.options[_BY_KEY]) if _BY_KEY in plan.options else None,
        )

    def _note_committed(self, plan: Plan) -> None:
        """Notes the parts that were committed in a transaction by who couldn't note them.

        Whoever still writes for the run is fenced.
        """
        if _ONCE not in plan.options:
            return
        work = self._work(plan)
        done = set(numbered(self._notes / plan.run))
        chains = _chains(plan, self._lake.version(plan.reads), done)
        markers = take_over(work.settings, [work.series(chain) for chain in chains])
        for chain, marker in zip(chains, markers, strict=True):
            for link in chain:
                if marker is not None and link.number < marker.offset:
                    work.note(link, sum(batch.num_rows for batch in work.rows(link)))

    def _noted(self, plan: Plan, *, whole: bool = True) -> dict[int, int]:
        """The rows of each part that is in the target."""
        rows = {}
        for number, part in enumerate(plan.ranges):
            path = self._notes / plan.run / f"{number}.json"
            try:
                rows[number] = _read_note(path)
            except FileNotFoundError:
                if whole:
                    raise LakeError(
                        f"{path} is missing, which says that {part} was written: all workers have"
                        " to see the same folder under the same path"
                    ) from None
        return rows

    def _end(self, plan: Plan, rows: Mapping[int, int]) -> LakeVersion:
        written = merged(part for number, part in enumerate(plan.ranges) if number in rows)
        version = self._lake.commit(
            replace(plan, ranges=written), now_ms=clock_ms(), written=sum(rows.values())
        )
        self._sweep()
        return version

    def _sweep(self) -> None:
        """Deletes the notes of runs that have ended."""
        folders = [path for path in self._notes.glob("*") if path.is_dir()]
        # Later, so that it knows of those whose runs have begun since.
        under_way = {plan.run for plan in self._lake.unfinished()}
        for path in folders:
            if path.name not in under_way:
                shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Link:
    """A part, its number in the plan, and the files that may have rows of it."""

    number: int
    part: OffsetRange
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """What Spark's tasks do: each a chain of parts, one after the other."""

    folder: Path
    plan: Path
    """Where the plan is until the run has ended."""
    notes: Path
    settings: WriteSettings
    by_key: int | None
    """How many partitions keys choose from; None: rows keep their partition."""

    def run(self, chain: Sequence[_Link]) -> Iterator[pa.RecordBatch]:
        parts = self._parts(chain)
        if self.settings.exactly_once:
            rows = deliver_parts_once(self.settings, self.series(chain), parts)
        else:
            rows = deliver_parts(self.settings, (part for _, part in parts))
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def series(self, chain: Sequence[_Link]) -> Series:
        """The transactions of a chain: the same whenever it is done, whatever is left of it."""
        assert self.settings.topic is not None
        source = chain[0].part
        # Rows that keep their partition may come from several topics, as in `_chains`.
        topic = source.topic if self.by_key is not None else ""
        name = f"{self.plan.stem}.{topic}.{source.partition}"
        return Series(f"kraftpy.{name}", f"kraftpy-write.{name}", (self.settings.topic, 0))

    def note(self, link: _Link, rows: int) -> None:
        """Notes that a part is in the target."""
        _write_note(self._note_path(link), rows)

    def _note_path(self, link: _Link) -> Path:
        return self.notes / f"{link.number}.json"

    def _parts(self, chain: Sequence[_Link]) -> Iterator[tuple[int, Part]]:
        for link in chain:
            # An attempt before this one may have come that far.
            if not self._note_path(link).exists():
                # One that was given up may go on after another has done its work: by then the run
                # has ended, and its notes are gone.
                if not self.plan.exists():
                    raise LakeError(f"{self.plan} is gone: the run has ended without this task")
                yield link.number, Part(self.rows(link), partial(self.note, link))

    def rows(self, link: _Link) -> Iterator[pa.RecordBatch]:
        """The rows of a part, with the partitions that they go to."""
        for batch in read_rows(self.folder, link.files, link.part, _COLUMNS):
            partitions = self._partitions(batch, link.part.partition)
            yield batch.append_column("partition", partitions)

    def _partitions(self, batch: pa.RecordBatch, own: int) -> pa.Array:
        if self.by_key is None:
            return pa.repeat(pa.scalar(own, pa.int32()), batch.num_rows)
        chosen = partitions_of_keys(batch.column("key").cast(pa.binary()), self.by_key)
        chosen[chosen < 0] = own % self.by_key
        return pa.array(chosen, pa.int32())


def _chosen(topics: Sequence[str], version: LakeVersion) -> tuple[str, ...]:
    there = sorted(version.topics)
    for topic in topics:
        if topic not in there:
            raise OptionError(f"topic {topic} isn't in the lake, which has {', '.join(there)}")
    if not topics and len(there) > 1:
        raise OptionError(
            f"the lake has {', '.join(there)}: say which are written, with --topic (repeatable)"
        )
    return tuple(dict.fromkeys(topics or there))


def _chains(plan: Plan, version: LakeVersion, done: set[int]) -> list[list[_Link]]:
    """The parts that aren't done, by task."""
    files = _by_partition(version)
    chains: dict[tuple[str, int], list[_Link]] = {}
    for number, part in enumerate(plan.ranges):
        if number not in done:
            name = (part.topic, part.partition)
            # Rows that keep their partition may come from several topics, but go into one.
            chain = name if _BY_KEY in plan.options else ("", part.partition)
            chains.setdefault(chain, []).append(_Link(number, part, files[name].of(part)))
    return list(chains.values())


def _by_partition(version: LakeVersion) -> dict[tuple[str, int], Files]:
    found: dict[tuple[str, int], list[DataFile]] = {}
    for file in version.files.values():
        found.setdefault((file.topic, file.partition), []).append(file)
    return {name: Files(files) for name, files in found.items()}


def _write_note(path: Path, rows: int) -> None:
    put_if_absent(path, json.dumps({"rows": rows}).encode())


def _read_note(path: Path) -> int:
    try:
        rows = json.loads(path.read_bytes())["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path} isn't a note of a part that was written; delete it") from error
    if not isinstance(rows, int) or rows < 0:
        raise ManifestError(f"{path} has {rows!r:.80} for a number of rows; delete it")
    return rows
