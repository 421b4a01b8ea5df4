"""`make bench` and `make race`: how fast, how small, and against whom.

    python -m tests.bench [--rounds N] [--json FILE] [-o json]     kraftpy alone
    python -m tests.bench race [PART] [--rounds N] [--only WORDS] [--into FILE]
                                                                   Apache Kafka and kraftpy in turn
    python -m tests.bench compare BEFORE.json AFTER.json           two saved runs
    python -m tests.bench partitions                               10,000 partitions on three nodes
    python -m tests.bench partitions-kafka                         the same on Apache Kafka
    python -m tests.bench saturation                               a quorum beside an overload
    python -m tests.bench offsets                                  bytes of a committed offset
    python -m tests.bench offsets-load                             10 M of them, read from a log
    python -m tests.bench takeover [--count N]                     their coordinator is killed
    python -m tests.bench groups                                   only offsets and rebalances
    python -m tests.bench transactions                             their CPU, the memory of an id
    python -m tests.bench cooperative                              members that share a partition
    python -m tests.bench compaction                               a topic written ten times over
    python -m tests.bench metrics                                  what metrics cost
    python -m tests.bench amplification [--only API]               what a request of 1 MiB can do
    python -m tests.bench transactional-ids                        100,000 that nobody ends
    python -m tests.bench security                                 what asking for rights costs
    python -m tests.bench leases                                   what leases of records take
    python -m tests.bench starts                                   a start, an idle node in memory
    python -m tests.bench mirror [--rounds N]                      a mirror beside MirrorMaker 2
    python -m tests.bench spark [read | slices | stream | write | pipeline] Spark: ours, Kafka's

`--nodes 1` or `--nodes 3` measures one node alone or three nodes alone; by default both. A race has
three more parts, `race transactions`, `race security` and `race share`, and is of all rows unless
`--only` names some by a part of their names (`--only "offset commits"`, several times if need be);
five rounds of all of it take two hours and a half. `--into` puts its tables into a document,
between the lines that mark the place there.
The data lands in a temporary folder (TMPDIR): a few gigabytes for as long as a round takes.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import functools
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import kraftpy
from kraftpy.testing.process import BrokerError
from tests import programs
from tests.apache_kafka import (
    MeasuredApacheKafka,
    MeasuredApacheKafkaQuorum,
    fetch_broker_jars,
)
from tests.bench import (
    amplification,
    authorizing,
    cooperative,
    figures,
    groups,
    leases,
    many,
    measure,
    metrics,
    mirrors,
    offsets,
    replicated,
    report,
    rows,
    saturation,
    security_rows,
    share_rows,
    spark,
    starts,
    takeover,
    transaction_costs,
    transaction_rows,
    transactional_ids,
)
from tests.bench.commits import quorum_commits
from tests.bench.compaction import compaction
from tests.bench.load import client_name
from tests.bench.race import Raced, Row, Starts, is_chosen, race_starts
from tests.bench.race import race as play
from tests.processes import Broker, Kraftpy
from tests.quorums import KraftpyQuorum, Quorum

NEEDED = dict.fromkeys(["race", "partitions-kafka", "spark", "mirror"], programs.APACHE_KAFKA)
"""The programs that a mode needs beside Python."""

BENCH_ROUNDS = 3
RACE_ROUNDS = 5
MODES = [
    "bench",
    "race",
    "compare",
    "partitions",
    "partitions-kafka",
    "saturation",
    "offsets",
    "offsets-load",
    "takeover",
    "compaction",
    "metrics",
    "amplification",
    "transactional-ids",
    "spark",
    "groups",
    "transactions",
    "cooperative",
    "security",
    "leases",
    "starts",
    "mirror",
]
TRANSACTIONS = "transactions"
SECURITY = "security"
SHARE = "share"
NAMED = (TRANSACTIONS, SECURITY, SHARE)
"""Parts of a race that have a name, and no count of nodes."""


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


QUORUM_WORK = (
    replicated.throughput,
    replicated.latency,
    replicated.group_work,
    replicated.creation,
    replicated.catch_up,
    replicated.many_failovers,
)


def quorum_bench_round(quorum: KraftpyQuorum) -> measure.Round:
    result = {"RF 3: start, kraftpy dev": quorum.start_by_dev(), "RF 3: start": quorum.start()}
    result["RF 3: memory of a node, idle"] = replicated.idle_memory_mib(quorum)
    result |= quorum_commits(quorum, say)
    for work in QUORUM_WORK:
        result |= work(quorum, say)
    return result


class Entrant(Protocol):
    """A broker or a quorum."""

    name: str

    def stop(self) -> None: ...
    def log_tail(self) -> str: ...


Entrants = tuple[Callable[..., Broker | Quorum], ...]
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


class Part(NamedTuple):
    """What is raced by two entrants: their starts, unless others have them, and rows."""

    rows: list[Row]
    entrants: Entrants
    starts: Starts | None = None


def parts() -> dict[str, Part]:
    """All parts, by the names that they have in documents."""
    one = (Kraftpy, MeasuredApacheKafka)
    three = (KraftpyQuorum, MeasuredApacheKafkaQuorum)
    secured = (security_rows.SecuredKraftpy, security_rows.SecuredApacheKafka)
    of_one = Starts(rows.STARTS_OF_ONE, measure.idle_memory_mib)
    of_three = Starts(rows.STARTS_OF_THREE, replicated.idle_memory_mib)
    return {
        "nodes 1": Part(rows.for_one(), one, of_one),
        "nodes 3": Part(rows.for_three(), three, of_three),
        TRANSACTIONS: Part(transaction_rows.rows(), three),
        SECURITY: Part(security_rows.rows(), secured),
        SHARE: Part(share_rows.rows(), three),
    }


def race(rounds: int, part: str | None, only: Sequence[str], into: Path | None) -> Raced:
    """All rows that `only` leaves, of one part or of all; RuntimeError if it names none.

    A part is put `into` its place in a document when it is over.
    """
    fetch_broker_jars()
    every = parts()
    chosen = every if part is None else [part]
    if into is not None:
        for name in chosen:
            report.place_in(into, name)
    raced = Raced.nothing()
    for name in chosen:
        found = Raced.nothing()
        _race(found, every[name], rounds, only)
        if into is not None and found.ours:
            report.fill(into, name, found, f"make race ROUNDS={rounds}{said(name, only)}")
        raced.add(found)
    if not (raced.ours or raced.failures):
        raise RuntimeError(f"no row has {' or '.join(only)} in its name")
    return raced


def _race(raced: Raced, part: Part, rounds: int, only: Sequence[str]) -> None:
    entrants: list[Broker | Quorum] = []
    with contextlib.ExitStack() as stack:

        def enter(make: Callable[..., Broker | Quorum]) -> Broker | Quorum:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kraftpy-bench-"))
            entrants.append(entrant := make(Path(folder), **groups.SETTINGS))
            stack.callback(entrant.stop)
            return entrant

        try:
            if part.starts is not None and is_chosen(part.starts.figures, only):
                makers = [functools.partial(enter, make) for make in part.entrants]
                raced.add(race_starts(part.starts, makers, rounds, say))
            if wanted := [row for row in part.rows if is_chosen(row.figures, only)]:
                ours, theirs = entrants or map(enter, part.entrants)
                ours.start()
                theirs.start()
                raced.add(play(wanted, ours, theirs, rounds, say))
        except BrokerError:
            raise
        except Exception as error:
            tails = "\n".join(f"{each.name}:\n{each.log_tail()}" for each in entrants)
            raise BrokerError(f"{error}\ntheir last words:\n{tails}") from error


GROUPS = Works(groups_round, quorum_groups_round)
BENCHES = {"bench": Works(bench_round, quorum_bench_round), "groups": GROUPS}


def said(part: str, only: Sequence[str]) -> str:
    """What of the command says which rows were raced, as `make` takes it."""
    words = [part] if part in NAMED else f"--{part}".split()
    for each in only:
        words += ["--only", each]
    return f" ARGS={shlex.quote(shlex.join(words))}"


def raced_part(nodes: int | None, words: Sequence[str]) -> str | None:
    """Which part of a race is asked for, None: all of it; RuntimeError for what is none."""
    if words and (len(words) > 1 or words[0] not in NAMED or nodes is not None):
        raise RuntimeError(
            f"a race is of all, of --nodes 1, of --nodes 3, of {' or of '.join(NAMED)}; "
            f'rows are named with --only, as in --only "{words[0]}"'
        )
    if words:
        return words[0]
    return None if nodes is None else f"nodes {nodes}"


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What these words ask for, or those of the command line; ends the program if it's nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, help=f"{BENCH_ROUNDS}, of a race {RACE_ROUNDS}")
    parser.add_argument("--nodes", type=int, choices=[1, 3], help="only one node, only three")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in FILE")
    parser.add_argument("-o", choices=["table", "json"], default="table", dest="output")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORDS", help="race only such rows"
    )
    parser.add_argument(
        "--count", type=int, default=takeover.COUNT, metavar="N", help="offsets of a takeover"
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the race's tables into FILE")
    parser.add_argument("mode", nargs="?", choices=MODES, default="bench")
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="for compare: two saved runs; for spark: what; for race: the part, if only that",
    )
    # What `make race` was given with ARGS stands behind its options.
    options = parser.parse_intermixed_args(words)
    if options.mode == "compare" and len(options.files) != 2:
        parser.error("compare needs two files, saved with --json")
    return options


def main() -> int:
    options = asked()
    # What it has started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if options.mode == "compare":
        print(figures.compare_table(*(figures.load_run(file) for file in options.files)))
        return 0
    programs.require(f"make bench ARGS={options.mode}", *NEEDED.get(options.mode, ()))
    # As pip leaves an installed package; an editable one is otherwise compiled at every start where
    # Python may not write bytecode.
    compileall.compile_dir(Path(kraftpy.__file__).parent, quiet=1)
    try:
        if options.mode == "partitions":
            print(many.run(KraftpyQuorum, say))
        elif options.mode == "partitions-kafka":
            fetch_broker_jars()
            print(many.run(MeasuredApacheKafkaQuorum, say))
        elif options.mode == "metrics":
            text, holds = metrics.run(options.rounds or BENCH_ROUNDS, say)
            print(text)
            return 0 if holds else 1
        elif options.mode == "amplification":
            text, holds = amplification.run(say, options.only)
            print(text)
            return 0 if holds else 1
        elif options.mode == "transactional-ids":
            print(transactional_ids.run(say))
        elif options.mode == "spark":
            text, holds = spark.run(
                options.rounds or BENCH_ROUNDS, say, *map(str, options.files[:1])
            )
            print(text)
            return 0 if holds else 1
        elif options.mode == "race":
            rounds = options.rounds or RACE_ROUNDS
            part = raced_part(options.nodes, [str(each) for each in options.files])
            raced = race(rounds, part, options.only, options.into)
            text = figures.save(options.json, client_name(), kraftpy=raced.ours, kafka=raced.theirs)
            table = f"{figures.race_table(raced)}\n{report.conditions()}"
            print(text if options.output == "json" else table)
            if raced.failures:
                print("\n".join(["these rows failed:", *raced.failures]), file=sys.stderr)
                return 1
        elif options.mode == "transactions":
            values = transaction_costs.run(options.rounds or BENCH_ROUNDS, say)
            print(figures.bench_table(values))
        elif options.mode == "cooperative":
            values = cooperative.run(options.rounds or BENCH_ROUNDS, say)
            print(figures.bench_table(values))
        elif options.mode == SECURITY:
            print(figures.bench_table(authorizing.run(options.rounds or BENCH_ROUNDS)))
        elif options.mode == "leases":
            print(figures.bench_table(leases.run(options.rounds or BENCH_ROUNDS)))
        elif options.mode == "starts":
            print(starts.run(say))
        elif options.mode == "mirror":
            print(mirrors.run(options.rounds or BENCH_ROUNDS, say))
        elif options.mode == "saturation":
            print(saturation.run(say))
        elif options.mode == "offsets":
            print(figures.bench_table(once(offsets.sizes(say))))
        elif options.mode == "offsets-load":
            print(figures.bench_table(once(offsets.loading(say))))
        elif options.mode == "takeover":
            print(takeover.run(options.count, say))
        elif options.mode == "compaction":
            with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
                print(figures.bench_table(once(compaction(Path(folder), say))))
        else:
            works = BENCHES[options.mode]
            rounds = options.rounds or BENCH_ROUNDS
            bench(works, rounds, options.nodes, options.json, options.output == "json")
    except (BrokerError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
