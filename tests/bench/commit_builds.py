"""Builds of kraftpy that do less for a commit of offsets: they bound those that do it all.

`tests.bench.builds` starts them.

* `answering`: a commit gets the answer to an earlier one of its size on the connection, and isn't
  read; what is left is the loop, the sockets and the framing;
* `relaying`: as `answering`, once the commit has been sent to two other nodes and each has sent a
  short frame back, as replication does: commits that come while one is under way go together;
* `committing`: a commit is decoded, written to a file, kept and answered by one function; no group
  is looked at, nothing is checked or counted. Other nodes that there are fetch the batch and write
  it, and the commit is answered when the next fetch of each says so: requests and answers are
  Fetch's, of a session of one partition, and what commits of one turn of the loop, or came since
  the last fetch, go together. Whichever node takes commits leads, the others follow it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any, cast

from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns, build_offset_batch
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import FetchRequest, FetchResponse, OffsetCommitResponse
from kraftpy.protocol.record_batch import LENGTH_END, stamp_batch
from kraftpy.server.broker import Broker
from kraftpy.server.network.connection import Connection, Slot
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.replication.replica_fetcher import VERSIONS

CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 64 * 1024

# No API has these keys. What comes back of the first is about as long as a follower's next fetch;
# the second comes with the id of the node that wants to be followed.
_PASSED_ON = 0x7FFF
_FOLLOW_ME = 0x7FFE
_ECHO = Struct(">i96x").pack(96)
_API_KEY = Struct(">h")
_NODE_ID = Struct(">hi")
_CORRELATION_ID = slice(4, 8)  # of a request
_INT32 = Struct(">i")
# Where a request says who sends it, and who follows what is led here.
_CLIENT = slice(8, 14)
_CLIENT_ID = "bare"
_OF_A_FOLLOWER = b"\0\4bare"
_FETCH_VERSION = VERSIONS[ApiKey.FETCH][1]
_SESSION_ID = 1
_TOPIC_ID = bytes(16)
_LEADER_EPOCH = 0
_MAX_BYTES = 10 * 1024 * 1024
_FOREVER_MS = 2**31 - 1
# Base offset, length of what follows it, last offset delta.
_BATCH = Struct(">qi11xi")

Take = Callable[[Dispatcher, Connection, memoryview], bool]
"""Does all that is done for a request; False if it is kraftpy's after all."""


def _take(requests: dict[int, Take]) -> None:
    """Has these functions take the requests with these keys."""
    dispatch = Dispatcher.dispatch

    def dispatch_or_take(self: Dispatcher, connection: Connection, frame: memoryview) -> int:
        take = requests.get(_API_KEY.unpack_from(frame)[0])
        if take is not None and take(self, connection, frame):
            return 0
        return dispatch(self, connection, frame)

    Dispatcher.dispatch = dispatch_or_take  # type: ignore[method-assign]


# -- one node: a commit by itself


def bare_commit(
    frame: memoryview, kept: dict[tuple[str, str], OffsetRun], now_ms: int
) -> tuple[bytes, bytes]:
    """Takes a commit on: the batch to be written, and the frame of the answer."""
    header, position = codec.decode_request_header(frame)
    request = codec.decode_request(ApiKey.OFFSET_COMMIT, header.api_version, frame, position)
    runs, topics = [], []
    for topic in request.topics:
        partitions = [each.partition_index for each in topic.partitions]
        run = OffsetRun(
            request.group_id,
            topic.name,
            partitions,
            [each.committed_offset for each in topic.partitions],
            [each.committed_leader_epoch for each in topic.partitions],
            [now_ms] * len(partitions),
        )
        runs.append(run)
        kept[request.group_id, topic.name] = run
        answers = list(map(OffsetCommitResponse.OffsetCommitResponsePartition, partitions))
        topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(topic.name, partitions=answers)
        )
    batch = build_offset_batch(OffsetRuns(runs), now_ms)
    assert batch is not None
    return batch, _answer(ApiKey.OFFSET_COMMIT, header, OffsetCommitResponse(topics=topics))


def _answer(key: ApiKey, header: codec.RequestHeader, response: Any) -> bytes:
    """The response with its size in front."""
    body = codec.encode_response(key, header.api_version, header.correlation_id, response)
    return _sized(body)


def _sized(parts: list[Any]) -> bytes:
    return b"".join((_INT32.pack(sum(map(len, parts))), *parts))


