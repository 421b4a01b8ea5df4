"""`make torture`: three brokers under faults, round after round. See rounds.py."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.rounds import Round, keep_story

ROUND_S = 45.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="in total")
    parser.add_argument("--seed", type=int, help="play this one round only, and say all")
    parser.add_argument("--seconds", type=float, default=ROUND_S, help="of faults in a round")
    options = parser.parse_args()
    if options.seed is not None:
        report = Round(options.seed, say=lambda line: print(line, flush=True)).play(options.seconds)
        print("\n".join(f"ANOMALY {each}" for each in report.anomalies[:50]))
        print(report.summary())
        return 1 if report.anomalies else 0

    deadline = time.monotonic() + options.minutes * 60
    seed = random.randrange(10**6)
    rounds = bad = faults = acknowledged = 0
    while time.monotonic() < deadline:
        seconds = min(options.seconds, max(5.0, deadline - time.monotonic() - 15))
        report = Round(seed).play(seconds)
        print(report.summary(), flush=True)
        if report.anomalies:
            bad += 1
            story = keep_story(report, Path(tempfile.gettempdir()))
            print(f"  the whole story is in {story}", flush=True)
        rounds, seed = rounds + 1, seed + 1
        faults, acknowledged = faults + report.faults, acknowledged + report.acknowledged
    verdict = f"{bad} rounds with anomalies" if bad else "0 lost, 0 doubled, replicas identical"
    print(f"{rounds} rounds, {faults} faults, {acknowledged:,} acknowledged records: {verdict}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
