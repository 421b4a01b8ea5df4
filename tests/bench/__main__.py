"""`make bench` and `make race`: how fast, how small, and against whom.

    python -m tests.bench [--rounds N] [--json FILE] [-o json]     kraftpy alone
    python -m tests.bench race [--rounds N] [--json FILE]          Apache Kafka and kraftpy in turn
    python -m tests.bench compare BEFORE.json AFTER.json           two saved runs

The data lands in a temporary folder (TMPDIR): a few gigabytes for as long as a round takes.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import kraftpy
from tests.apache_kafka import ApacheKafka, fetch_jars
from tests.bench import figures, measure
from tests.bench.load import client_name, produce
from tests.processes import Broker, BrokerError, Kraftpy

WARM_UP_MESSAGES = 300_000


def say(text: str) -> None:
    """Progress goes to standard error: standard output is the table."""
    print(f"  {text}", file=sys.stderr, flush=True)


def bench_round(broker: Broker) -> measure.Round:
    result = {"start: kraftpy dev, empty folder": broker.start()}
    broker.stop()
    result["start"] = broker.start()
    result["memory, idle"] = measure.idle_memory_mib(broker)
    result |= measure.replays(broker, say)
    result |= measure.librdkafka(broker, say)
    return result | measure.latency(broker, say)


def race_round(broker: Broker) -> measure.Round:
    """The first start creates the folder; the second one is what counts."""
    broker.start()
    broker.stop()
    result = {"start": broker.start()}
    result["memory, idle"] = measure.idle_memory_mib(broker)
    with measure.topic_on(broker) as topic:
        say("warming up")  # a JVM compiles what it runs often; both get the same
        produce(broker.bootstrap, topic, WARM_UP_MESSAGES, 1000, 131_072)
    result |= measure.librdkafka(broker, say)
    return result | measure.latency(broker, say)


def one_round(
    make: Callable[[Path], Broker], work: Callable[[Broker], measure.Round], into: figures.Values
) -> None:
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        broker = make(Path(folder))
        try:
            for name, value in work(broker).items():
                into.setdefault(name, []).append(value)
        except BrokerError:
            raise
        except Exception as error:
            tail = broker.log_tail()
            raise BrokerError(f"{broker.name}: {error}\nits last words:\n{tail}") from error
        finally:
            broker.stop()


def bench(rounds: int, file: Path | None, as_json: bool) -> None:
    values: figures.Values = {}
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        one_round(Kraftpy, bench_round, values)
    text = figures.save(file, client_name(), kraftpy=values)
    print(text if as_json else f"{figures.bench_table(values)}\nclient: {client_name()}")


def race(rounds: int, file: Path | None, as_json: bool) -> None:
    fetch_jars()
    say("the client alone")
    ceiling = measure.client_ceiling()
    ours: figures.Values = {}
    theirs: figures.Values = {}
    for number in range(1, rounds + 1):
        # Who goes first changes from round to round: the disk has more to write the second time.
        entrants = [(Kraftpy, ours), (ApacheKafka, theirs)]
        for make, values in entrants if number % 2 else reversed(entrants):
            say(f"round {number} of {rounds}: {make.name}")
            one_round(make, race_round, values)
    text = figures.save(file, client_name(), kraftpy=ours, kafka=theirs)
    table = figures.race_table(ours, theirs, ceiling)
    print(text if as_json else f"{table}\nclient: {client_name()}, the same for both brokers")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in FILE")
    parser.add_argument("-o", choices=["table", "json"], default="table", dest="output")
    parser.add_argument("mode", nargs="?", choices=["bench", "race", "compare"], default="bench")
    parser.add_argument("files", nargs="*", type=Path, help="for compare: two saved runs")
    options = parser.parse_args()
    if options.mode == "compare":
        if len(options.files) != 2:
            parser.error("compare needs two files, saved with --json")
        print(figures.compare_table(*(figures.load_run(file) for file in options.files)))
        return 0
    # As pip leaves an installed package; an editable one is otherwise compiled at every start where
    # Python may not write bytecode.
    compileall.compile_dir(Path(kraftpy.__file__).parent, quiet=1)
    try:
        work = race if options.mode == "race" else bench
        work(options.rounds, options.json, options.output == "json")
    except (BrokerError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
