"""`make simulate SEEDS=2000`: as many runs, on all cores; or one again (`--seed N --trace`)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from multiprocessing import get_context

from tests.simulation.world import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.seed is not None:
        outcome = simulate(options.seed, print if options.trace else None)
        print(outcome.violation or f"clean: {outcome}")
        return 1 if outcome.violation else 0
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with get_context("fork").Pool(options.workers) as pool:
        failed = report(pool.imap_unordered(simulate, seeds, chunksize=4))
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def report(outcomes: Iterable[Outcome]) -> int:
    """Prints failures as they come, and a sum; returns how many failed."""
    count = failed = events = acknowledged = read = elections = lossy = 0
    for outcome in outcomes:
        count += 1
        events += outcome.events
        acknowledged += outcome.acknowledged
        read += outcome.read
        elections += outcome.elections
        lossy += outcome.losses > 0
        if outcome.violation is not None:
            failed += 1
            print(f"seed {outcome.seed}: {outcome.violation}\n{replay(outcome.seed)}", flush=True)
    print(
        f"{count} seeds, {events:,} events, {elections:,} elections, {acknowledged:,} records "
        f"acknowledged, {read:,} fetches read: "
        + (f"{failed} seeds FAILED" if failed else "every invariant held")
        + f" ({lossy} seeds with elections that may lose records, and did)"
    )
    return failed


def replay(seed: int) -> str:
    return f"  replay: python -m tests.simulation --seed {seed} --trace"


if __name__ == "__main__":
    sys.exit(main())
