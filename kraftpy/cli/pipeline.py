"""`kraftpy pipeline`: jobs on Spark that move topics in bulk.

Rules:

* Each command has --dry-run, which plans, reads no record and changes nothing.
* stdout has the result only (text, or one JSON document); Spark's progress bar is on stderr, and
  only on a terminal.
* Exit code 0 says that the work is done, all of it; also when there was nothing to do.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_INCONSISTENT,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    TEXT,
    Failure,
    Seconds,
    bootstrap_option,
    echo_json,
    echo_table,
    output_option,
    parse_key_values,
)
from kraftpy.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kraftpy.pipeline.audit import Audit
    from kraftpy.pipeline.lake import Lake
    from kraftpy.pipeline.load import Loader, Outcome
    from kraftpy.pipeline.manifests import Manifest, Plan
    from kraftpy.pipeline.ranges import OffsetRange

_F = TypeVar("_F", bound=Callable[..., Any])

_MIB = 1 << 20
_DAY_MS = 86_400_000


class _SparkCommand(click.Command):
    """A command that needs Spark: says what to install, but not to who only asks for its help."""

    def invoke(self, ctx: click.Context) -> Any:
        needed = ("pyspark", "pyarrow", "numpy")
        if missing := [name for name in needed if find_spec(name) is None]:
            raise Failure(
                f"the pipeline needs Spark, and {', '.join(missing)} isn't installed: type"
                ' pip install "kraftpy[spark]" (and have Java 17 or later)',
                EXIT_USAGE,
            )
        return super().invoke(ctx)


class _Jobs(click.Group):
    command_class = _SparkCommand


@click.group(cls=_Jobs)
def command() -> None:
    """Load topics into a lake of Parquet files and work on it, with Spark (kraftpy[spark])."""


def _spark_options(function: _F) -> _F:
    for option in (
        click.option(
            "--conf",
            "confs",
            type=TEXT,
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of the Spark session. Repeatable.",
        ),
        click.option(
            "--master",
            type=TEXT,
            metavar="URL",
            help="Spark's master.  [default: local[*], or the one of spark-submit]",
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and don't."),
    ):
        function = option(function)
    return function


def _source_options(function: _F) -> _F:
    for option in (
        click.option(
            "--file-size",
            "file_size_mib",
            type=click.IntRange(1, 65_536),
            default=256,
            show_default=True,
            metavar="MIB",
            help="A file that has this size is closed and followed by another.",
        ),
        click.option(
            "--task-records",
            type=click.IntRange(1),
            default=1_000_000,
            show_default=True,
            metavar="N",
            help="The most offsets that one task reads.",
        ),
        click.option(
            "--option",
            "options",
            type=TEXT,
            multiple=True,
            metavar="KEY=VALUE",
            help="An option of the source, for example failOnDataLoss=false. Repeatable.",
        ),
        click.option(
            "--source",
            type=click.Choice(["kraftpy", "kafka"]),
            default="kraftpy",
            show_default=True,
            help="Whose reader: ours, or Spark's connector (which has to be on the session).",
        ),
    ):
        function = option(function)
    return function


_abandon_option = click.option(
    "--abandon", is_flag=True, help="Roll back an unfinished run instead of finishing it."
)


_group_option = click.option(
    "--group", type=TEXT, metavar="ID", help="Commit where the lake ends as this group's offsets."
)


def _bound_options(start: str, end: str) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        syntax = "earliest, latest, lake, OFFSET, @TIME or JSON"
        for option in (
            click.option(
                "--to",
                "end",
                type=TEXT,
                default=end,
                show_default=True,
                help=f"{syntax}; exclusive.",
            ),
            click.option(
                "--from", "start", type=TEXT, default=start, show_default=True, help=f"{syntax}."
            ),
        ):
            function = option(function)
        return function

    return decorate


@command.command()
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@_bound_options("lake", "latest")
@_abandon_option
@_group_option
@_source_options
@_spark_options
@bootstrap_option
@output_option
def load(topic: str, lake: str, start: str, end: str, abandon: bool, **more: Any) -> None:
    """Load what a lake doesn't have yet of a topic.

    A run that was begun and not ended, because it crashed, is finished first.

    \b
    kraftpy pipeline load flights /data/lake
    kraftpy pipeline load flights /data/lake --from @2026-03-01 --to @2026-04-01
    """
    job = _Job("load", topic, lake, more, create=True)
    with job.failures():
        outcomes = job.finish_or_abandon(abandon)
        plan = job.loader.plan_load(_bound(start, "--from"), _bound(end, "--to"))
        outcomes += job.run([plan] if plan else [])
        job.commit_group()
        job.report(outcomes)


@command.command()
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@click.option("--available-now", is_flag=True, help="Load what is there now, and end.")
@click.option("--every", "every_ms", type=Seconds(), metavar="SECONDS", help="Begin a load then.")
@click.option(
    "--max-records", type=click.IntRange(1), metavar="N", help="About the most that one load takes."
)
@_group_option
@_source_options
@_spark_options
@bootstrap_option
@output_option
def stream(
    topic: str,
    lake: str,
    available_now: bool,
    every_ms: int | None,
    max_records: int | None,
    **more: Any,
) -> None:
    """Load what comes, again and again, until SIGTERM, which waits for the load under way.

    The lake is the checkpoint: a stream that died goes on where the lake ends.

    \b
    kraftpy pipeline stream flights /data/lake --every 60
    kraftpy pipeline stream flights /data/lake --available-now --max-records 5000000
    """
    from kraftpy.pipeline.bounds import Bound
    from kraftpy.pipeline.stream import stream as stream_loads

    if available_now == (every_ms is not None):
        raise click.UsageError("say either --available-now or --every SECONDS")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    job = _Job("stream", topic, lake, more, create=True, max_records=max_records)
    runs = rows = 0
    with job.failures():
        if more["dry_run"]:
            plan = job.loader.plan_load(Bound("lake"), Bound("latest"), "stream")
            job.report([*job.loader.unfinished(), *([plan] if plan else [])])
            return
        every_s = None if every_ms is None else every_ms / 1000
        for outcome in stream_loads(job.loader, every_s=every_s, stop=stop):
            job.commit_group()
            runs, rows = runs + 1, rows + outcome.rows
            if more["output"] == "table":
                click.echo(_sentence(outcome))
        job.commit_group()
        job.summarize(loads=runs, rows=rows)


@command.command()
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@click.option("--run", "run", type=TEXT, help="The run whose ranges are loaded again.")
@_bound_options("earliest", "lake")
@_abandon_option
@_source_options
@_spark_options
@bootstrap_option
@output_option
def rerun(
    topic: str, lake: str, run: str | None, start: str, end: str, abandon: bool, **more: Any
) -> None:
    """Load offsets again and put them in the place of what the lake has of them.

    Exactly the ranges of a run, or those between two bounds; other rows stay.  A run that was begun
    and not ended, because it crashed, is finished first.

    \b
    kraftpy pipeline rerun flights /data/lake --run 20260301T120000Z-1a2b3c4d
    kraftpy pipeline rerun flights /data/lake --from @2026-03-01 --to @2026-03-02
    """
    job = _Job("rerun", topic, lake, more)
    with job.failures():
        outcomes = job.finish_or_abandon(abandon)
        if run is not None:
            plan: Plan | None = job.loader.plan_rerun_of(run)
        else:
            plan = job.loader.plan_rerun(_bound(start, "--from"), _bound(end, "--to"))
        outcomes += job.run([plan] if plan else [])
        job.report(outcomes)


@command.command()
@click.argument("lake", type=TEXT)
@click.option(
    "--file-size",
    "file_size_mib",
    type=click.IntRange(1, 65_536),
    default=256,
    show_default=True,
    metavar="MIB",
    help="The size that files are merged up to.",
)
@click.option(
    "--keep",
    "keep_ms",
    type=Seconds(),
    default=_DAY_MS // 1000,
    show_default=True,
    metavar="SECONDS",
    help="How long a file stays on the disk after it was replaced, for who still reads it.",
)
@_spark_options
@output_option
def compact(lake: str, file_size_mib: int, keep_ms: int, **more: Any) -> None:
    """Merge small files of a lake and delete those that nobody needs any more."""
    from kraftpy.pipeline.compaction import compact as compact_lake
    from kraftpy.pipeline.compaction import merges

    job = _Job("compact", "", lake, more)
    size_bytes = file_size_mib * _MIB
    with job.failures():
        if more["dry_run"]:
            tasks = merges(job.lake.latest(), size_bytes)
            result = {"merged": sum(len(task.files) for task in tasks), "files": len(tasks)}
        else:
            done = compact_lake(job.lake, job.spark, size_bytes, keep_ms=keep_ms)
            result = asdict(done)
        if more["output"] == "json":
            echo_json({"command": "compact", "dry_run": more["dry_run"], **result})
        else:
            would = "would become" if more["dry_run"] else "became"
            click.echo(f"{result['merged']} files {would} {result['files']}")


@command.command()
@click.argument("topic", type=TEXT)
@click.option("--lake", type=TEXT, help="A lake that is compared with the topic.")
@_spark_options
@bootstrap_option
@output_option
def audit(topic: str, lake: str | None, **more: Any) -> None:
    """Look for gaps, duplicates, disorder and damage in a topic; compare a lake with it.

    What compaction, transactions and retention leave behind is legal and only counted.  Exit code 6
    if anything else is found.

    \b
    kraftpy pipeline audit flights
    kraftpy pipeline audit flights --lake /data/lake
    """
    from kraftpy.pipeline.audit import audit as audit_topic
    from kraftpy.pipeline.audit import plan_audit

    job = _Job("audit", topic, lake, more)
    with job.failures():
        plan = plan_audit(job.door, topic)
        if more["dry_run"]:
            job.report_plan(plan.ranges)
            return
        found = audit_topic(plan, job.door, job.spark, job.lake if lake else None)
    if more["output"] == "json":
        echo_json({"command": "audit", "topic": topic, "clean": found.clean, **asdict(found)})
    else:
        _tell_audit(topic, found)
    if not found.clean:
        raise click.exceptions.Exit(EXIT_INCONSISTENT)


def _tell_audit(topic: str, found: Audit) -> None:
    header = ["PARTITION", "START", "END", "BATCHES", "RECORDS", "CONTROL", "ABORTED", "COMPACTED"]
    rows = []
    for one in found.partitions:
        counts = one.counts
        numbers = (counts.batches, counts.records, counts.control, counts.aborted, counts.compacted)
        rows.append([one.partition, one.start, one.end, *numbers])
    echo_table(header, rows)
    for one in found.partitions:
        for each in one.findings:
            span = f"offsets {each.first} to {each.last}"
            click.echo(f"{each.kind}: {topic}-{one.partition} {span}: {each.text}")
        if (more := one.counts.findings - len(one.findings)) > 0:
            click.echo(f"{topic}-{one.partition} has {more} more findings")
    for difference in found.differences:
        click.echo(
            f"{difference.kind}: {difference.rows} of {topic}-{difference.partition},"
            f" offsets {difference.first} to {difference.last}"
        )
    if found.clean:
        lake = " and the lake" if found.compared else ""
        click.echo(f"nothing is wrong with {topic}{lake}")


@command.command()
@click.argument("lake", type=TEXT)
@output_option
def runs(lake: str, output: str) -> None:
    """List what was done to a lake, oldest first, and what was begun and not ended."""
    from kraftpy.pipeline.lake import Lake

    with _failures():
        opened = Lake.at(lake)
        changes = [opened.read(number + 1) for number in range(opened.latest().number)]
        begun = opened.unfinished()
    if output == "json":
        echo_json(
            [{**asdict(one), "rows": _rows(one), "add": len(one.add)} for one in changes]
            + [{**asdict(plan), "version": None} for plan in begun]
        )
        return
    echo_table(
        ["RUN", "KIND", "VERSION", "ROWS", "RANGES"],
        [[one.run, one.kind, one.version, _rows(one), _spans(one)] for one in changes]
        + [[plan.run, plan.kind, "unfinished", "-", _spans(plan)] for plan in begun],
    )


def _rows(change: Manifest) -> int:
    return sum(file.rows for file in change.add)


def _spans(change: Manifest | Plan) -> str:
    return " ".join(map(str, change.ranges))


def _bound(text: str, option: str) -> Any:
    from kraftpy.pipeline.bounds import Bound, BoundError

    try:
        return Bound.read(text)
    except BoundError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What a job raises, as a sentence and an exit code."""
    from kraftpy.pipeline.bounds import BoundError
    from kraftpy.pipeline.folder import FolderError
    from kraftpy.pipeline.lake import LakeError
    from kraftpy.pipeline.manifests import ManifestError
    from kraftpy.pipeline.session import spark_errors
    from kraftpy.spark.brokers import DataLossError
    from kraftpy.spark.positions import OptionError

    try:
        yield
    except (BoundError, FolderError, OptionError) as error:
        raise Failure(str(error), EXIT_USAGE) from None
    except ConnectionError as error:
        raise Failure(str(error), EXIT_UNREACHABLE) from None
    except (LakeError, ManifestError, DataLossError, KafkaError, OSError) as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None
    except spark_errors() as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise Failure(
                "Spark's Java didn't start: have Java 17 or later on PATH or in JAVA_HOME",
                EXIT_USAGE,
            ) from None
        raise Failure(f"Spark failed: {_cause(error)}", EXIT_BROKER_ERROR) from None


