"""Share groups at this broker: requests about them, and what share coordinators are to do for them.

The groups are kept by the group coordinator (`group_coordinator`), the states of their partitions
by share coordinators, which `share_persister` asks. Rules:

* What a group's machine wants to be asked (`StateWork`) is asked, and the machine is told what came
  of it. If this broker isn't the group's coordinator any more by then, the next one asks again.
* Who changes offsets by hand waits for all that: an answer without an error is that of the states.
* The lag of a partition is what is between its end and where its group begins, less what is done
  above that (KIP-1226). A state that can't be read is one that isn't there, as in Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kraftpy.client.connection import ConnectionLostError
from kraftpy.core.groups import Client
from kraftpy.core.groups.share.offsets import Begun
from kraftpy.core.groups.share.states import InitializeStates, StateWork
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.messages import (
    ListOffsetsRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kraftpy.server.coordination.group_coordinator import GroupCoordinator
from kraftpy.server.coordination.group_ids import check_group_id
from kraftpy.server.coordination.peers import Lane, Peers
from kraftpy.server.coordination.runtime import answer_of
from kraftpy.server.coordination.share_persister import SharePersister
from kraftpy.server.coordination.share_state_calls import StateSummary

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

log = logging.getLogger(__name__)

T = TypeVar("T")

Place = tuple[bytes, int]
"""A partition: its topic's id, and its index."""

ENDS = Lane("the ends of partitions", "kraftpy-ends")
ENDS_TIMEOUT_MS = 5_000
UNKNOWN_LAG = -1
_LATEST = -1
_CONSUMER = -1
_TOGETHER_MAX = 1_000


class LedPartition(Protocol):
    """What tells where a partition ends."""

    @property
    def high_watermark(self) -> int: ...
    def check_settled(self) -> None:
        """Raises KafkaError unless the high watermark is the cluster's."""


class ShareHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def share_persister(self) -> SharePersister: ...
    def led_partition(self, topic: str, index: int) -> LedPartition:
        """A partition that is led here. Raises KafkaError."""


class Start(NamedTuple):
    """Where a group begins in a partition, and how far it is behind."""

    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = UNKNOWN_LAG
    error: ErrorCode = ErrorCode.NONE


