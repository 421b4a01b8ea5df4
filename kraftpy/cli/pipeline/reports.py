"""`kraftpy pipeline report`: what a topic's records say, for people to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_USAGE,
    TEXT,
    Failure,
    echo_json,
    output_option,
)
from kraftpy.cli.pipeline.job import Job
from kraftpy.cli.pipeline.options import SparkCommand, brokers_option, source_option, spark_options
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.pipeline.report.definition import Definition
    from kraftpy.pipeline.report.source import Source


@click.command(cls=SparkCommand)
@click.argument("definition", type=TEXT)
@click.option("--lake", type=TEXT, help="Read from a lake's newest version, not from the topic.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="report",
    show_default=True,
    metavar="FOLDER",
    help="Where report.html, report.json and the tables go.",
)
@source_option
@spark_options
@brokers_option
@output_option
def report(definition: str, lake: str | None, out: Path, **more: Any) -> None:
    """Count, measure and draw what a topic of JSON says, as DEFINITION has it.

    DEFINITION is a TOML file, or `flights`, which comes along.

    \b
    kraftpy pipeline report flights --lake /data/lake --out flights-report
    kraftpy pipeline report clicks.toml
    """
    wanted = _load(definition)
    job = Job("report", wanted.topic, lake, more)
    with job.failures():
        source = _source(job, wanted.topic, lake)
        if more["dry_run"]:
            _tell_plan(wanted, source, out, more["output"])
            return
        said = _make(job, wanted, source, out)
    if more["output"] == "json":
        echo_json(_summary(said, out))
        return
    records, late = said["records"], said["late"]["late"]
    unread = sum(each["records"] for each in records["problems"])
    for one in (*said["tables"], *said["sessions"]):
        click.echo(f"{one['name']}: {counted(one['rows'], 'row')}")
    click.echo(
        f"{out / 'report.html'}: {counted(records['used'], 'record')}, {late} of them late,"
        f" {unread} that couldn't be read"
    )


def _load(place: str) -> Definition:
    from kraftpy.pipeline.report.definition import DefinitionError, load_definition

    try:
        return load_definition(place)
    except DefinitionError as error:
        raise Failure(str(error), EXIT_USAGE) from None


def _source(job: Job, topic: str, lake: str | None) -> Source:
    from kraftpy.pipeline.report.source import LakeSource, TopicSource

    if lake is None:
        return TopicSource.now(job.door, topic)
    return LakeSource.newest(job.lake, topic)


def _make(job: Job, definition: Definition, source: Source, out: Path) -> dict[str, Any]:
    from kraftpy.pipeline.report.engine import TooManyRowsError, compute
    from kraftpy.pipeline.report.files import write_report

    spark = job.spark()
    try:
        numbers = compute(spark, definition, source.table(spark))
    except TooManyRowsError as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None
    return write_report(out, definition, numbers, source.facts())


def _tell_plan(definition: Definition, source: Source, out: Path, output: str) -> None:
    tables = [each.name for each in definition.tables]
    tables += [each.name for each in definition.sessions]
    if output == "json":
        planned = {"topic": definition.topic, "read": source.plan(), "tables": tables}
        echo_json({"command": "report", "dry_run": True, **planned, "out": str(out)})
        return
    for one in source.plan():
        click.echo(f"would read {one}")
    click.echo(f"would write {out / 'report.html'} with: {', '.join(tables)}")


def _summary(said: dict[str, Any], out: Path) -> dict[str, Any]:
    records = said["records"]
    return {
        "command": "report",
        "dry_run": False,
        "topic": said["topic"],
        "source": said["source"],
        "read": records["read"],
        "used": records["used"],
        "unreadable": sum(each["records"] for each in records["problems"]),
        "late": said["late"]["late"],
        "tables": {one["slug"]: one["rows"] for one in (*said["tables"], *said["sessions"])},
        "out": str(out),
    }
