"""`make groups`: consistency runs of the workload groups, by kind of client and by size of group.

For each size each client has groups of its own, in all protocols that it knows, and all clients
share some. All groups of such a kind play in one run, or in one each where they are too large for
one machine. What happens to them and what they are held to is the harness's:
`kraftpy consistency run --workload groups`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kraftpy.testing.consistency.clients.java import JARS
from tests import programs
from tests.apache_kafka import fetch_jars

SIZES = (1, 3, 10, 50)
MEMBERS_MAX = 50  # of a run: what two cores can take
SECONDS = 90  # room for each fault
FAULTS = (
    "move-coordinator",
    "kill-client",
    "leave-client",
    "freeze-client",
    "kill-coordinator+kill-client",
    "kill-coordinator+leave-client",
    "pause-coordinator+leave-client",
    "kill-all",
)
CLASSIC, CONSUMER = ("join",), ("join-consumer",)
COOPERATIVE = ("join-cooperative",)
CONVERTED = ("join-converted", "convert")

# Which groups a client can be in; `mixed` are all of them together.
KINDS: dict[str, Sequence[Sequence[str]]] = {
    "confluent-kafka": (CLASSIC, COOPERATIVE, CONSUMER),
    "kafka-python": (CLASSIC,),
    "aiokafka": (CLASSIC,),
    "kraftpy": (CLASSIC, COOPERATIVE),
    "java": (CLASSIC, COOPERATIVE, CONSUMER),
    "mixed": (CLASSIC, COOPERATIVE, CONSUMER, CONVERTED),
}


def plans(sizes: Sequence[int], kinds: Sequence[str]) -> Iterator[tuple[str, list[str], int]]:
    """What to run: the kind, the roles in turn, and how many workers."""
    for size in sizes:
        for kind in kinds:
            groups = KINDS[kind]
            together = max(1, MEMBERS_MAX // size)
            for first in range(0, len(groups), together):
                some = groups[first : first + together]
                turns = max(map(len, some))
                roles = [group[turn % len(group)] for turn in range(turns) for group in some]
                yield kind, ["send", "look", *roles], 2 + size * len(some)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make groups", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--clients", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, help="of the first run; the next has the next")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long each run has faults")
    options = parser.parse_args()
    kinds, environment = list(options.clients), dict(os.environ)
    if missing := programs.missing("javac", *programs.APACHE_KAFKA):
        print(f"without the Java client, which needs {' and '.join(missing)}")
        if "java" in kinds:
            kinds.remove("java")
        if not kinds:
            return 1
    else:
        environment[JARS] = str(fetch_jars())
    seed = random.randrange(10**6) if options.seed is None else options.seed
    failed = []
    for number, (kind, roles, workers) in enumerate(plans(options.sizes, kinds)):
        words = [str(Path(sys.executable).with_name("kraftpy")), "consistency", "run"]
        words += ["--workload", "groups", "--faults", ",".join(FAULTS), "--roles", ",".join(roles)]
        words += ["--concurrency", str(workers), "--rate", str(15 * workers)]
        words += ["--time-limit", str(options.seconds), "--seed", str(seed + number)]
        words += ["--out", "build/consistency"] + ["--clients", kind] * (kind != "mixed")
        print(f"{kind}: {workers - 2} members", flush=True)
        if subprocess.run(words, env=environment, check=False).returncode:
            failed.append(" ".join(words[1:]))
    for each in failed:
        print(f"failed: kraftpy {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