def _cause(error: Exception) -> str:
    """What went wrong in a task, out of Spark's long story about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (told or lines or [type(error).__name__])[-1]


class _Job:
    """One command: the lake, the way to the topic, a Spark session when it is needed."""

    def __init__(
        self,
        name: str,
        topic: str,
        lake: str | None,
        options: dict[str, Any],
        *,
        create: bool = False,
        max_records: int | None = None,
    ) -> None:
        from kraftpy.pipeline.door import Door
        from kraftpy.pipeline.lake import Lake
        from kraftpy.pipeline.load import Limits, Loader

        self._name = name
        self._options = options
        self._session: Any = None
        self._topic = topic
        if lake is not None:
            with _failures():
                self.lake: Lake = Lake.at(lake, create=create)
        if topic:
            self.door = Door(
                options["bootstrap"],
                options.get("source", "kraftpy"),
                dict(parse_key_values(options.get("options", ()), "--option")),
            )
        if "task_records" in options:
            size_bytes = options["file_size_mib"] * _MIB
            limits = Limits(options["task_records"], size_bytes, max_records)
            self.loader: Loader = Loader(self.lake, self.door, topic, self.spark, limits)

    def spark(self) -> Any:
        """The session, started when first asked for."""
        from kraftpy.pipeline.session import start_session

        if self._session is None:
            self._session = start_session(
                f"kraftpy pipeline {self._name} {self._topic}".rstrip(),
                self._options["master"],
                dict(parse_key_values(self._options["confs"], "--conf")),
                progress=sys.stderr.isatty(),
            )
        return self._session

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Ends the session with the command, and makes sentences of errors."""
        try:
            with _failures():
                yield
        finally:
            if self._session is not None:
                self._session.stop()

    def finish_or_abandon(self, abandon: bool) -> list[Outcome | Plan]:
        """Ends the runs that were begun for this topic."""
        begun = self.loader.unfinished()
        if not abandon:
            return self.run(begun)
        if not self._options["dry_run"]:
            for plan in begun:
                self.loader.roll_back(plan)
        return []

    def run(self, plans: Sequence[Plan]) -> list[Outcome | Plan]:
        """Does the plans; with --dry-run they are the result."""
        if self._options["dry_run"]:
            return list(plans)
        return [self.loader.run(plan) for plan in plans]

    def commit_group(self) -> None:
        """Commits where the lake ends, if a group was named."""
        from kraftpy.pipeline.groups import commit_ends

        if self._options["group"] and not self._options["dry_run"]:
            commit_ends(self.door, self._topic, self._options["group"], self.loader.ends())

    def summarize(self, **counts: int) -> None:
        """Prints what a job that isn't one run has done."""
        if self._options["output"] == "json":
            ends = {str(key): end for key, end in sorted(self.loader.ends().items())}
            fields = {"command": self._name, "dry_run": False, "topic": self._topic}
            echo_json({**fields, "version": self.lake.latest().number, "ends": ends, **counts})
        else:
            click.echo(", ".join(f"{count} {name}" for name, count in counts.items()))

    def report_plan(self, ranges: Iterable[OffsetRange]) -> None:
        """Prints what would be read."""
        if self._options["output"] == "json":
            planned = {"topic": self._topic, "ranges": list(ranges)}
            echo_json({"command": self._name, "dry_run": True, **planned})
            return
        for one in ranges:
            click.echo(f"would read {one}")

    def report(self, results: Sequence[Outcome | Plan]) -> None:
        """Prints what was done or would be."""
        dry_run = self._options["dry_run"]
        if self._options["output"] == "json":
            echo_json(
                {
                    "command": self._name,
                    "dry_run": dry_run,
                    "topic": self._topic,
                    "version": self.lake.latest().number,
                    "ends": {str(key): end for key, end in sorted(self.loader.ends().items())},
                    "runs": [asdict(result) for result in results],
                }
            )
            return
        if not results:
            click.echo(f"nothing to do: the lake has these offsets of {self._topic} already")
        for result in results:
            for one in result.ranges:
                click.echo(f"{'would read' if dry_run else 'read'} {one}")
            if not dry_run:
                click.echo(_sentence(result))


def _sentence(outcome: Any) -> str:
    finished = " (a run that had crashed)" if outcome.finished_earlier_run else ""
    return (
        f"run {outcome.run}{finished}: {outcome.rows} rows, {outcome.files} files,"
        f" {outcome.size_bytes / _MIB:.1f} MiB in {outcome.seconds:.1f} s;"
        f" version {outcome.version} of the lake"
    )
