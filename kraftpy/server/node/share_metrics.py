"""A broker's numbers of share groups, in pieces that are small enough for the loop.

They are of leases on what it leads, and of how far groups are whose state it keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from kraftpy.core.leases import RecordState
from kraftpy.core.leases.runs import IN_TRANSITION
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.frames import SHARE_STATES, Samples, label, pieces

if TYPE_CHECKING:
    from kraftpy.core.leases.state_records import ShareKey
    from kraftpy.server.broker import Broker

RUNS_OF_A_FRAME = 2_000
"""So many runs are counted in some 0.2 ms."""

TABLES_OF_A_FRAME = 200

_STATES = {int(state): state.name.lower() for state in RecordState}
_WAITING = "in_transition"


def lease_frames(broker: Broker) -> Iterator[Frame]:
    """What is leased, was, and how."""
    leases = broker.leases
    records = Counter(dict.fromkeys((*_STATES.values(), _WAITING), 0))
    full = runs = tables = 0
    for table in leases.tables():
        runs += table.runs_count
        tables += 1
        full += table.is_full
        for state, count in table.records_by_state().items():
            records[_WAITING if state >= IN_TRANSITION else _STATES[state]] += count
        if runs >= RUNS_OF_A_FRAME or tables >= TABLES_OF_A_FRAME:
            runs = tables = 0
            yield Samples().frame()
    samples, meters = Samples(), leases.meters
    for name, count in records.items():
        samples.add("kraftpy_leases", count, name)
    samples.add("kraftpy_leases_acquired_total", meters.records.acquired)
    for reason, count in meters.records.released.items():
        samples.add("kraftpy_leases_released_total", count, reason)
    for reason, count in meters.records.archived.items():
        samples.add("kraftpy_leases_archived_total", count, reason)
    samples.histogram("kraftpy_share_state_write_seconds", meters.writes)
    samples.add("kraftpy_share_sessions", len(leases.sessions))
    samples.add("kraftpy_share_partitions_full", full)
    yield samples.frame()


def state_frames(broker: Broker, left: int) -> Generator[Frame, None, int]:
    """How far groups are, of so many partitions; returns how many more it may have been."""
    for _, machine in list(broker.share_coordinator.machines()):
        for some in pieces(list(machine.keys())):
            if left <= 0:
                return left
            rows = [
                row
                for key in some[:left]
                if (row := _row(broker, key, machine.summary(key))) is not None
            ]
            left -= len(some)
            yield [SHARE_STATES, rows]
    return left


def _row(broker: Broker, key: ShareKey, summary: Any) -> list[Any] | None:
    """Group, topic, partition, how far it is, and its lag; None: another broker has to be asked."""
    topic = broker.metadata.topics_by_id.get(key.topic_id)
    if topic is None or summary.start_offset < 0 or summary.finished_count < 0:
        return None  # nobody has begun, or knows
    finished = summary.start_offset + summary.finished_count
    partition = broker.replicas.replica(topic.name, key.partition)
    leadership = None if partition is None else partition.leadership
    lag = None
    if partition is not None and leadership is not None and leadership.settled:
        lag = max(partition.high_watermark - finished, 0)
    return [label(key.group_id), topic.name, key.partition, finished, lag]