class _Answers:
    """The answer to the first of a connection's commits of a size, for all of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Connection, int], bytes] = {}

    def answer_to(self, connection: Connection, frame: memoryview) -> bytes:
        known = self._known.get((connection, len(frame)))
        if known is None:
            _, known = bare_commit(frame, {}, 0)
            self._known[connection, len(frame)] = known
        return b"".join((known[:4], frame[_CORRELATION_ID], known[8:]))


def answering() -> None:
    """Repeats an earlier answer for each commit."""
    answers = _Answers()

    def repeat(_: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        connection.respond([answers.answer_to(connection, frame)])
        return True

    _take({ApiKey.OFFSET_COMMIT: repeat})


# -- nodes that talk to one another


def _connect(broker: Broker, node_id: int) -> socket.socket:
    endpoint = broker.metadata.brokers[node_id].endpoints[0]
    sock = socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT_S)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _others(broker: Broker) -> list[int]:
    return [node_id for node_id in broker.metadata.brokers if node_id != broker.node_id]


class _Link:
    """A connection to another node, on which one request at a time is under way.

    `on_answer` gets the frame of the answer, without its size.
    """

    def __init__(
        self, broker: Broker, node_id: int, on_answer: Callable[[memoryview], None]
    ) -> None:
        self._sock = _connect(broker, node_id)
        self._loop = broker.loop
        self._on_answer = on_answer
        self._received = b""
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def send(self, parts: list[Any]) -> None:
        self._sock.sendall(_sized(parts))

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            return
        received = self._received = self._received + data
        if len(received) > 4 and _INT32.unpack_from(received)[0] == len(received) - 4:
            self._received = b""
            self._on_answer(memoryview(received)[4:])


class _Relay:
    """Another node that gets what is passed on, one frame at a time, and sends a short one back."""

    def __init__(self, broker: Broker, node_id: int) -> None:
        self._link = _Link(broker, node_id, self._on_answer)
        self._under_way: list[tuple[bytes, Callable[[], None]]] = []
        self._next: list[tuple[bytes, Callable[[], None]]] = []

    def pass_on(self, data: bytes, came_back: Callable[[], None]) -> None:
        """With what else waits, as soon as the frame before is back."""
        self._next.append((data, came_back))
        if not self._under_way:
            self._send()

    def _send(self) -> None:
        self._under_way, self._next = self._next, []
        self._link.send([_API_KEY.pack(_PASSED_ON), *(data for data, _ in self._under_way)])

    def _on_answer(self, _frame: memoryview) -> None:
        back, self._under_way = self._under_way, []
        if self._next:
            self._send()
        for _, came_back in back:
            came_back()


def relaying() -> None:
    """Passes each commit on to the other nodes; when it is back, repeats an earlier answer."""
    answers = _Answers()
    relays: list[_Relay] = []

    def relay(self: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        if not relays:
            broker = cast(Broker, self._broker)
            relays.extend(_Relay(broker, node_id) for node_id in _others(broker))
        slot, answer = connection.defer(concurrent=False), answers.answer_to(connection, frame)
        left = len(relays)

        def came_back() -> None:
            nonlocal left
            left -= 1
            if not left:
                connection.complete(slot, [answer])

        data = bytes(frame)
        for each in relays:
            each.pass_on(data, came_back)
        return True

    def echo(_: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        connection.respond([_ECHO])
        return True

    _take({ApiKey.OFFSET_COMMIT: relay, _PASSED_ON: echo})


# -- a commit by itself, and its replicas


def log_path(folder: Path, leader_id: int) -> Path:
    """Where a node has the commits that `leader_id` took, in its folder of partitions."""
    return folder / f"bare-commits-{leader_id}.log"


class _Log:
    """A file of batches, one behind the other, and the offset that comes next."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        path = log_path(Path(broker.config.data_dirs[0]), leader_id)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.end_offset = 0

    def stamp_and_append(self, batch: bytes) -> bytearray:
        """For a leader; returns the batch as it was written."""
        stamped = bytearray(batch)
        stamp_batch(stamped, 0, self.end_offset, _LEADER_EPOCH)
        self.append(stamped)
        return stamped

    def append(self, batches: bytearray | memoryview) -> None:
        """Takes whole batches, as they are."""
        os.write(self._fd, batches)
        position = 0
        while position < len(batches):
            base_offset, length, last_delta = _BATCH.unpack_from(batches, position)
            position += LENGTH_END + length
            self.end_offset = base_offset + last_delta + 1


class _Follower:
    """A follower as its leader knows it: what it lacks, up to where it has all, and its fetch."""

    def __init__(self) -> None:
        self.lacks: list[bytearray] = []
        self.end_offset = 0
        self.parked: tuple[Connection, codec.RequestHeader] | None = None