class ShareGroups:
    """See the module; handlers call it."""

    def __init__(self, host: ShareHost) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Gives up what is being asked."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- members

    def heartbeat(
        self, client: Client, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat; waits until what it changes is committed."""
        return self._host.groups.write(
            check_group_id(request.group_id),
            lambda machine, token, now_ms: machine.share_heartbeat(token, request, client, now_ms),
        )

    def describe(self, group_id: str) -> ShareGroupDescribeResponse.DescribedGroup:
        """One group of a ShareGroupDescribe."""
        return self._host.groups.read(
            check_group_id(group_id), lambda machine, now_ms: machine.share_describe(group_id)
        )

    # -- offsets

    async def alter_offsets(
        self, group_id: str, wanted: Mapping[str, Mapping[int, int]]
    ) -> Mapping[Place, ErrorCode]:
        """Has the group begin there; what isn't in the answer there isn't. Raises KafkaError."""
        begun: Begun = await answer_of(
            self._host.groups.write(
                check_group_id(group_id),
                lambda machine, token, now_ms: machine.alter_share_offsets(
                    token, group_id, wanted, now_ms
                ),
            )
        )
        return await self._go_on(begun, gives_up=True)

    async def delete_offsets(
        self, group_id: str, names: Sequence[str]
    ) -> Mapping[bytes, ErrorCode]:
        """Forgets all that is kept of these topics, by id; as `alter_offsets`."""
        begun: Begun = await answer_of(
            self._host.groups.write(
                check_group_id(group_id),
                lambda machine, token, now_ms: machine.delete_share_offsets(
                    token, group_id, names, now_ms
                ),
            )
        )
        return _by_topic(await self._go_on(begun))

    def delete_group(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """One group of a DeleteGroups, of any kind; a share group's states go first."""
        groups = self._host.groups
        check_group_id(group_id, allow_empty=True)
        if groups.read(group_id, lambda machine, now_ms: machine.is_share_group(group_id)):
            return self._start(self._delete_share_group(group_id))
        return groups.delete_group(group_id)

    async def _delete_share_group(self, group_id: str) -> ErrorCode:
        try:
            begun: Begun = await answer_of(
                self._host.groups.write(
                    group_id,
                    lambda machine, token, now_ms: machine.delete_share_states(
                        token, group_id, now_ms
                    ),
                )
            )
            for error in (await self._go_on(begun)).values():
                if error is not ErrorCode.NONE:
                    return error
            return await answer_of(self._host.groups.delete_group(group_id))
        except KafkaError as error:
            return error.code

    async def _go_on(self, begun: Begun, *, gives_up: bool = False) -> Mapping[Place, ErrorCode]:
        """What has come of it; it is seen through also if the client doesn't wait for that."""
        if begun.error is not ErrorCode.NONE:
            raise KafkaError(begun.error, begun.message)
        if begun.work is None:
            return {}
        return await asyncio.shield(self._start(self._see_to(begun.work, gives_up=gives_up)))

    async def offsets(
        self, group_id: str, wanted: Mapping[str, Iterable[int]] | None
    ) -> dict[str, dict[int, Start]]:
        """Where the group begins, by topic; None: in all that it has. Raises KafkaError."""
        topics = self._host.metadata.topics
        kept = self._host.groups.read(
            check_group_id(group_id), lambda machine, now_ms: machine.share_partitions(group_id)
        )
        if wanted is None:
            by_id = self._host.metadata.topics_by_id
            wanted = {by_id[topic].name: kept[topic] for topic in kept if topic in by_id}
        places: dict[Place, str] = {}
        for name, indexes in wanted.items():
            topic = topics.get(name)
            if topic is not None:
                places.update({(topic.id, i): name for i in indexes if i in topic.partitions})
        summaries = await self._together(places, lambda place: self._summary(group_id, place))
        behind = {
            place: (places[place], place[1])
            for place, summary in summaries.items()
            if summary.error is ErrorCode.NONE
            and summary.start_offset >= 0
            and summary.finished_count >= 0
        }
        ends = await self._ends(behind.values())
        found: dict[str, dict[int, Start]] = {
            name: dict.fromkeys(sorted(set(indexes)), Start()) for name, indexes in wanted.items()
        }
        for place, summary in summaries.items():
            end = ends.get(behind[place]) if place in behind else None
            found[places[place]][place[1]] = _start(summary, end)
        return found

    def _summary(self, group_id: str, place: Place) -> Coroutine[Any, Any, StateSummary]:
        return self._host.share_persister.summary(group_id, *place)

    # -- what share coordinators are asked

    def carry_out(self, work: StateWork) -> None:
        """A machine wants this; nobody waits for it."""
        self._start(self._see_to(work))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._host.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _see_to(
        self, work: StateWork, *, gives_up: bool = False
    ) -> Mapping[Place, ErrorCode]:
        """Asks, and tells the machine; gives what came of each partition."""
        group_id, persister = work.group_id, self._host.share_persister
        told: Awaitable[ErrorCode] | ErrorCode
        if isinstance(work, InitializeStates):
            offsets, epoch = work.offsets, work.state_epoch
            places = [(topic, index) for topic, starts in offsets.items() for index in starts]
            errors = await self._together(
                places,
                lambda place: persister.initialize(
                    group_id, *place, state_epoch=epoch, start_offset=offsets[place[0]][place[1]]
                ),
            )
        else:
            places = [(topic, index) for topic, some in work.partitions.items() for index in some]
            errors = await self._together(places, lambda place: persister.delete(group_id, *place))
        wrong = sorted({error.name for error in errors.values() if error is not ErrorCode.NONE})
        if wrong:
            what = "begin to keep" if isinstance(work, InitializeStates) else "forget"
            log.warning(
                "share group %r: its coordinators can't %s all states: %s",
                *(group_id, what, ", ".join(wrong)),
            )
        try:
            if isinstance(work, InitializeStates):
                told = self._tell_came(group_id, errors, gives_up=gives_up)
            else:
                told = self._tell_went(group_id, _by_topic(errors))
            await answer_of(told)
        except KafkaError:
            pass  # the coordinator that has the group now asks again
        return errors

    def _tell_came(
        self, group_id: str, errors: Mapping[Place, ErrorCode], *, gives_up: bool
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        done: dict[bytes, set[int]] = {}
        failed: dict[bytes, set[int]] = {}
        for (topic_id, index), error in errors.items():
            (failed if error else done).setdefault(topic_id, set()).add(index)
        return self._host.groups.write(
            group_id,
            lambda machine, token, now_ms: machine.share_states_came(
                token, group_id, done, failed, now_ms, gives_up=gives_up
            ),
        )

    def _tell_went(
        self, group_id: str, errors: Mapping[bytes, ErrorCode]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        done = [topic_id for topic_id, error in errors.items() if error is ErrorCode.NONE]
        return self._host.groups.write(
            group_id,
            lambda machine, token, now_ms: machine.share_states_went(
                token, group_id, done, now_ms, refused=len(done) < len(errors)
            ),
        )

    async def _together(
        self, places: Iterable[Place], ask: Callable[[Place], Coroutine[Any, Any, T]]
    ) -> dict[Place, T]:
        """What each says; of many some at a time."""
        found: dict[Place, T] = {}
        left = iter(places)
        while some := list(islice(left, _TOGETHER_MAX)):
            answers = await asyncio.gather(*map(ask, some))
            found.update(zip(some, answers, strict=True))
        return found

    # -- the ends of partitions

    async def _ends(
        self, wanted: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int | ErrorCode]:
        """The end offset of each, as its leader says, or why there is none."""
        found: dict[tuple[str, int], int | ErrorCode] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for name, index in wanted:
            topic = self._host.metadata.topics.get(name)
            if topic is None or index not in topic.partitions:
                found[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            leader = topic.partitions[index].leader
            if leader < 0:
                found[name, index] = ErrorCode.LEADER_NOT_AVAILABLE
            elif leader == self._host.node_id:
                found[name, index] = self._end(name, index)
            else:
                by_leader.setdefault(leader, {}).setdefault(name, []).append(index)
        answers = await asyncio.gather(*(self._ends_at(*each) for each in by_leader.items()))
        for answer in answers:
            found.update(answer)
        return found

    def _end(self, name: str, index: int) -> int | ErrorCode:
        try:
            partition = self._host.led_partition(name, index)
            partition.check_settled()
            return partition.high_watermark
        except KafkaError as error:
            return error.code

    async def _ends_at(
        self, node_id: int, wanted: Mapping[str, Sequence[int]]
    ) -> dict[tuple[str, int], int | ErrorCode]:
        kinds = ListOffsetsRequest
        topics = [
            kinds.ListOffsetsTopic(
                name, [kinds.ListOffsetsPartition(index, timestamp=_LATEST) for index in indexes]
            )
            for name, indexes in wanted.items()
        ]
        request = kinds(_CONSUMER, topics=topics)
        try:
            response = await self._host.peers.request(
                node_id, ENDS, request, timeout_ms=ENDS_TIMEOUT_MS
            )
        except (ConnectionLostError, KafkaError):
            silent = ErrorCode.LEADER_NOT_AVAILABLE
            return {(name, index): silent for name, some in wanted.items() for index in some}
        return {
            (topic.name, each.partition_index): (
                error_code(each.error_code) if each.error_code else each.offset
            )
            for topic in response.topics
            for each in topic.partitions
        }


def _start(summary: StateSummary, end: int | ErrorCode | None) -> Start:
    """`end` None: nobody can say how far the group is behind."""
    if summary.error is not ErrorCode.NONE:
        return Start()
    if isinstance(end, ErrorCode):
        return Start(0, 0, UNKNOWN_LAG, end)
    lag = UNKNOWN_LAG
    if end is not None:
        lag = max(0, end - summary.start_offset - summary.finished_count)
    return Start(summary.start_offset, summary.leader_epoch, lag)


def _by_topic(errors: Mapping[Place, ErrorCode]) -> dict[bytes, ErrorCode]:
    """The first error of each topic, NONE if there is none."""
    found: dict[bytes, ErrorCode] = {}
    for (topic_id, _), error in errors.items():
        found[topic_id] = found.get(topic_id) or error
    return found
