"""How leaders and groups have the state of share groups kept: the way to its coordinators.

Rules:

* What is asked for in a turn of the loop, of one kind, group and coordinator, is one request. One
  that is at this broker is called directly, and writes what comes in a turn as one batch.
* A share-partition has one call under way, in the order in which they came. Writes of the same
  epochs that wait become one. So what is sent again passes nothing that came later.
* While the caller waits, what may pass is tried again: a coordinator that moved, loads or isn't
  available, and a connection that was lost. A write may have been done by then; to do it again
  changes nothing (docs/rules.md, rule 268). All else is the answer (KIP-932).
* Nobody waits for longer than CALL_TIMEOUT_S: what has become of a write isn't known then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kraftpy.batching import bounded
from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.core.leases.state import BATCHES_MAX, StateAnswer, StateWrite
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.leases.terms import StateBatch
from kraftpy.core.metadata.records import SHARE_STATE_TOPIC
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.peers import STATE, Peers
from kraftpy.server.coordination.share_coordinator import ShareCoordinator
from kraftpy.server.coordination.share_state_calls import (
    Answer,
    Call,
    Delete,
    Initialize,
    PersistedState,
    Read,
    ReadSummary,
    StateSummary,
    answers_of,
    failure,
    perform,
    request_of,
)

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

__all__ = ["PersistedState", "SharePersister", "StateSummary"]

CALL_TIMEOUT_S = 15.0
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2
# The coordinator gives up on a write before; its answer is on its way.
ANSWER_GRACE_MS = 1_000
# So many partitions, and batches of them, are in a request at most, but for a write that has more.
REQUEST_MAX = 1_000
REQUEST_BATCHES_MAX = 10_000

_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class PersisterHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def share_coordinator(self) -> ShareCoordinator: ...


class _Asked:
    """A call, and who waits for its answer."""

    __slots__ = ("call", "futures")

    def __init__(self, call: Call, future: asyncio.Future[Answer]) -> None:
        self.call = call
        self.futures = [future]

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return any(not future.done() for future in self.futures)

    def joins(self, call: Call, future: asyncio.Future[Answer]) -> bool:
        """Takes in a write that came behind this one, if they can be one."""
        mine = self.call
        if (
            not isinstance(call, StateWrite)
            or not isinstance(mine, StateWrite)
            or mine[:2] != call[:2]
            or len(mine.batches) + len(call.batches) > BATCHES_MAX
        ):
            return False
        self.call = StateWrite(
            *mine[:2],
            max(mine.start_offset, call.start_offset),
            call.finished_count,
            (*mine.batches, *call.batches),
        )
        self.futures.append(future)
        return True

    def answer(self, answer: Answer) -> None:
        for future in self.futures:
            if not future.done():  # done: who has asked has gone
                future.set_result(answer)


class _Lane:
    """The calls for a share-partition; `task` makes one after the other."""

    __slots__ = ("task", "waiting")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.waiting: deque[_Asked] = deque()


class _Due(NamedTuple):
    """A call on its way to another broker."""

    key: ShareKey
    call: Call
    future: asyncio.Future[Answer]


class SharePersister:
    """See the module. Nothing here raises: what has gone wrong is in the answer."""

    def __init__(self, host: PersisterHost) -> None:
        self._host = host
        self._loop = host.loop
        self._lanes: dict[ShareKey, _Lane] = {}
        self._due: dict[tuple[int, type[Call], str], list[_Due]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def initialize(
        self, group_id: str, topic_id: bytes, partition: int, *, state_epoch: int, start_offset: int
    ) -> ErrorCode:
        """Begins to keep something of a partition, or anew with a larger state epoch."""
        key = ShareKey(group_id, topic_id, partition)
        return (await self._ask(key, Initialize(state_epoch, start_offset))).error

    async def read(
        self, group_id: str, topic_id: bytes, partition: int, *, leader_epoch: int
    ) -> PersistedState:
        """All that is kept, for a leader; of an older one nothing is taken any more."""
        answer = await self._ask(ShareKey(group_id, topic_id, partition), Read(leader_epoch))
        assert isinstance(answer, StateAnswer)
        return answer

    async def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        finished_count: int,
        batches: Sequence[StateBatch],
    ) -> ErrorCode:
        """Keeps what has become of records; start offset -1: that stays as it is."""
        write = StateWrite(state_epoch, leader_epoch, start_offset, finished_count, tuple(batches))
        return (await self._ask(ShareKey(group_id, topic_id, partition), write)).error

    async def delete(self, group_id: str, topic_id: bytes, partition: int) -> ErrorCode:
        """Keeps nothing any more; it's no error if nothing was."""
        return (await self._ask(ShareKey(group_id, topic_id, partition), Delete())).error

    async def summary(
        self, group_id: str, topic_id: bytes, partition: int, *, leader_epoch: int = -1
    ) -> StateSummary:
        """How far a partition is."""
        key = ShareKey(group_id, topic_id, partition)
        answer = await self._ask(key, ReadSummary(leader_epoch))
        assert isinstance(answer, StateSummary)
        return answer

    async def close(self) -> None:
        """Answers whoever waits with COORDINATOR_NOT_AVAILABLE."""
        self._closed = True
        tasks = [*(lane.task for lane in self._lanes.values()), *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Share-partitions that have a call under way."""
        return len(self._lanes)

    # -- one call after the other

    async def _ask(self, key: ShareKey, call: Call) -> Answer:
        if self._closed:
            return failure(type(call), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future: asyncio.Future[Answer] = self._loop.create_future()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.task = self._loop.create_task(self._serve(key, lane))
        if not lane.waiting or not lane.waiting[-1].joins(call, future):
            lane.waiting.append(_Asked(call, future))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future
        except TimeoutError:
            return failure(type(call), ErrorCode.REQUEST_TIMED_OUT)

    async def _serve(self, key: ShareKey, lane: _Lane) -> None:
        asked: _Asked | None = None
        try:
            while lane.waiting:
                asked = lane.waiting.popleft()
                await self._see_through(key, asked)
        finally:
            del self._lanes[key]
            for each in (asked, *lane.waiting):
                if each is not None:  # nobody waits any more, unless this broker stops
                    each.answer(failure(type(each.call), ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def _see_through(self, key: ShareKey, asked: _Asked) -> None:
        pause_s = PAUSE_MIN_S
        while asked.is_wanted:
            answer = await self._attempt(key, asked.call)
            if not self._may_pass(key, answer.error):
                asked.answer(answer)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _may_pass(self, key: ShareKey, error: ErrorCode) -> bool:
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # The coordinator may not have heard of a topic yet that is new.
            return key.topic_id in self._host.metadata.topics_by_id
        return error in _PASSING

    async def _attempt(self, key: ShareKey, call: Call) -> Answer:
        """What the key's coordinator says, or why it can't be asked."""
        host = self._host
        try:
            index = await host.share_coordinator.index_of(key.coordinator_key)
            leader = host.metadata.topics[SHARE_STATE_TOPIC].partitions[index].leader
            if leader < 0:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if leader == host.node_id:
                said = perform(host.share_coordinator, key, call)
                return await said if isinstance(said, asyncio.Future) else said
        except KafkaError as error:
            return failure(type(call), error.code)
        return await self._ask_there(leader, key, call)

    # -- coordinators elsewhere

    def _ask_there(self, node_id: int, key: ShareKey, call: Call) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self._due:
            self._loop.call_soon(self._send)
        together = self._due.setdefault((node_id, type(call), key.group_id), [])
        together.append(_Due(key, call, future))
        return future

    def _send(self) -> None:
        due, self._due = self._due, {}
        for (node_id, kind, group_id), calls in due.items():
            for some in _pieces(calls):
                task = self._loop.create_task(self._request(node_id, kind, group_id, some))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _request(
        self, node_id: int, kind: type[Call], group_id: str, calls: list[_Due]
    ) -> None:
        message, version = request_of(kind, group_id, [(key, call) for key, call, _ in calls])
        timeout_ms = self._host.config.share_coordinator_write_timeout_ms + ANSWER_GRACE_MS
        found: dict[tuple[bytes, int], Answer] = {}
        missing = failure(kind, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            response = await self._host.peers.request(
                node_id, STATE, message, timeout_ms=timeout_ms, version=version
            )
            found = answers_of(response)
        except (ConnectionLostError, KafkaError):
            pass  # what has become of it isn't known
        finally:
            for key, _, future in calls:
                if not future.done():
                    future.set_result(found.get((key.topic_id, key.partition), missing))


def _pieces(calls: Iterable[_Due]) -> Iterator[list[_Due]]:
    """The calls in requests of bounded size."""
    weighed = (
        (each, len(each.call.batches) if isinstance(each.call, StateWrite) else 0) for each in calls
    )
    return bounded(weighed, REQUEST_BATCHES_MAX, REQUEST_MAX)
