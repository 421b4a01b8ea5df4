"""Raw-socket load: prebuilt Produce requests sent again and again, and a reader that only reads.

A client that encodes and decodes costs as much as a fast broker; these cost next to nothing, so
that the broker is what is measured. One connection, `DEPTH` requests under way, acks=1.
Produce v7 and Fetch v11 are the last versions before the flexible ones, known to old and new
brokers alike; their layout is fixed for one topic of one partition.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple, Protocol

from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import RECORD_BATCH_OVERHEAD, build_batch
from tests.processes import cpu_seconds, receive_exactly, split_address

DEPTH = 5
TIMEOUT_S = 30.0
PRODUCE_VERSION = 7
FETCH_VERSION = 11
RECORD_VALUE_BYTES = 1000


class Target(Protocol):
    """A broker whose partition 0 this is about, and its processes."""

    bootstrap: str

    def pids(self) -> list[int]: ...


class Replay(NamedTuple):
    requests: int
    bytes: int
    seconds: float
    broker_cpu_seconds: float


def batch_of(size_bytes: int) -> tuple[bytes, int]:
    """A record batch of at most this size out of 1 KB records (one smaller record if need be).

    Returns its bytes and its number of records.
    """
    now_ms = int(time.time() * 1000)
    room = size_bytes - RECORD_BATCH_OVERHEAD
    # 16 bytes are more than a record's own overhead at these sizes.
    count, value_size = max(1, room // (RECORD_VALUE_BYTES + 16)), RECORD_VALUE_BYTES
    if room < RECORD_VALUE_BYTES + 16:
        value_size = room - 16
    value = bytes(i * 31 % 251 for i in range(value_size))
    return bytes(build_batch([(now_ms, None, value, [])] * count)), count


def _frame(key: ApiKey, version: int, request: object) -> bytes:
    body = b"".join(codec.encode_request(key, version, 1, "replay", request))
    return struct.pack(">i", len(body)) + body


def produce_frame(topic: str, batch: bytes) -> bytes:
    request = messages.ProduceRequest
    partition = request.PartitionProduceData(index=0, records=memoryview(batch))
    data = request.TopicProduceData(name=topic, partition_data=[partition])
    whole = request(acks=1, timeout_ms=30_000, topic_data=[data])
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, whole)


def replay_produce(broker: Target, topic: str, batch_bytes: int, requests: int) -> Replay:
    """Send the same batch `requests` times to partition 0; the first tenth is warm-up, on top."""
    frame = produce_frame(topic, batch_of(batch_bytes)[0])
    with socket.create_connection(split_address(broker.bootstrap), TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer_size = _send_one(sock, frame, topic)
        _pump(sock, frame, requests // 10 + DEPTH, answer_size)
        cpu, start = cpu_seconds(broker.pids()), time.perf_counter()
        _pump(sock, frame, requests, answer_size)
        seconds = time.perf_counter() - start
        return Replay(requests, requests * batch_bytes, seconds, cpu_seconds(broker.pids()) - cpu)


def _send_one(sock: socket.socket, frame: bytes, topic: str) -> int:
    """One request and its answer, whose size it returns.

    A topic that was just created may not have its leader yet: those errors are tried again.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        sock.sendall(frame)
        size = receive_exactly(sock, 4)
        answer = receive_exactly(sock, struct.unpack(">i", size)[0])
        # correlation id, topics, name, partitions, index, error code
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
        if not error:
            return 4 + len(answer)
        again = error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not again or time.monotonic() > deadline:
            raise RuntimeError(f"a produce request was refused with {ErrorCode(error).name}")


def _pump(sock: socket.socket, frame: bytes, requests: int, answer_size: int) -> None:
    """Keep DEPTH requests under way until `requests` are answered. All answers have one size."""
    trains = [frame * count for count in range(DEPTH + 1)]
    buffer, pending, answered = bytearray(1 << 16), 0, 0
    sent = min(DEPTH, requests)
    sock.sendall(trains[sent])
    while answered < requests:
        received = sock.recv_into(buffer)
        if not received:
            raise ConnectionError("the broker closed the connection")
        complete, pending = divmod(pending + received, answer_size)
        answered += complete
        if train := min(complete, requests - sent):
            sock.sendall(trains[train])
            sent += train


def replay_fetch(
    broker: Target, topic: str, batch_bytes: int, batches: int, max_bytes: int
) -> Replay:
    """Read partition 0, filled by `replay_produce` with equal batches, from start to end once."""
    batch, records = batch_of(batch_bytes)
    fetches = total = offset = 0
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection(split_address(broker.bootstrap), TIMEOUT_S) as sock:
        cpu, start = cpu_seconds(broker.pids()), time.perf_counter()
        while offset < batches * records:
            sock.sendall(_fetch_frame(topic, offset, max_bytes))
            # size; correlation id, throttle, error, session, topics, name, partitions, index,
            # error, high watermark, last stable offset, log start, aborted, preferred replica
            head = receive_exactly(sock, 4 + 18 + 2 + len(topic) + 42 + 4)
            left = size = struct.unpack_from(">i", head, len(head) - 4)[0]
            (error,) = struct.unpack_from(">h", head, 4 + 18 + 2 + len(topic) + 4 + 4)
            if error or size < len(batch):
                raise RuntimeError(f"a fetch at {offset} got error {error} and {size} bytes")
            while left:
                left -= sock.recv_into(buffer, min(left, len(buffer)))
            offset += size // len(batch) * records
            total += size
            fetches += 1
        seconds = time.perf_counter() - start
        return Replay(fetches, total, seconds, cpu_seconds(broker.pids()) - cpu)


def _fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    request = messages.FetchRequest
    partition = request.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    wanted = request.FetchTopic(topic=topic, partitions=[partition])
    whole = request(max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, topics=[wanted])
    return _frame(ApiKey.FETCH, FETCH_VERSION, whole)
