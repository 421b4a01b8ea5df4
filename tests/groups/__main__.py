"""`make groups`: real consumers of every client in groups, killed with their coordinators.

See run.py for what a run is, and party.py for the kinds of clients.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests import programs
from tests.groups.party import KINDS
from tests.groups.run import Run

SIZES = (1, 3, 10, 50)
FAULTS = 6
MEMBERS_MAX = 50  # of a run: what two cores can take


def main() -> int:
    parser = argparse.ArgumentParser(prog="make groups", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--clients", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, help="of the first run; the next has the next")
    parser.add_argument("--faults", type=int, default=FAULTS, help="in each run")
    parser.add_argument("--verbose", action="store_true", help="say what happens")
    options = parser.parse_args()
    clients = options.clients
    if missing := programs.missing("javac", *programs.APACHE_KAFKA):
        clients = [each for each in clients if all(k.client != "java" for k in KINDS[each])]
        print(f"without the Java client, which needs {' and '.join(missing)}")
        if not clients:
            return 1
    seed = random.randrange(10**6) if options.seed is None else options.seed
    started = time.monotonic()
    runs = bad = faults = commits = moves = 0
    for size in options.sizes:
        together = max(1, MEMBERS_MAX // size)
        for first in range(0, len(clients), together):
            kinds = clients[first : first + together]
            run = Run(seed, kinds, size, say=print if options.verbose else lambda _: None)
            report = run.play(options.faults)
            print(report.summary(), flush=True)
            if report.anomalies:
                bad += 1
                print(f"  {len(report.anomalies)} anomalies; the history is in {report.folder}")
            runs, seed = runs + 1, seed + 1
            faults += report.faults
            commits += report.commits
            moves += report.moves
    verdict = f"{bad} with anomalies" if bad else "one owner each, all processed, nothing went back"
    minutes = (time.monotonic() - started) / 60
    print(
        f"{runs} runs in {minutes:.1f} min, {faults} faults, {commits:,} commits, "
        f"{moves:,} partitions moved: {verdict}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
