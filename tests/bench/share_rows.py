"""What a race measures of share groups: rows for three nodes, with three replicas of everything."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

from kraftpy.testing.process import BrokerError
from tests.bench import measure, replicated, shares, transactions
from tests.bench.load import produce
from tests.bench.measure import Round
from tests.bench.probe import percentile
from tests.bench.race import Meter, Row
from tests.bench.transactions import Rated
from tests.quorums import Quorum

MEMBERS = (1, 8)
RECORDS, RECORD_BYTES = 50_000, 1000
SMALL_RECORDS = 1_500_000
SINGLE_RECORDS, SINGLE_BATCH_BYTES = 100_000, 200
SETTLE_S = 3.0
KILLS = 2  # in a round
LEADER, COORDINATOR = "leader", "share coordinator"
TRIES = 30


def perf_figure(members: int) -> str:
    several = "s" if members > 1 else ""
    return f"RF 3: share group, {members} member{several} on one partition, 1 KB"


ACKNOWLEDGED = "RF 3: acknowledge to answer, p50"


def killed_figure(which: str) -> str:
    return f"RF 3: {which} killed, deliveries flow"


@contextlib.contextmanager
def _filled(quorum: Quorum, records: int, size: int, batch: int) -> Iterator[str]:
    with replicated.topics_on(quorum) as (topic,):
        produce(quorum.bootstrap, topic, records, size, batch, "all")
        yield topic


def _perf(members: int) -> Row:
    figure = perf_figure(members)

    @contextlib.contextmanager
    def on(quorum: Quorum) -> Iterator[Meter]:
        with (
            _filled(quorum, RECORDS, RECORD_BYTES, measure.BATCHES["131 KB"]) as topic,
            transactions.tools() as runner,
        ):

            def meter(seconds: float) -> Round:
                runs: list[Rated] = []
                while sum(run.seconds for run in runs) < seconds:
                    runs.append(shares.perf_test(runner, quorum.bootstrap, topic, RECORDS, members))
                return {figure: sum(run.records for run in runs) / sum(run.seconds for run in runs)}

            yield meter

    return Row((figure,), on)


@contextlib.contextmanager
def _acknowledged(quorum: Quorum) -> Iterator[Meter]:
    with (
        _filled(quorum, SINGLE_RECORDS, 100, SINGLE_BATCH_BYTES) as topic,
        shares.acknowledging(quorum, topic) as times_ms,
    ):
        yield lambda seconds: {ACKNOWLEDGED: percentile(times_ms(seconds), 50)}


def _killed(which: str) -> Row:
    @contextlib.contextmanager
    def on(quorum: Quorum) -> Iterator[Meter]:
        with _led_apart(quorum) as topic:
            produce(quorum.bootstrap, topic, SMALL_RECORDS, 100, measure.BATCHES["131 KB"], "all")

            def meter(_: float) -> Round:
                times = [_until_flowing(quorum, topic, which) for _ in range(KILLS)]
                return {killed_figure(which): statistics.median(times)}

            yield meter

    return Row((killed_figure(which),), on, once=True)


@contextlib.contextmanager
def _led_apart(quorum: Quorum) -> Iterator[str]:
    """A topic whose leader doesn't lead the metadata quorum."""
    with contextlib.ExitStack() as stack:
        for _ in range(TRIES):
            (topic,) = stack.enter_context(replicated.topics_on(quorum))
            if quorum.leader_of(topic) != quorum.controller():
                yield topic
                return
    raise BrokerError(f"{TRIES} topics are all led by the leader of the quorum")


def _until_flowing(quorum: Quorum, topic: str, which: str) -> float:
    """Seconds from kill -9 until a group's deliveries flow again.

    A partition leader is killed that isn't the share coordinator, or the other way round; neither
    leads the metadata quorum.
    """
    for _ in range(TRIES):
        with shares.Acknowledged(quorum.bootstrap, topic) as consumer:
            consumer.wait_flowing(0)
            leader = quorum.leader_of(topic)
            coordinator = shares.coordinator_of(quorum, consumer.group, topic)
            victim = leader if which == LEADER else coordinator
            if leader == coordinator or victim == quorum.controller():
                continue  # another group may have another coordinator
            time.sleep(SETTLE_S)
            quorum.kill(victim)
            killed_at = time.perf_counter()
            found = shares.until_flowing(consumer.wait_flowing(killed_at), killed_at)
        quorum.restart(victim)
        quorum.wait_in_sync()
        quorum.prefer_leaders()  # else it leads nothing, and coordinates nothing, for minutes
        return found
    raise BrokerError(f"in {TRIES} tries no {which} was a broker of its own")


def rows() -> list[Row]:
    """The rows, in the order of their table."""
    found = [_perf(members) for members in MEMBERS]
    found.append(Row((ACKNOWLEDGED,), _acknowledged))
    found += [_killed(which) for which in (LEADER, COORDINATOR)]
    return found
