"""`kraftpy consistency`: make consistency tests, and judge the histories that they record."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.access import Access, security_option
from kraftpy.cli.common import (
    EXIT_INCONSISTENT,
    EXIT_NOT_STARTED,
    EXIT_UNDECIDED,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    TEXT,
    Failure,
    echo_json,
    echo_table,
    output_option,
)
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.testing.networks.choice import Choice


@click.group("consistency")
def command() -> None:
    """Consistency tests in the manner of Jepsen: what was promised, and was it kept?"""


@command.command("list")
@output_option
def list_command(output: str) -> None:
    """Show the workloads, the faults that can be had here, and the clients that are installed."""
    from kraftpy.testing.consistency.clients import LIBRARIES, available
    from kraftpy.testing.consistency.faults import FAULTS, lacking
    from kraftpy.testing.consistency.workloads import PLAYS
    from kraftpy.testing.networks.choice import in_the_way

    there = available()
    workloads = {name: play.about for name, play in PLAYS.items()}
    faults = {name: kind.about for name, kind in FAULTS.items()}
    missing = lacking(FAULTS)
    way = in_the_way()
    networks = {
        "namespaces": f"not here: {way}" if way else "links are cut in the kernel",
        "proxy": "links are cut by TCP proxies between the nodes",
    }
    found = {
        name: "installed" if name in there else library.how for name, library in LIBRARIES.items()
    }
    if output == "json":
        answer = {"workloads": workloads, "faults": faults, "clients": found}
        echo_json({**answer, "networks": networks, "missing": missing})
        return
    shown = {
        name: f"{about}; not here: {missing[name]}" if name in missing else about
        for name, about in faults.items()
    }
    tables = {"WORKLOAD": workloads, "FAULT": shown, "NETWORK": networks, "CLIENT": found}
    for title, rows in tables.items():
        echo_table((title, ""), list(rows.items()))
        click.echo()


_RUN_EPILOG = """\b
Exit codes:
  0   every promise was kept
  2   an option cannot be used, or a client has to be installed
  4   the cluster could not be started
  5   the cluster was not healthy again after the faults
  6   a promise was broken
  7   something could not be decided, or a fault came in no run (`all` in one run: as many as fit)
