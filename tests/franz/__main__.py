"""`make franz`: the tests that franz-go brings of its share groups, groups and transactions.

They are what that client's makers hold Apache Kafka to, unchanged, out of the module that Go
fetches; here against three nodes, with three replicas of each partition. `TestShareGroupETL` has
members accept, release and reject each in ways of their own while others leave and join, through
three stages; `TestShareGroupAckOnClose` looks at what the next member gets, and
`TestShareGroupOffsetsAdmin` at the offsets. `TestGroupETL` and `TestTxnEtl` have as many stages
with consumer groups of both protocols.

`--kafka` has them run with Apache Kafka's nodes, `--records` says how many go through each chain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kraftpy.testing.process import BrokerError
from tests import programs
from tests.apache_kafka import CACHE, ApacheKafkaQuorum, fetch_broker_jars
from tests.quorums import KraftpyQuorum, Quorum, running

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.21.6"
PACKAGE = "pkg/kgo"
TESTS = (
    "TestShareGroupAckOnClose",
    "TestShareGroupETL",
    # Behind those, as Apache Kafka refuses it while nobody has used its share coordinators yet.
    "TestShareGroupOffsetsAdmin",
    "TestGroupETL",
    "TestTxnEtl",
)
TIMEOUT_S = 600


def say(text: str) -> None:
    print(text, flush=True)


def built_tests() -> tuple[Path, Path]:
    """The program of the package's tests, and the folder that it runs in."""
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        capture_output=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    folder = Path(json.loads(found.stdout)["Dir"]) / PACKAGE
    program = CACHE / f"franz-go-{VERSION}.test"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        command = ["go", "test", "-mod=mod", "-c", "-o", str(unfinished), "."]
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
        unfinished.replace(program)
    return program, folder


def run(quorum: Quorum, records: int) -> list[str]:
    """Each test by itself; the names of those that failed."""
    program, folder = built_tests()
    environment = {
        **os.environ,
        "KGO_SEEDS": quorum.bootstrap,
        "KGO_TEST_RF": "3",
        "KGO_TEST_RECORDS": str(records),
    }
    failed = []
    for name in TESTS:
        command = [str(program), "-test.run", f"^{name}$", "-test.v"]
        command += ["-test.timeout", f"{TIMEOUT_S}s"]
        started_at = time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        # A test that is skipped, as the broker says that it lacks something, hasn't passed.
        passed = not done.returncode and f"--- PASS: {name} " in done.stdout
        seconds = time.monotonic() - started_at
        say(f"  {name}: {'passed' if passed else 'FAILED'} in {seconds:.1f} s")
        if not passed:
            failed.append(name)
            say("\n".join((done.stdout + done.stderr).splitlines()[-30:]))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make franz", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="with Apache Kafka's nodes")
    parser.add_argument("--records", type=int, default=50_000)
    options = parser.parse_args()
    programs.require("make franz", "go", *(programs.APACHE_KAFKA if options.kafka else ()))
    built_tests()
    if options.kafka:
        fetch_broker_jars()
    with tempfile.TemporaryDirectory(prefix="kraftpy-franz-") as folder:
        kind = ApacheKafkaQuorum if options.kafka else KraftpyQuorum
        quorum = kind(Path(folder))
        try:
            with running(quorum):
                failed = run(quorum, options.records)
        except BrokerError as error:
            say(f"failed: {error}\nthe nodes' last words:\n{quorum.log_tail()}")
            return 1
    say(f"{quorum.name}: {len(TESTS) - len(failed)} of {len(TESTS)} tests of franz-go pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
