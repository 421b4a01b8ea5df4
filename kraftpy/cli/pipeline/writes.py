"""`kraftpy pipeline write`: from a lake into a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import TEXT, TOPIC_NAME, echo_json, output_option, parse_key_values
from kraftpy.cli.pipeline.job import Job
from kraftpy.cli.pipeline.options import SparkCommand, brokers_option, sink_option, spark_options

if TYPE_CHECKING:
    from kraftpy.pipeline.manifests import Plan
    from kraftpy.pipeline.write import WriteOutcome, Writer


@click.command(cls=SparkCommand)
@click.argument("lake", type=TEXT)
@click.argument("topic", type=TEXT)
@click.option(
    "--topic",
    "topics",
    type=TOPIC_NAME,
    multiple=True,
    metavar="NAME",
    help="A topic of the lake.  [default: the only one]  Repeatable.",
)
@click.option(
    "--version",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="The version of the lake that is written.  [default: the newest]",
)
@click.option(
    "--by-key", is_flag=True, help="Let keys choose partitions; else rows keep their partition."
)
@click.option(
    "--part-records",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="About the most rows of a partition that are sent again after a crash.",
)
@click.option(
    "--abandon", is_flag=True, help="End an unfinished run with what it has written so far."
)
@sink_option
@spark_options
@brokers_option
@output_option
def write(
    lake: str,
    topic: str,
    topics: tuple[str, ...],
    number: int | None,
    by_key: bool,
    part_records: int,
    abandon: bool,
    **more: Any,
) -> None:
    """Write to a topic what it doesn't have yet of a lake.

    Keys, values, headers, timestamps and partitions are those of the lake. A run that was begun
    and not ended, because it crashed, is finished first; it sends nothing again but what was under
    way, and for readers of committed records not even that with --option exactlyOnce=true.

    \b
    kraftpy pipeline write /data/lake flights-again
    kraftpy pipeline write /data/lake flights-again --version 7 --by-key
    """
    job = Job("write", "", lake, more)
    with job.failures():
        from kraftpy.pipeline.target import Target
        from kraftpy.pipeline.write import Wanted, Writer

        options = dict(parse_key_values(more["options"], "--option"))
        target = Target(more["bootstrap"], topic, options)
        writer = Writer(job.lake, target, job.spark, part_records)
        wanted = Wanted(topics, number, by_key)
        if more["dry_run"]:
            _report_plans(writer, topic, writer.preview(wanted, abandon=abandon), more["output"])
            return
        outcomes = list(writer.write(wanted, abandon=abandon))
        _report(topic, outcomes, more["output"])


def _report_plans(writer: Writer, topic: str, plans: Sequence[Plan], output: str) -> None:
    from kraftpy.pipeline.ranges import merged

    if output == "json":
        runs = [
            {
                "run": plan.run,
                "reads": plan.reads,
                "parts": len(plan.ranges),
                "parts_of_earlier_run": len(writer.noted(plan)),
                "ranges": merged(plan.ranges),
            }
            for plan in plans
        ]
        echo_json({"command": "write", "dry_run": True, "topic": topic, "runs": runs})
        return
    if not plans:
        _tell_nothing(topic)
    for plan in plans:
        left = len(plan.ranges) - len(writer.noted(plan))
        for one in merged(plan.ranges):
            click.echo(f"would write {one} of version {plan.reads}")
        click.echo(f"in {left} parts")


def _report(topic: str, outcomes: Sequence[WriteOutcome], output: str) -> None:
    if output == "json":
        runs = [asdict(outcome) for outcome in outcomes]
        echo_json({"command": "write", "dry_run": False, "topic": topic, "runs": runs})
        return
    if not outcomes:
        _tell_nothing(topic)
    for outcome in outcomes:
        for one in outcome.ranges:
            click.echo(f"wrote {one} of version {outcome.reads}")
        finished = " (a run that had crashed)" if outcome.finished_earlier_run else ""
        click.echo(
            f"run {outcome.run}{finished}: {outcome.rows} rows in {outcome.seconds:.1f} s;"
            f" version {outcome.version} of the lake knows that {topic} has them"
        )


def _tell_nothing(topic: str) -> None:
    click.echo(f"nothing to do: {topic} has these rows of the lake already")
