"""`kraftpy pipeline audit`: what is wrong with a topic or a lake."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import (
    EXIT_INCONSISTENT,
    TEXT,
    echo_json,
    echo_table,
    output_option,
)
from kraftpy.cli.pipeline.job import Job
from kraftpy.cli.pipeline.options import SparkCommand, brokers_option, source_option, spark_options

if TYPE_CHECKING:
    from kraftpy.pipeline.audit import Audit


@click.command(cls=SparkCommand)
@click.argument("topic", type=TEXT)
@click.option("--lake", type=TEXT, help="A lake that is compared with the topic.")
@source_option
@spark_options
@brokers_option
@output_option
def audit(topic: str, lake: str | None, **more: Any) -> None:
    """Look for gaps, duplicates, disorder and damage in a topic; compare a lake with it.

    What compaction, transactions and retention leave behind is legal and only counted. Exit code 6
    if anything else is found.

    \b
    kraftpy pipeline audit flights
    kraftpy pipeline audit flights --lake /data/lake
    """
    from kraftpy.pipeline.audit import audit as audit_topic
    from kraftpy.pipeline.audit import plan_audit

    job = Job("audit", topic, lake, more)
    with job.failures():
        plan = plan_audit(job.door, topic, job.lake if lake else None)
        if more["dry_run"]:
            job.report_plan(plan.ranges)
            return
        found = audit_topic(plan, job.door, job.spark)
    version = plan.stored.version.number if plan.stored else None
    if more["output"] == "json":
        fields = {"command": "audit", "dry_run": False, "topic": topic, "clean": found.clean}
        echo_json({**fields, "version": version, **asdict(found)})
    else:
        _tell_audit(topic, found)
        if version is not None:
            _tell_lake(topic, found, version)
        if found.clean:
            of_lake = "" if version is None else f" and version {version} of the lake"
            click.echo(f"nothing is wrong with {topic}{of_lake}")
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


def _tell_lake(topic: str, found: Audit, version: int) -> None:
    for compared in found.compared:
        click.echo(f"compared {compared} with version {version} of the lake")
    if not found.compared:
        click.echo(f"the lake has no offsets that {topic} still has: no row was compared")
    for one in found.changed:
        click.echo(f"changed file: {one.path}: {one.text}")
    for hole in found.holes:
        click.echo(f"not loaded: {hole}: `kraftpy pipeline load --from earliest` fills this hole")
    for difference in found.differences:
        click.echo(
            f"{difference.kind}: {difference.rows} of {topic}-{difference.partition},"
            f" offsets {difference.first} to {difference.last}"
        )
    for partition in found.skipped:
        click.echo(f"{topic}-{partition} isn't compared with the lake: readers end at the damage")
