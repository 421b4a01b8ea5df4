"""What a connection of a SASL listener may ask before it is known who asks.

A gate is its connection's `dispatch` until somebody has logged in; then the broker's takes its
place, and requests pay nothing for having come through here. Rules (KIP-43, KIP-152):

* The order is ApiVersions (at will, answered with success once), SaslHandshake, SaslAuthenticate as
  often as the mechanism needs it; after a handshake of version 0 the tokens come without a header.
  Anything else closes the connection, judged by the two bytes of its key: no other schema reads a
  byte of who isn't known. So does a frame above `sasl.server.max.receive.size`.
* A mechanism that this listener doesn't have is answered with UNSUPPORTED_SASL_MECHANISM and those
  that it has; whatever else fails with SASL_AUTHENTICATION_FAILED and one text, so that nobody
  learns why. Both go out after `connection.failed.authentication.delay.ms`, then the connection is
  closed. The log has the reason.
* An answer that isn't there yet holds an exclusive place in the connection's order: what was sent
  behind it stays bytes.
* What is sent behind a login that succeeds is taken by the broker as of whoever has logged in.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from kraftpy.core.security.sasl_server import Exchange, Mechanism
from kraftpy.events import emit
from kraftpy.frozen import dataclass
from kraftpy.protocol import codec
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode
from kraftpy.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from kraftpy.protocol.sasl import SaslError

if TYPE_CHECKING:
    from kraftpy.core.security.principals import Principal
    from kraftpy.server.network.connection import Connection
    from kraftpy.server.network.sending import Part

log = logging.getLogger(__name__)

_KEY = struct.Struct(">hh").unpack_from
_SIZE = struct.Struct(">i").pack

API_VERSIONS_MAX = 3
"""How many ApiVersions a client may send: one in a version that isn't known, and one that is."""

