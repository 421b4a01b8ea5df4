"""Fetches partitions from one leader broker: one connection, one fetch session (KIP-227).

A fetcher says what changed since its last request, gets what there is, appends it, and asks on at
once: the next request acknowledges the records. The leader holds a request that finds nothing. A
change of what is to be fetched doesn't wait for that: it goes out as a second request, which makes
the leader answer the first.

Rules that it keeps:

* An answer is used only by the partition that asked for it, in the leader epoch and at the offset
  that it asked with (`core.replication.Following`; docs/rules.md, rule 3).
* A fetch acknowledges what lies below its offset. With `flush.messages=1` a partition is asked for
  again when its records are on disk.
* A session error makes it start over with all partitions (rule 37).
* A partition that can't be fetched waits by itself, up to `replica.fetch.backoff.ms`; the others go
  on. There is one timer, however many wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.network.dialing import Dialer
from kraftpy.server.network.throttle import Throttle
from kraftpy.server.replication.partition import Partition

log = logging.getLogger(__name__)

VERSIONS = {ApiKey.API_VERSIONS: (0, 3), ApiKey.FETCH: (15, 16)}
CONNECT_TIMEOUT_MS = 2_000
BACKOFF_MIN_MS = 10
THROTTLE_WAIT_S = 0.1
MAX_IN_FLIGHT = 2
FULL_FETCH_EPOCH = 0
LAST_SESSION_EPOCH = 2**31 - 1

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
# One of the two brokers has yet to hear of a change of leader.
METADATA_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

Key = tuple[bytes, int]


class FetcherHost(Protocol):
    """What a fetcher needs of its broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def follower_throttle(self) -> Throttle: ...
    @property
    def dialer(self) -> Dialer: ...


class _Fetched:
    """A partition that is fetched: where the last request asked for it, and in which request."""

    __slots__ = ("backoff_ms", "epoch", "flushed", "key", "offset", "partition", "request_number")

    def __init__(self, partition: Partition, flushed: Callable[[_Fetched], None]) -> None:
        self.partition = partition
        self.key = partition.topic_id, partition.index
        self.offset = -1
        self.epoch = -1
        self.request_number = 0
        self.backoff_ms = 0
        self.flushed: Callable[[int], None] = lambda _: flushed(self)


