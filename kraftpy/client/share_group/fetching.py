"""What a member of a share group has leased from all leaders, and the requests that are under way.

Rules:

* Records are fetched when all that were leased are handed out, and only while somebody asks for
  them: the time of a lease begins at the leader. So there is one answer of each leader at most.
* What was said of records goes with the next fetch to their leader; by itself if there is none, if
  it is `ACKNOWLEDGED_AFTER_S` old, for a commit, and when leases are to be renewed.
* What is leased of topics that aren't subscribed to any more is released, and not handed out.
* A request is never given up once it is sent: its answer says what the session's epoch is, and what
  became of acknowledgements.
* What fails is tried again while that may help, for the cluster's request timeout; who leads is
  believed to whoever says so with a newer epoch (KIP-951), and else asked for.
* Markers of transactions and compacted records are acknowledged as gaps; damaged ones are released,
  and come again until the group's limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from kraftpy.client.cluster import BrokerInfo, Cluster, NoBrokerError, Retry, new_lane
from kraftpy.client.consumer_records import Deserializer, deserialized
from kraftpy.client.offsets import Partition
from kraftpy.client.share_group.acknowledgements import Acknowledgements, Refusal, refusal_of
from kraftpy.client.share_group.leased import Key, Lease, ShareRecord, Tenure, read_leased, runs_of
from kraftpy.client.share_group.session import FetchOptions, ShareSession
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.records import Record

ACKNOWLEDGED_AFTER_S = 1.0
_LOOK_UP_PAUSE_S = 0.1
_LOOK_UP_PAUSE_MAX_S = 1.0
_NEW_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class _Chunk:
    """What an answer has of a partition, and how many of its records are handed out."""

    __slots__ = ("lease", "records", "taken")

    def __init__(self, lease: Lease, records: list[tuple[Record, int]]) -> None:
        self.lease = lease
        self.records = records
        self.taken = 0


class ShareFetching:
    """The sessions of one consumer; `changed` is called when there is something new."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        member_id: str,
        acknowledgements: Acknowledgements,
        options: FetchOptions,
        deserializers: tuple[Deserializer | None, Deserializer | None],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._acknowledgements = acknowledgements
        self._deserializers = deserializers
        self._changed = changed
        self._lane = new_lane("share")
        self._make_session = partial(
            ShareSession, cluster, group_id, member_id, self._lane, options, acknowledgements
        )
        self._sessions: dict[int, ShareSession] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._retries: dict[int, Retry] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_up_pause_s = _LOOK_UP_PAUSE_S
        self._is_outdated = False
        self._chunks: deque[_Chunk] = deque()
        self._failure: Exception | None = None
        self.lock_ms: int | None = None
        """How long leases last, as a leader said last."""

    # -- handing out

    def take(self, most: int) -> list[ShareRecord[Any, Any]]:
        """Hands records out, up to so many; raises what a deserializer raises of the first."""
        taken: list[ShareRecord[Any, Any]] = []
        now_s = asyncio.get_running_loop().time()
        while self._chunks and len(taken) < most:
            chunk = self._chunks[0]
            lease = chunk.lease
            if chunk.taken == len(chunk.records) or lease.why_over(now_s) is not None:
                self._chunks.popleft()
                continue
            for record, count in chunk.records[chunk.taken : chunk.taken + most - len(taken)]:
                try:
                    taken.append(self._handed_out(lease, record, count))
                except Exception as error:
                    if taken:
                        return taken
                    chunk.taken += 1
                    offset = record.offset
                    self._acknowledgements.say_own(
                        lease, [(offset, offset)], AcknowledgeType.RELEASE
                    )
                    error.add_note("it is released, and comes again until the group's limit")
                    raise
                chunk.taken += 1
        return taken

    def _handed_out(self, lease: Lease, record: Record, count: int) -> ShareRecord[Any, Any]:
        key, value = record.key, record.value
        of_key, of_value = self._deserializers
        name, offset = lease.name, record.offset
        if of_key is not None and key is not None:
            key = deserialized(of_key, key, "key", name, offset)
        if of_value is not None and value is not None:
            value = deserialized(of_value, value, "value", name, offset)
        return ShareRecord(
            *name, offset, record.timestamp, key, value, record.headers, count, lease
        )

    # -- going on

    def advance(self, assigned: Collection[Key], topics: Collection[str]) -> None:
        """Starts what is due; raises what went wrong for good."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._release_others(topics)
        leaders: dict[int, dict[Key, Partition]] = {}
        if not self._chunks:
            leaders = self._leaders(assigned, topics)
            for node_id in self._retries.keys() - leaders.keys() - self._tasks.keys():
                del self._retries[node_id]
        due_s = asyncio.get_running_loop().time() - ACKNOWLEDGED_AFTER_S
        for node_id, session in self._sessions.items():
            tenure = session.tenure
            if node_id not in self._tasks and (
                self._acknowledgements.renews(tenure)
                or self._acknowledgements.since_s(tenure) < due_s
                or (not self._chunks and self._has_stray(tenure, leaders.get(node_id, ())))
            ):
                self._start(node_id, partial(self._acknowledge, session))
        for node_id, wanted in leaders.items():
            if node_id not in self._tasks:
                self._start(node_id, partial(self._fetch, self._session(node_id), wanted))

    def _release_others(self, topics: Collection[str]) -> None:
        """Gives back what is leased of topics other than these."""
        if all(chunk.lease.name[0] in topics for chunk in self._chunks):
            return
        now_s = asyncio.get_running_loop().time()
        kept: deque[_Chunk] = deque()
        for chunk in self._chunks:
            lease = chunk.lease
            if lease.name[0] in topics:
                kept.append(chunk)
            elif lease.why_over(now_s) is None:
                runs = runs_of(record.offset for record, _ in chunk.records[chunk.taken :])
                self._acknowledgements.say_own(lease, runs, AcknowledgeType.RELEASE)
        self._chunks = kept

    def _has_stray(self, tenure: Tenure, wanted: Collection[Key]) -> bool:
        """Whether something is to be said of partitions that aren't fetched from there any more."""
        return any(key not in wanted for key in self._acknowledgements.keys(tenure))

    def _session(self, node_id: int) -> ShareSession:
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = self._make_session(node_id)
        return session

    def _start(self, node_id: int, work: Callable[[], Awaitable[None]]) -> None:
        task = self._tasks[node_id] = asyncio.create_task(self._patiently(node_id, work))
        task.add_done_callback(lambda ended: self._end(node_id, ended))

    def _end(self, node_id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(node_id) is task:
            del self._tasks[node_id]
        self._note(task)

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            failure = task.exception()
            if isinstance(failure, Exception):
                self._failure = self._failure or failure
        self._changed()

    async def _patiently(self, node_id: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (ConnectionError, KafkaError) as error:
            self._is_outdated = True
            retry = self._retries.setdefault(node_id, Retry(self._cluster.request_timeout_ms))
            try:
                await retry.wait(error)
            except (ConnectionError, KafkaError):
                del self._retries[node_id]
                raise
        else:
            self._retries.pop(node_id, None)

    # -- who leads

    def _leaders(
        self, assigned: Collection[Key], topics: Collection[str]
    ) -> dict[int, dict[Key, Partition]]:
        """The partitions that each broker leads; those of which that isn't known are looked up."""
        leaders: dict[int, dict[Key, Partition]] = {}
        names = self.names(topics)
        for key in assigned:
            topic = names.get(key[0])
            try:
                if topic is not None:
                    leader = self._cluster.leader(topic, key[1])
                    leaders.setdefault(leader, {})[key] = (topic, key[1])
                    continue
            except KafkaError:
                pass
            self._is_outdated = True
        if self._is_outdated and self._looking is None and topics:
            self._looking = asyncio.create_task(self._look_up(sorted(topics)))
            self._looking.add_done_callback(self._note)
        elif not self._is_outdated:
            self._look_up_pause_s = _LOOK_UP_PAUSE_S
        return leaders

    def names(self, topics: Collection[str]) -> dict[bytes, str]:
        """The names of topics by their ids, as far as those are known."""
        known = self._cluster.topics
        return {known[topic].id: topic for topic in topics if topic in known}

    async def _look_up(self, topics: list[str]) -> None:
        self._is_outdated = False
        try:
            errors = await self._cluster.refresh(topics)
            for topic, error in errors.items():
                if not error.code.retriable:
                    raise KafkaError(error.code, f"topic {topic!r}: {error.message}")
            pause_s = self._look_up_pause_s
            self._look_up_pause_s = min(2 * pause_s, _LOOK_UP_PAUSE_MAX_S)
            self._changed()
            await asyncio.sleep(pause_s)
        except NoBrokerError as error:
            if error.first_contact:
                raise
            self._is_outdated = True
            await asyncio.sleep(_LOOK_UP_PAUSE_S)
        except ConnectionError:
            self._is_outdated = True
            await asyncio.sleep(_LOOK_UP_PAUSE_S)
        finally:
            self._looking = None

    def _learn(self, response: Any, data: Any, name: Partition) -> bool:
        """Whether a leader that isn't one has said who is."""
        for node in response.node_endpoints:
            self._cluster.brokers[node.node_id] = BrokerInfo(
                node.node_id, node.host, node.port, node.rack
            )
        leader = data.current_leader
        return self._cluster.learn_leader(*name, leader.leader_id, leader.leader_epoch)

    # -- requests

    async def _fetch(self, session: ShareSession, wanted: Mapping[Key, Partition]) -> None:
        await session.connect()
        said = self._acknowledgements.take(session.tenure, wanted)
        tenure = session.tenure
        response = await session.fetch(wanted, said)
        self.lock_ms = response.acquisition_lock_timeout_ms or self.lock_ms
        lock_s = response.acquisition_lock_timeout_ms / 1000
        deadline_s = asyncio.get_running_loop().time() + lock_s
        refusals = dict[Key, Refusal](dict.fromkeys(said, _not_told()))
        failure: KafkaError | None = None
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                name = wanted.get(key)
                if name is None:
                    continue
                if key in said:
                    del refusals[key]
                    if data.acknowledge_error_code:
                        refusals[key] = refusal_of(
                            data.acknowledge_error_code, data.acknowledge_error_message, name
                        )
                if data.error_code:
                    failure = self._failed(response, data, name) or failure
                elif data.acquired_records:
                    self._keep(Lease(key, name, tenure, deadline_s), data)
        self._acknowledgements.settle(said, refusals, lock_s)
        if failure is not None and not self._chunks:
            raise failure

    def _failed(self, response: Any, data: Any, name: Partition) -> KafkaError | None:
        """What of a partition's error is to be tried again after a while."""
        code = error_code(data.error_code)
        if code in _NEW_LEADER and self._learn(response, data, name):
            return None
        self._is_outdated = True
        return KafkaError(code, f"{name[0]}-{name[1]}: {data.error_message or code.message}")

    def _keep(self, lease: Lease, data: Any) -> None:
        say = self._acknowledgements.say_own
        try:
            found = read_leased(data)
        except DecodeError as error:
            runs = [(run.first_offset, run.last_offset) for run in data.acquired_records]
            say(lease, runs, AcknowledgeType.RELEASE)
            self._failure = KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{lease.name[0]}-{lease.name[1]} at offsets {runs[0][0]} to {runs[-1][1]}: "
                f"{error}; they are released, and come again until the group's limit",
            )
            return
        say(lease, found.gaps, AcknowledgeType.GAP)
        say(lease, found.missing, AcknowledgeType.RELEASE)
        if found.records:
            self._chunks.append(_Chunk(lease, found.records))

    async def _acknowledge(self, session: ShareSession, *, final: bool = False) -> None:
        await session.connect()
        said = self._acknowledgements.take(session.tenure)
        if not said:
            return
        response = await session.acknowledge(said, final=final)
        refusals = dict[Key, Refusal](dict.fromkeys(said, _not_told()))
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                if key not in said:
                    continue
                del refusals[key]
                if data.error_code:
                    name = said[key].name
                    refusals[key] = refusal_of(data.error_code, data.error_message, name)
                    if error_code(data.error_code) in _NEW_LEADER:
                        self._is_outdated |= not self._learn(response, data, name)
        lock_ms = response.acquisition_lock_timeout_ms or self.lock_ms or 0
        self._acknowledgements.settle(said, refusals, lock_ms / 1000)

    # -- ending

    async def commit(self) -> None:
        """Returns when it is known what became of everything that was said before."""
        while True:
            tasks = []
            for node_id, session in self._sessions.items():
                if session.in_flight or self._acknowledgements.pending(session.tenure):
                    if node_id not in self._tasks:
                        self._start(node_id, partial(self._acknowledge, session))
                    tasks.append(self._tasks[node_id])
            if not tasks:
                return
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Says what there is to be said, and gives back what is leased."""
        self._chunks.clear()
        try:
            await self._say_last()
        finally:  # also if nobody waits any more
            for session in self._sessions.values():
                session.end()
            self._sessions.clear()
            await self._cluster.close_lane(self._lane)

    async def _say_last(self) -> None:
        under_way = list(self._tasks.values())
        for node_id, task in self._tasks.items():
            if not self._sessions[node_id].in_flight:
                task.cancel()
        if self._looking is not None:
            self._looking.cancel()
            under_way.append(self._looking)
        await asyncio.gather(*under_way, return_exceptions=True)
        last = [
            self._acknowledge(session, final=True)
            for session in self._sessions.values()
            if self._acknowledgements.pending(session.tenure)
        ]
        await asyncio.gather(*last, return_exceptions=True)


def _not_told() -> KafkaError:
    text = "the leader's answer doesn't say what became of it"
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
