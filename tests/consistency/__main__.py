"""`make consistency ROUNDS=50`: kill -9 under load, round after round. See rounds.py."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from kraftpy.testing.process import BrokerError
from tests import programs
from tests.apache_kafka import ApacheKafka
from tests.consistency.rounds import Rounds
from tests.processes import Broker, Kraftpy


def main() -> int:
    parser = argparse.ArgumentParser(prog="make consistency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--apache", action="store_true", help="Apache Kafka instead of kraftpy")
    options = parser.parse_args()
    if options.apache:
        programs.require("Apache Kafka", *programs.APACHE_KAFKA)
    print(f"seed {options.seed}: the moments of the kills follow from it, the timing doesn't")
    bad = acknowledged = 0
    with tempfile.TemporaryDirectory(prefix="kraftpy-consistency-") as folder:
        broker: Broker = (ApacheKafka if options.apache else Kraftpy)(Path(folder))
        try:
            rounds = Rounds(broker, options.seed)
            for number in range(1, options.rounds + 1):
                report = rounds.run()
                acknowledged += report.acknowledged
                bad += bool(report.anomalies)
                print(
                    f"round {number:>3}: {report.acknowledged:>6,} acknowledged, "
                    f"back after {report.seconds_down:.2f} s, "
                    + ("; ".join(report.anomalies[:5]) or "all there"),
                    flush=True,
                )
            last = rounds.check_everything()
        except BrokerError as error:
            print(f"{error}\n{broker.log_tail()}")
            return 1
        finally:
            broker.stop()
    bad += bool(last)
    verdict = f"{bad} rounds with anomalies" if bad else "nothing lost, doubled or out of order"
    print(f"{options.rounds} rounds, {acknowledged:,} records acknowledged: {verdict}")
    print("\n".join(last[:10]), end="\n" if last else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
