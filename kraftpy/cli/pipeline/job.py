"""A command of `kraftpy pipeline` at work: its session, its errors, its result."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Failure,
    echo_json,
    parse_key_values,
)
from kraftpy.cli.pipeline.options import MIB
from kraftpy.protocol.errors import KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.pipeline.lake import Lake
    from kraftpy.pipeline.load import Loader, Outcome
    from kraftpy.pipeline.manifests import Plan
    from kraftpy.pipeline.ranges import OffsetRange


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """What a job raises, as a sentence and an exit code."""
    from kraftpy.pipeline.alone import BusyError
    from kraftpy.pipeline.bounds import BoundError
    from kraftpy.pipeline.folder import FolderError
    from kraftpy.pipeline.lake import LakeError
    from kraftpy.pipeline.manifests import ManifestError
    from kraftpy.pipeline.mirrored import CheckpointError
    from kraftpy.pipeline.session import spark_errors
    from kraftpy.spark.brokers import DataLossError
    from kraftpy.spark.positions import OptionError

    try:
        yield
    except (BoundError, FolderError, OptionError) as error:
        raise Failure(str(error), EXIT_USAGE) from None
    except ConnectionError as error:
        raise Failure(str(error), EXIT_UNREACHABLE) from None
    except (BusyError, CheckpointError, DataLossError, KafkaError) as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None
    except (LakeError, ManifestError, OSError) as error:
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


class Job:
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
        self.when_started: Callable[[], None] = lambda: None
        if lake is not None:
            with failures():
                self.lake: Lake = Lake.at(lake, create=create)
        if topic:
            self.door = Door(
                options["bootstrap"],
                options.get("source", "kraftpy"),
                dict(parse_key_values(options.get("options", ()), "--option")),
            )
        if "task_records" in options:
            size_bytes = options["file_size_mib"] * MIB
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
            self.when_started()
        return self._session

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Ends the session with the command, and makes sentences of errors."""
        try:
            with failures():
                yield
        finally:
            self._stop_session()

    def _stop_session(self) -> None:
        from kraftpy.pipeline.session import spark_errors

        if self._session is not None:
            with contextlib.suppress(*spark_errors(), OSError):  # its Java may be dead
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
                click.echo(sentence(result))


def sentence(outcome: Any) -> str:
    finished = " (a run that had crashed)" if outcome.finished_earlier_run else ""
    return (
        f"run {outcome.run}{finished}: {counted(outcome.rows, 'row')},"
        f" {counted(outcome.files, 'file')},"
        f" {outcome.size_bytes / MIB:.1f} MiB in {outcome.seconds:.1f} s;"
        f" version {outcome.version} of the lake"
    )
