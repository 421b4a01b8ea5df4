"""`kraftpy pipeline mirror`: topics of a cluster into those of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.access import settings_of_security
from kraftpy.cli.common import (
    GROUP_NAME,
    TEXT,
    echo_json,
    output_option,
    parse_key_values,
)
from kraftpy.cli.pipeline.job import Job
from kraftpy.cli.pipeline.options import (
    SparkCommand,
    brokers_option,
    check_rhythm,
    rhythm_options,
    source_option,
    spark_options,
    to_option,
)
from kraftpy.cli.pipeline.stopping import Stopping
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.pipeline.mirror import Cycle, Mirror, Preview


@click.command(cls=SparkCommand)
@click.argument("topics", type=TEXT, nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--to-bootstrap",
    type=TEXT,
    required=True,
    metavar="HOST:PORT[,...]",
    help="Brokers of the cluster that it is copied to.",
)
@click.option(
    "--to-command-config",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Settings of TLS and login there, as --command-config has those of the source.",
)
@click.option(
    "--pattern",
    type=TEXT,
    metavar="EXPRESSION",
    help="Copy also topics whose whole name it matches.",
)
@click.option("--prefix", type=TEXT, default="", help="What names have in front of them there.")
@click.option("--to-topic", type=TEXT, metavar="NAME", help="What one topic is called there.")
@click.option(
    "--checkpoint",
    type=TEXT,
    required=True,
    metavar="FOLDER",
    help="Where is kept how far it was copied; one for each mirror.",
)
@rhythm_options("Copy what is there", "cycle")
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="About the most records of a batch, which may be sent again after a crash.",
)
@click.option(
    "--group",
    type=GROUP_NAME,
    metavar="ID",
    help="Commit how far it was copied as this group's offsets at the source.",
)
@click.option(
    "--offsets", is_flag=True, help="Translate the offsets of groups, for them to go on there."
)
@source_option
@to_option
@spark_options
@brokers_option
@output_option
def mirror(
    topics: tuple[str, ...],
    pattern: str | None,
    prefix: str,
    to_bootstrap: str,
    to_command_config: str | None,
    to_topic: str | None,
    checkpoint: str,
    available_now: bool,
    every_ms: int | None,
    max_records: int,
    to_options: tuple[str, ...],
    group: str | None,
    offsets: bool,
    **more: Any,
) -> None:
    """Copy topics to another cluster, and what comes later too, until SIGTERM or Ctrl-C.

    Keys, values, headers, timestamps and partitions are kept; offsets are not. A topic that isn't
    there is made, with the partitions and settings of this one. After a crash the last batch may
    be sent again, but for readers of committed records with --to-option exactlyOnce=true.

    \b
    kraftpy pipeline mirror flights --to-bootstrap far:9092 --checkpoint /data/mirror --every 10
    kraftpy pipeline mirror --pattern 'orders-.*' --prefix east. --group mirror --offsets
        --to-bootstrap far:9092 --checkpoint /data/east --every 10
    """
    every_s = check_rhythm(available_now, every_ms)
    stopping = Stopping("cycle")
    stopping.take()
    job = Job("mirror", pattern or " ".join(topics) or "nothing", None, more)
    job.when_started = stopping.take
    with job.failures():
        from kraftpy.pipeline.folder import local_folder
        from kraftpy.pipeline.mirror import Mirror
        from kraftpy.pipeline.mirrored import Names
        from kraftpy.pipeline.target import Target
        from kraftpy.spark.positions import Pattern

        own = {} if to_command_config is None else settings_of_security(to_command_config)
        options = {f"kafka.{key}": value for key, value in own.items()}
        options.update(parse_key_values(to_options, "--to-option"))
        work = Mirror(
            job.door,
            Names(topics, None if pattern is None else Pattern.read(pattern), prefix, to_topic),
            Target(to_bootstrap, "", options),
            local_folder(checkpoint),
            job.spark,
            max_records,
            group=group,
            offsets=offsets,
        )
        if more["dry_run"]:
            _report_preview(work.preview(), more["output"])
            return
        cycles = _cycles(work, every_s, stopping, more["output"])
        if available_now and not cycles:
            stopping.leave()


def _cycles(work: Mirror, every_s: float | None, stopping: Stopping, output: str) -> int:
    """Says what cycles do; how many there were."""
    cycles = rows = batches = offsets = 0
    for cycle in work.cycles(every_s=every_s, stop=stopping.event):
        cycles += 1
        rows, batches = rows + cycle.rows, batches + cycle.batches
        offsets += cycle.offsets
        if output == "table" and (cycle.rows or cycle.offsets or every_s is None):
            click.echo(_sentence(cycle))
    if output == "json":
        from kraftpy.spark.positions import table_of

        counts = {"rows": rows, "batches": batches, "offsets": offsets}
        echo_json({"command": "mirror", "dry_run": False, **counts, "ends": table_of(work.ends())})
    return cycles


def _sentence(cycle: Cycle) -> str:
    groups = f"; {counted(cycle.offsets, 'offset')} of groups translated" if cycle.offsets else ""
    return (
        f"copied {counted(cycle.rows, 'record')} in {cycle.batches} "
        f"{'batch' if cycle.batches == 1 else 'batches'}, {cycle.seconds:.1f} s{groups}"
    )


def _report_preview(previews: Sequence[Preview], output: str) -> None:
    if output == "json":
        said = [asdict(preview) for preview in previews]
        echo_json({"command": "mirror", "dry_run": True, "topics": said})
        return
    for each in previews:
        if each.creates:
            click.echo(f"would make {each.to_topic} with {counted(each.partitions, 'partition')}")
        elif each.adds_partitions:
            click.echo(f"would add {counted(each.adds_partitions, 'partition')} to {each.to_topic}")
        for one in each.ranges:
            click.echo(f"would copy {one}")
        if not each.ranges:
            click.echo(f"nothing to copy: {each.to_topic} has what there is of {each.topic}")
    if not previews:
        click.echo("nothing to copy: no topic has a name that --pattern matches")
