"""Members of share groups in raw requests, over connections of kraftpy's client.

Rules:

* A member has a connection of its own to each leader, and the session of that; when one is lost,
  or there is no answer in time, it is closed, so that the leader gives back what was leased by it.
* In which epoch a leader leased something is asked of that leader before and after: the same answer
  twice, and it was in this one.
* Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.client.coordinator import Coordinator
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    RENEW,
    TIMEOUT_S,
    Errors,
    Lease,
    NotDoneError,
    Said,
    UnknownError,
    key_of,
)
from kraftpy.testing.consistency.clients.own import Session

_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_CONNECT_MS = 2_000
_VERSION = 2
_BYTES_MAX = 1 << 20
_LEAVE, _JOIN, _END = -1, 0, -1
_METADATA_VERSION = 12
_UNKNOWN = -1


class _Link:
    """A connection to a leader; `epoch` is that of the session's next request."""

    def __init__(self, number: int, node: int, connection: Connection) -> None:
        self.number = number
        self.node = node
        self.connection = connection
        self.epoch = 0

    async def ask(self, request: Any, version: int) -> Any:
        return await self.connection.request(request, timeout_ms=_TIMEOUT_MS, version=version)


class _Member:
    """See `LeaseMember`."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._session = Session(bootstrap)
        self._group = group
        self._topic = topic
        self._id = str(uuid.uuid4())
        self._numbers = itertools.count()
        self._links: dict[int, _Link] = {}
        self._epoch = _JOIN
        self._partitions: list[int] = []
        self._topic_id = b""
        self._coordinator, self._beating = self._session.run(self._begin())

    async def _begin(self) -> tuple[Coordinator, asyncio.Task[None]]:
        cluster = self._session.cluster
        await cluster.refresh([self._topic])
        coordinator = Coordinator(cluster, self._group)
        return coordinator, asyncio.create_task(self._beat(coordinator))

    # -- being a member

    async def _beat(self, coordinator: Coordinator) -> None:
        while True:
            try:
                await self._beat_once(coordinator, self._epoch)
            except (ConnectionError, KafkaError):
                coordinator.forget()
            await asyncio.sleep(HEARTBEAT_INTERVAL_MS / 1000)

    async def _beat_once(self, coordinator: Coordinator, epoch: int) -> None:
        topics = [self._topic] if epoch == _JOIN else None
        request = messages.ShareGroupHeartbeatRequest(self._group, self._id, epoch, None, topics)
        answer = await coordinator.ask(request, timeout_ms=_TIMEOUT_MS, version=1)
        code = error_code(answer.error_code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self._epoch, self._partitions = _JOIN, []
        elif code:
            raise KafkaError(code)
        else:
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._partitions = [
                    index
                    for each in answer.assignment.topic_partitions
                    for index in each.partitions
                ]

    # -- leaders

    async def _link(self) -> tuple[_Link, list[int]]:
        """To one of the leaders of what it is assigned, and those partitions."""
        cluster = self._session.cluster
        if not self._partitions:
            await asyncio.sleep(HEARTBEAT_INTERVAL_MS / 1000)
            raise ConnectionLostError("nothing is assigned")
        topic = await cluster.topic(self._topic)
        self._topic_id = topic.id
        leaders: dict[int, list[int]] = {}
        for index in self._partitions:
            leaders.setdefault(topic.partitions[index].leader, []).append(index)
        leaders.pop(-1, None)
        if not leaders:
            raise ConnectionLostError("nobody leads")
        node = random.choice(sorted(leaders))  # noqa: S311 - no secret
        link = self._links.get(node)
        if link is None or link.connection.closed:
            broker = cluster.brokers[node]
            security = secured.own()
            connection = await Connection.open(
                broker.host,
                broker.port,
                timeout_ms=_CONNECT_MS,
                ssl_context=security.ssl_context,
                login=security.login,
            )
            link = self._links[node] = _Link(next(self._numbers), node, connection)
        return link, leaders[node]

    async def _drop(self, link: _Link) -> None:
        """Ends a session with its connection."""
        if self._links.get(link.node) is link:
            del self._links[link.node]
        await link.connection.close()

    async def _epochs(self, link: _Link, indexes: Sequence[int]) -> dict[str, int]:
        """Of the partitions that the other end leads, as far as it knows."""
        kinds = messages.MetadataRequest
        request = kinds([kinds.MetadataRequestTopic(name=self._topic)], False)
        answer = await link.ask(request, _METADATA_VERSION)
        return {
            key_of((self._topic, each.partition_index)): each.leader_epoch
            for topic in answer.topics
            for each in topic.partitions
            if each.partition_index in indexes and each.leader_id == link.node
        }

    def lease(self, most: int, wait_ms: int, *, strict: bool) -> Lease:
        return self._session.run(self._lease(most, wait_ms, strict))

    async def _lease(self, most: int, wait_ms: int, strict: bool) -> Lease:
        try:
            link, indexes = await self._link()
        except (ConnectionError, KafkaError) as error:
            await self._refresh()
            raise NotDoneError(repr(error)) from None
        try:
            before = await self._epochs(link, indexes)
        except (ConnectionError, KafkaError) as error:
            await self._drop(link)
            raise NotDoneError(repr(error)) from None
        kinds = messages.ShareFetchRequest
        request = kinds(
            self._group,
            self._id,
            link.epoch,
            wait_ms,
            1,
            _BYTES_MAX,
            most,
            most,
            int(strict),
            topics=[
                kinds.FetchTopic(self._topic_id, [kinds.FetchPartition(i, []) for i in indexes])
            ],
        )
        try:
            answer = await link.ask(request, _VERSION)
            if answer.error_code:
                raise NotDoneError(error_code(answer.error_code).name)
            link.epoch += 1
            runs, errors = _taken(self._topic, answer)
            if errors:
                await self._refresh()
            if errors and not runs:
                raise NotDoneError(errors.pop())
            after = await self._epochs(link, indexes)
        except NotDoneError:
            await self._drop(link)
            raise
        except (ConnectionError, KafkaError) as error:
            await self._drop(link)
            raise UnknownError(repr(error)) from None
        epochs = {key: epoch for key, epoch in before.items() if after.get(key) == epoch}
        return Lease(runs, link.node, link.number, epochs, answer.acquisition_lock_timeout_ms)

    async def _refresh(self) -> None:
        with contextlib.suppress(ConnectionError, KafkaError):
            await self._session.cluster.refresh([self._topic])

    def _linked(self, number: int) -> _Link:
        """Raises NotDoneError if the connection is gone."""
        for link in self._links.values():
            if link.number == number and not link.connection.closed:
                return link
        raise NotDoneError("the connection has ended")

    def hold(self, link: int, keys: Sequence[str]) -> dict[str, int]:
        async def hold() -> dict[str, int]:
            at = self._linked(link)
            return await self._epochs(at, [int(key.rpartition("-")[2]) for key in keys])

        return self._session.run(hold())

    def say(self, link: int, said: Said) -> Errors:
        return self._session.run(self._say(self._linked(link), said))

    async def _say(self, link: _Link, said: Said) -> Errors:
        kinds = messages.ShareAcknowledgeRequest
        partitions = [
            kinds.AcknowledgePartition(
                int(key.rpartition("-")[2]),
                [kinds.AcknowledgementBatch(*each) for each in _batches(those)],
            )
            for key, those in said.items()
        ]
        renews = any(kind == RENEW for those in said.values() for _, kind in those)
        topics = [kinds.AcknowledgeTopic(self._topic_id, partitions)]
        request = kinds(self._group, self._id, link.epoch, renews, topics)
        try:
            answer = await link.ask(request, _VERSION)
        except (ConnectionError, KafkaError) as error:
            await self._drop(link)
            raise UnknownError(repr(error)) from None
        if answer.error_code:
            await self._drop(link)
            raise NotDoneError(error_code(answer.error_code).name)
        link.epoch += 1
        return {
            key_of((self._topic, each.partition_index)): error_code(each.error_code).name
            for topic in answer.responses
            for each in topic.partitions
            if each.error_code
        }

    def close(self) -> None:
        self._session.close(self._leave())

    async def _leave(self) -> None:
        self._beating.cancel()
        for link in list(self._links.values()):
            if link.epoch:
                kinds = messages.ShareAcknowledgeRequest
                with contextlib.suppress(ConnectionError, KafkaError):
                    await link.ask(kinds(self._group, self._id, _END, False, []), _VERSION)
            await link.connection.close()
        with contextlib.suppress(ConnectionError, KafkaError):
            await self._beat_once(self._coordinator, _LEAVE)
        await self._coordinator.close()


def _taken(topic: str, answer: Any) -> tuple[dict[str, list[list[int]]], set[str]]:
    """The runs that a fetch gave, by key, and the errors of other partitions."""
    runs, errors = {}, set()
    for each in answer.responses:
        for data in each.partitions:
            if data.error_code:
                errors.add(error_code(data.error_code).name)
            elif data.acquired_records:
                runs[key_of((topic, data.partition_index))] = [
                    [run.first_offset, run.last_offset, run.delivery_count]
                    for run in data.acquired_records
                ]
    return runs, errors


def _batches(said: Sequence[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Offsets without a gap as one batch each."""
    found = []
    for _, those in groupby(enumerate(sorted(said)), lambda each: each[1][0] - each[0]):
        batch = [each for _, each in those]
        found.append((batch[0][0], batch[-1][0], [kind for _, kind in batch]))
    return found


class _Starts:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._session = Session(bootstrap)
        self._group = group

    def read(self) -> dict[str, tuple[int, int]]:
        admin = GroupAdmin(self._session.cluster, timeout_ms=_TIMEOUT_MS)
        found = self._session.run(admin.share_offsets(self._group))
        return {
            key_of(place): (each.offset, _UNKNOWN if each.lag is None else each.lag)
            for place, each in found.items()
        }

    def close(self) -> None:
        self._session.close()


class _OwnLeases:
    member = staticmethod(_Member)
    starts = staticmethod(_Starts)


ADAPTER = _OwnLeases()
