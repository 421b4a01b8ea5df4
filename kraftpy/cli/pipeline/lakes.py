"""`kraftpy pipeline compact`, `runs`: what is in a lake, and in how many files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import TEXT, Seconds, echo_json, echo_table, output_option
from kraftpy.cli.pipeline.job import Job, failures
from kraftpy.cli.pipeline.options import MIB, SparkCommand, spark_options

if TYPE_CHECKING:
    from kraftpy.pipeline.manifests import Manifest, Plan

_DAY_MS = 86_400_000


@click.command(cls=SparkCommand)
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
@spark_options
@output_option
def compact(lake: str, file_size_mib: int, keep_ms: int, **more: Any) -> None:
    """Merge small files of a lake and delete those that nobody needs any more."""
    from kraftpy.pipeline.compaction import compact as compact_lake
    from kraftpy.pipeline.compaction import merges

    job = Job("compact", "", lake, more)
    size_bytes = file_size_mib * MIB
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


@click.command(cls=SparkCommand)
@click.argument("lake", type=TEXT)
@output_option
def runs(lake: str, output: str) -> None:
    """List what was done to a lake, oldest first, and what was begun and not ended."""
    from kraftpy.pipeline.lake import Lake

    with failures():
        opened = Lake.at(lake)
        changes = list(opened.history())
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
    return change.written + sum(file.rows for file in change.add)


def _spans(change: Manifest | Plan) -> str:
    return " ".join([*map(str, change.ranges), *(f"-> {name}" for name in change.targets)])
