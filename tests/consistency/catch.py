"""`make broken`: are builds that break a promise caught, and is the sound one clean?

Each build of `broken.py` runs under its workload and fault until a checker finds what it breaks,
three times with different seeds, for five minutes each at most; what no workload can catch is
caught by tests, or the simulation, that play crashes through. Then the same is done to the sound
build for as long as the longest of these took, and nothing may be found.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp

from kraftpy.testing import Cluster, ClusterError
from kraftpy.testing.consistency import HistoryReader, Outcome, check
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.runner import quick_cluster, run

from .broken import CASES, Case, broken_clients, broken_cluster, tests_command

LIMIT_S = 300.0
RUN_S = 30.0
RATE = 400.0
CONCURRENCY = 16
CLIENTS = ("confluent-kafka", "kraftpy")


def load(
    case: Case,
    folder: Path,
    seed: int,
    make_cluster: Callable[..., Cluster],
    time_limit_s: float,
    *,
    keep: bool = False,
) -> Outcome | None:
    """One run, judged; None if the machine spoilt it (somebody else took a port, say)."""
    plan = Plan(
        case.workload,
        folder,
        [case.fault],
        time_limit_s=time_limit_s,
        rate=RATE,
        concurrency=CONCURRENCY,
        seed=seed,
        clients=CLIENTS,
    )
    try:
        result = run(plan, say=lambda _: None, make_cluster=make_cluster, keep=lambda _: keep)
    except ClusterError as error:
        print(f"  (a run counts for nothing: {str(error).splitlines()[0]})", flush=True)
        return None
    if result.void and not result.faults:
        print(f"  (a run counts for nothing: {result.void[0]})", flush=True)
        return None
    if not result.faults:
        raise RuntimeError(f"no {case.fault} in {time_limit_s:g} s")
    if result.unhealthy:
        print(f"  (a run counts for nothing: {result.unhealthy.splitlines()[0]})", flush=True)
        return None
    return check(HistoryReader(plan.history))


def found_by(outcome: Outcome | None) -> list[str]:
    if outcome is None:
        return []
    return [each.checker for each in outcome.verdicts if each.valid is False]


def catch(build: str, seed: int) -> tuple[float, list[str]]:
    """Seconds until the build was caught, and the checkers that did; none if it wasn't in time."""
    case = CASES[build]
    started = time.monotonic()
    with broken_clients(build) if case.clients else nullcontext():
        while time.monotonic() - started < LIMIT_S - RUN_S:
            with TemporaryDirectory(prefix="kraftpy-broken-") as folder:
                outcome = load(case, Path(folder), seed, broken_cluster(build), RUN_S)
            found = found_by(outcome)
            took = time.monotonic() - started
            if case.checkers.intersection(found) and took <= LIMIT_S:
                return took, found
            seed += 1
    return time.monotonic() - started, []


def control(case: Case, seed: int, time_limit_s: float) -> list[str]:
    """What is found in the sound build, and where its history is then: that is a defect."""
    folder = Path(mkdtemp(prefix="kraftpy-sound-"))
    outcome = load(case, folder, seed, quick_cluster, time_limit_s, keep=True)
    found = ["nothing that counts"]
    if outcome is not None and outcome.valid is not None:
        found = found_by(outcome)
    if not found:
        rmtree(folder)
        return found
    return [*found, f"see {folder}"]


def play(build: str, seed: int, tries: int) -> int:
    """Runs a build under its workload and fault; how often it wasn't caught, or more was."""
    case, longest, wrong = CASES[build], RUN_S, 0
    print(f"{build}: {case.workload} with {case.fault}", flush=True)
    for number in range(tries):
        took, found = catch(build, seed + 100 * number)
        wrong += not found
        longest = max(longest, took)
        how = f"caught by {', '.join(found)}" if found else "NOT CAUGHT"
        print(f"  seed {seed + 100 * number}: {how} after {took:.0f} s", flush=True)
    found = control(case, seed, longest)
    verdict = f"FOUND {', '.join(found)}" if found else "nothing found"
    print(f"  the sound build: {verdict} in {longest:.0f} s", flush=True)
    return wrong + bool(found)


def probe(build: str) -> int:
    """The same for one that tests catch, each of them, which are the same each time."""
    wrong = 0
    print(f"{build}:", flush=True)
    for test in CASES[build].tests:
        started = time.monotonic()
        caught = fails(tests_command(build, [test]))
        sound = not fails([sys.executable, "-m", "pytest", test, "-q", "-n0"])
        wrong += (not caught) + (not sound)
        print(
            f"  {test}: {'caught' if caught else 'NOT CAUGHT'}, the sound build: "
            f"{'nothing found' if sound else 'FOUND'} in {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return wrong


def fails(command: Sequence[str]) -> bool:
    """Whether tests fail; RuntimeError if they weren't run."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make broken", description=__doc__)
    parser.add_argument("builds", nargs="*", metavar="BUILD", help=f"of {', '.join(CASES)}")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    wrong = 0
    for build in options.builds or CASES:
        if CASES[build].tests:
            wrong += probe(build)
        else:
            wrong += play(build, options.seed, options.tries)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
