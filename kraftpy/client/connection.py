"""One connection to one broker.

Rules:

* Requests are pipelined: many may be in flight, and the broker answers in the order it was asked
  (the protocol's promise).  A response whose correlation id is not the oldest one waiting ends the
  connection.
* The version of each request is the highest that both sides know: `CLIENT_VERSIONS` is what this
  client was written for, ApiVersions says what the broker serves.  A broker too old for our
  ApiVersions answers UNSUPPORTED_VERSION in a version 0 body (KIP-511); then version 0 is asked.
* A response frame is at most `max_response_size_bytes`; a request waits at most its timeout.  After
  a timeout the connection is closed, because everything behind the missing answer would wait too.
* Whatever ends the connection fails every waiting request with `ConnectionLostError`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
from collections import deque
from typing import Any

import kraftpy
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_response, encode_request
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError

# Lowest and highest version of each request that the modules of this package fill in and read.
# Fetch stops at 12 and DeleteTopics at 5 because later versions name topics by id.
CLIENT_VERSIONS: dict[ApiKey, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 11),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (4, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 5),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
}

_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

MAX_RESPONSE_SIZE_BYTES = 128 * 1024 * 1024


class ConnectionLostError(ConnectionError):
    """The connection ended, or could not be opened; the text says to whom and why."""


class Connection:
    """An open, negotiated connection; made by `Connection.open`, ended by `close`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        client_id: str,
        max_response_size_bytes: int,
    ) -> None:
        self.address = address
        self.closed = False
        self._client_id = client_id
        self._max_response_size_bytes = max_response_size_bytes
        self._reader = reader
        self._writer = writer
        self._correlation_ids = itertools.count(1)
        self._waiting: deque[tuple[int, ApiKey, int, asyncio.Future[Any]]] = deque()
        self._broker_versions: dict[int, tuple[int, int]] = {}
        self._read_task = asyncio.create_task(self._read_responses())

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "kraftpy",
        timeout_ms: int = 10_000,
        max_response_size_bytes: int = MAX_RESPONSE_SIZE_BYTES,
    ) -> Connection:
        """Connect and ask for the broker's versions; `ConnectionLostError` when either fails."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        except TimeoutError:
            raise ConnectionLostError(f"{address}: no connection within {timeout_ms} ms") from None
        except OSError as error:
            raise ConnectionLostError(f"{address}: {_reason(error)}") from error
        connection = cls(reader, writer, address, client_id, max_response_size_bytes)
        try:
            await connection._negotiate(timeout_ms)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _negotiate(self, timeout_ms: int) -> None:
        # The version of the software is for the broker's statistics only (KIP-511).
        request = messages.ApiVersionsRequest(
            client_software_name="kraftpy", client_software_version=kraftpy.__version__
        )
        response = await self._send(request, 3, timeout_ms)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self._send(request, 0, timeout_ms)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        self._broker_versions = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys
        }

    def version(self, api_key: int) -> int:
        """The version that requests of this kind are sent in; KafkaError(UNSUPPORTED_VERSION)."""
        api_key = ApiKey(api_key)
        ours = CLIENT_VERSIONS[api_key]
        broker = self._broker_versions.get(api_key)
        if broker is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not serve {api_key.name}"
            )
        version = min(ours[1], broker[1])
        if version < max(ours[0], broker[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} serves {api_key.name} {broker[0]} to {broker[1]}, "
                f"this client knows {ours[0]} to {ours[1]}",
            )
        return version

    async def request(self, request: Any, *, timeout_ms: int) -> Any:
        """Send a request and wait for its response message.

        Raises `ConnectionLostError` when the connection ends or nothing comes within `timeout_ms`,
        and KafkaError(UNSUPPORTED_VERSION) when broker and client have no version in common.
        """
        return await self._send(request, self.version(request.API_KEY), timeout_ms)

    async def send_unanswered(self, request: Any) -> None:
        """Send a request that the broker never answers (Produce with acks=0)."""
        self._write(request, self.version(request.API_KEY), next(self._correlation_ids))
        await self._drain()

    async def _send(self, request: Any, version: int, timeout_ms: int) -> Any:
        api_key = ApiKey(request.API_KEY)
        correlation_id = next(self._correlation_ids)
        self._write(request, version, correlation_id)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((correlation_id, api_key, version, future))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._drain()
                return await future
        except TimeoutError:
            lost = ConnectionLostError(
                f"{self.address} did not answer {api_key.name} within {timeout_ms} ms"
            )
            self._end(lost)
            raise lost from None

    def _write(self, request: Any, version: int, correlation_id: int) -> None:
        if self.closed:
            raise ConnectionLostError(f"{self.address}: the connection is closed")
        parts = encode_request(request.API_KEY, version, correlation_id, self._client_id, request)
        size = sum(len(part) for part in parts)
        self._writer.writelines([size.to_bytes(4, "big"), *parts])

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            lost = ConnectionLostError(f"{self.address}: {_reason(error)}")
            self._end(lost)
            raise lost from error

    async def _read_responses(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
                if not 4 <= size <= self._max_response_size_bytes:
                    raise DecodeError(f"a response of {size} bytes")
                self._answer(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            self._end(ConnectionLostError(f"{self.address} closed the connection"))
        except OSError as error:
            self._end(ConnectionLostError(f"{self.address}: {_reason(error)}"))
        except DecodeError as error:
            self._end(
                ConnectionLostError(f"{self.address} sent what is no valid response: {error}")
            )

    def _answer(self, frame: bytes) -> None:
        if not self._waiting:
            raise DecodeError("a response that no request waits for")
        correlation_id, api_key, version, future = self._waiting.popleft()
        if api_key == ApiKey.API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
            version = 0
        try:
            answered_id, response = decode_response(api_key, version, memoryview(frame))
            if answered_id != correlation_id:
                raise DecodeError(f"correlation id {answered_id} where {correlation_id} was due")
        except DecodeError as error:
            if not future.done():
                future.set_exception(
                    ConnectionLostError(f"{self.address}: {api_key.name}: {error}")
                )
            raise
        if not future.done():
            future.set_result(response)

    def _end(self, reason: ConnectionLostError) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, deque()
        for *_, future in waiting:
            if not future.done():
                future.set_exception(reason)
        self._writer.close()

    async def close(self) -> None:
        """End the connection; requests that still wait fail with `ConnectionLostError`."""
        self._end(ConnectionLostError(f"{self.address}: the connection was closed by this client"))
        self._read_task.cancel()
        await asyncio.gather(self._read_task, return_exceptions=True)


def _reason(error: OSError) -> str:
    """The operating system's words, without the address that asyncio puts in their place."""
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    # A name with several addresses fails with their errors joined into one text.
    number = error.errno or int((re.findall(r"\[Errno (\d+)\]", str(error)) or [0])[0])
    return os.strerror(number).lower() if number else str(error) or type(error).__name__
