"""Writes markers into the partitions that are led here, for coordinators here and elsewhere.

* Each marker is answered for each of its partitions, once all in-sync replicas have it; what isn't
  committed in time is REQUEST_TIMED_OUT, and may be committed later.
* What is written for a partition together is one write (`replication.markers`), unless it is much.
* Those of offsets and claims go to the group coordinator, and are answered when they have taken
  effect there; who leads a partition and doesn't coordinate it yet is NOT_LEADER_OR_FOLLOWER.
* Whoever has more to write waits until all are in the log, not until they are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC, OFFSETS_TOPIC
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import WriteTxnMarkersRequest
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.server.coordination.group_coordinator import GroupCoordinator
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.markers import Marker, append_markers
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.waiters import Waiter

if TYPE_CHECKING:
    from kraftpy.server.replication.replicas import ReplicaManager

COMMIT_TIMEOUT_S: Final = 1.0
# So many markers for a partition are one write: it takes a few milliseconds.
TOGETHER_MAX: Final = 200

_OF_GROUPS: Final = (OFFSETS_TOPIC, INDIVIDUAL_OFFSETS_TOPIC)

Answers = dict[str, dict[int, ErrorCode]]
"""Of one marker: by topic and partition."""
_End = Callable[[Waiter], None]
"""Calls whom it is given when a marker has been committed, or with the error."""
Wanted = WriteTxnMarkersRequest.WritableTxnMarker


class WriteHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    def now_ms(self) -> int: ...
    def missing_partition_error(self, topic: str, index: int) -> ErrorCode:
        """Why `replicas.get` has no such partition."""


async def write_markers(
    host: WriteHost, markers: Sequence[Wanted], appended: Callable[[], None]
) -> list[Answers]:
    """What becomes of each marker; `appended` is called when what is taken is in the log."""
    answers: list[Answers] = [{} for _ in markers]
    by_partition: dict[tuple[str, int], list[int]] = {}
    pace = Pace()
    for number, marker in enumerate(markers):
        for topic in marker.topics:
            mine = answers[number].setdefault(topic.name, {})
            for index in topic.partition_indexes:
                await pace.keep()
                if index not in mine:
                    mine[index] = ErrorCode.INVALID_REQUEST
                    by_partition.setdefault((topic.name, index), []).append(number)
    waits = _Waits(host.loop)
    for (name, index), numbers in by_partition.items():
        for start in range(0, len(numbers), TOGETHER_MAX):
            await pace.keep()
            some = {n: _marker(markers[n]) for n in numbers[start : start + TOGETHER_MAX]}
            sound = {number: marker for number, marker in some.items() if marker is not None}
            outcomes = _append(host, name, index, list(sound.values()))
            for number, outcome in zip(sound, outcomes, strict=True):
                if isinstance(outcome, ErrorCode):
                    answers[number][name][index] = outcome
                else:
                    waits.add(outcome, answers[number][name], index)
    appended()
    await waits.end(COMMIT_TIMEOUT_S)
    return answers


def _marker(wanted: Wanted) -> Marker | None:
    """None if there can't be one like this."""
    if wanted.producer_id < 0 or wanted.producer_epoch < 0 or wanted.coordinator_epoch < 0:
        return None
    return Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        EndTxnMarker(wanted.transaction_result, wanted.coordinator_epoch),
        wanted.transaction_version,
    )


def _append(
    host: WriteHost, topic: str, index: int, markers: Sequence[Marker]
) -> Sequence[ErrorCode | _End]:
    """Why each marker isn't taken, or how to hear of its end."""
    partition = host.replicas.get(topic, index)
    if partition is None:
        return [host.missing_partition_error(topic, index)] * len(markers)
    if topic in _OF_GROUPS:
        outcomes = host.groups.write_markers(topic, index, markers)
        return [each if isinstance(each, ErrorCode) else _end_of(each) for each in outcomes]
    if too_few := partition.acks_all_error:
        return [too_few] * len(markers)
    return [
        outcome.code if isinstance(outcome, KafkaError) else _committed(partition, outcome)
        for outcome in append_markers(partition, markers, host.now_ms())
    ]


def _committed(partition: Partition, offset: int) -> _End:
    def when(ended: Waiter) -> None:
        def reached(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and partition.acks_all_error:
                error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            ended(error)

        partition.when_committed(offset, reached)

    return when


def _end_of(future: asyncio.Future[ErrorCode]) -> _End:
    return lambda ended: future.add_done_callback(lambda done: ended(done.result()))


class _Waits:
    """Markers that are in the log and not committed yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0
        self._ended: asyncio.Future[None] | None = None

    def add(self, when: _End, answers: dict[int, ErrorCode], index: int) -> None:
        """Has the answer of a partition be what becomes of its marker."""
        self._left += 1
        answers[index] = ErrorCode.REQUEST_TIMED_OUT

        def ended(error: ErrorCode) -> None:
            answers[index] = error
            self._left -= 1
            if not self._left and self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

        when(ended)

    async def end(self, timeout_s: float) -> None:
        """Returns when all have been committed, or the time is over."""
        if self._left:
            self._ended = self._loop.create_future()
            await asyncio.wait([self._ended], timeout=timeout_s)