"""


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in (value or "").split(","))))


@command.command("run", epilog=_RUN_EPILOG)
@click.option(
    "--workload",
    "workloads",
    callback=_names,
    default="queue",
    show_default=True,
    metavar="NAME[,...]",
    help="Workloads, one run each; `all` for all.",
)
@click.option(
    "--faults",
    callback=_names,
    metavar="NAME[,...]",
    help="What is done to the cluster meanwhile, in turn, and now and then two at once; A+B for "
    "two that always come together, `all` for all that can be had here.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(1, 24 * 3600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long the load and the faults last.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.1, 100_000),
    default=100,
    show_default=True,
    metavar="PER SECOND",
    help="Operations of all clients together.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 200),
    default=8,
    show_default=True,
    metavar="N",
    help="How many clients, a process each.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32),
    help="Of the first workload, the next one has the next; by default another one each time.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 9),
    default=3,
    show_default=True,
    metavar="N",
    help="The cluster that is started.",
)
@click.option(
    "--bootstrap",
    "-b",
    type=TEXT,
    default="",
    metavar="HOST:PORT[,...]",
    help="Test what is there instead, Apache Kafka too; without faults.",
)
@security_option
@click.option(
    "--secure",
    is_flag=True,
    help="Start a cluster as `kraftpy dev --secure` does: all clients connect by TLS and log in. "
    "Links are cut by proxies then. Needs the extra kraftpy[secure].",
)
@click.option(
    "--network",
    type=click.Choice(["auto", "namespaces", "proxy"]),
    default="auto",
    show_default=True,
    help="How links between the nodes are cut: in network namespaces where they are allowed, or by "
    "TCP proxies.",
)
@click.option(
    "--clients",
    callback=_names,
    metavar="NAME[,...]",
    help="Client libraries; by default all that are installed.",
)
@click.option(
    "--roles",
    callback=_names,
    metavar="NAME[,...]",
    help="What clients do, in turn; by default a bit of everything. A name that doesn't exist has "
    "those of the workload listed.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("consistency"),
    show_default=True,
    metavar="FOLDER",
    help="Each run makes a folder in it: history.jsonl, report.json, report.html; if it failed also"
    " what the nodes left.",
)
@output_option
def run_command(
    workloads: tuple[str, ...],
    faults: tuple[str, ...],
    time_limit_s: float,
    seed: int | None,
    network: str,
    out: Path,
    output: str,
    access: Access,
    **options: Any,
) -> None:
    """Load a cluster, break it, heal it, read everything, and judge what the clients saw."""
    from kraftpy.testing.consistency import secured
    from kraftpy.testing.consistency.coverage import coverage_lines, least_met_first, never_came
    from kraftpy.testing.consistency.faults import FAULTS, kinds, lacking
    from kraftpy.testing.consistency.matrix import total, write_index
    from kraftpy.testing.consistency.plan import LATE
    from kraftpy.testing.consistency.workloads import PLAYS

    everything = faults == ("all",)
    if everything:
        faults = tuple(name for name, kind in FAULTS.items() if kind.nodes <= options["nodes"])
    missing = lacking(name for name in kinds(faults) if name in FAULTS)
    if options["secure"] and everything:
        missing[LATE] = "what clients send is encrypted"
    if access.settings and not options["bootstrap"]:
        raise Failure(
            "--command-config and -X are for a cluster that is there, which --bootstrap names; "
            "--secure starts one that is secured",
            EXIT_USAGE,
        )
    secured.use(access.settings)
    if missing and not everything:
        name, why = next(iter(missing.items()))
        raise Failure(f"{name} can't be had here: {why}", EXIT_USAGE)
    for name, why in missing.items():
        click.echo(f"kraftpy: left out {name}: {why}", err=True)
    options["faults"] = faults = tuple(name for name in faults if name not in missing)
    options["left_out"] = missing
    options["network"] = _enter_network(
        network, there=bool(options["bootstrap"]) or (options["secure"] and network == "auto")
    )
    chosen = random.randrange(10**6) if seed is None else seed  # noqa: S311 - no secret
    reports: list[dict[str, Any]] = []
    unhealthy = False
    started = time.monotonic()
    # Each has a seed of its own: what comes too late in one schedule comes early in another.
    for seed, workload in enumerate(PLAYS if workloads == ("all",) else workloads, chosen):
        if everything:
            options["faults"] = tuple(least_met_first(faults, seed, reports))
        plan = {"workload": workload, "time_limit_s": time_limit_s, "seed": seed, **options}
        report, healed = _run(plan, access, out, show=output == "table")
        reports.append(report)
        unhealthy |= not healed
    if len(reports) > 1:
        elapsed_s = time.monotonic() - started
        page = write_index(reports, elapsed_s, out)
        click.echo(f"kraftpy: the page of all runs is in {page}", err=True)
        click.echo(total(reports, elapsed_s), err=output == "json")
    for line in coverage_lines(reports):
        click.echo(line, err=output == "json")
    if output == "json":
        echo_json(reports)
    never = never_came(reports)
    if never and not (everything and len(reports) == 1):
        say = f"kraftpy: never came: {', '.join(never)}; a longer --time-limit has room for more"
        click.echo(say, err=True)
        _end([*(report["valid"] for report in reports), None], unhealthy)
    _end([report["valid"] for report in reports], unhealthy)


def _enter_network(wanted: str, *, there: bool) -> Choice:
    """Chooses a network and is where its clients are; a cluster that is there has its own."""
    from kraftpy.testing.networks.choice import choose, enter
    from kraftpy.testing.networks.hub import NetworkError

    try:
        network = choose("proxy" if there else wanted)
        enter(network)
    except NetworkError as error:
        raise Failure(f"{error}; --network proxy needs nothing", EXIT_USAGE) from None
    return network


def _run(
    options: dict[str, Any], access: Access, out: Path, *, show: bool
) -> tuple[dict[str, Any], bool]:
    """Makes one run and judges it: what its report says, and whether the cluster healed."""
    from kraftpy.testing.consistency.evidence import kept_files
    from kraftpy.testing.consistency.plan import Plan, Result, RunError
    from kraftpy.testing.consistency.report import summary, write_report
    from kraftpy.testing.consistency.runner import run
    from kraftpy.testing.process import BrokerError

    name = f"{options['workload']}-{options['seed']}"
    taken = {path.name for path in out.glob(f"{name}*")}
    number = next(i for i in itertools.count(1) if f"{name}-{i}" not in taken)
    plan = Plan(folder=out / f"{name}-{number}", again=_again(options, access, out), **options)
    judged: list[dict[str, Any]] = []

    def keep(result: Result) -> bool:
        """Judges it while the nodes are there; whether there is something to look for in them."""
        judged.append(_judge(plan.history, plan.folder))
        return bool(result.unhealthy or result.killed or judged[0]["valid"] is not True)

    try:
        result = run(plan, say=lambda text: click.echo(f"kraftpy: {text}", err=True), keep=keep)
    except RunError as error:
        raise Failure(str(error), EXIT_USAGE) from None
    except BrokerError as error:
        raise Failure(str(error), EXIT_NOT_STARTED) from None
    except OSError as error:
        raise Failure(f"cannot write to {plan.folder}: {error}", EXIT_USAGE) from None
    (report,) = judged
    report["files"] += kept_files(plan.folder, result.kept)
    report["processes"] = {
        "crashed on purpose": result.crashed,
        "ended by themselves": result.dead,
        "hung and were killed": result.killed,
    }
    page = write_report(report, plan.folder)
    if show:
        _show(plan.history, report)
    click.echo(f"kraftpy: the report is in {page}", err=True)
    if result.unhealthy:
        click.echo(f"kraftpy: {result.unhealthy}", err=True)
    return {"path": str(plan.history), **summary(report)}, not result.unhealthy


def _again(options: dict[str, Any], access: Access, out: Path) -> tuple[str, ...]:
    """The command line of this run alone."""
    words = ["kraftpy", "consistency", "run"]
    told = {name: value for name, value in options.items() if name not in ("left_out", "secure")}
    words += ["--secure"] if options["secure"] else []
    words += [] if access.file is None else ["--command-config", access.file]
    words += [word for each in access.own for word in ("-X", each)]
    for name, value in {**told, "network": options["network"].name, "out": out}.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if text and not (name == "nodes" and options["bootstrap"]):
            words += ["--" + name.removesuffix("_s").replace("_", "-"), text]
    return tuple(words)


def _end(verdicts: list[bool | None], unhealthy: bool = False) -> None:
    """The exit code that the worst of these asks for."""
    if False in verdicts:
        raise click.exceptions.Exit(EXIT_INCONSISTENT)
    if unhealthy:
        raise click.exceptions.Exit(EXIT_UNHEALTHY)
    if None in verdicts:
        raise click.exceptions.Exit(EXIT_UNDECIDED)


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
        place = folder
        if folder is not None and len(histories) > 1:
            place = folder / f"{number:02d}-{path.stem}"
        report = _judge(path, place)
        reports.append({"path": str(path), **summary(report)})
        if output == "table":
            _show(path, report)
        if place is not None:
            try:
                written = write_report(report, place)
            except OSError as error:
                raise Failure(f"cannot write the report to {place}: {error}", EXIT_USAGE) from None
            click.echo(f"kraftpy: the report is in {written}", err=True)
    if output == "json":
        echo_json(reports)
    _end([report["valid"] for report in reports])


def _judge(path: Path, folder: Path | None) -> dict[str, Any]:
    """What the report of a history says; what shows that promises are broken goes to the folder."""
    from kraftpy.testing.consistency.evidence import keep_anomalies
    from kraftpy.testing.consistency.history import HistoryError, HistoryReader
    from kraftpy.testing.consistency.report import judge

    try:
        history = HistoryReader(path)
        outcome, report = judge(history)
    except HistoryError as error:
        text = str(error)
        raise Failure(text if str(path) in text else f"{path}, {text}", EXIT_USAGE) from None
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", EXIT_USAGE) from None
    if folder is not None:
        try:
            report["files"] = keep_anomalies(history, outcome.verdicts, folder)
        except OSError as error:
            raise Failure(f"cannot write to {folder}: {error.strerror}", EXIT_USAGE) from None
    return report


def _said(verdict: Mapping[str, Any]) -> str:
    from kraftpy.testing.consistency.verdicts import word

    said = word(verdict["valid"], verdict["counts"])
    return said.upper() if verdict["valid"] is False else said


def _show(path: Path, report: Mapping[str, Any]) -> None:
    click.echo(
        f"{path}: {report['workload']}, seed {report['seed']},"
        f" {counted(report['operations'], 'operation')} in {report['duration_s']:.0f} s"
    )
    order = {False: 0, None: 1, True: 2}
    echo_table(
        ("PROMISE", "WAS", "BECAUSE"),
        [
            (each["checker"], _said(each), each["explanation"])
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
