"""One connection to one broker.

Rules:

* Requests are pipelined: many may be in flight, and the broker answers in the order it was asked
  (the protocol's promise). A response whose correlation id is not the oldest one waiting ends the
  connection.
* The version of each request is the highest that both sides know: `CLIENT_VERSIONS` is what this
  client was written for, ApiVersions says what the broker serves. A broker too old for our
  ApiVersions answers UNSUPPORTED_VERSION in a version 0 body (KIP-511); then version 0 is asked.
* A response frame is at most `max_response_size_bytes`; a request waits at most its timeout. After
  a timeout the connection is closed, because everything behind the missing answer would wait too.
* Where one has to log in, that comes between the two: only ApiVersions is answered before it.
* A broker may say for how long a login counts (KIP-368). When RENEWED_AFTER of that is over, the
  next request, and those behind it, wait until this connection has logged in again. If it can't it
  ends, and so does the next one, with the reason.
* Whatever ends the connection fails every waiting request with `ConnectionLostError`.
* Responses are received into one buffer that is used again. `request` gives a response of its own;
  `post` gives its callback one whose records are views of the buffer, without a copy.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from random import uniform
from typing import Any, cast

import kraftpy
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_response, encode_request
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.clients import LoginMaker
from kraftpy.wording import failure_text

# Lowest and highest version of each request that the modules of this package fill in and read.
# Fetch stops at 12 and OffsetCommit at 9 because later versions name topics by id; OffsetFetch at 7
# and FindCoordinator at 3 because later ones ask for several groups; AddPartitionsToTxn stops at 3
# because later ones are for brokers. TxnOffsetCommit says from 3 on which member commits.
CLIENT_VERSIONS: dict[ApiKey, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (4, 12),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (2, 7),
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.JOIN_GROUP: (2, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (3, 6),
    ApiKey.LIST_GROUPS: (5, 5),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (1, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (3, 5),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.UPDATE_FEATURES: (1, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
}

RENEWED_AFTER = (0.85, 0.95)
"""A login is renewed when a share between these of its time is over, not all of them at once."""

_TLS_ALERT = b"\x15\x03"
MAY_WANT = "it may want"
"""What is said of a broker that hangs up on who comes without TLS, a login or a certificate."""
_MAY_WANT_TLS = f"{MAY_WANT} TLS (security.protocol=SSL, or SASL_SSL)"
_MAY_WANT_LOGIN = f"{MAY_WANT} a login (security.protocol=SASL_SSL, or SASL_PLAINTEXT)"
_MAY_WANT_CERTIFICATE = (
    f"{MAY_WANT} a certificate of this client, or another one (ssl.keystore.location, or "
    "ssl.certificate.location and ssl.key.location)"
)
# How OpenSSL begins the reasons of alerts that say that the peer wants another certificate.
_REFUSALS = ("ALERT_BAD_CERT", "ALERT_CERT", "ALERT_UNKNOWN_CA", "ALERT_HANDSHAKE_FAILURE")

_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

MAX_RESPONSE_SIZE_BYTES = 128 * 1024 * 1024
_BUFFER_MIN_BYTES = 64 * 1024
_JOINED_MAX_BYTES = 16 * 1024
_BUFFER_KEPT_BYTES = 16 * 1024 * 1024


class ConnectionLostError(ConnectionError):
    """The connection ended, or could not be opened; the text says to whom and why."""


class UntrustedError(ConnectionLostError):
    """One side doesn't accept the other's certificate: to try again doesn't help."""


class _Waiting(NamedTuple):
    """A request whose response is due; `answered` takes the response or why there is none."""

    correlation_id: int
    api_key: ApiKey
    version: int
    answered: Callable[[Any], None]
    keeps: bool


