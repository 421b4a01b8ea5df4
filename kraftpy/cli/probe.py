"""`kraftpy probe`: messages through the whole cluster, measured, for Prometheus or for CI."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    TEXT,
    Failure,
    Seconds,
    echo_json,
    echo_table,
    output_option,
    run_client,
)
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.probe.prober import Prober

DEFAULT_LISTENER = "127.0.0.1:9380"


@click.command("probe")
@brokers_option
@click.option(
    "-t",
    "--topic",
    type=TEXT,
    default="kraftpy-probe",
    show_default=True,
    help="The heartbeat topic; made if it is missing, with a partition led by each broker.",
)
@click.option(
    "--name",
    type=TEXT,
    default=socket.gethostname,
    show_default="the host's",
    help="Whose probe this is: each needs a name of its own, which names its group.",
)
@click.option(
    "--interval",
    "interval_ms",
    type=Seconds(),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two messages to a partition.",
)
@click.option(
    "--sla",
    "sla_ms",
    type=Seconds(),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How long sending, the round trip or a commit may take each.",
)
@click.option(
    "--listen",
    type=TEXT,
    metavar="HOST:PORT",
    help=f"Where /metrics is served.  [default: {DEFAULT_LISTENER}; with --once or --duration "
    "nowhere]",
)
@click.option("--once", is_flag=True, help="Send one message to each partition, and end.")
@click.option(
    "--duration",
    "duration_ms",
    type=Seconds(),
    metavar="SECONDS",
    help="Send for so long, and end.",
)
@output_option
def command(
    brokers: Brokers,
    topic: str,
    name: str,
    interval_ms: int,
    sla_ms: int,
    listen: str | None,
    once: bool,
    duration_ms: int | None,
    output: str,
) -> None:
    """Send messages through every broker, receive them, and tell how it went.

    Without --once or --duration it goes on until Ctrl-C, which has it wait for what is on its way
    and say what it found, and serves metrics: latencies, lost messages, as kraftpy_probe_* and
    under the names of kminion's end-to-end test.

    A message is lost if it was acknowledged by all in-sync replicas (acks=all) and has not arrived
    within the SLA; if it comes later, it is late as well.

    \b
    kraftpy probe -b kafka1:9092,kafka2:9092 --listen :9380
    kraftpy probe --once
    kraftpy probe --duration 60 --sla 1 -o json

    With --once or --duration it ends with exit code 5 unless every message was acknowledged and
    arrived, and every commit succeeded, all within the SLA.
    """
    if once and duration_ms is not None:
        raise click.UsageError("--once and --duration exclude each other")
    from kraftpy.probe.prober import NameTakenError, ProbeOptions

    ends = once or duration_ms is not None
    unique = f"-{os.urandom(4).hex()}" if ends else ""
    options = ProbeOptions(
        bootstrap=brokers.bootstrap,
        security=brokers.security,
        topic=topic,
        group_id=f"kraftpy-probe-{name}{unique}",
        group_instance_id=None if ends else name,
        interval_ms=interval_ms,
        sla_ms=sla_ms,
    )
    rounds = None
    if ends:
        rounds = 1 if duration_ms is None else max(1, duration_ms // interval_ms)
    address = listen if listen is not None or ends else DEFAULT_LISTENER
    listening = None if address is None else _listen(address)
    _log(quiet=ends)
    try:
        run_client(_probe(options, rounds, listening, output))
    except NameTakenError as error:
        raise Failure(f"{error}; give this one another --name", EXIT_USAGE) from None


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="'--listen'")
    try:
        return socket.create_server((host.removeprefix("[").removesuffix("]"), int(port)))
    except OSError as error:
        raise Failure(
            f"can't serve metrics on {address}: {error.strerror}. Choose another --listen",
            EXIT_USAGE,
        ) from None


def _log(*, quiet: bool) -> None:
    from kraftpy.cli.logs import log_to

    log_to(logging.StreamHandler())
    if quiet:
        logging.getLogger().setLevel(logging.ERROR)


async def _probe(
    options: Any, rounds: int | None, listening: socket.socket | None, output: str
) -> None:
    from kraftpy.metrics.loop_lag import LoopLag
    from kraftpy.probe.prober import Prober
    from kraftpy.probe.serving import ProbeExporter
    from kraftpy.probe.summary import summary

    loop = asyncio.get_running_loop()
    prober = Prober(options)
    if listening is not None:
        ProbeExporter(prober, LoopLag(loop)).serve(listening)
        host, port = listening.getsockname()[:2]
        click.echo(f"metrics at http://{host}:{port}/metrics", err=True)
        sys.setswitchinterval(0.0005)  # who scrapes shall not show in the latencies
    told = _Told(prober)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.stop, number)
    started = time.monotonic()
    took_s = 0.0
    try:
        async with prober:
            started = told.started = time.monotonic()
            await prober.run(rounds)
            took_s = time.monotonic() - started
            if rounds is not None:
                await prober.remove_group()
    except asyncio.CancelledError:
        if not told.number:
            raise
        took_s = took_s or time.monotonic() - started
    found = summary(prober, took_s)
    _show(found, output)
    if rounds is not None and told.number:
        raise click.exceptions.Exit(128 + told.number)
    if not found["ok"] and rounds is not None:
        raise click.exceptions.Exit(EXIT_UNHEALTHY)


class _Told:
    """Hears the signals that end a probe.

    The first has it send no more and find out what became of what it sent; it ends at once with the
    second, and with the first while it has sent nothing that counts.
    """

    def __init__(self, prober: Prober) -> None:
        self.number = 0
        self.started = 0.0
        self._prober = prober
        running = asyncio.current_task()
        assert running is not None
        self._running = running

    def stop(self, number: int) -> None:
        if self.started and not self.number:
            self._prober.stop()
        else:
            self._running.cancel()
        self.number = self.number or number


def _show(found: dict[str, Any], output: str) -> None:
    from kraftpy.probe.summary import step_rows

    if output == "json":
        echo_json(found)
        return
    header = ("STEP", "COUNT", "P50 MS", "P90", "P99", "P99.9", "LONGEST", "OVER SLA")
    echo_table(header, step_rows(found))
    click.echo()
    click.echo(
        f"{counted(found['produced'], 'message')} through {found['brokers_covered']} of "
        f"{counted(found['brokers'], 'broker')}: {found['received']} arrived, {found['lost']} lost "
        f"({found['late']} of them came late), {found['failed']} not acknowledged, "
        f"{found['duplicated']} twice"
    )
