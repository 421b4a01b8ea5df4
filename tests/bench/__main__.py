"""`make bench` and `make race`: how fast, how small, and against whom.

    python -m tests.bench [--rounds N] [--json FILE] [-o json]     kraftpy alone
    python -m tests.bench race [--rounds N] [--json FILE]          Apache Kafka and kraftpy in turn
    python -m tests.bench compare BEFORE.json AFTER.json           two saved runs
    python -m tests.bench partitions                               10,000 partitions on three nodes
    python -m tests.bench partitions-kafka                         the same on Apache Kafka
    python -m tests.bench saturation                               a quorum beside an overload
    python -m tests.bench offsets                                  bytes of a committed offset
    python -m tests.bench offsets-load                             10 M of them, read from a log
    python -m tests.bench groups                                   only offsets and rebalances
    python -m tests.bench race-groups                              the same of both in turn
    python -m tests.bench compaction                               a topic written ten times over
    python -m tests.bench metrics                                  what metrics cost
    python -m tests.bench spark [read | stream | write | pipeline] Spark: ours, Kafka's connector

`--nodes 1` or `--nodes 3` measures one node alone or three nodes alone; by default both.
The data lands in a temporary folder (TMPDIR): a few gigabytes for as long as a round takes.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import kraftpy
from tests.apache_kafka import ApacheKafka, ApacheKafkaQuorum, fetch_broker_jars
from tests.bench import (
    figures,
    groups,
    many,
    measure,
    metrics,
    offsets,
    replicated,
    saturation,
    spark,
)
from tests.bench.commits import quorum_commits
from tests.bench.compaction import compaction
from tests.bench.load import client_name, produce
from tests.processes import Broker, BrokerError, Kraftpy
from tests.quorums import KraftpyQuorum, Quorum

WARM_UP_MESSAGES = 300_000
MODES = [
    "bench",
    "race",
    "compare",
    "partitions",
    "partitions-kafka",
    "saturation",
    "offsets",
    "offsets-load",
    "compaction",
    "metrics",
    "spark",
    "groups",
    "race-groups",
]


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
    result |= group_work(broker, say)
    return result | measure.latency(broker, say)


def group_work(broker: Broker, say: measure.Say) -> measure.Round:
    def topic_of(partitions: int) -> AbstractContextManager[str]:
        return measure.partitions_on(broker, partitions)

    found = groups.offsets(broker.bootstrap, topic_of, lambda: None, say)
    return found | groups.rebalances(broker.bootstrap, topic_of, say)


def groups_round(broker: Broker) -> measure.Round:
    broker.start()
    return group_work(broker, say)


def quorum_groups_round(quorum: Quorum) -> measure.Round:
    quorum.start()
    return replicated.group_work(quorum, say)


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
    result |= group_work(broker, say)
    return result | measure.latency(broker, say)


def quorum_bench_round(quorum: KraftpyQuorum) -> measure.Round:
    result = {"RF 3: start, kraftpy dev": quorum.start_by_dev(), "RF 3: start": quorum.start()}
    result["RF 3: memory of a node, idle"] = replicated.idle_memory_mib(quorum)
    result |= quorum_commits(quorum, say)
    for work in (*replicated.FOR_ALL, replicated.catch_up, replicated.many_failovers):
        result |= work(quorum, say)
    return result


def quorum_race_round(quorum: Quorum) -> measure.Round:
    """The first start creates the folders; the second one is what counts."""
    quorum.start()
    quorum.stop()
    result = {"RF 3: start": quorum.start()}
    result["RF 3: memory of a node, idle"] = replicated.idle_memory_mib(quorum)
    say("warming up")
    replicated.warm_up(quorum)
    for work in (*replicated.FOR_ALL, replicated.one_failover):
        result |= work(quorum, say)
    return result


class Entrant(Protocol):
    """A broker or a quorum."""

    name: str

    def stop(self) -> None: ...
    def log_tail(self) -> str: ...


Measured = TypeVar("Measured", bound=Entrant)


def one_round(
    make: Callable[..., Measured],
    work: Callable[[Measured], measure.Round],
    into: figures.Values,
) -> None:
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        entrant = make(Path(folder), **groups.SETTINGS)
        try:
            for name, value in work(entrant).items():
                into.setdefault(name, []).append(value)
        except BrokerError:
            raise
        except Exception as error:
            tail = entrant.log_tail()
            raise BrokerError(f"{entrant.name}: {error}\nits last words:\n{tail}") from error
        finally:
            entrant.stop()


def once(result: measure.Round) -> figures.Values:
    """Figures that come out the same in every round."""
    return {name: [value] for name, value in result.items()}


class Works(NamedTuple):
    """What a round does with one node, and with three."""

    one: Callable[[Any], measure.Round]
    three: Callable[[Any], measure.Round]


def bench(
    works: Works, rounds: int, nodes: int | None, file: Path | None, as_json: bool, /
) -> None:
    values: figures.Values = {}
    if nodes != 3 and works.one is bench_round:
        values |= once(offsets.sizes(say))
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        if nodes != 3:
            one_round(Kraftpy, works.one, values)
        if nodes != 1:
            one_round(KraftpyQuorum, works.three, values)
    text = figures.save(file, client_name(), kraftpy=values)
    print(text if as_json else f"{figures.bench_table(values)}\nclient: {client_name()}")


def race(works: Works, rounds: int, nodes: int | None, file: Path | None, as_json: bool, /) -> None:
    fetch_broker_jars()
    ceiling: measure.Round = {}
    if nodes != 3 and works.one is race_round:
        say("the client alone")
        ceiling = measure.client_ceiling()
    ours: figures.Values = {}
    theirs: figures.Values = {}
    for number in range(1, rounds + 1):
        # Who goes first changes from round to round: the disk has more to write the second time.
        turn = 1 if number % 2 else -1
        if nodes != 3:
            for make, values in ((Kraftpy, ours), (ApacheKafka, theirs))[::turn]:
                say(f"round {number} of {rounds}: {make.name}")
                one_round(make, works.one, values)
        if nodes != 1:
            for quorum, values in ((KraftpyQuorum, ours), (ApacheKafkaQuorum, theirs))[::turn]:
                say(f"round {number} of {rounds}, three nodes: {quorum.name}")
                one_round(quorum, works.three, values)
    text = figures.save(file, client_name(), kraftpy=ours, kafka=theirs)
    table = figures.race_table(ours, theirs, ceiling)
    print(text if as_json else f"{table}\nclient: {client_name()}, the same for both brokers")


GROUPS = Works(groups_round, quorum_groups_round)
RUNS: dict[str, tuple[Callable[..., None], Works]] = {
    "bench": (bench, Works(bench_round, quorum_bench_round)),
    "groups": (bench, GROUPS),
    "race": (race, Works(race_round, quorum_race_round)),
    "race-groups": (race, GROUPS),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, choices=[1, 3], help="only one node, only three")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in FILE")
    parser.add_argument("-o", choices=["table", "json"], default="table", dest="output")
    parser.add_argument("mode", nargs="?", choices=MODES, default="bench")
    parser.add_argument(
        "files", nargs="*", type=Path, help="for compare: two saved runs; for spark: what"
    )
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
        if options.mode == "partitions":
            print(many.run(KraftpyQuorum, say))
        elif options.mode == "partitions-kafka":
            fetch_broker_jars()
            print(many.run(ApacheKafkaQuorum, say))
        elif options.mode == "metrics":
            text, holds = metrics.run(options.rounds, say)
            print(text)
            return 0 if holds else 1
        elif options.mode == "spark":
            text, holds = spark.run(options.rounds, say, *map(str, options.files[:1]))
            print(text)
            return 0 if holds else 1
        elif options.mode == "saturation":
            print(saturation.run(say))
        elif options.mode == "offsets":
            print(figures.bench_table(once(offsets.sizes(say))))
        elif options.mode == "offsets-load":
            print(figures.bench_table(once(offsets.loading(say))))
        elif options.mode == "compaction":
            with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
                print(figures.bench_table(once(compaction(Path(folder), say))))
        else:
            run, works = RUNS[options.mode]
            run(works, options.rounds, options.nodes, options.json, options.output == "json")
    except (BrokerError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