STEPS_MAX = 8
"""How many messages a client may send in one login; no mechanism has more than three."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """What all gates of a listener have in common.

    `mechanisms` are those that logins are taken by, `offered` the names that clients are told.
    `nonce` makes a new one.
    """

    mechanisms: Mapping[str, Mechanism]
    offered: tuple[str, ...]
    max_receive_bytes: int
    failure_delay_s: float
    nonce: Callable[[], str]


class LoginNumbers:
    """How many logins have ended how, since the start, for metrics."""

    __slots__ = ("done", "failed")

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0


class _State(Enum):
    """How far a login has come; `keys` may be asked for then."""

    BEGIN = "begin", (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
    HANDSHAKE = "handshake", (ApiKey.SASL_HANDSHAKE,)
    AUTHENTICATE = "authenticate", (ApiKey.SASL_AUTHENTICATE,)
    TOKENS = "tokens", ()
    OVER = "over", ()

    def __init__(self, _: str, keys: Collection[int]) -> None:
        self.keys = keys


class Gate:
    """That of one connection."""

    __slots__ = (
        "_answer_other",
        "_api_versions",
        "_exchange",
        "_let_in",
        "_loop",
        "_mechanism",
        "_numbers",
        "_rules",
        "_state",
        "_steps",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: GateRules,
        answer_other: Callable[[Connection, memoryview], int],
        let_in: Callable[[Connection, Principal, str], None],
        numbers: LoginNumbers,
    ) -> None:
        """`answer_other` answers ApiVersions, `let_in` is told who has logged in by what."""
        self._loop = loop
        self._rules = rules
        self._answer_other = answer_other
        self._let_in = let_in
        self._numbers = numbers
        self._state = _State.BEGIN
        self._api_versions = 0
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._steps = 0

    def dispatch(self, connection: Connection, frame: memoryview) -> int:
        """Takes one frame; never raises. Returns what `Dispatcher.dispatch` does."""
        if self._state is _State.TOKENS:
            self._token(connection, bytes(frame), self._answer_token)
            return 0
        if len(frame) < 4:
            connection.close("a request that can't be decoded: it ends in its header")
            return 0
        key, version = _KEY(frame)
        if key not in self._state.keys:
            self._state = _State.OVER
            connection.close(f"API {key} version {version} before authentication")
            return 0
        if key == ApiKey.API_VERSIONS:
            return self._take_api_versions(connection, frame, version)
        low, high = ADVERTISED[ApiKey(key)]
        if not low <= version <= high:
            self._state = _State.OVER
            connection.close(f"API {key} version {version} isn't supported")
            return 0
        try:
            header, position = codec.decode_request_header(frame)
            request = codec.decode_request(key, version, frame, position)
        except DecodeError as error:
            connection.close(f"a request that can't be decoded: {error}")
            return 0
        connection.client_id = header.client_id
        if key == ApiKey.SASL_HANDSHAKE:
            self._handshake(connection, header, request.mechanism)
        else:

            def answer(error: ErrorCode, text: str | None, token: bytes) -> list[Part] | None:
                return _framed(header, SaslAuthenticateResponse(error, text, token))

            self._token(connection, bytes(request.auth_bytes), answer)
        return 0

    def _take_api_versions(self, connection: Connection, frame: memoryview, version: int) -> int:
        self._api_versions += 1
        if self._api_versions > API_VERSIONS_MAX:
            connection.close("ApiVersions again and again before authentication")
            return 0
        low, high = ADVERTISED[ApiKey.API_VERSIONS]
        if low <= version <= high:
            self._state = _State.HANDSHAKE
        return self._answer_other(connection, frame)

    def _handshake(
        self, connection: Connection, header: codec.RequestHeader, mechanism: str
    ) -> None:
        rules = self._rules
        found = rules.mechanisms.get(mechanism)
        response = SaslHandshakeResponse(ErrorCode.NONE, list(rules.offered))
        if found is None:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self._fail(connection, "a mechanism that isn't there", _framed(header, response))
            return
        self._mechanism = mechanism
        self._exchange = found.begin(rules.nonce())
        self._state = _State.TOKENS if header.api_version == 0 else _State.AUTHENTICATE
        connection.respond(_framed(header, response))

    def _token(
        self,
        connection: Connection,
        token: bytes,
        answer: Callable[[ErrorCode, str | None, bytes], list[Part] | None],
    ) -> None:
        assert self._exchange is not None
        self._steps += 1
        try:
            if self._steps > STEPS_MAX:
                raise SaslError("more messages than a login has")
            step = self._exchange.step(token)
        except SaslError as error:
            text = f"Authentication failed with SASL mechanism {self._mechanism}"
            parts = answer(ErrorCode.SASL_AUTHENTICATION_FAILED, text, b"")
            self._fail(connection, str(error), parts)
            return
        parts = answer(ErrorCode.NONE, None, step.answer)
        assert parts is not None
        connection.respond(parts)
        if step.principal is not None:
            self._exchange = None
            self._state = _State.OVER
            self._numbers.done += 1
            self._let_in(connection, step.principal, self._mechanism)

    def _answer_token(self, error: ErrorCode, _text: str | None, token: bytes) -> list[Part] | None:
        """A token without a header; what has failed isn't answered (KIP-152 is why there is 1)."""
        return None if error else [_SIZE(len(token)) + token]

    def _fail(self, connection: Connection, reason: str, parts: list[Part] | None) -> None:
        """Answers late, and closes."""
        self._numbers.failed += 1
        self._state = _State.OVER
        self._exchange = None
        emit(
            log,
            logging.WARNING,
            "authentication-failed",
            peer=connection.peer,
            client=connection.client_id,
            listener=connection.session.listener,
            mechanism=self._mechanism,
            reason=reason,
        )
        slot = connection.defer(concurrent=False)

        def answer() -> None:
            # It stays blocked by a place behind: nothing more is read of who isn't known.
            connection.defer(concurrent=False)
            connection.complete(slot, parts)
            connection.close(None)

        timer = self._loop.call_later(self._rules.failure_delay_s, answer)
        slot.on_abandon = timer.cancel


def _framed(header: codec.RequestHeader, response: Any) -> list[Part]:
    parts = codec.encode_response(
        header.api_key, header.api_version, header.correlation_id, response
    )
    body = b"".join(parts)
    return [_SIZE(len(body)) + body]
