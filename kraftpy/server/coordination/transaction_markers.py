"""Sends the markers that this broker's transaction coordinators owe to the leaders.

What is owed, to whom, and when again, is `OwedMarkers`' to say; here it is sent. Rules:

* What became due in a turn of the loop goes out together.
* Markers of partitions that this broker leads are written by a call instead of a request: one such
  call at a time, in the order of the calls, up to where they are in the log. How much waits for
  that is bounded as requests are (`OwedMarkers`).
* Of many transactions that have all their markers, so many are told of in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.transactions import Markers, Partition
from kraftpy.core.transactions.markers import GONE, Debt, MarkerRequest, Outcome, OwedMarkers
from kraftpy.events import emit
from kraftpy.protocol.errors import KafkaError
from kraftpy.server.coordination.marker_writes import Answers, Wanted
from kraftpy.server.coordination.peers import MARKERS, Peers

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

log = logging.getLogger(__name__)

# A leader says after a second that a marker isn't committed yet; its answer is on its way.
ANSWER_TIMEOUT_MS = 10_000

TOLD_TOGETHER = 100


class MarkerHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def node_id(self) -> int: ...
    @property
    def peers(self) -> Peers: ...
    async def write_markers(
        self, markers: Sequence[Wanted], appended: Callable[[], None]
    ) -> list[Answers]:
        """Writes them into the partitions that are led here (`marker_writes`)."""


class MarkerSender:
    """`written` is called for each transaction that has all its markers."""

    def __init__(self, host: MarkerHost, written: Callable[[Markers], None]) -> None:
        self._host = host
        self._loop = host.loop
        self._written = written
        self._owed = OwedMarkers(self._leader_of)
        self._ended: deque[Debt] = deque()
        self._telling: asyncio.Handle | None = None
        self._pump: asyncio.Handle | None = None
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._appending = asyncio.Lock()
        self._stopped = False

    def __len__(self) -> int:
        """How many transactions don't have all their markers."""
        return len(self._owed)

    def owe(self, owner: int, markers: Markers) -> None:
        """A decision is committed: its markers are due."""
        self._owed.owe(owner, markers, self._now_ms())
        self._soon()

    def drop(self, owner: int) -> None:
        """That partition of the coordinator's topic isn't coordinated here any more."""
        self._owed.drop(owner)

    def leaders_changed(self) -> None:
        """What waits for a leader may have one."""
        if len(self._owed):
            self._woken = True
            self._soon()

    async def stop(self) -> None:
        """Sends nothing more; what is under way is given up."""
        self._stopped = True
        for handle in (self._pump, self._timer, self._telling):
            if handle is not None:
                handle.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _leader_of(self, partition: Partition) -> int | None:
        name, index = partition
        topic = self._host.metadata.topics.get(name)
        state = None if topic is None else topic.partitions.get(index)
        if state is None:
            return GONE
        return None if state.leader < 0 else state.leader

    # -- sending

    def _soon(self) -> None:
        if self._pump is None and not self._stopped:
            self._pump = self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._pump = None
        now_ms = self._now_ms()
        if self._woken:
            self._woken = False
            self._owed.wake()
        for request in self._owed.take(now_ms):
            is_here = request.node_id == self._host.node_id
            delivering = self._write(request) if is_here else self._deliver(request)
            task = self._loop.create_task(delivering)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        self._finish(self._owed.take_finished())
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._owed.next_deadline()
        if due_ms is not None:
            # A millisecond later: the clock is read in whole ones.
            self._timer = self._loop.call_at((due_ms + 1) / 1000, self._soon)

    async def _deliver(self, request: MarkerRequest) -> None:
        try:
            response = await self._host.peers.request(
                request.node_id, MARKERS, request.message(), timeout_ms=ANSWER_TIMEOUT_MS
            )
        except (ConnectionLostError, KafkaError):
            self._owed.lost(request, self._now_ms())
        else:
            self._take(self._owed.answered(request, response, self._now_ms()))
        self._soon()

    async def _write(self, request: MarkerRequest) -> None:
        markers = request.message().markers
        await self._appending.acquire()
        try:
            with contextlib.ExitStack() as held:
                held.callback(self._appending.release)
                answers = await self._host.write_markers(markers, lambda: held.pop_all().close())
        except Exception:
            log.exception("a bug; these markers are written again")
            self._owed.lost(request, self._now_ms())
            self._soon()
            return
        errors = {
            (marker.producer_id, (topic, index)): error
            for marker, of_marker in zip(markers, answers, strict=True)
            for topic, of_topic in of_marker.items()
            for index, error in of_topic.items()
        }
        self._take(self._owed.judged(request, errors, self._now_ms()))
        self._soon()

    def _take(self, outcome: Outcome) -> None:
        for debt, (topic, index) in outcome.refused:
            emit(
                log,
                logging.ERROR,
                "transaction-marker-refused",
                transactional_id=debt.markers.transactional_id,
                partition=f"{topic}-{index}",
                producer=debt.markers.producer_id,
                epoch=debt.markers.producer_epoch,
            )
        for debt in outcome.deposed:
            log.info(
                "transactional id %r: a newer coordinator writes its markers",
                debt.markers.transactional_id,
            )
        self._finish(outcome.finished)

    def _finish(self, debts: list[Debt]) -> None:
        self._ended.extend(debts)
        if self._telling is None and not self._stopped:
            self._tell()

    def _tell(self) -> None:
        self._telling = None
        for _ in range(min(len(self._ended), TOLD_TOGETHER)):
            self._written(self._ended.popleft().markers)
        if self._ended:
            self._telling = self._loop.call_soon(self._tell)
