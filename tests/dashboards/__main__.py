"""`make dashboards`: every panel and every alert, against a real Prometheus, load and faults.

Three nodes, clients, and a Prometheus that scrapes each second. All expressions of all boards and
all recording rules have to return data; then each fault is made, has to make its alerts fire, is
healed, and they have to end. build/dashboards/table.md says what was seen; anything amiss is
exit code 1. Alerts' durations are shortened (`prometheus.shortened`).

All data is on a file system in memory, mounted for this run alone, so that a disk can fill up: the
run starts itself again in a mount namespace of its own (`unshare`).

    python -m tests.dashboards [--boards-only] [--alert NAME]... [--out FOLDER]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kraftpy.metrics.catalog import CATALOG
from kraftpy.testing import Cluster
from tests import programs
from tests.dashboards import breakable, coverage, report, shipped
from tests.dashboards.expressions import Checked, check_boards, check_recorded
from tests.dashboards.faults import FAULTS
from tests.dashboards.ground import Fault, Ground, mend, wait
from tests.dashboards.load import Load
from tests.dashboards.probe import PROBE_JOB, probe
from tests.dashboards.prometheus import Prometheus
from tests.dashboards.report import Fired
from tests.endpoints import metrics_address

JOB = "kraftpy"
DISK_BYTES = 1 << 30
BOARDS_TIMEOUT_S = 60.0
FIRE_TIMEOUT_S = 75.0
END_TIMEOUT_S = 120.0
_DISK = "KRAFTPY_DASHBOARDS_DISK"


class BreakableCluster(Cluster):
    """One that can be given a slow disk, or a defect."""

    program = (sys.executable, "-m", breakable.__name__)


def say(text: str) -> None:
    """Progress goes to standard error: standard output is the table."""
    print(f"  {text}", file=sys.stderr, flush=True)


def on_a_disk_of_its_own() -> int:
    """Runs this program again, on a small file system that only it sees; its exit code."""
    programs.require("make dashboards", "prometheus", "unshare", "mount")
    with tempfile.TemporaryDirectory(prefix="kraftpy-dashboards-") as folder:
        mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'
        command = [sys.executable, "-m", "tests.dashboards", *sys.argv[1:]]
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount, folder, *command],
            env={**os.environ, _DISK: folder},
            check=False,
        )
    if done.returncode not in (0, 1):
        say("unshare has to be able to mount: as root, or with unprivileged user namespaces")
    return done.returncode


def play(fault: Fault, ground: Ground, only: set[str]) -> list[Fired]:
    """Makes the fault, waits for its alerts, heals it, and waits for their end."""
    alerts = [name for name in fault.alerts if not only or name in only]
    prometheus = ground.prometheus
    lasting = _wait_for_end(prometheus, alerts, END_TIMEOUT_S)
    say(fault.what)
    fired: dict[str, tuple[float, str]] = {}
    problem = ""
    started_at = healed_at = time.monotonic()
    try:
        with fault.during(ground):
            deadline = time.monotonic() + FIRE_TIMEOUT_S
            while set(alerts) - fired.keys() and time.monotonic() < deadline:
                for name, text in prometheus.firing().items():
                    fired.setdefault(name, (time.monotonic() - started_at, text))
                time.sleep(0.2)
            healed_at = time.monotonic()
    except Exception as error:
        problem = f"the fault failed: {error}"
        mend(ground.cluster)
    over = _wait_for_end(prometheus, alerts, END_TIMEOUT_S)
    results = []
    for name in alerts:
        fired_s, text = fired.get(name, (None, ""))
        over_at = over.get(name)
        wrong = problem or _wrong(name in lasting, fired_s, over_at, text)
        over_s = None if over_at is None else over_at - healed_at
        results.append(Fired(name, fault.what, fired_s, over_s, text, wrong))
    for each in results:
        say(f"  {each.alert}: {each.problem or 'ok'}")
    return results


def _wrong(was_over: bool, fired_s: float | None, over_at: float | None, text: str) -> str:
    if not was_over:
        return "fired before its fault"
    if fired_s is None:
        return "did not fire"
    if over_at is None:
        return "went on after the fault"
    return "its text can't be written" if "no value" in text or "error" in text.lower() else ""


def _wait_for_end(
    prometheus: Prometheus, alerts: Iterable[str], timeout_s: float
) -> dict[str, float]:
    """When each was seen not to fire; without those that go on."""
    ended: dict[str, float] = {}
    deadline = time.monotonic() + timeout_s
    while set(alerts) - ended.keys() and time.monotonic() < deadline:
        firing = prometheus.firing()
        for name in alerts:
            if name not in firing:
                ended.setdefault(name, time.monotonic())
        time.sleep(0.2)
    return ended


def run(disk: Path, options: argparse.Namespace) -> int:
    """All of it; the exit code."""
    started_at = time.monotonic()
    switches = disk / "switches"
    switches.mkdir()
    os.environ[breakable.FOLDER] = str(switches)
    checked: list[Checked] = []
    fired: list[Fired] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(
            BreakableCluster(
                3,
                dir=disk / "nodes",
                links=False,
                log_cleaner_backoff_ms=500,
                log_retention_check_interval_ms=1000,
                replica_lag_time_max_ms=1500,
                unclean_leader_election_enable=False,
            )
        )
        load = stack.enter_context(Load(cluster.bootstrap))
        targets = {JOB: [metrics_address(node.config) for node in cluster.nodes.values()]}
        targets[PROBE_JOB] = [stack.enter_context(probe(cluster.bootstrap, disk))]
        prometheus = stack.enter_context(Prometheus(disk / "prometheus", targets))
        wait(lambda: bool(prometheus.query("kraftpy_probe_brokers_covered == 3")), "a probe of all")
        if not options.alert:
            say("boards and recording rules")
            checked += check_boards(prometheus, BOARDS_TIMEOUT_S)
            checked += check_recorded(prometheus, BOARDS_TIMEOUT_S)
        if not options.boards_only:
            ground = Ground(cluster, load, prometheus, disk, switches)
            only = set(options.alert)
            for fault in FAULTS:
                if not only or only & set(fault.alerts):
                    fired += play(fault, ground, only)
            broken = prometheus.broken_rules()
            checked += [Checked("rules", rule, "", 0, "can't be evaluated") for rule in broken]
    gaps = disagreements(complete=not options.boards_only and not options.alert)
    text = report.document(checked, fired, gaps)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text)
    print(text)
    say(f"{time.monotonic() - started_at:.0f} s; {options.out / 'table.md'}")
    bad = [each for each in (*checked, *fired) if each.problem]
    return 1 if bad or gaps else 0


def disagreements(*, complete: bool) -> list[str]:
    """Between boards and catalogue, and alerts that no fault is there for."""
    expressions = [expr for _, expr in shipped.all_expressions()]
    shown = {name for expr in expressions for name in shipped.metrics_in(expr)}
    gaps = coverage.problems(shown, set(CATALOG))
    faults = {name for fault in FAULTS for name in fault.alerts}
    alerts = {rule["alert"] for rule in shipped.rules("alerts")}
    gaps += [f"{name} has no fault" for name in sorted(alerts - faults) if complete]
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dashboards", description=__doc__)
    parser.add_argument("--boards-only", action="store_true", help="no faults")
    parser.add_argument("--alert", action="append", default=[], metavar="NAME", help="only this")
    parser.add_argument("--out", type=Path, default=Path("build/dashboards"), metavar="FOLDER")
    options = parser.parse_args()
    disk = os.environ.pop(_DISK, None)
    return on_a_disk_of_its_own() if disk is None else run(Path(disk), options)


if __name__ == "__main__":
    sys.exit(main())