def address_of(host: str, port: int) -> str:
    """HOST:PORT as people write it; `Connection.address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Connection(asyncio.BufferedProtocol):
    """An open, negotiated connection; made by `Connection.open`, ended by `close`."""

    def __init__(
        self,
        address: str,
        client_id: str,
        versions: Mapping[ApiKey, tuple[int, int]],
        max_response_size_bytes: int,
    ) -> None:
        self.address = address
        self.closed = False
        self.encrypted = False
        self.logged_in = False
        self._login: LoginMaker | None = None
        self._login_timeout_ms = 0
        self._renew_at_s: float | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._held: list[tuple[list[Any], _Waiting | None]] = []  # while it is renewed
        self._client_id = client_id
        self._versions = versions
        self._max_response_size_bytes = max_response_size_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._correlation_ids = itertools.count(1)
        self._waiting: deque[_Waiting] = deque()
        self._broker_versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The levels of the cluster's features, as the broker said them last."""
        self.features_epoch = -1
        """How new that is; the later, the higher."""
        self._buffer = memoryview(bytearray(_BUFFER_MIN_BYTES))
        self._filled = 0
        self._writable: asyncio.Future[None] | None = None
        self._ended = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "kraftpy",
        timeout_ms: int = 10_000,
        versions: Mapping[ApiKey, tuple[int, int]] = CLIENT_VERSIONS,
        max_response_size_bytes: int = MAX_RESPONSE_SIZE_BYTES,
        ssl_context: ssl.SSLContext | None = None,
        login: LoginMaker | None = None,
    ) -> Connection:
        """Connects, asks for the broker's versions, and logs in.

        It is by TLS if there is a context for it, and a `login` is made for each connection. Raises
        `ConnectionLostError` when the first two fail, KafkaError when the login does.
        """
        address = address_of(host, port)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, versions, max_response_size_bytes),
                    host,
                    port,
                    ssl=ssl_context,
                )
        except TimeoutError:
            how = "" if ssl_context is None else " by TLS, which that listener may not speak,"
            raise ConnectionLostError(
                f"{address}: no connection{how} within {timeout_ms} ms"
            ) from None
        except OSError as error:
            raise _lost(address, error) from error
        connection.encrypted = ssl_context is not None
        try:
            await connection.negotiate(timeout_ms)
            if login is not None:
                connection._login, connection._login_timeout_ms = login, timeout_ms
                await connection._log_in(login, timeout_ms)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def negotiate(self, timeout_ms: int) -> None:
        """Asks for the broker's versions and the cluster's features; once more, they may differ."""
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
        self.features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }
        self.features_epoch = response.finalized_features_epoch

    async def _log_in(self, make: LoginMaker, timeout_ms: int) -> None:
        """SASL (KIP-152). Raises KafkaError with the broker's words, if it has any."""
        try:
            made = make()
            login = await made if isinstance(made, Awaitable) else made
        except SaslError as error:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self.address}: {error}"
            ) from None
        handshake = messages.SaslHandshakeRequest(login.mechanism)
        answer = await self._send(handshake, 1, timeout_ms, to_log_in=True)
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"{self.address} takes no logins: set security.protocol to what that listener "
                "speaks, PLAINTEXT or SSL",
            )
        if answer.error_code:
            raise KafkaError(
                error_code(answer.error_code),
                f"{self.address} doesn't take logins by {login.mechanism}, but by "
                f"{', '.join(answer.mechanisms[:20]) or 'none'}",
            )
        try:
            token: bytes | None = login.first()
            while token is not None:
                request = messages.SaslAuthenticateRequest(token)
                answer = await self._send(request, 1, timeout_ms, to_log_in=True)
                if answer.error_code:
                    text = f"{self.address}: {answer.error_message or 'the login failed'}"
                    raise KafkaError(error_code(answer.error_code), text)
                # To compute SCRAM's proof takes milliseconds, without the interpreter's lock.
                token = await asyncio.to_thread(login.answer, bytes(answer.auth_bytes))
            self.logged_in = True
            if answer.session_lifetime_ms > 0:
                share = uniform(*RENEWED_AFTER)  # noqa: S311 - no secret
                self._renew_at_s = self._loop.time() + share * answer.session_lifetime_ms / 1000
            else:
                self._renew_at_s = None
        except SaslError as error:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self.address}: {error}"
            ) from None

    def feature(self, name: str) -> int:
        """The level of a cluster's feature when the broker was asked; 0 if it has none."""
        return self.features.get(name, 0)

    def version(self, api_key: int, at_most: int | None = None) -> int:
        """The version that requests of this kind are sent in; KafkaError(UNSUPPORTED_VERSION)."""
        api_key = ApiKey(api_key)
        ours = self._versions[api_key]
        broker = self._broker_versions.get(api_key)
        if broker is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not serve {api_key.name}"
            )
        version = min(ours[1], broker[1])
        if at_most is not None:
            version = min(version, at_most)
        if version < max(ours[0], broker[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} serves {api_key.name} {broker[0]} to {broker[1]}, "
                f"this client knows {ours[0]} to {ours[1]}",
            )
        return version

    def serves(self, api_key: int, version: int) -> bool:
        """Whether the broker takes this version, whatever this client was written for."""
        first, last = self._broker_versions.get(api_key, (0, -1))
        return first <= version <= last

    async def request(self, request: Any, *, timeout_ms: int, version: int | None = None) -> Any:
        """Sends a request and waits for its response message.

        `version` is one that the broker `serves`, None for the highest that both sides know.
        Raises `ConnectionLostError` when the connection ends or nothing comes within `timeout_ms`,
        and KafkaError(UNSUPPORTED_VERSION) when broker and client have no version in common.
        """
        if version is None:
            version = self.version(request.API_KEY)
        return await self._send(request, version, timeout_ms)

    def post(self, request: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request; `answered` is called with its response or a `ConnectionLostError`.

        It is called as soon as the response is there, without another turn of the loop, and has to
        be done with the response's records when it returns. There is no timeout. Raises
        `ConnectionLostError` when the connection is closed already.
        """
        self._write(request, version, answered, keeps=False)

    async def send_unanswered(self, request: Any, *, timeout_ms: int) -> None:
        """Sends a request that the broker never answers (Produce with acks=0).

        Raises `ConnectionLostError`, also when the broker doesn't take it within `timeout_ms`.
        """
        self._write(request, self.version(request.API_KEY))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._drain()
        except TimeoutError:
            lost = ConnectionLostError(f"{self.address} takes nothing for {timeout_ms} ms")
            self._end(lost)
            raise lost from None

    async def _send(
        self, request: Any, version: int, timeout_ms: int, *, to_log_in: bool = False
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def answered(response: Any) -> None:
            if future.done():
                return
            if isinstance(response, ConnectionLostError):
                future.set_exception(response)
            else:
                future.set_result(response)

        self._write(request, version, answered, keeps=True, to_log_in=to_log_in)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._drain()
                return await future
        except TimeoutError:
            lost = ConnectionLostError(
                f"{self.address} did not answer {ApiKey(request.API_KEY).name} within "
                f"{timeout_ms} ms"
            )
            self._end(lost)
            raise lost from None

    # -- sending

    def _write(
        self,
        request: Any,
        version: int,
        answered: Callable[[Any], None] | None = None,
        *,
        keeps: bool = True,
        to_log_in: bool = False,
    ) -> None:
        """Hands a request to the socket, or keeps it until this connection has logged in again."""
        if self.closed or self._transport is None:
            raise ConnectionLostError(f"{self.address}: the connection is closed")
        correlation_id = next(self._correlation_ids)
        parts = encode_request(request.API_KEY, version, correlation_id, self._client_id, request)
        waiting = None
        if answered is not None:
            api_key = ApiKey(request.API_KEY)
            waiting = _Waiting(correlation_id, api_key, version, answered, keeps)
        if self._renew_at_s is not None and not to_log_in and self._renews(self._renew_at_s):
            self._held.append((parts, waiting))
        else:
            self._transmit(self._transport, parts, waiting)

    def _transmit(
        self, transport: asyncio.Transport, parts: list[Any], waiting: _Waiting | None
    ) -> None:
        size = sum(map(len, parts))
        parts.insert(0, size.to_bytes(4, "big"))
        if size < _JOINED_MAX_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if waiting is not None:
            self._waiting.append(waiting)

    def _renews(self, due_s: float) -> bool:
        """Whether this connection logs in again; begins it when it is due."""
        if self._renewal is None and self._loop.time() >= due_s:
            self._renewal = self._loop.create_task(self._renew())
        return self._renewal is not None

    async def _renew(self) -> None:
        assert self._login is not None
        try:
            await self._log_in(self._login, self._login_timeout_ms)
        except Exception as error:  # what makes logins may be the caller's own
            self._end(ConnectionLostError(f"the login couldn't be renewed: {error}"))
            return
        self._renewal = None
        held, self._held = self._held, []
        for parts, waiting in held:
            if self._transport is not None and not self.closed:
                self._transmit(self._transport, parts, waiting)

    async def _drain(self) -> None:
        """Waits while the peer takes too little."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # -- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            self._take_frames()
        except DecodeError as error:
            self._end(
                ConnectionLostError(f"{self.address} sent what is no valid response: {error}")
            )

    def _take_frames(self) -> None:
        buffer, filled, position = self._buffer, self._filled, 0
        needed = 4
        while filled - position >= 4 and not self.closed:
            size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
            if not 4 <= size <= self._max_response_size_bytes:
                if buffer[position : position + 2] == _TLS_ALERT:
                    raise DecodeError(f"an alert of TLS: {_MAY_WANT_TLS}")
                raise DecodeError(f"a response of {size} bytes")
            needed = 4 + size
            if filled - position < needed:
                break
            self._answer(buffer[position + 4 : position + needed])
            position += needed
            needed = 4
        self._filled = left = filled - position
        if needed > len(buffer) or (needed <= _BUFFER_KEPT_BYTES < len(buffer)):
            self._buffer = memoryview(bytearray(max(needed, left, _BUFFER_MIN_BYTES)))
            self._buffer[:left] = buffer[position:filled]
        elif position and left:
            buffer[:left] = buffer[position:filled]

    def _answer(self, frame: memoryview) -> None:
        if not self._waiting:
            raise DecodeError("a response that no request waits for")
        correlation_id, api_key, version, answered, keeps = self._waiting.popleft()
        if api_key == ApiKey.API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
            version = 0
        if keeps:
            frame = memoryview(bytes(frame))
        try:
            answered_id, response = decode_response(api_key, version, frame)
            if answered_id != correlation_id:
                raise DecodeError(f"correlation id {answered_id} where {correlation_id} was due")
        except DecodeError as error:
            answered(ConnectionLostError(f"{self.address}: {api_key.name}: {error}"))
            raise
        answered(response)

    # -- ending

    def eof_received(self) -> None:
        self._end(ConnectionLostError(f"{self.address} closed the connection{self._hint()}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._end(_lost(self.address, exc, self._hint()))
        else:
            self._end(
                ConnectionLostError(f"{self.address}: it closed the connection{self._hint()}")
            )
        if not self._ended.done():
            self._ended.set_result(None)

    def _end(self, reason: ConnectionLostError) -> None:
        if self.closed:
            return
        self.closed = True
        self.resume_writing()
        if self._transport is not None:
            self._transport.close()
        if self._renewal is not None and self._renewal is not asyncio.current_task():
            self._renewal.cancel()
        held, self._held = self._held, []
        waiting, self._waiting = self._waiting, deque()
        waiting.extend(each for _, each in held if each is not None)
        for each in waiting:
            each.answered(reason)

    def _hint(self) -> str:
        """What may be wrong if it's closed before it has answered more than ApiVersions."""
        asked = self._waiting[0].correlation_id if self._waiting else 0
        if asked == 1:
            return f": {_MAY_WANT_CERTIFICATE if self.encrypted else _MAY_WANT_TLS}"
        if asked == 2 and not self.logged_in:
            return f": {_MAY_WANT_LOGIN}"
        return ""

    async def close(self) -> None:
        """Ends the connection; requests that still wait fail with `ConnectionLostError`."""
        self._end(ConnectionLostError(f"{self.address}: the connection was closed by this client"))
        if self._transport is not None:
            self._transport.abort()
            await self._ended


def _lost(address: str, error: OSError, hint: str = "") -> ConnectionLostError:
    """What is raised for what the operating system, or OpenSSL, says."""
    reason = f"{address}: {_reason(error)}{hint}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedError(
            f"{reason}: does the file of ssl.ca.location or ssl.truststore.location have who "
            "signed it, and is it for this host?"
        )
    if isinstance(error, ssl.SSLError) and any(each in str(error) for each in _REFUSALS):
        return UntrustedError(f"{address}: {_reason(error)}: {_MAY_WANT_CERTIFICATE}")
    return ConnectionLostError(reason)


def _reason(error: OSError) -> str:
    """What a person reads of it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return failure_text(error)
