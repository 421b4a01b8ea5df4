"""Envelope (KIP-590): a request that another broker passes on, with the principal that sent it.

Rules:

* It's taken on the inter-broker listener, from who has CLUSTER_ACTION where there is an authorizer,
  for the requests on offsets in PASSED_ON alone, and not in another envelope. It is authorized and
  carried out as the principal that is enclosed.
* What is passed on isn't passed on again (`coordination.offset_forwarding`).
* A principal that can't be read, or that no client can be, is PRINCIPAL_DESERIALIZATION_FAILURE;
  whatever else is wrong with what is enclosed is INVALID_REQUEST.
* Requests and answers of many elements are read and written in slices, as all others are.
"""

from __future__ import annotations

from collections.abc import Awaitable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from kraftpy.core.security.acls import Operation
from kraftpy.core.security.principals import BROKER, PAGE, Principal
from kraftpy.protocol import codec
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.decoding import FEW_ELEMENTS
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import EnvelopeRequest, EnvelopeResponse
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import ANSWER_MAX_BYTES, in_slices
from kraftpy.server.network.long_requests import ELEMENTS_MAX
from kraftpy.server.network.session import PassedOnSession

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

PASSED_ON = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)


@handles(ApiKey.ENVELOPE, concurrent=True, cluster=Operation.CLUSTER_ACTION)
async def envelope(
    broker: Broker, ctx: RequestContext, request: EnvelopeRequest
) -> EnvelopeResponse:
    """The answer to what is enclosed."""
    if ctx.session.listener != broker.config.inter_broker_listener.name:
        return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        principal = _principal(request.request_principal)
    except DecodeError:
        return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    try:
        host = str(ip_address(request.client_host_address))
        frame = memoryview(bytearray(request.request_data))
        header, position = codec.decode_request_header(frame)
        key = ApiKey(header.api_key)
        low, high = ADVERTISED[key]
        if key not in PASSED_ON or not low <= header.api_version <= high:
            raise ValueError(f"{key.name} {header.api_version} isn't passed on")
        counted = _Counted()
        enclosed = await in_slices(
            codec.decode_request_in_slices(key, header.api_version, frame, position, counted.add)
        )
    except (DecodeError, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    session = PassedOnSession(ctx.session, principal, host)
    inner = RequestContext(header, session, ctx.errors)
    inner.many = counted.elements > FEW_ELEMENTS
    inner.let_overlap = lambda: None
    answer = broker.dispatcher.handler(key)(broker, inner, enclosed)
    if isinstance(answer, Awaitable):
        answer = await answer
    return EnvelopeResponse(response_data=await _encoded(key, header, answer, inner))


class _Counted:
    """How many elements a request has. Too many raise DecodeError."""

    def __init__(self) -> None:
        self.elements = 0

    def add(self, field: str, count: int) -> None:
        self.elements += count
        if self.elements > ELEMENTS_MAX:
            raise DecodeError(f"more than {ELEMENTS_MAX} elements with those of {field}")


def _principal(packed: bytes | None) -> Principal:
    """Raises DecodeError."""
    _, data = codec.decode_versioned("DefaultPrincipalData", packed or b"")
    if not data.type or not data.name or data.type in (BROKER, PAGE):
        raise DecodeError("no client is such a principal")
    return Principal(data.type, data.name)


async def _encoded(
    key: ApiKey, header: codec.RequestHeader, answer: Any, ctx: RequestContext
) -> bytes:
    pieces: list[Any] = []
    size_bytes = seen = 0
    encoding = codec.encode_response_in_slices(
        key, header.api_version, header.correlation_id, answer, pieces.append, ctx.errors
    )

    def encode() -> Any:
        nonlocal size_bytes, seen
        for _ in encoding:
            while seen < len(pieces):
                size_bytes += len(pieces[seen])
                seen += 1
            if size_bytes > ANSWER_MAX_BYTES:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the answer is too large")
            yield

    await in_slices(encode())
    return b"".join(pieces)
