"""`kraftpy consistency`: judge the recorded history of a consistency test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kraftpy.cli.common import (
    EXIT_INCONSISTENT,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    Failure,
    counted,
    echo_json,
    echo_table,
    output_option,
)

_WORDS = {True: "kept", False: "BROKEN", None: "unknown"}


@click.group("consistency")
def command() -> None:
    """Consistency tests in the manner of Jepsen: what was promised, and was it kept?"""


@command.command("check")
@click.argument(
    "histories",
    nargs=-1,
    required=True,
    metavar="HISTORY...",
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option(
    "--report",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write report.html and report.json here; of several histories each gets a folder in it.",
)
@output_option
def check_command(histories: tuple[Path, ...], folder: Path | None, output: str) -> None:
    """Judge stored histories by the checkers of their workloads.

    Exit code 0 if every promise was kept, 6 if one was broken, 7 if something could not be decided.
    """
    from kraftpy.testing.consistency.report import summary, write_report

    reports = []
    for number, path in enumerate(histories, 1):
        report = _judge(path)
        reports.append({"path": str(path), **summary(report)})
        if output == "table":
            _show(path, report)
        if folder is not None:
            place = folder / f"{number:02d}-{path.stem}" if len(histories) > 1 else folder
            try:
                written = write_report(report, place)
            except OSError as error:
                raise Failure(f"cannot write the report to {place}: {error}", EXIT_USAGE) from None
            click.echo(f"kraftpy: the report is in {written}", err=True)
    if output == "json":
        echo_json(reports)
    verdicts = [report["valid"] for report in reports]
    if False in verdicts:
        raise click.exceptions.Exit(EXIT_INCONSISTENT)
    if None in verdicts:
        raise click.exceptions.Exit(EXIT_UNDECIDED)


def _judge(path: Path) -> dict[str, Any]:
    from kraftpy.testing.consistency.history import HistoryError, HistoryReader
    from kraftpy.testing.consistency.report import judge

    try:
        return judge(HistoryReader(path))[1]
    except HistoryError as error:
        text = str(error)
        raise Failure(text if str(path) in text else f"{path}, {text}", EXIT_USAGE) from None
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", EXIT_USAGE) from None


def _show(path: Path, report: Mapping[str, Any]) -> None:
    click.echo(
        f"{path}: {report['workload']}, seed {report['seed']},"
        f" {counted(report['operations'], 'operation')} in {report['duration_s']:.0f} s"
    )
    order = {False: 0, None: 1, True: 2}
    echo_table(
        ("PROMISE", "WAS", "BECAUSE"),
        [
            (each["checker"], _WORDS[each["valid"]], each["explanation"])
            for each in sorted(report["verdicts"], key=lambda each: order[each["valid"]])
        ],
    )
    for verdict in report["verdicts"]:
        if verdict["findings"]:
            click.echo(f"\n{verdict['checker']}: {verdict['promise']}")
            for operation in verdict["findings"][0]["operations"]:
                ended = operation["ended_s"]
                until = "no answer" if ended is None else f"{ended:.6f}"
                click.echo(
                    f"  line {operation['line']}  process {operation['process']}"
                    f"  {operation['invoked_s']:.6f} to {until}"
                    f"  {operation['f']} {operation['outcome']} {operation['value']}"
                )
    click.echo()
