"""`make simulate SEEDS=2000`: as many runs, on all cores; or one again (`--seed N --trace`).

Each fourth seed is run with transactions, too, another fourth with members that share partitions,
some of whom claim in transactions in every other run, another one with leases, and the last with
leases as brokers serve them, and with members of a cooperative group that are leased batches
(`--transactions`, `--cooperative`, `--leases`, `--served`, or `--leases --cooperative` for one of
them).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable
from multiprocessing import get_context

from tests.simulation.cooperative_world import simulate_cooperative
from tests.simulation.leased import simulate_leased
from tests.simulation.leasing_world import simulate_leases
from tests.simulation.served_world import Served, simulate_served
from tests.simulation.transactional_world import simulate_transactions
from tests.simulation.world import Outcome, simulate

TRANSACTIONS_EVERY = COOPERATIVE_EVERY = LEASES_EVERY = SERVED_EVERY = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--transactions", action="store_true", help="--seed with transactions")
    parser.add_argument("--cooperative", action="store_true", help="--seed with shared partitions")
    parser.add_argument("--leases", action="store_true", help="--seed with leases of records")
    parser.add_argument("--served", action="store_true", help="--seed with leases as served")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what brokers would tell of transactions that time out
    if options.served and options.seed is not None:
        served = simulate_served(options.seed)
        print(served.violation or f"clean: {served}")
        return 1 if served.violation else 0
    if options.seed is not None:
        play = simulate_transactions if options.transactions else simulate
        play = simulate_cooperative if options.cooperative else play
        play = simulate_leases if options.leases else play
        play = simulate_leased if options.leases and options.cooperative else play
        outcome = play(options.seed, print if options.trace else None)
        print(outcome.violation or f"clean: {outcome}")
        return 1 if outcome.violation else 0
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with get_context("fork").Pool(options.workers) as pool:
        failed = report(
            each for some in pool.imap_unordered(_simulate, seeds, chunksize=4) for each in some
        )
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _simulate(seed: int) -> list[Outcome | Served]:
    outcomes: list[Outcome | Served] = [simulate(seed)]
    if not seed % TRANSACTIONS_EVERY:
        outcomes.append(simulate_transactions(seed))
    if seed % COOPERATIVE_EVERY == 1:
        outcomes.append(simulate_cooperative(seed))
    if seed % LEASES_EVERY == 2:
        outcomes.append(simulate_leases(seed))
    if seed % SERVED_EVERY == 3:
        outcomes.append(simulate_served(seed))
    if seed % LEASES_EVERY == 3:
        outcomes.append(simulate_leased(seed))
    return outcomes


def report(outcomes: Iterable[Outcome | Served]) -> int:
    """Prints failures as they come, and a sum; returns how many failed."""
    count = failed = events = acknowledged = read = elections = lossy = completed = claimed = 0
    leased = 0
    for outcome in outcomes:
        count += 1
        if isinstance(outcome, Served):
            leased += outcome.accepted
            if outcome.violation is not None:
                failed += 1
                again = replay(outcome.seed, served=True)
                print(f"seed {outcome.seed}: {outcome.violation}\n{again}", flush=True)
            continue
        completed += outcome.completed
        claimed += outcome.claimed
        leased += outcome.leased
        events += outcome.events
        acknowledged += outcome.acknowledged
        read += outcome.read
        elections += outcome.elections
        lossy += outcome.losses > 0
        if outcome.violation is not None:
            failed += 1
            again = replay(
                outcome.seed,
                transactions=bool(outcome.completed),
                cooperative=outcome.cooperative,
                leases=outcome.leasing,
            )
            print(f"seed {outcome.seed}: {outcome.violation}\n{again}", flush=True)
    print(
        f"{count} runs, {events:,} events, {elections:,} elections, {acknowledged:,} records "
        f"acknowledged, {completed:,} transactions completed, {claimed:,} claims committed, "
        f"{leased:,} leased records accepted, {read:,} fetches read: "
        + (f"{failed} runs FAILED" if failed else "every invariant held")
        + f" ({lossy} runs with elections that may lose records, and did)"
    )
    return failed


def replay(
    seed: int,
    *,
    transactions: bool = False,
    cooperative: bool = False,
    leases: bool = False,
    served: bool = False,
) -> str:
    how = " --transactions" if transactions else ""
    how += " --served" if served else ""
    how += " --leases" if leases else ""
    how += " --cooperative" if cooperative else ""
    return f"  replay: python -m tests.simulation --seed {seed}{how} --trace"


if __name__ == "__main__":
    sys.exit(main())
