"""What a broker's transaction coordinators owe to the leaders of partitions: markers.

Each decided transaction is written into each of its partitions, by the leader of now, until all say
that it is there. Rules:

* What is owed is known by id, producer id and epoch, not by id alone: the next transaction of an id
  has markers of its own (KAFKA-16352).
* A marker is in one request at a time. A leader has few requests under way, of bounded size, and
  what comes meanwhile goes out together.
* NONE is done, and so is a partition that is gone. A newer coordinator has spoken
  (TRANSACTION_COORDINATOR_FENCED): this one stops, as the other has the rest to write. A partition
  where the producer has a higher epoch (INVALID_PRODUCER_EPOCH) can't take the marker any more,
  which only a lost log leads to: done, and told. All else is tried again, after 10 ms, doubling to
  1 s, and whenever leaders change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto

from kraftpy.core.coordination.deadlines import Deadlines
from kraftpy.core.transactions.machine import Markers
from kraftpy.core.transactions.records import by_topic
from kraftpy.core.transactions.states import Partition
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, error_code
from kraftpy.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

REQUEST_MARKERS_MAX = 200
IN_FLIGHT_MAX = 8
RETRY_MIN_MS = 10
RETRY_MAX_MS = 1_000

# For so many of those that were woken, have waited, or are a transaction's, the leader is looked up
# in one go.
SORTED_TOGETHER = 1_000

GONE = -1
"""What there is no leader of, and never will be."""

LeaderOf = Callable[[Partition], int | None]
"""The leader of a partition now: None if there is none, `GONE` if the partition isn't there."""

WritableTxnMarker = WriteTxnMarkersRequest.WritableTxnMarker
WritableTxnMarkerTopic = WriteTxnMarkersRequest.WritableTxnMarkerTopic


class Fate(Enum):
    """What becomes of an answered marker."""

    DONE = auto()
    AGAIN = auto()
    DEPOSED = auto()
    REFUSED = auto()


def fate_of(error: ErrorCode) -> Fate:
    """What a leader's answer means."""
    if error is ErrorCode.NONE:
        return Fate.DONE
    if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
        return Fate.DEPOSED
    return Fate.REFUSED if error is ErrorCode.INVALID_PRODUCER_EPOCH else Fate.AGAIN


class Debt:
    """One decided transaction: which of its partitions don't have the marker yet."""

    __slots__ = ("left", "markers", "owner")

    def __init__(self, owner: int, markers: Markers) -> None:
        self.owner = owner
        self.markers = markers
        self.left = set(markers.partitions)


class _Item:
    """One marker for one partition."""

    __slots__ = ("debt", "partition", "retry_ms")

    def __init__(self, debt: Debt, partition: Partition) -> None:
        self.debt = debt
        self.partition = partition
        self.retry_ms = RETRY_MIN_MS


class MarkerRequest(NamedTuple):
    """What goes to one broker together."""

    node_id: int
    items: list[_Item]

    def message(self) -> WriteTxnMarkersRequest:
        """The request; an id is in it once."""
        partitions: dict[int, list[Partition]] = {}
        debts: dict[int, Markers] = {}
        for item in self.items:
            markers = item.debt.markers
            debts[markers.producer_id] = markers
            partitions.setdefault(markers.producer_id, []).append(item.partition)
        return WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=markers.producer_id,
                    producer_epoch=markers.producer_epoch,
                    transaction_result=markers.is_commit,
                    topics=[
                        WritableTxnMarkerTopic(topic, indexes)
                        for topic, indexes in by_topic(partitions[markers.producer_id])
                    ],
                    coordinator_epoch=markers.coordinator_epoch,
                    transaction_version=markers.transaction_version,
                )
                for markers in debts.values()
            ]
        )


class Outcome(NamedTuple):
    """What came of a request's answer: the transactions that have all their markers, and of which
    others were refused by a partition, or given up.
    """

    finished: list[Debt]
    refused: list[tuple[Debt, Partition]]
    deposed: list[Debt]


