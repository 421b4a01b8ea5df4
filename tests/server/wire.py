"""A raw client: frames over a blocking socket, nothing that a real client would smooth over."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ApiKey

TIMEOUT_S = 20.0


class Closed(Exception):
    """The broker closed the connection."""


class Wire:
    """One connection; `call` sends a request and reads its answer."""

    def __init__(
        self, host: str, port: int, *, timeout_s: float = TIMEOUT_S, client_id: str = "wire"
    ) -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout_s)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(self, key: ApiKey, version: int, request: Any) -> int:
        """Sends without waiting; returns the correlation id."""
        self._correlation_id += 1
        parts = codec.encode_request(key, version, self._correlation_id, self._client_id, request)
        self.send_frame(b"".join(parts))
        return self._correlation_id

    def send_frame(self, frame: bytes) -> None:
        try:
            self.sock.sendall(struct.pack(">i", len(frame)) + frame)
        except (ConnectionError, BrokenPipeError) as error:
            raise Closed from error

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, key: ApiKey, version: int) -> tuple[int, Any]:
        return codec.decode_response(key, version, self.receive_frame())

    def call(self, key: ApiKey, version: int, request: Any) -> Any:
        sent = self.send(key, version, request)
        received, response = self.receive(key, version)
        assert received == sent
        return response

    def _exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            try:
                piece = self.sock.recv(size_bytes - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return bytes(data)


def produce(
    wire: Wire,
    topic: str,
    batch: bytes,
    *,
    partition: int = 0,
    acks: int = 1,
    version: int = 9,
    timeout_ms: int = 10_000,
) -> messages.ProduceResponse.PartitionProduceResponse:
    """Sends one batch; the partition's answer."""
    response: messages.ProduceResponse = wire.call(
        ApiKey.PRODUCE, version, produce_request(topic, batch, partition, acks, timeout_ms)
    )
    return response.responses[0].partition_responses[0]


def produce_request(
    topic: str, batch: bytes, partition: int = 0, acks: int = 1, timeout_ms: int = 10_000
) -> messages.ProduceRequest:
    request = messages.ProduceRequest
    return request(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            request.TopicProduceData(
                topic, partition_data=[request.PartitionProduceData(partition, batch)]
            )
        ],
    )


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_bytes: int = 1024 * 1024,
    partition_max_bytes: int = 1024 * 1024,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> messages.FetchRequest:
    request = messages.FetchRequest
    return request(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            request.FetchTopic(
                topic,
                partitions=[
                    request.FetchPartition(
                        partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
        ],
    )


def fetch(
    wire: Wire, topic: str, offset: int, **options: Any
) -> messages.FetchResponse.PartitionData:
    """One partition's answer to a Fetch v12 without a session."""
    response: messages.FetchResponse = wire.call(
        ApiKey.FETCH, 12, fetch_request(topic, offset, **options)
    )
    assert response.error_code == 0
    return response.responses[0].partitions[0]
