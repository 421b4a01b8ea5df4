"""A lake: Parquet files with the records of topics, and versions that say which files count.

    <lake>/_kraftpy/plans/<run>.json                      what a run is going to do
    <lake>/_kraftpy/versions/<20 digits>.json             what each version changed (see log.py)
    <lake>/topic=<t>/partition=<p>/<offset>.<run>.<attempt>.parquet

Rules:

* A version appears at once, whole, by the one file that describes it. A reader takes one version
  and opens the files that it names; files that no version names don't exist for it.
* No file that a version names is ever changed, and none is deleted before a later version has
  removed it and the time for slow readers is over.
* A run ends by one version that names it: its result, or its rollback. Of two processes that work
  on one run the first to commit wins; what the other has written is never named.
* A run is under way while its plan is in the lake: the plan is there before the run's first file,
  and goes behind the version that ends it. So a run that ended long ago needn't be remembered.
* A range of offsets is in the lake once. A version that doesn't fit the one before it is refused
  when it is committed, by the same rules that it is read by (`LakeVersion.after`).
* Offsets are stored with the data: where a load goes on is where the lake ends (`LakeVersion.end`),
  whatever a consumer group has committed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kraftpy.pipeline.folder import local_folder, put_if_absent, sweep_halves
from kraftpy.pipeline.log import VersionLog
from kraftpy.pipeline.manifests import (
    Checkpoint,
    DataFile,
    Manifest,
    ManifestError,
    Plan,
    TopicIdentity,
    decode_plan,
    encode,
)
from kraftpy.pipeline.ranges import OffsetRange, Spans, common, missing, spans_of, union

META: Final = "_kraftpy"

_logger = logging.getLogger("kraftpy.pipeline")

_REMEMBERED: Final = 1000
"""How many versions back a checkpoint knows the runs that have ended."""

_DATA_FILE: Final = re.compile(r"^\d{20}\.(?P<run>[A-Za-z0-9_-]+)\.[0-9a-f]+\.parquet$")


class LakeError(Exception):
    """The lake can't do what was asked; the text says why and what to do."""


class DoesNotFitError(LakeError):
    """A change doesn't fit the version that it would follow."""


class RunEndedError(LakeError):
    """The run has been committed or rolled back already; `version` is where."""

    def __init__(self, run: str, version: int) -> None:
        super().__init__(f"run {run} has ended already, with version {version} of the lake")
        self.version = version


