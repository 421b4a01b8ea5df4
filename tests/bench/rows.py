"""What a race measures: rows for one node, and for three.

Each makes its own topics, and deletes them: the disk keeps no more than one run of one row. Files
that come to gigabytes in 5 s are written in runs of a few hundred megabytes, with memory touched
before each (`measure.touch_memory`), and the time counts that was spent writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import groups, measure, replicated
from tests.bench.ceiling import (
    Answering,
    Committing,
    CommittingQuorum,
    RelayingQuorum,
    mock_broker,
)
from tests.bench.figures import BARE_COMMIT, CLIENT_ALONE, LOOP_ALONE
from tests.bench.groups import CLIENTS, offset_work, offsets_figure
from tests.bench.load import Load, consume, library, produce, program
from tests.bench.measure import BATCHES, LATENCY_INTERVAL_S, Round
from tests.bench.probe import percentile
from tests.bench.race import Meter, Prepared, Row
from tests.processes import Broker, Kraftpy
from tests.quorums import KraftpyQuorum, Quorum

TopicsOf = Callable[[Any, int], AbstractContextManager[str]]

RF_3 = "RF 3: "
SMALL_BATCH = "131 KB"
MOCK_TOPIC = "mock"


@contextlib.contextmanager
def _on_three(quorum: Quorum, partitions: int) -> Iterator[str]:
    with replicated.topics_on(quorum, 1, partitions) as (name,):
        yield name


def runs(seconds: float, run: Callable[[], Load]) -> float:
    """MB/s of as many runs as take so long together."""
    loads: list[Load] = []
    while sum(load.seconds for load in loads) < seconds:
        loads.append(run())
    return sum(load.bytes for load in loads) / sum(load.seconds for load in loads) / 1e6


def _produces(prefix: str, topic_of: TopicsOf, acks: str, large: int, small: int) -> Iterator[Row]:
    """Rows of a producer as fast as it goes; `large` and `small`: messages in a run."""
    shapes = [(f"1 KB, batch {label}", large, 1000, size) for label, size in BATCHES.items()]
    shapes.append((f"100 B, batch {SMALL_BATCH}", small, 100, BATCHES[SMALL_BATCH]))
    for what, count, size, batch in shapes:
        suffix = f", acks={acks}" if prefix else ""
        yield _produce(f"{prefix}produce {what}{suffix}", topic_of, acks, count, size, batch)


def _produce(figure: str, topic_of: TopicsOf, acks: str, count: int, size: int, batch: int) -> Row:
    @contextlib.contextmanager
    def on(entrant: Any) -> Iterator[Meter]:
        def run() -> Load:
            with topic_of(entrant, 1) as topic:
                measure.touch_memory(entrant.log_dir)
                return produce(entrant.bootstrap, topic, count, size, batch, acks)

        yield lambda seconds: {figure: runs(seconds, run)}

    @contextlib.contextmanager
    def alone() -> Iterator[Meter]:
        def run() -> Load:
            return produce("mock", MOCK_TOPIC, count, size, batch, acks)

        yield lambda seconds: {figure: runs(seconds, run)}

    return Row((figure,), on, {CLIENT_ALONE: alone} if program() else {})


def _consume(label: str, count: int, size: int) -> Row:
    figure = f"consume {label}"

    @contextlib.contextmanager
    def on(broker: Broker) -> Iterator[Meter]:
        with measure.topic_on(broker) as topic:
            produce(broker.bootstrap, topic, count, size, BATCHES[SMALL_BATCH])
            yield lambda seconds: {
                figure: runs(seconds, lambda: consume(broker.bootstrap, topic, count))
            }

    return Row((figure,), on)


def _latency(prefix: str, topic_of: TopicsOf, acks: str) -> Row:
    suffix = f", acks={acks}" if prefix else ""
    names = tuple(f"{prefix}latency at 200 msg/s{suffix}, {rank}" for rank in ("p50", "p99"))

    @contextlib.contextmanager
    def on(entrant: Any) -> Iterator[Meter]:
        with topic_of(entrant, 1) as topic:

            def meter(seconds: float) -> Round:
                messages = round(seconds / LATENCY_INTERVAL_S)
                times = measure.latencies_ms(entrant.bootstrap, topic, acks, messages)
                return dict(zip(names, (percentile(times, 50), percentile(times, 99)), strict=True))

            yield meter

    return Row(names, on)


def _offsets(
    prefix: str,
    topic_of: TopicsOf,
    settle: Callable[[Any], object],
    verb: str,
    partitions: int,
    clients: int,
) -> Row:
    """A commit has ceilings that are the broker's as well."""
    figure = prefix + offsets_figure(verb, partitions, clients)

    @contextlib.contextmanager
    def on(entrant: Any) -> Iterator[Meter]:
        with offset_work(
            entrant.bootstrap,
            lambda count: topic_of(entrant, count),
            lambda: settle(entrant),
            verb,
            partitions,
            clients,
        ) as rate:
            yield lambda seconds: {figure: rate(seconds)}

    @contextlib.contextmanager
    def alone() -> Iterator[Meter]:
        def topic(_: int) -> AbstractContextManager[str]:
            return contextlib.nullcontext(MOCK_TOPIC)

        with (
            mock_broker(MOCK_TOPIC, partitions) as bootstrap,
            offset_work(bootstrap, topic, lambda: None, verb, partitions, clients) as rate,
        ):
            yield lambda seconds: {figure: rate(seconds)}

    @contextlib.contextmanager
    def of(build: type[Kraftpy] | type[KraftpyQuorum]) -> Iterator[Meter]:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="kraftpy-bench-"))
            entrant = build(Path(folder), **groups.SETTINGS)
            stack.callback(entrant.stop)
            entrant.start()
            yield stack.enter_context(on(entrant))

    ceilings: dict[str, Callable[[], Prepared]] = {CLIENT_ALONE: alone} if library() else {}
    if verb == "commits":
        ceilings[LOOP_ALONE] = partial(of, RelayingQuorum if prefix else Answering)
        ceilings[BARE_COMMIT] = partial(of, CommittingQuorum if prefix else Committing)
    return Row((figure,), on, ceilings)


