"""What a race measures of transactions: rows for three nodes, with three replicas of everything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.bench import measure, replicated, transactions
from tests.bench.ceiling import mock_broker
from tests.bench.figures import CLIENT_ALONE
from tests.bench.load import library, produce
from tests.bench.measure import Round
from tests.bench.probe import percentile
from tests.bench.race import Meter, Row
from tests.bench.transactions import Rate, Rated
from tests.quorums import Quorum

CLIENTS = 100
PARTITIONS = (1, 10)  # of a transaction
# Of a run, of seconds: by the duration of its transactions.
PERF_RECORDS = {10: 100_000, 100: 150_000, 1000: 120_000}
LONG_MS = 1000
COPY_RECORDS = 8_000

SEEN = tuple(f"RF 3: begin to seen by read_committed, {rank}" for rank in ("p50", "p99"))
COPIER = "RF 3: TransactionalMessageCopier"
WITHOUT = "RF 3: kafka-producer-perf-test without transactions"
KEPT = f"RF 3: kafka-producer-perf-test, {LONG_MS} ms transactions to none"


def perf_figure(duration_ms: int) -> str:
    return f"RF 3: kafka-producer-perf-test, {duration_ms} ms transactions"


def clients_figure(what: str, partitions: int) -> str:
    """Of transactions with so many partitions each; `what` names the client."""
    several = "s" if partitions > 1 else ""
    return f"RF 3: transactions of {partitions} partition{several}, {what}"


MANY_CLIENTS = clients_figure(f"{CLIENTS} clients", 1)

Work = Callable[[str, str], AbstractContextManager[Rate]]
"""Transactions in a topic of the cluster at this address."""


@contextlib.contextmanager
def _rate(figure: str, work: AbstractContextManager[Rate]) -> Iterator[Meter]:
    with work as rate:
        yield lambda seconds: {figure: rate(seconds)}


def _clients(figure: str, partitions: int, work: Work, *, mockable: bool) -> Row:
    @contextlib.contextmanager
    def on(quorum: Quorum) -> Iterator[Meter]:
        with (
            replicated.topics_on(quorum, 1, partitions) as (topic,),
            _rate(figure, work(quorum.bootstrap, topic)) as meter,
        ):
            yield meter

    @contextlib.contextmanager
    def alone() -> Iterator[Meter]:
        with (
            mock_broker("mock", partitions) as bootstrap,
            _rate(figure, work(bootstrap, "mock")) as meter,
        ):
            yield meter

    return Row((figure,), on, {CLIENT_ALONE: alone} if mockable and library() else {})


def _librdkafka(figure: str, partitions: int, clients: int) -> Row:
    def work(bootstrap: str, topic: str) -> AbstractContextManager[Rate]:
        return transactions.librdkafka(bootstrap, topic, partitions, clients)

    return _clients(figure, partitions, work, mockable=True)


def _java(figure: str, partitions: int) -> Row:
    def work(bootstrap: str, topic: str) -> AbstractContextManager[Rate]:
        return transactions.java(bootstrap, topic, partitions)

    return _clients(figure, partitions, work, mockable=False)


@contextlib.contextmanager
def _seen(quorum: Quorum) -> Iterator[Meter]:
    with (
        replicated.topics_on(quorum) as (topic,),
        transactions.until_seen(quorum.bootstrap, topic) as times_ms,
    ):

        def meter(seconds: float) -> Round:
            times = times_ms(seconds)
            return dict(zip(SEEN, (percentile(times, 50), percentile(times, 99)), strict=True))

        yield meter


def _together(runs: list[Rated]) -> float:
    return sum(run.records for run in runs) / sum(run.seconds for run in runs)


def _seconds(runs: list[Rated]) -> float:
    return sum(run.seconds for run in runs)


def _perf_test(runner: Any, quorum: Quorum, records: int, duration_ms: int | None) -> Rated:
    with replicated.topic_on(quorum) as topic:
        return transactions.perf_test(runner, quorum.bootstrap, topic, records, duration_ms)


def _perf(duration_ms: int) -> Row:
    figure = perf_figure(duration_ms)

    @contextlib.contextmanager
    def on(quorum: Quorum) -> Iterator[Meter]:
        with transactions.tools() as runner:

            def meter(seconds: float) -> Round:
                runs: list[Rated] = []
                while _seconds(runs) < seconds:
                    runs.append(_perf_test(runner, quorum, PERF_RECORDS[duration_ms], duration_ms))
                return {figure: _together(runs)}

            yield meter

    return Row((figure,), on)


@contextlib.contextmanager
def _long(quorum: Quorum) -> Iterator[Meter]:
    """With long transactions and without, in turn: what they leave of the throughput."""
    with transactions.tools() as runner:

        def meter(seconds: float) -> Round:
            runs: list[Rated] = []
            others: list[Rated] = []
            while min(_seconds(runs), _seconds(others)) < seconds:
                runs.append(_perf_test(runner, quorum, PERF_RECORDS[LONG_MS], LONG_MS))
                others.append(_perf_test(runner, quorum, PERF_RECORDS[LONG_MS], None))
            rate, other = _together(runs), _together(others)
            return {perf_figure(LONG_MS): rate, WITHOUT: other, KEPT: rate / other}

        yield meter


@contextlib.contextmanager
def _copier(quorum: Quorum) -> Iterator[Meter]:
    with (
        replicated.topics_on(quorum, 2) as (source, target),
        transactions.tools() as runner,
    ):
        produce(
            quorum.bootstrap,
            source,
            COPY_RECORDS,
            transactions.VALUE_BYTES,
            measure.BATCHES["131 KB"],
            "all",
        )

        def meter(seconds: float) -> Round:
            runs: list[Rated] = []
            while _seconds(runs) < seconds:
                runs.append(
                    transactions.copy(runner, quorum.bootstrap, source, target, COPY_RECORDS)
                )
            return {COPIER: _together(runs)}

        yield meter


def rows() -> list[Row]:
    """The rows, in the order of their table."""
    found: list[Row] = []
    for partitions in PARTITIONS:
        found.append(_librdkafka(clients_figure("librdkafka", partitions), partitions, 1))
        found.append(_java(clients_figure("Java", partitions), partitions))
    found.append(_librdkafka(MANY_CLIENTS, 1, CLIENTS))
    found.append(Row(SEEN, _seen))
    found += [_perf(duration_ms) for duration_ms in PERF_RECORDS if duration_ms != LONG_MS]
    found.append(Row((perf_figure(LONG_MS), WITHOUT, KEPT), _long))
    found.append(Row((COPIER,), _copier))
    return found
