"""Requests, responses and stored messages: header and body, bytes to objects and back.

A frame here is what stands behind the four-byte size. Decoders take a memoryview of bytes
(format B) or `bytes`; what comes from outside can only make them raise `DecodeError`. Encoders
return a list of pieces which, joined, are the frame: `records` stay the objects they were.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kraftpy.protocol import api, replica_fetch, schema
from kraftpy.protocol.decoding import read_tags
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.generator import (
    Decoder,
    Encoder,
    check_version,
    decoder,
    decoder_of_few,
    encoder,
    error_counter,
    message_classes,
    sliced_decoder,
    sliced_encoder,
)

__all__ = [
    "RequestHeader",
    "decode_request",
    "decode_request_header",
    "decode_request_in_slices",
    "decode_request_of_few",
    "decode_response",
    "decode_versioned",
    "decoder",
    "encode_request",
    "encode_response",
    "encode_response_in_slices",
    "encode_versioned",
    "encoder",
    "error_counter",
]

_REQUEST_START = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

# Members of one group may run newer clients than this: what they append to these is ignored, and a
# newer version is read as the newest known one.
_FORWARD_COMPATIBLE = frozenset(("ConsumerProtocolSubscription", "ConsumerProtocolAssignment"))


class RequestHeader:
    """The header of a request, version 1 or 2; its tagged fields are skipped."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )


def decode_request_header(buf: memoryview | bytes) -> tuple[RequestHeader, int]:
    """Returns (header, position of the body). Any API key and version are read; judge them then.

    Raises `DecodeError`.
    """
    if type(buf) is not memoryview:
        buf = memoryview(buf)
    try:
        api_key, version, correlation_id, size = _REQUEST_START.unpack_from(buf)
        client_id = None
        pos = 10
        if size >= 0:
            pos += size
            if pos > len(buf):
                raise DecodeError(f"the client id claims {size} bytes, {len(buf) - 10} are left")
            client_id = buf[10:pos].tobytes().decode()
        if api.is_flexible(api_key, version):
            tag_count = buf[pos]
            pos += 1
            if tag_count:
                _, pos = read_tags(buf, pos, tag_count, len(buf))
    except (struct.error, IndexError):
        raise DecodeError("request header: the bytes end too early") from None
    except ValueError as error:
        raise DecodeError(f"request header: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id), pos


class _Cache(dict[tuple[int, int], Any]):
    """(API key, version) -> codec, built when first asked for; `ValueError` if there is none."""

    def __init__(self, names: dict[int, str], build: Callable[[int, str, int], Any]) -> None:
        super().__init__()
        self._names = names
        self._build = build

    def __missing__(self, key: tuple[int, int]) -> Any:
        api_key, version = key
        if api_key not in self._names:
            raise ValueError(f"no API has the key {api_key}")
        codec = self[key] = self._build(api_key, self._names[api_key], version)
        return codec


def _request_tags(api_key: int, version: int) -> bytes:
    """The end of a request header: no tagged fields, or no room for them."""
    return b"\0" if api.request_header_version(api_key, version) == 2 else b""


def _response_tags(api_key: int, version: int) -> bytes:
    """The end of a response header: no tagged fields, or no room for them."""
    return b"\0" if api.response_header_version(api_key, version) == 1 else b""


def _request_decoder(api_key: int, name: str, version: int) -> Decoder:
    decode = decoder(name, version)
    if api_key == api.ApiKey.FETCH and version in replica_fetch.VERSIONS:
        return replica_fetch.shortened_decoder(decode, message_classes(name))
    return decode


def _request_encoder(api_key: int, name: str, version: int) -> Encoder:
    encode = encoder(name, version)
    if api_key == api.ApiKey.FETCH and version in replica_fetch.VERSIONS:
        return replica_fetch.shortened_encoder(encode)
    return encode


_request_decoders = _Cache(api.REQUEST_NAMES, _request_decoder)
_request_encoders = _Cache(
    api.REQUEST_NAMES, lambda key, name, v: (_request_encoder(key, name, v), _request_tags(key, v))
)
_response_decoders = _Cache(
    api.RESPONSE_NAMES, lambda key, name, v: (decoder(name, v), _response_tags(key, v))
)
_response_encoders = _Cache(
    api.RESPONSE_NAMES, lambda key, name, v: (encoder(name, v), _response_tags(key, v))
)

_request_decoders_of_few = _Cache(api.REQUEST_NAMES, lambda key, name, v: decoder_of_few(name, v))
_sliced_request_decoders = _Cache(api.REQUEST_NAMES, lambda key, name, v: sliced_decoder(name, v))
_sliced_response_encoders = _Cache(
    api.RESPONSE_NAMES, lambda key, name, v: (sliced_encoder(name, v), _response_tags(key, v))
)


def decode_request(api_key: int, version: int, buf: memoryview | bytes, pos: int) -> Any:
    """Returns the request whose body stands at `pos` of `buf`.

    Bytes behind the body are ignored, as Kafka does: librdkafka 2.16 sends three of them with a
    Metadata v12 for all topics. Raises `DecodeError` for bad bytes, a body past the end of `buf`
    included, and `ValueError` for an API or version without a schema.
    """
    request, _ = _request_decoders[api_key, version](buf, pos)
    return request


def decode_request_of_few(api_key: int, version: int, buf: memoryview | bytes, pos: int) -> Any:
    """Like `decode_request`; raises `ManyElements` for a request of more than FEW_ELEMENTS."""
    request, _ = _request_decoders_of_few[api_key, version](buf, pos)
    return request


def decode_request_in_slices(
    api_key: int,
    version: int,
    buf: memoryview | bytes,
    pos: int,
    count: Callable[[str, int], None],
) -> Generator[None, None, Any]:
    """Like `decode_request`, as a generator that yields between elements and returns the request.

    `count(field, n)` is called before an array's elements are built, and may raise `DecodeError`.
    """
    request, _ = yield from _sliced_request_decoders[api_key, version](buf, pos, count)
    return request


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, request: Any
) -> list[Any]:
    """Returns the pieces of the frame: header and body, without the size. Raises `ValueError`."""
    encode, tags = _request_encoders[api_key, version]
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    parts = [_REQUEST_START.pack(api_key, version, correlation_id, size) + name + tags]
    encode(request, parts.append)
    return parts


