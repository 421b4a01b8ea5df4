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

Where a login counts for a time only, its client is told for how long, and the gate goes on looking
at each frame (KIP-368):

* SaslHandshake begins another login, if the last such one began RENEWAL_MIN_S ago or earlier; else
  the broker answers it, with ILLEGAL_SASL_STATE. The way is the same as the first time, without
  ApiVersions. It has to be by the same mechanism and as the same principal, or it fails.
* Once the time is over anything else closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from kraftpy.core.security.sasl_server import Exchange, Mechanism, Underived, lifetime_ms
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
    from kraftpy.server.network.token_keys import TokenKeys

log = logging.getLogger(__name__)

Dispatch = Callable[["Connection", memoryview], int]

RECEIVE_MAX = "sasl.server.max.receive.size"
"""The setting that limits the frames of a login."""

_KEY = struct.Struct(">hh").unpack_from
_SIZE = struct.Struct(">i").pack

API_VERSIONS_MAX = 3
"""How many ApiVersions a client may send: one in a version that isn't known, and one that is."""

STEPS_MAX = 8
"""How many messages a client may send in one login; no mechanism has more than three."""

RENEWAL_MIN_S = 1.0
"""How far apart the logins of one connection have to begin, but for the first two; Kafka's."""

_HANDSHAKE = struct.pack(">h", ApiKey.SASL_HANDSHAKE)


@dataclass(frozen=True, slots=True)
class GateRules:
    """What all gates of a listener have in common.

    `mechanisms` are those that logins are taken by, `offered` the names that clients are told.
    `nonce` makes a new one. `limits_ms` says how long a login by a mechanism counts, 0 or nothing
    for ever; `now_ms` is the wall clock. `token_keys` are to be started and closed with the
    listener.
    """

    mechanisms: Mapping[str, Mechanism]
    offered: tuple[str, ...]
    max_receive_bytes: int
    failure_delay_s: float
    nonce: Callable[[], str]
    limits_ms: Mapping[str, int]
    now_ms: Callable[[], int]
    token_keys: TokenKeys | None = None


def _at_once(work: Callable[[], None]) -> None:
    work()


class LoginNumbers:
    """How many logins have ended how, since the start, for metrics.

    `renewed` are those of who had logged in before; `expired`: how many connections were closed
    because they went on without.
    """

    __slots__ = ("done", "expired", "failed", "renewed")

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.renewed = 0
        self.expired = 0


class _State(Enum):
    """How far a login has come; `keys` may be asked for then."""

    BEGIN = "begin", (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
    AGAIN = "again", (ApiKey.SASL_HANDSHAKE,)
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
        "_compute",
        "_exchange",
        "_let_in",
        "_loop",
        "_mechanism",
        "_numbers",
        "_renewal_begun_s",
        "_rules",
        "_state",
        "_steps",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: GateRules,
        answer_other: Dispatch,
        let_in: Callable[[Connection, Principal, str, Dispatch], None],
        numbers: LoginNumbers,
        compute: Callable[[Callable[[], None]], None] = _at_once,
    ) -> None:
        """`answer_other` answers ApiVersions, and everybody who is known.

        `let_in` is told who has logged in by what, and what takes the frames then. `compute` calls
        what takes milliseconds, when others have had their turn.
        """
        self._compute = compute
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
        self._renewal_begun_s = -math.inf

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

            def answer(
                error: ErrorCode, text: str | None, token: bytes, lifetime_ms: int = 0
            ) -> list[Part] | None:
                return _framed(header, SaslAuthenticateResponse(error, text, token, lifetime_ms))

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
        answer: Callable[..., list[Part] | None],
    ) -> None:
        assert self._exchange is not None
        self._steps += 1
        before = connection.session
        try:
            if self._steps > STEPS_MAX:
                raise SaslError("more messages than a login has")
            if before.mechanism not in (None, self._mechanism):
                raise SaslError(f"the first login was by {before.mechanism}")
            step = self._exchange.step(token)
            if before.mechanism is not None and step.principal not in (None, before.principal):
                raise SaslError(f"the first login was as {before.principal}")
        except Underived as underived:
            self._derive(connection, underived, lambda: self._token(connection, token, answer))
            return
        except SaslError as error:
            text = f"Authentication failed with SASL mechanism {self._mechanism}"
            parts = answer(ErrorCode.SASL_AUTHENTICATION_FAILED, text, b"")
            self._fail(connection, str(error), parts)
            return
        lifetime = None
        if step.principal is not None:
            limit_ms = self._rules.limits_ms.get(self._mechanism, 0)
            lifetime = lifetime_ms(limit_ms, step.ends_ms, self._rules.now_ms())
        parts = answer(ErrorCode.NONE, None, step.answer, lifetime or 0)
        assert parts is not None
        connection.respond(parts)
        if step.principal is not None:
            connection.session.token_id = step.token_id
            self._open(connection, step.principal, lifetime)

    def _open(self, connection: Connection, principal: Principal, lifetime_ms: int | None) -> None:
        self._exchange = None
        self._state = _State.OVER
        session = connection.session
        if session.mechanism is None:
            self._numbers.done += 1
        else:
            self._numbers.renewed += 1
            log.debug("%s (%s) has logged in again", connection.client_id, connection.peer)
        if lifetime_ms is None:
            session.expires_s, dispatch = None, self._answer_other
        else:
            session.expires_s = self._loop.time() + lifetime_ms / 1000
            dispatch = self.watch
        self._let_in(connection, principal, self._mechanism, dispatch)

    def _derive(
        self, connection: Connection, underived: Underived, go_on: Callable[[], None]
    ) -> None:
        """Derives keys when it's their turn, and takes the message again."""
        self._steps -= 1
        slot = connection.defer(concurrent=False)

        def work() -> None:
            if connection.closed:
                return
            underived.derive()
            go_on()  # its answer waits behind this place, which has none
            connection.complete(slot, None)

        self._compute(work)

    def watch(self, connection: Connection, frame: memoryview) -> int:
        """Takes one frame of somebody whose login counts for a time, as `dispatch` does."""
        now_s = self._loop.time()
        if frame[:2] == _HANDSHAKE and now_s - self._renewal_begun_s >= RENEWAL_MIN_S:
            limit = self._rules.max_receive_bytes
            if len(frame) > limit:
                connection.close(f"a request of {len(frame)} bytes is outside 1..{limit}")
                return 0
            self._renewal_begun_s = now_s
            self._state, self._steps = _State.AGAIN, 0
            connection.redirect(self.dispatch, limit, RECEIVE_MAX)
            return self.dispatch(connection, frame)
        expires_s = connection.session.expires_s
        if expires_s is not None and now_s >= expires_s:
            self._numbers.expired += 1
            connection.close("its login has expired, and it went on without another one")
            return 0
        return self._answer_other(connection, frame)

    def _answer_token(
        self, error: ErrorCode, _text: str | None, token: bytes, _lifetime_ms: int = 0
    ) -> list[Part] | None:
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