def new_run() -> str:
    """A name for a run that sorts by time and that nobody else has."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)


def clock_ms() -> int:
    """The time that versions are stamped with."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """What is in the lake as of one version. Nobody changes it.

    `files` by path; `covered`: the offsets of a partition that were loaded, with or without a
    record; `ended`: the version with which a run ended, of those that ended lately or have a plan
    yet; `removed_at_ms`: when a file stopped counting, of those that are on the disk yet.
    """

    number: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)
    covered: Mapping[tuple[str, int], Spans] = field(default_factory=dict)
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    removed_at_ms: Mapping[str, int] = field(default_factory=dict)

    def end(self, topic: str, partition: int) -> int | None:
        """The offset behind the last one that is in the lake; None if none is."""
        spans = self.covered.get((topic, partition))
        return spans[-1][1] if spans else None

    def covering(self, ranges: Iterable[OffsetRange]) -> LakeVersion:
        """The same as if these offsets were in it too: for plans of what comes behind them."""
        covered = dict(self.covered)
        for topic, partition, start, end in ranges:
            covered[topic, partition] = union(covered.get((topic, partition), ()), [(start, end)])
        return replace(self, covered=covered)

    def overlapping(self, ranges: Iterable[OffsetRange]) -> list[DataFile]:
        """The files that hold a record of one of the ranges."""
        wanted = spans_of(ranges)
        return [file for file in self.files.values() if _touches(wanted, file)]

    def check_topics(self, topics: Mapping[str, TopicIdentity]) -> None:
        """Raises DoesNotFitError if a name stands for another topic in the lake."""
        for name, identity in topics.items():
            if self.topics.get(name, identity) != identity:
                raise DoesNotFitError(
                    f"topic {name} isn't the one that is in the lake: it was deleted and created"
                    " again, or is of another cluster, so its offsets mean other records; load it"
                    " into another lake"
                )

    def after(self, changes: Iterable[Manifest]) -> LakeVersion:
        """The version that `changes`, one after the other, make of this one.

        Raises DoesNotFitError.
        """
        files, covered, topics = dict(self.files), dict(self.covered), dict(self.topics)
        ended, removed_at_ms = dict(self.ended), dict(self.removed_at_ms)
        after = LakeVersion(self.number, files, covered, topics, ended, removed_at_ms)
        for change in changes:
            after._check(change)
            for topic, partition, start, end in change.ranges:
                spans = covered.get((topic, partition), ())
                covered[topic, partition] = union(spans, [(start, end)])
            for path in change.remove:
                del files[path]
                removed_at_ms[path] = change.committed_at_ms
            files.update((file.path, file) for file in change.add)
            topics.update(change.topics)
            ended[change.run] = change.version
            after = replace(after, number=change.version)
        return after

    def _check(self, change: Manifest) -> None:
        if change.run in self.ended:
            raise RunEndedError(change.run, self.ended[change.run])
        if change.version != self.number + 1:
            raise DoesNotFitError(f"version {change.version} doesn't follow {self.number}")
        self.check_topics(change.topics)
        for file in change.add:
            if file.path in self.files:
                raise DoesNotFitError(f"{file.path} is in the lake already")
        for path in change.remove:
            if path not in self.files:
                raise DoesNotFitError(
                    f"{path} isn't in the lake any more: another run has replaced it; run again"
                )
        if change.kind in ("load", "stream"):
            self._check_load(change)
        elif change.kind == "rerun":
            self._check_rerun(change)
        elif change.kind == "compact":
            self._check_compact(change)
        elif change.kind == "write":
            self._check_write(change)
        elif change.add or change.remove or change.ranges:
            raise DoesNotFitError("a rollback changes nothing")

    def _check_load(self, change: Manifest) -> None:
        for wanted in change.ranges:
            spans = self.covered.get((wanted.topic, wanted.partition), ())
            if twice := common(spans, wanted.start, wanted.end):
                start, end = twice[0]
                raise DoesNotFitError(
                    f"offsets {start} to {end - 1} of {wanted.topic}-{wanted.partition} are in the"
                    " lake already: load from its end, or replace them with `rerun`"
                )
        if change.remove:
            raise DoesNotFitError("a load removes nothing")
        _check_inside(change.add, change.ranges)

    def _check_rerun(self, change: Manifest) -> None:
        removed = [self.files[path] for path in change.remove]
        gone = set(change.remove)
        for file in self.overlapping(change.ranges):
            if file.path not in gone:
                raise DoesNotFitError(
                    f"{file.path} has records of what is replaced and would stay; run again"
                )
        kept = [
            OffsetRange(file.topic, file.partition, file.first_offset, file.last_offset + 1)
            for file in removed
        ]
        _check_inside(change.add, (*change.ranges, *kept))

    def _check_compact(self, change: Manifest) -> None:
        before, after = (_rows(self.files[path] for path in change.remove), _rows(change.add))
        if before != after or change.ranges:
            raise DoesNotFitError(f"a compaction keeps all rows, this one had {before} → {after}")

    def _check_write(self, change: Manifest) -> None:
        for topic, partition, start, end in change.ranges:
            if missing(self.covered.get((topic, partition), ()), start, end):
                raise DoesNotFitError(
                    f"offsets {start} to {end - 1} of {topic}-{partition} are not"
                    " all in the lake, so they can't have been written from it"
                )
        if change.add or change.remove:
            raise DoesNotFitError("a write changes no file of the lake")


class Lake:
    """A lake's folder. Several processes may work on one at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._latest = LakeVersion()
        self._log = VersionLog(folder / META)

    @classmethod
    def at(cls, place: str, *, create: bool = False) -> Lake:
        """The lake at `place`, a path or `file:` URL.

        Raises LakeError if there is none and `create` isn't set, FolderError for other schemes.
        """
        folder = local_folder(place)
        if not create and not (folder / META).is_dir():
            raise LakeError(
                f"{folder} isn't a lake: load something into it first, with"
                f" `kraftpy pipeline load TOPIC {place}`"
            )
        return cls(folder)

    def latest(self) -> LakeVersion:
        """The newest version. Raises LakeError or ManifestError if it can't be read."""
        if not self._latest.number and (checkpoint := self._log.newest_checkpoint()):
            self._latest = _from_checkpoint(checkpoint)
        changes = list(self._log.changes(self._latest.number))
        if changes:
            self._latest = self._latest.after(changes)
        return self._latest

    def read(self, number: int) -> Manifest:
        """What one version changed. Raises LakeError if there is none with that number."""
        change = self._log.get(number) if number > 0 else None
        if change is None:
            raise LakeError(f"the lake has no version {number}")
        return change

    def version(self, number: int) -> LakeVersion:
        """The lake as of a version. Raises LakeError if there is none with that number."""
        latest = self.latest()
        if number == latest.number:
            return latest
        if not 0 < number < latest.number:
            raise LakeError(f"the lake has no version {number}: its newest is {latest.number}")
        return LakeVersion().after(itertools.islice(self.history(), number))

    def history(self) -> Iterator[Manifest]:
        """What each version changed, oldest first. Raises ManifestError."""
        return self._log.changes()

    def find(self, run: str) -> Manifest | None:
        """The version with which a run ended; None if none has. Raises ManifestError."""
        number = self.latest().ended.get(run)
        if number is not None:
            return self.read(number)
        return next((change for change in self.history() if change.run == run), None)

    def freeze(self, plan: Plan) -> Plan:
        """Stores the plan before its run begins; of two plans for one run the first one stands."""
        path = self.plan_path(plan.run)
        if put_if_absent(path, encode(plan)):
            return plan
        return decode_plan(str(path), path.read_bytes())

    def plan_path(self, run: str) -> Path:
        """Where a run's plan is as long as it hasn't ended."""
        return self._plans / f"{run}.json"

    def unfinished(self) -> list[Plan]:
        """The plans whose runs haven't ended, oldest first: they run now, or have crashed."""
        names = self._planned()
        ended = self.latest().ended
        found = []
        for run in names - ended.keys():
            path = self.plan_path(run)
            with contextlib.suppress(FileNotFoundError):  # it has ended since
                found.append(decode_plan(str(path), path.read_bytes()))
        return sorted(found, key=lambda plan: (plan.created_at_ms, plan.run))

    def commit(
        self,
        plan: Plan,
        *,
        now_ms: int,
        add: Iterable[DataFile] = (),
        remove: Iterable[str] = (),
        written: int = 0,
    ) -> LakeVersion:
        """Ends the plan's run: from here on its files count. Returns when that is durable.

        Raises RunEndedError if it has ended already, DoesNotFitError if others have changed the
        lake so that this change doesn't fit any more, LakeError if a file isn't there as described
        or the run has no plan.
        """
        if (ended := self.latest().ended.get(plan.run)) is not None:
            raise RunEndedError(plan.run, ended)  # its files may have been swept already
        files = tuple(add)
        for file in files:
            self._check_file(file)
        return self._end(
            Manifest(
                version=0,
                run=plan.run,
                kind=plan.kind,
                committed_at_ms=now_ms,
                topics=plan.topics,
                ranges=plan.ranges,
                add=files,
                remove=tuple(remove),
                targets=plan.targets,
                written=written,
            )
        )

    def roll_back(self, run: str, *, now_ms: int) -> LakeVersion:
        """Ends a run without a result. Raises RunEndedError."""
        return self._end(Manifest(version=0, run=run, kind="rollback", committed_at_ms=now_ms))

    def sweep(self, *, now_ms: int, keep_ms: int) -> list[Path]:
        """Deletes what no reader needs; returns the paths, relative to the lake.

        That is: files that were removed more than `keep_ms` ago and that no run under way reads,
        files of ended runs that no version ever named, the plans of ended runs, and what processes
        left that were killed while they wrote a file.
        """
        files = sorted(self.folder.glob("topic=*/partition=*/*.parquet"))
        planned = self._planned()
        # Last, so that it knows of those files whose runs have ended since they were listed.
        version = self.latest()
        under_way = planned - version.ended.keys()
        kept = version.files.keys() | self._read_now()
        swept = []
        for path in files:
            name = path.relative_to(self.folder)
            match = _DATA_FILE.match(path.name)
            if match is None or match["run"] in under_way or str(name) in kept:
                continue
            removed_at_ms = version.removed_at_ms.get(str(name))
            if removed_at_ms is None or removed_at_ms + keep_ms <= now_ms:
                path.unlink(missing_ok=True)
                swept.append(name)
        for run in planned & version.ended.keys():
            self.plan_path(run).unlink(missing_ok=True)
        sweep_halves(self.folder / META)
        return swept

    def _end(self, change: Manifest) -> LakeVersion:
        while True:
            before = self.latest()
            change = replace(change, version=before.number + 1)
            after = before.after([change])
            if not self.plan_path(change.run).exists():
                raise LakeError(
                    f"run {change.run} has no plan in {self._plans} (any more: its run has ended"
                    " long ago); nothing was changed"
                )
            if self._log.put(change):
                self._latest = after
                self._tidy(change.run)
                return after

    def _tidy(self, run: str) -> None:
        """What is done behind a commit, so that the lake's small files stay few.

        The run has ended; whatever goes wrong here is left to the next one.
        """
        try:
            self.plan_path(run).unlink(missing_ok=True)
            if self._log.needs_checkpoint(self._latest.number):
                self._log.put_checkpoint(self._checkpoint())
        except (OSError, ManifestError) as error:
            _logger.warning("run %s has ended well, but the lake isn't tidied: %s", run, error)

    def _checkpoint(self) -> Checkpoint:
        version = self._latest
        planned = self._planned()
        since = version.number - _REMEMBERED
        return Checkpoint(
            version=version.number,
            files=tuple(version.files.values()),
            covered=tuple(
                OffsetRange(topic, partition, start, end)
                for (topic, partition), spans in version.covered.items()
                for start, end in spans
            ),
            topics=version.topics,
            ended={
                run: number
                for run, number in version.ended.items()
                if number > since or run in planned
            },
            removed_at_ms={
                path: at_ms
                for path, at_ms in version.removed_at_ms.items()
                if (self.folder / path).exists()
            },
        )

    def _check_file(self, file: DataFile) -> None:
        try:
            size_bytes = (self.folder / file.path).stat().st_size
        except OSError as error:
            raise LakeError(
                f"{file.path}, which a task has written, isn't in the lake's folder ({error}): all"
                " workers have to see the same folder under the same path"
            ) from error
        if size_bytes != file.size_bytes:
            raise LakeError(f"{file.path} has {size_bytes} bytes, not {file.size_bytes}; run again")

    @property
    def _plans(self) -> Path:
        return self.folder / META / "plans"

    def _read_now(self) -> set[str]:
        """The files that runs under way read."""
        versions = {plan.reads for plan in self.unfinished() if plan.reads}
        return {path for number in versions for path in self.version(number).files}

    def _planned(self) -> set[str]:
        """The runs whose plans are in the lake."""
        return {path.stem for path in self._plans.glob("*.json")}


def _from_checkpoint(checkpoint: Checkpoint) -> LakeVersion:
    return LakeVersion(
        number=checkpoint.version,
        files={file.path: file for file in checkpoint.files},
        covered=spans_of(checkpoint.covered),
        topics=checkpoint.topics,
        ended=checkpoint.ended,
        removed_at_ms=checkpoint.removed_at_ms,
    )


def _touches(wanted: Mapping[tuple[str, int], Spans], file: DataFile) -> bool:
    spans = wanted.get((file.topic, file.partition), ())
    return bool(common(spans, file.first_offset, file.last_offset + 1))


def _rows(files: Iterable[DataFile]) -> dict[tuple[str, int], int]:
    counts: Counter[tuple[str, int]] = Counter()
    for file in files:
        counts[file.topic, file.partition] += file.rows
    return dict(counts)


def _check_inside(files: Iterable[DataFile], ranges: Iterable[OffsetRange]) -> None:
    allowed = spans_of(ranges)
    for file in files:
        first, end = file.first_offset, file.last_offset + 1
        if common(allowed.get((file.topic, file.partition), ()), first, end) != ((first, end),):
            raise DoesNotFitError(f"{file.path} has records that the run wasn't to load")