def decode_response(api_key: int, version: int, buf: memoryview | bytes) -> tuple[int, Any]:
    """Returns (correlation id, response); the body must end where `buf` ends.

    Raises `DecodeError` for bad bytes and `ValueError` for an API or version without a schema.
    """
    if not isinstance(buf, memoryview):
        buf = memoryview(buf)
    decode, tags = _response_decoders[api_key, version]
    pos = 4
    try:
        (correlation_id,) = _INT32.unpack_from(buf)
        if tags:
            pos = 5
            if buf[4]:
                _, pos = read_tags(buf, 5, buf[4], len(buf))
    except (struct.error, IndexError):
        raise DecodeError("response header: the bytes end too early") from None
    response, end = decode(buf, pos)
    if end != len(buf):
        raise DecodeError(f"{type(response).__name__} v{version} ends {len(buf) - end} bytes early")
    return correlation_id, response


def encode_response(api_key: int, version: int, correlation_id: int, response: Any) -> list[Any]:
    """Returns the pieces of the frame: header and body, without the size. Raises `ValueError`."""
    encode, tags = _response_encoders[api_key, version]
    parts = [_INT32.pack(correlation_id) + tags]
    encode(response, parts.append)
    return parts


def encode_response_in_slices(
    api_key: int,
    version: int,
    correlation_id: int,
    response: Any,
    append: Callable[[Any], None],
    errors: Counter[int],
) -> Iterator[None]:
    """Like `encode_response`, as a generator that yields between elements of arrays.

    The pieces go to `append` one by one, and error codes other than 0 are counted in `errors`.
    """
    encode, tags = _sliced_response_encoders[api_key, version]
    append(_INT32.pack(correlation_id) + tags)
    return encode(response, append, errors)  # type: ignore[no-any-return]


def encode_versioned(name: str, version: int, message: Any) -> bytes:
    """Returns a stored message (a record's key or value, ...): its int16 version, then the body.

    Raises `KeyError` for an unknown name and `ValueError` for what cannot be encoded.
    """
    parts = [_INT16.pack(version)]
    encoder(name, version)(message, parts.append)
    return b"".join(parts)


def decode_versioned(name: str, data: memoryview | bytes) -> tuple[int, Any]:
    """Returns (version, message) of a stored message.

    Consumer protocol messages of versions above the known ones are read as the newest known
    version, and bytes behind them are ignored. Raises `DecodeError`, also for unknown versions,
    and `KeyError` for an unknown name.
    """
    if len(data) < 2:
        raise DecodeError(f"{name}: the version is missing")
    (version,) = _INT16.unpack_from(data)
    decode = _stored_decoders.get((name, version)) or _stored_decoder(name, version)
    message, end = decode(data, 2)
    if end != len(data) and name not in _FORWARD_COMPATIBLE:
        raise DecodeError(f"{name} v{version} ends {len(data) - end} bytes early")
    return version, message


_stored_decoders: dict[tuple[str, int], Decoder] = {}


def _stored_decoder(name: str, version: int) -> Decoder:
    readable = version
    if name in _FORWARD_COMPATIBLE:
        readable = min(version, schema.load(name).last_version)
    try:
        check_version(name, readable)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    decode = decoder(name, readable)
    if readable == version:
        _stored_decoders[name, version] = decode
    return decode
