"""What the commands of `kraftpy pipeline` have in common on the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from kraftpy.cli import access
from kraftpy.cli.access import Brokers
from kraftpy.cli.common import EXIT_USAGE, GROUP_NAME, TEXT, Failure, Seconds

F = TypeVar("F", bound=Callable[..., Any])

MIB = 1 << 20


class SparkCommand(click.Command):
    """A command that needs Spark: says what to install, but not to who only asks for its help."""

    def invoke(self, ctx: click.Context) -> Any:
        needed = ("pyspark", "pyarrow", "pandas", "numpy")
        if missing := [name for name in needed if find_spec(name) is None]:
            raise Failure(
                f"the pipeline needs Spark, and {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'}n't installed: type"
                ' pip install "kraftpy[spark]" (and have Java 17 or later)',
                EXIT_USAGE,
            )
        return super().invoke(ctx)


def spark_options(function: F) -> F:
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


def _option_option(flag: str, name: str, whose: str) -> Callable[[F], F]:
    return click.option(
        flag,
        name,
        type=TEXT,
        multiple=True,
        metavar="KEY=VALUE",
        help=f"An option of the {whose}. Repeatable.",
    )


source_option = _option_option("--option", "options", "source, for example failOnDataLoss=false")
_OF_SINK = "sink, for example kafka.compression.type=zstd"
sink_option = _option_option("--option", "options", _OF_SINK)
to_option = _option_option("--to-option", "to_options", _OF_SINK)


def rhythm_options(what_is_there: str, what_begins: str) -> Callable[[F], F]:
    """`--available-now` or `--every`; `check_rhythm` sees to it that it is one of them."""

    def decorate(function: F) -> F:
        for option in (
            click.option(
                "--every",
                "every_ms",
                type=Seconds(),
                metavar="SECONDS",
                help=f"Begin a {what_begins} then.",
            ),
            click.option("--available-now", is_flag=True, help=f"{what_is_there} now, and end."),
        ):
            function = option(function)
        return function

    return decorate


def check_rhythm(available_now: bool, every_ms: int | None) -> float | None:
    """Seconds from the beginning of one to that of the next; None for one only."""
    if available_now == (every_ms is not None):
        raise click.UsageError("say either --available-now or --every SECONDS")
    return None if every_ms is None else every_ms / 1000


def source_options(function: F) -> F:
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
        source_option,
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


def brokers_option(function: F) -> F:
    """-b, --command-config and -X: as `bootstrap`, and in front of the `options` of the source."""

    @functools.wraps(function)
    def command(*args: Any, brokers: Brokers, options: Sequence[str] = (), **others: Any) -> Any:
        given = tuple(f"kafka.{key}={value}" for key, value in brokers.settings.items())
        return function(*args, bootstrap=brokers.bootstrap, options=(*given, *options), **others)

    made: F = access.brokers_option(command)  # type: ignore[assignment]
    return made


abandon_option = click.option(
    "--abandon", is_flag=True, help="Roll back an unfinished run instead of finishing it."
)


group_option = click.option(
    "--group",
    type=GROUP_NAME,
    metavar="ID",
    help="Commit where the lake ends as this group's offsets.",
)


def bound_options(start: str, end: str) -> Callable[[F], F]:
    def decorate(function: F) -> F:
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


def read_bound(text: str, option: str) -> Any:
    from kraftpy.pipeline.bounds import Bound, BoundError

    try:
        return Bound.read(text)
    except BoundError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