class _Leader:
    """Takes commits, and answers each when every follower has it."""

    def __init__(self, broker: Broker) -> None:
        self._loop = broker.loop
        self._log = _Log(broker, broker.node_id)
        self._kept: dict[tuple[str, str], OffsetRun] = {}
        self._followers = {node_id: _Follower() for node_id in _others(broker)}
        self._waiting: deque[tuple[int, Connection, Slot, bytes]] = deque()
        self._high_watermark = 0
        self._woken = False
        for node_id in self._followers:
            with _connect(broker, node_id) as sock:
                sock.sendall(_sized([_NODE_ID.pack(_FOLLOW_ME, broker.node_id)]))

    def commit(self, connection: Connection, frame: memoryview) -> None:
        batch, answer = bare_commit(frame, self._kept, int(time.time() * 1000))
        stamped = self._log.stamp_and_append(batch)
        if not self._followers:
            connection.respond([answer])
            return
        slot = connection.defer(concurrent=False)
        self._waiting.append((self._log.end_offset, connection, slot, answer))
        for follower in self._followers.values():
            follower.lacks.append(stamped)
        self._wake()

    def fetch(self, connection: Connection, frame: memoryview) -> None:
        header, position = codec.decode_request_header(frame)
        request = codec.decode_request(ApiKey.FETCH, header.api_version, frame, position)
        follower = self._followers[request.replica_state.replica_id]
        follower.end_offset = request.topics[0].partitions[0].fetch_offset
        follower.parked = connection, header
        self._high_watermark = min(each.end_offset for each in self._followers.values())
        while self._waiting and self._waiting[0][0] <= self._high_watermark:
            _, client, slot, answer = self._waiting.popleft()
            client.complete(slot, [answer])
        if follower.lacks:
            self._wake()

    def _wake(self) -> None:
        if not self._woken:
            # What comes in one turn of the loop goes together.
            self._woken = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._woken = False
        for follower in self._followers.values():
            if follower.lacks and follower.parked is not None:
                connection, header = follower.parked
                data = FetchResponse.PartitionData(
                    0,
                    high_watermark=self._high_watermark,
                    log_start_offset=0,
                    records=follower.lacks,
                )
                topic = FetchResponse.FetchableTopicResponse(topic_id=_TOPIC_ID, partitions=[data])
                response = FetchResponse(session_id=_SESSION_ID, responses=[topic])
                answer = _answer(ApiKey.FETCH, header, response)
                follower.lacks, follower.parked = [], None
                # Only now: a node that is stopped waits for answers that are due.
                connection.complete(connection.defer(concurrent=True), [answer])


class _Following:
    """Has this node fetch what another one leads, and write it."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        self._state = FetchRequest.ReplicaState(broker.node_id, broker.broker_epoch)
        self._log = _Log(broker, leader_id)
        self._session_id = self._session_epoch = 0
        self._link = _Link(broker, leader_id, self._on_answer)
        self._fetch()

    def _fetch(self) -> None:
        partition = FetchRequest.FetchPartition(
            0, _LEADER_EPOCH, self._log.end_offset, _LEADER_EPOCH, 0, _MAX_BYTES
        )
        request = FetchRequest(
            replica_state=self._state,
            max_wait_ms=_FOREVER_MS,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[FetchRequest.FetchTopic(topic_id=_TOPIC_ID, partitions=[partition])],
        )
        # A request's number in its session will do for its number on the connection.
        epoch = self._session_epoch
        self._link.send(
            codec.encode_request(ApiKey.FETCH, _FETCH_VERSION, epoch, _CLIENT_ID, request)
        )

    def _on_answer(self, frame: memoryview) -> None:
        _, response = codec.decode_response(ApiKey.FETCH, _FETCH_VERSION, frame)
        self._session_id = response.session_id
        self._session_epoch += 1
        self._log.append(response.responses[0].partitions[0].records)
        self._fetch()


def committing() -> None:
    """Commits offsets in one function, and replicates them where there are other nodes."""
    leader: _Leader | None = None
    followings: list[_Following] = []

    def commit(self: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        nonlocal leader
        if leader is None:
            leader = _Leader(cast(Broker, self._broker))
        leader.commit(connection, frame)
        return True

    def fetch(_: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        if leader is None or frame[_CLIENT] != _OF_A_FOLLOWER:
            return False
        leader.fetch(connection, frame)
        return True

    def follow(self: Dispatcher, connection: Connection, frame: memoryview) -> bool:
        _, leader_id = _NODE_ID.unpack_from(frame)
        followings.append(_Following(cast(Broker, self._broker), leader_id))
        return True

    _take({ApiKey.OFFSET_COMMIT: commit, ApiKey.FETCH: fetch, _FOLLOW_ME: follow})
