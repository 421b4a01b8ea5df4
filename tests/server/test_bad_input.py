"""Any bytes on the port: no crash, bounded memory, a closed connection or the documented error."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.protocol.random_messages import RandomMessages
from tests.server.wire import Closed, Wire
from tests.waiting import wait_until

# Pages that a forked process shares with others count as theirs, too.
pytestmark = pytest.mark.usefixtures("started_from_scratch")

MEMORY_GROWTH_MAX_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of this module's own: what the tests send could disturb others."""
    with Broker() as started:
        yield started


def advertised(broker: Broker) -> list[tuple[ApiKey, int]]:
    with Wire(broker.host, broker.port) as wire:
        response = wire.call(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
    return [
        (ApiKey(row.api_key), version)
        for row in response.api_keys
        for version in range(row.min_version, row.max_version + 1)
    ]


def assert_still_serving(broker: Broker) -> None:
    """It is, and will be soon again where a machine stood still for longer than its session."""

    def lists_itself() -> bool:
        with Wire(broker.host, broker.port) as wire:
            response = wire.call(ApiKey.METADATA, 12, messages.MetadataRequest(topics=[]))
        return len(response.brokers) == 1

    wait_until(lists_itself, "the broker lists itself", 20)


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss line")


def exchange(broker: Broker, data: bytes) -> None:
    """Sends bytes and reads whatever comes until the broker closes or says nothing more."""
    with socket.create_connection((broker.host, broker.port), timeout=5) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x01\x00",
        b"\x00\x00\x00\x04\x00\x03\x00\x00",
        b"\x00\x00\x00\x0a\x00\x03\x00\x00\x00\x00\x00\x01\x7f\xff",
        b"\x00\x00\x00\x08\x7f\xff\x00\x00\x00\x00\x00\x01",
        b"\x00\x00",
    ],
    ids=[
        "http",
        "tls",
        "ssh",
        "empty frame",
        "negative size",
        "two gigabytes",
        "one byte",
        "half a header",
        "client id past the end",
        "unknown api",
        "half a size",
    ],
)
def test_what_is_not_kafka_gets_a_closed_connection(broker: Broker, data: bytes) -> None:
    exchange(broker, data)
    assert_still_serving(broker)


def test_random_bytes_do_no_harm(broker: Broker) -> None:
    source = random.Random(1)
    before = memory_bytes(broker.pid)
    for _ in range(200):
        exchange(broker, source.randbytes(source.choice((1, 4, 10, 100, 5000))))
    for _ in range(200):
        key, version = source.choice((0, 1, 3, 11, 18, 19, 22, 36)), source.randrange(15)
        body = struct.pack(">hhi", key, version, 1) + source.randbytes(source.randrange(200))
        exchange(broker, struct.pack(">i", len(body)) + body)
    assert_still_serving(broker)
    assert memory_bytes(broker.pid) - before < MEMORY_GROWTH_MAX_BYTES


def test_every_advertised_version_answers_or_closes_whatever_the_message(broker: Broker) -> None:
    """A random valid message, an empty one, and truncated and mutated ones of each."""
    source = random.Random(2)
    before = memory_bytes(broker.pid)
    for key, version in advertised(broker):
        made = RandomMessages(source.randrange(2**31))
        requests = [made.message(REQUEST_NAMES[key], version) for _ in range(2)]
        requests.append(getattr(messages, REQUEST_NAMES[key])())
        for request in requests:
            frame = b"".join(codec.encode_request(key, version, 7, "fuzz", request))
            cut = frame[: source.randrange(len(frame))]
            position = source.randrange(8, len(frame))
            mutated = frame[:position] + bytes([source.randrange(256)]) + frame[position + 1 :]
            for data in (frame, cut, mutated):
                try_one(broker, key, version, data)
    assert_still_serving(broker)
    assert memory_bytes(broker.pid) - before < MEMORY_GROWTH_MAX_BYTES


def try_one(broker: Broker, key: ApiKey, version: int, frame: bytes) -> None:
    """Sends one frame and a known-good one behind it: answers are well-formed and in order."""
    with Wire(broker.host, broker.port) as wire:
        # JoinGroup and long polls may wait for long; half-closing ends the exchange.
        try:
            wire.send_frame(frame)
            wire.sock.shutdown(socket.SHUT_WR)
            answer = wire.receive_frame()
        except (Closed, OSError):
            return
    if key is ApiKey.API_VERSIONS:
        return
    correlation_id, _ = codec.decode_response(key, version, answer)
    assert correlation_id == 7 or frame[4:8] != struct.pack(">i", 7)


def test_an_unknown_api_versions_version_gets_error_35_in_a_v0_body(broker: Broker) -> None:
    with Wire(broker.host, broker.port) as wire:
        wire.send_frame(struct.pack(">hhih", 18, 99, 5, -1) + b"\x00")
        correlation_id, response = codec.decode_response(
            ApiKey.API_VERSIONS, 0, wire.receive_frame()
        )
        assert correlation_id == 5
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {row.api_key for row in response.api_keys} >= {0, 1, 3, 18}


def test_promised_frames_take_no_memory(broker: Broker) -> None:
    before = memory_bytes(broker.pid)
    sockets = []
    try:
        for _ in range(200):
            sock = socket.create_connection((broker.host, broker.port), timeout=5)
            sock.sendall(struct.pack(">i", 100_000_000) + b"x")
            sockets.append(sock)
        assert_still_serving(broker)
        assert memory_bytes(broker.pid) - before < MEMORY_GROWTH_MAX_BYTES
    finally:
        for sock in sockets:
            sock.close()


def test_a_large_produce_without_records_is_not_even_decoded(broker: Broker) -> None:
    request = messages.ProduceRequest
    one = request.PartitionProduceData(0, None)
    frame = b"".join(
        codec.encode_request(
            ApiKey.PRODUCE,
            9,
            1,
            "wire",
            request(
                acks=1,
                timeout_ms=1000,
                topic_data=[request.TopicProduceData("t", partition_data=[one] * 1_500_000)],
            ),
        )
    )
    before = memory_bytes(broker.pid)
    with Wire(broker.host, broker.port) as wire:
        wire.send_frame(frame)
        with pytest.raises(Closed):
            wire.receive_frame()
    assert memory_bytes(broker.pid) - before < MEMORY_GROWTH_MAX_BYTES
    assert_still_serving(broker)