def _rebalances(prefix: str, topic_of: TopicsOf, protocol: str) -> Row:
    names = groups.rebalance_figures(protocol)

    @contextlib.contextmanager
    def on(entrant: Any) -> Iterator[Meter]:
        with topic_of(entrant, groups.MEMBER_PARTITIONS) as topic:

            def meter(seconds: float) -> Round:
                seen: list[Round] = []
                while sum(sum(each.values()) for each in seen) < seconds:
                    seen.append(groups.rebalance(entrant.bootstrap, topic, protocol))
                return {prefix + name: median(each[name] for each in seen) for name in names}

            yield meter

    return Row(tuple(prefix + name for name in names), on)


@contextlib.contextmanager
def _creation(quorum: Quorum) -> Iterator[Meter]:
    def meter(seconds: float) -> Round:
        times: list[float] = []
        while sum(times) < seconds:
            times.append(replicated.creation_s(quorum))
        created = replicated.CREATE_TOPICS * replicated.CREATE_PARTITIONS * len(times)
        return {"RF 3: create partitions": created / sum(times)}

    yield meter


@contextlib.contextmanager
def _failover(quorum: Quorum) -> Iterator[Meter]:
    def meter(_: float) -> Round:
        (seconds,) = replicated.failovers(quorum, lambda _: None, 1, "partition leader")
        return {"RF 3: leader killed to next acknowledged write": seconds}

    yield meter


def _group_rows(prefix: str, topic_of: TopicsOf, settle: Callable[[Any], object]) -> Iterator[Row]:
    for partitions in groups.PARTITIONS:
        for clients in (1, CLIENTS):
            for verb in groups.VERBS:
                yield _offsets(prefix, topic_of, settle, verb, partitions, clients)
    for protocol in groups.PROTOCOLS:
        yield _rebalances(prefix, topic_of, protocol)


STARTS_OF_ONE = ("start", "memory, idle")
STARTS_OF_THREE = ("RF 3: start", "RF 3: memory of a node, idle")


def for_one() -> list[Row]:
    """One partition on one node."""
    topic_of = measure.partitions_on
    large, small = measure.LARGE_MESSAGES, measure.SMALL_MESSAGES
    return [
        *_produces("", topic_of, "1", large, small),
        _consume("1 KB", 3 * large, 1000),
        _consume("100 B", small, 100),
        *_group_rows("", topic_of, lambda broker: None),
        _latency("", topic_of, "1"),
    ]


def for_three() -> list[Row]:
    """Three replicas on three nodes."""
    rows: list[Row] = []
    for acks in ("1", "all"):
        large, small = replicated.LARGE_MESSAGES, replicated.SMALL_MESSAGES
        rows += _produces(RF_3, _on_three, acks, large, small)
        rows.append(_latency(RF_3, _on_three, acks))
    rows += _group_rows(RF_3, _on_three, Quorum.wait_in_sync)
    rows.append(Row(("RF 3: create partitions",), _creation))
    failover = "RF 3: leader killed to next acknowledged write"
    rows.append(Row((failover,), _failover, once=True))
    return rows
