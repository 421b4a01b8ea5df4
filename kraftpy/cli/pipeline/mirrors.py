"""`kraftpy pipeline mirror`: a topic of a cluster into one of another."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.access import settings_of_security
from kraftpy.cli.common import (
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
    from kraftpy.pipeline.mirror import Cycle, Preview


@click.command(cls=SparkCommand)
@click.argument("topic", type=TEXT)
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
@click.option("--to-topic", type=TEXT, metavar="NAME", help="Its name there.  [default: the same]")
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
@source_option
@to_option
@spark_options
@brokers_option
@output_option
def mirror(
    topic: str,
    to_bootstrap: str,
    to_command_config: str | None,
    to_topic: str | None,
    checkpoint: str,
    available_now: bool,
    every_ms: int | None,
    max_records: int,
    to_options: tuple[str, ...],
    **more: Any,
) -> None:
    """Copy a topic to another cluster, and what comes later too, until SIGTERM or Ctrl-C.

    Keys, values, headers, timestamps and partitions are kept; offsets are not. A topic that isn't
    there is made, with the partitions and settings of this one. After a crash the last batch may
    be sent again, but for readers of committed records with --to-option exactlyOnce=true.

    \b
    kraftpy pipeline mirror flights --to-bootstrap far:9092 --checkpoint /data/mirror --every 10
    """
    every_s = check_rhythm(available_now, every_ms)
    stopping = Stopping("cycle")
    stopping.take()
    job = Job("mirror", topic, None, more)
    job.when_started = stopping.take
    with job.failures():
        from kraftpy.pipeline.folder import local_folder
        from kraftpy.pipeline.mirror import Mirror
        from kraftpy.pipeline.target import Target

        name = to_topic or topic
        own = {} if to_command_config is None else settings_of_security(to_command_config)
        options = {f"kafka.{key}": value for key, value in own.items()}
        options.update(parse_key_values(to_options, "--to-option"))
        target = Target(to_bootstrap, name, options)
        folder = local_folder(checkpoint)
        work = Mirror(job.door, topic, target, folder, job.spark, max_records)
        said = {"command": "mirror", "dry_run": more["dry_run"], "topic": topic, "to_topic": name}
        if more["dry_run"]:
            _report_preview(work.preview(), said, more["output"])
            return
        cycles = rows = batches = 0
        for cycle in work.cycles(every_s=every_s, stop=stopping.event):
            cycles += 1
            rows, batches = rows + cycle.rows, batches + cycle.batches
            if more["output"] == "table" and (cycle.rows or available_now):
                click.echo(_sentence(cycle))
        if more["output"] == "json":
            ends = {str(partition): end for partition, end in sorted(work.ends().items())}
            echo_json({**said, "rows": rows, "batches": batches, "ends": ends})
        if available_now and not cycles:
            stopping.leave()


def _sentence(cycle: Cycle) -> str:
    return (
        f"copied {counted(cycle.rows, 'record')} in {cycle.batches} "
        f"{'batch' if cycle.batches == 1 else 'batches'}, {cycle.seconds:.1f} s"
    )


def _report_preview(preview: Preview, said: dict[str, Any], output: str) -> None:
    if output == "json":
        echo_json({**said, **asdict(preview)})
        return
    if preview.creates:
        click.echo(f"would make {said['to_topic']} with {counted(preview.partitions, 'partition')}")
    elif preview.adds_partitions:
        click.echo(
            f"would add {counted(preview.adds_partitions, 'partition')} to {said['to_topic']}"
        )
    for one in preview.ranges:
        click.echo(f"would copy {one}")
    if not preview.ranges:
        click.echo(f"nothing to copy: {said['to_topic']} has what there is of {said['topic']}")
