"""`kraftpy pipeline load`, `stream`, `rerun`: from a topic into a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import TEXT, output_option
from kraftpy.cli.pipeline.job import Job, sentence
from kraftpy.cli.pipeline.options import (
    SparkCommand,
    abandon_option,
    bound_options,
    brokers_option,
    check_rhythm,
    group_option,
    read_bound,
    rhythm_options,
    source_options,
    spark_options,
)
from kraftpy.cli.pipeline.stopping import Stopping

if TYPE_CHECKING:
    from kraftpy.pipeline.manifests import Plan


@click.command(cls=SparkCommand)
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@bound_options("lake", "latest")
@abandon_option
@group_option
@source_options
@spark_options
@brokers_option
@output_option
def load(topic: str, lake: str, start: str, end: str, abandon: bool, **more: Any) -> None:
    """Load what a lake doesn't have yet of a topic.

    A run that was begun and not ended, because it crashed, is finished first.

    \b
    kraftpy pipeline load flights /data/lake
    kraftpy pipeline load flights /data/lake --from @2026-03-01 --to @2026-04-01
    """
    job = Job("load", topic, lake, more, create=True)
    with job.failures():
        outcomes = job.finish_or_abandon(abandon)
        begun = [each for one in outcomes for each in one.ranges]
        plan = job.loader.plan_load(
            read_bound(start, "--from"), read_bound(end, "--to"), begun=begun
        )
        outcomes += job.run([plan] if plan else [])
        job.commit_group()
        job.report(outcomes)


@click.command(cls=SparkCommand)
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@rhythm_options("Load what is there", "load")
@click.option(
    "--max-records", type=click.IntRange(1), metavar="N", help="About the most that one load takes."
)
@abandon_option
@group_option
@source_options
@spark_options
@brokers_option
@output_option
def stream(
    topic: str,
    lake: str,
    available_now: bool,
    every_ms: int | None,
    max_records: int | None,
    abandon: bool,
    **more: Any,
) -> None:
    """Load what comes, again and again, until SIGTERM or Ctrl-C.

    These wait for the load under way; a second one leaves it to the next run. With --available-now
    the exit code is then 143 or 130 unless all is loaded. The lake is the
    checkpoint: a stream that died goes on where the lake ends, and finishes what it had begun.

    \b
    kraftpy pipeline stream flights /data/lake --every 60
    kraftpy pipeline stream flights /data/lake --available-now --max-records 5000000
    """
    from kraftpy.pipeline.bounds import Bound
    from kraftpy.pipeline.stream import StoppedError
    from kraftpy.pipeline.stream import stream as stream_loads

    every_s = check_rhythm(available_now, every_ms)
    stopping = Stopping("load")
    stopping.take()
    job = Job("stream", topic, lake, more, create=True, max_records=max_records)
    job.when_started = stopping.take
    runs = rows = 0
    stopped_early = False
    with job.failures():
        if more["dry_run"]:
            plans = job.finish_or_abandon(abandon)
            begun = [each for one in plans for each in one.ranges]
            plan = job.loader.plan_load(Bound("lake"), Bound("latest"), "stream", begun=begun)
            job.report([*plans, *([plan] if plan else [])])
            return
        if abandon:
            job.finish_or_abandon(abandon)
        try:
            for outcome in stream_loads(job.loader, every_s=every_s, stop=stopping.event):
                job.commit_group()
                runs, rows = runs + 1, rows + outcome.rows
                if more["output"] == "table":
                    click.echo(sentence(outcome))
        except StoppedError:
            stopped_early = True
        job.commit_group()
        job.summarize(loads=runs, rows=rows)
    if stopped_early:
        stopping.leave()


@click.command(cls=SparkCommand)
@click.argument("topic", type=TEXT)
@click.argument("lake", type=TEXT)
@click.option("--run", "run", type=TEXT, help="The run whose ranges are loaded again.")
@bound_options("earliest", "lake")
@abandon_option
@source_options
@spark_options
@brokers_option
@output_option
def rerun(
    topic: str, lake: str, run: str | None, start: str, end: str, abandon: bool, **more: Any
) -> None:
    """Load offsets again and put them in the place of what the lake has of them.

    Exactly the ranges of a run, or those between two bounds; other rows stay. A run that was begun
    and not ended, because it crashed, is finished first.

    \b
    kraftpy pipeline rerun flights /data/lake --run 20260301T120000Z-1a2b3c4d
    kraftpy pipeline rerun flights /data/lake --from @2026-03-01 --to @2026-03-02
    """
    job = Job("rerun", topic, lake, more)
    with job.failures():
        outcomes = job.finish_or_abandon(abandon)
        if run is not None:
            plan: Plan | None = job.loader.plan_rerun_of(run)
        else:
            begun = [each for one in outcomes for each in one.ranges]
            plan = job.loader.plan_rerun(
                read_bound(start, "--from"), read_bound(end, "--to"), begun=begun
            )
        outcomes += job.run([plan] if plan else [])
        job.report(outcomes)