class OwedMarkers:
    """All that a broker owes. `owner` is the coordinator's partition that asked."""

    def __init__(self, leader_of: LeaderOf) -> None:
        self._leader_of = leader_of
        self._debts: dict[int, dict[tuple[str, int, int], Debt]] = {}
        self._queues: dict[int, deque[_Item]] = {}
        self._in_flight: dict[int, int] = {}
        self._waits: Deadlines[_Item] = Deadlines()
        self._woken: deque[_Item] = deque()
        self._finished: list[Debt] = []

    def __len__(self) -> int:
        """How many transactions don't have all their markers."""
        return sum(map(len, self._debts.values()))

    def owe(self, owner: int, markers: Markers, now_ms: int) -> None:
        """A decision is committed: its markers are due."""
        key = markers.transactional_id, markers.producer_id, markers.producer_epoch
        debts = self._debts.setdefault(owner, {})
        if key in debts:
            debts[key].left.clear()  # of a machine that was loaded again
        debt = debts[key] = Debt(owner, markers)
        items = [_Item(debt, partition) for partition in markers.partitions]
        if len(items) > SORTED_TOGETHER:
            self._woken.extend(items)
            return
        for item in items:
            self._due(item, now_ms)

    def drop(self, owner: int) -> None:
        """That coordinator is gone: somebody else asks for what it was owed."""
        for debt in self._debts.pop(owner, {}).values():
            debt.left.clear()

    def wake(self) -> None:
        """Leaders have changed: what waits is due."""
        self._woken.extend(self._waits.clear())
        for queue in self._queues.values():
            self._woken.extend(queue)
        self._queues.clear()

    def next_deadline(self) -> int | None:
        """When something is to be tried again: 0 for at once."""
        return 0 if self._woken else self._waits.next()

    # -- sending

    def take(self, now_ms: int) -> list[MarkerRequest]:
        """What may be sent now."""
        for _ in range(SORTED_TOGETHER):
            item = self._woken.popleft() if self._woken else self._waits.pop_due(now_ms)
            if item is None:
                break
            self._due(item, now_ms)
        requests = []
        for node_id in list(self._queues):
            while self._in_flight.get(node_id, 0) < IN_FLIGHT_MAX:
                items = self._next_items(node_id, now_ms)
                if not items:
                    break
                self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
                requests.append(MarkerRequest(node_id, items))
        return requests

    def take_finished(self) -> list[Debt]:
        """The transactions whose last partitions are gone, since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _next_items(self, node_id: int, now_ms: int) -> list[_Item]:
        queue = self._queues.get(node_id)
        items: list[_Item] = []
        producers: dict[int, Debt] = {}
        later = []
        while queue and len(items) < REQUEST_MARKERS_MAX:
            item = queue.popleft()
            debt = item.debt
            if item.partition not in debt.left:
                continue
            if self._leader_of(item.partition) != node_id:
                self._due(item, now_ms)
            elif producers.setdefault(debt.markers.producer_id, debt) is debt:
                items.append(item)
            else:
                later.append(item)
        if queue is not None:
            queue.extendleft(reversed(later))
            if not queue and self._queues.get(node_id) is queue:
                del self._queues[node_id]
        return items

    def _due(self, item: _Item, now_ms: int) -> None:
        if item.partition not in item.debt.left:
            return
        leader = self._leader_of(item.partition)
        if leader is None:
            self._wait(item, now_ms)
        elif leader == GONE:
            self._settle(item, self._finished)
        else:
            self._queues.setdefault(leader, deque()).append(item)

    def _wait(self, item: _Item, now_ms: int) -> None:
        self._waits.set(item, now_ms + item.retry_ms)
        item.retry_ms = min(2 * item.retry_ms, RETRY_MAX_MS)

    def _settle(self, item: _Item, finished: list[Debt]) -> None:
        debt = item.debt
        if item.partition not in debt.left:
            return
        debt.left.discard(item.partition)
        if not debt.left:
            self._forget(debt)
            finished.append(debt)

    def _forget(self, debt: Debt) -> None:
        markers = debt.markers
        key = markers.transactional_id, markers.producer_id, markers.producer_epoch
        debts = self._debts.get(debt.owner, {})
        debts.pop(key, None)
        if not debts:
            self._debts.pop(debt.owner, None)

    # -- answers

    def lost(self, request: MarkerRequest, now_ms: int) -> None:
        """Nobody knows what became of the request: all of it is sent again."""
        self._returned(request)
        for item in request.items:
            if item.partition in item.debt.left:
                self._wait(item, now_ms)

    def answered(
        self, request: MarkerRequest, response: WriteTxnMarkersResponse, now_ms: int
    ) -> Outcome:
        """The leader's answer; what it leaves out is sent again."""
        return self.judged(request, _errors(response), now_ms)

    def judged(
        self, request: MarkerRequest, errors: Mapping[tuple[int, Partition], ErrorCode], now_ms: int
    ) -> Outcome:
        """The same by producer id and partition."""
        self._returned(request)
        outcome = Outcome([], [], [])
        for item in request.items:
            debt = item.debt
            if item.partition not in debt.left:
                continue
            error = errors.get((debt.markers.producer_id, item.partition))
            fate = Fate.AGAIN if error is None else fate_of(error)
            if fate is Fate.AGAIN:
                self._wait(item, now_ms)
            elif fate is Fate.DEPOSED:
                debt.left.clear()
                self._forget(debt)
                outcome.deposed.append(debt)
            else:
                if fate is Fate.REFUSED:
                    outcome.refused.append((debt, item.partition))
                self._settle(item, outcome.finished)
        return outcome

    def _returned(self, request: MarkerRequest) -> None:
        left = self._in_flight[request.node_id] - 1
        if left:
            self._in_flight[request.node_id] = left
        else:
            del self._in_flight[request.node_id]


def _errors(response: WriteTxnMarkersResponse) -> Mapping[tuple[int, Partition], ErrorCode]:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): error_code(
            partition.error_code
        )
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