class ReplicaFetcher:
    """Keeps this broker's replicas of what `leader_id` leads up to date."""

    def __init__(self, host: FetcherHost, leader_id: int) -> None:
        self.leader_id = leader_id
        self._host = host
        self._loop = host.loop
        self._fetched: dict[Key, _Fetched] = {}
        self._due: dict[_Fetched, None] = {}  # to be named in the next request
        self._forgotten: set[Key] = set()
        self._delayed: dict[_Fetched, float] = {}
        self._delay_timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._version = 0
        self._session_id = 0
        self._session_epoch = FULL_FETCH_EPOCH
        self._in_flight = 0
        self._request_number = 0
        self._answered_at = 0.0
        self._backoff_ms = 0
        self._send_scheduled = False
        self._lost = asyncio.Event()
        self._retry = asyncio.Event()
        self._problem = ""
        self._task = self._loop.create_task(self._run())

    def __len__(self) -> int:
        return len(self._fetched)

    # -- what is fetched

    def add(self, partition: Partition) -> None:
        """Fetches the partition from now on, in its present leader epoch."""
        key = partition.topic_id, partition.index
        known = self._fetched.get(key)
        if known is not None:
            self._take_out(known)
        self._forgotten.discard(key)
        fetched = self._fetched[key] = _Fetched(partition, self._flushed)
        self._name_when_flushed(fetched)

    def remove(self, partition: Partition) -> None:
        fetched = self._fetched.get((partition.topic_id, partition.index))
        if fetched is not None and fetched.partition is partition:
            self._take_out(fetched)
            self._forgotten.add(fetched.key)
            self._schedule()

    def _take_out(self, fetched: _Fetched) -> None:
        del self._fetched[fetched.key]
        self._due.pop(fetched, None)
        self._delayed.pop(fetched, None)

    def _name(self, fetched: _Fetched) -> None:
        """Has the next request ask for the partition."""
        self._due[fetched] = None
        self._schedule()

    def _name_when_flushed(self, fetched: _Fetched) -> None:
        """The same; what the partition has must be on disk before, if the policy says so."""
        if not fetched.partition.flush_after(fetched.flushed):
            self._name(fetched)

    def _schedule(self) -> None:
        if not self._send_scheduled and self._connection is not None:
            # The changes of one turn of the loop go out together.
            self._send_scheduled = True
            self._loop.call_soon(self._send)

    def _delay(self, fetched: _Fetched, least_ms: int = BACKOFF_MIN_MS) -> None:
        """Asks for the partition again after a while that grows with each failure."""
        most_ms = self._host.config.replica_fetch_backoff_ms
        fetched.backoff_ms = min(max(2 * fetched.backoff_ms, least_ms), most_ms)
        self._due.pop(fetched, None)
        self._delay_until(fetched, self._loop.time() + fetched.backoff_ms / 1000)

    def _delay_until(self, fetched: _Fetched, due_s: float) -> None:
        self._delayed[fetched] = due_s
        if self._delay_timer is None:
            self._delay_timer = self._loop.call_later(BACKOFF_MIN_MS / 1000, self._look_at_delayed)

    def _look_at_delayed(self) -> None:
        self._delay_timer = None
        now_s = self._loop.time()
        for fetched in [each for each, due_s in self._delayed.items() if due_s <= now_s]:
            del self._delayed[fetched]
            self._name_when_flushed(fetched)  # the disk may have refused a part of an answer
        if self._delayed:
            next_s = max(min(self._delayed.values()), now_s + BACKOFF_MIN_MS / 1000)
            self._delay_timer = self._loop.call_at(next_s, self._look_at_delayed)

    # -- the connection

    async def _run(self) -> None:
        """Keeps a connection to the leader for as long as the fetcher lives."""
        while True:
            self._lost.clear()
            self._retry.clear()
            try:
                connection = await self._connect()
            except (ConnectionLostError, KafkaError) as error:
                self._note(str(error))
            else:
                try:
                    self._connected(connection)
                    await self._lost.wait()
                finally:
                    await connection.close()
            most_ms = self._host.config.replica_fetch_backoff_ms
            self._backoff_ms = min(max(2 * self._backoff_ms, BACKOFF_MIN_MS), most_ms)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff_ms / 1000):
                    await self._retry.wait()

    async def _connect(self) -> Connection:
        connection = await self._host.dialer.open(
            self.leader_id,
            client_id=f"broker-{self._host.node_id}-fetcher",
            timeout_ms=CONNECT_TIMEOUT_MS,
            versions=VERSIONS,
        )
        try:
            self._version = connection.version(ApiKey.FETCH)
        except KafkaError:
            await connection.close()
            raise
        return connection

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        self._in_flight = 0
        self._problem = ""
        self._start_over()
        self._send()

    def _start_over(self) -> None:
        """The session is gone, or there is none yet: the next request names every partition."""
        self._session_id, self._session_epoch = 0, FULL_FETCH_EPOCH
        self._forgotten.clear()
        self._request_number += MAX_IN_FLIGHT  # what is still on its way counts no more
        for fetched in self._fetched.values():
            fetched.request_number = self._request_number + 1
            if fetched not in self._delayed:
                self._name_when_flushed(fetched)

    def retry_now(self) -> None:
        """The leader is back, or somewhere else: no reason to wait any longer."""
        self._backoff_ms = 0
        self._retry.set()

    @property
    def heard_s(self) -> float:
        """When the leader answered last, or was asked first after a pause; the loop's time."""
        return self._answered_at

    def check(self) -> None:
        """Gives up a connection on which nothing has come for `replica.socket.timeout.ms`."""
        if self._connection is None:  # what was asked for has been given up
            return
        silent_s = self._loop.time() - self._answered_at
        if self._in_flight and silent_s * 1000 > self._host.config.replica_socket_timeout_ms:
            self._give_up(f"it has not answered for {silent_s:.0f} s")

    def _give_up(self, problem: str) -> None:
        self._note(problem)
        self._connection = None
        self._lost.set()

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("can't fetch from broker %d: %s", self.leader_id, problem)
        self._problem = problem

    def close(self) -> None:
        """Fetches nothing more."""
        self._connection = None
        self._fetched.clear()
        self._due.clear()
        self._delayed.clear()
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        self._task.cancel()

    # -- asking

    def _send(self) -> None:
        """Sends the next request, unless one is waiting that nothing has to be added to."""
        self._send_scheduled = False
        connection = self._connection
        if connection is None or not self._fetched:
            return
        if self._in_flight and (
            not self._session_id
            or self._in_flight >= MAX_IN_FLIGHT
            or not (self._due or self._forgotten)
        ):
            return
        self._hold_back_throttled()
        number = self._request_number = self._request_number + 1
        request = self._request(number)
        if not self._in_flight:
            self._answered_at = self._loop.time()
        try:
            connection.post(
                request,
                self._version,
                lambda response: self._answered(connection, number, response),
            )
        except ConnectionLostError as error:
            self._give_up(str(error))
            return
        self._in_flight += 1
        if self._session_id:
            epoch = self._session_epoch
            self._session_epoch = 1 if epoch == LAST_SESSION_EPOCH else epoch + 1

    def _hold_back_throttled(self) -> None:
        throttle, now_s = self._host.follower_throttle, self._loop.time()
        throttled = [fetched for fetched in self._due if fetched.partition.is_throttled]
        if throttled and throttle.is_exceeded(now_s):
            for fetched in throttled:
                del self._due[fetched]
                self._delay_until(fetched, now_s + THROTTLE_WAIT_S)

    def _request(self, number: int) -> FetchRequest:
        host, config = self._host, self._host.config
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(host.node_id, host.broker_epoch),
            # The first request only makes the session: changes can't overtake it.
            max_wait_ms=config.replica_fetch_wait_max_ms if self._session_id else 0,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
        )
        topics: dict[bytes, FetchRequest.FetchTopic] = {}
        for fetched in self._due:
            topic_id, index = fetched.key
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchRequest.FetchTopic(topic_id=topic_id)
            partition = fetched.partition
            fetched.request_number = number
            fetched.epoch = partition.leader_epoch
            fetched.offset, last_epoch = partition.fetch_position()
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    index,
                    fetched.epoch,
                    fetched.offset,
                    last_epoch,
                    partition.log.log_start_offset,
                    config.replica_fetch_max_bytes,
                )
            )
        request.topics = list(topics.values())
        self._due.clear()
        if self._forgotten:
            forgotten: dict[bytes, FetchRequest.ForgottenTopic] = {}
            for topic_id, index in self._forgotten:
                if topic_id not in forgotten:
                    forgotten[topic_id] = FetchRequest.ForgottenTopic(topic_id=topic_id)
                forgotten[topic_id].partitions.append(index)
            request.forgotten_topics_data = list(forgotten.values())
            self._forgotten.clear()
        return request

    # -- taking answers

    def _answered(self, connection: Connection, number: int, response: Any) -> None:
        if connection is not self._connection:
            return
        if isinstance(response, ConnectionLostError):
            self._give_up(str(response))
            return
        self._in_flight -= 1
        self._answered_at = self._loop.time()
        if response.error_code:
            self._refused(ErrorCode(response.error_code))
            return
        self._backoff_ms = 0
        if not self._session_id and response.session_id:
            self._session_id, self._session_epoch = response.session_id, 1
        scheduled, self._send_scheduled = self._send_scheduled, True  # it is sent below
        try:
            for topic in response.responses:
                for data in topic.partitions:
                    fetched = self._fetched.get((topic.topic_id, data.partition_index))
                    # GUARD answer-of-this-epoch: it may answer a request of before the last change.
                    if fetched is not None and fetched.request_number <= number:
                        self._take(fetched, data)
        finally:
            self._send_scheduled = scheduled
        self._send()

    def _refused(self, error: ErrorCode) -> None:
        if error not in SESSION_ERRORS:
            self._give_up(f"it answered {error.name}")
            return
        if self._session_id:
            self._start_over()
        # With two requests under way the second one hears of it too, and only then is it time.
        self._send()

    def _take(self, fetched: _Fetched, data: FetchResponse.PartitionData) -> None:
        """What an answer says of one partition."""
        partition = fetched.partition
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if partition.restart(data.log_start_offset, data.last_stable_offset):
                    self._name(fetched)
                else:
                    self._delay(fetched)
            elif data.error_code:
                self._failed(fetched, ErrorCode(data.error_code))
            elif data.diverging_epoch is not None:
                parts_at = data.diverging_epoch
                partition.cut_divergence(parts_at.epoch, parts_at.end_offset, data.log_start_offset)
                self._name(fetched)
            elif partition.accepts(fetched.epoch, fetched.offset):
                fetched.backoff_ms = 0
                log_start_offset = partition.log.log_start_offset
                took = partition.append_as_follower(
                    data.records, data.high_watermark, data.log_start_offset
                )
                if took:
                    partition.numbers.replicated.received_bytes += took
                    if partition.is_throttled:
                        self._host.follower_throttle.spend(took)
                    self._name_when_flushed(fetched)
                elif data.records:
                    self._delay(fetched)  # they are of an epoch that isn't known here yet
                elif partition.log.log_start_offset != log_start_offset:
                    self._name(fetched)  # DeleteRecords waits to hear of it
        except DecodeError as error:
            log.error("broker %d sent bad batches of %s: %s", self.leader_id, partition, error)
            self._delay(fetched, self._host.config.replica_fetch_backoff_ms)
        except KafkaError as error:
            log.error("can't replicate %s: %s", partition, error.message)
            self._delay(fetched, self._host.config.replica_fetch_backoff_ms)

    def _failed(self, fetched: _Fetched, error: ErrorCode) -> None:
        if error not in METADATA_ERRORS:
            log.warning(
                "broker %d can't give %s: %s", self.leader_id, fetched.partition, error.name
            )
        self._delay(fetched)

    def _flushed(self, fetched: _Fetched) -> None:
        """What was appended is on disk: it may be acknowledged."""
        if self._fetched.get(fetched.key) is fetched and fetched not in self._delayed:
            self._name(fetched)
