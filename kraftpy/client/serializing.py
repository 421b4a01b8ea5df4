"""Keys, values and headers of users to what a record has; what is wrong names topic and field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kraftpy.protocol.records import Header

K = TypeVar("K")
V = TypeVar("V")

# Upper bounds: of a record's own fields, which are length, attributes, deltas, key and value
# lengths; and of a header's.
_RECORD_OVERHEAD = 21
_HEADER_OVERHEAD = 10


def serialized(
    serializer: Callable[[Any], bytes] | None, value: Any, field: str, topic: str
) -> bytes | None:
    """A key or value as it is sent; what goes wrong names the topic and the field."""
    if value is None:
        return None
    if serializer is not None:
        try:
            value = serializer(value)
        except Exception as error:
            error.add_note(f"when the {field} of a record for topic {topic!r} was serialized")
            raise
    if not isinstance(value, bytes | bytearray | memoryview):
        if serializer is not None:
            what, cure = "its serializer gave", f"have the {field}_serializer return bytes"
        else:
            what, cure = "it is", f"encode it, or give the producer a {field}_serializer"
        raise TypeError(
            f"topic {topic!r}: the {field} has to be bytes, but {what} {type(value).__name__}: "
            f"{cure}"
        )
    return value  # type: ignore[return-value]


def record_size(
    key: bytes | None, value: bytes | None, headers: Sequence[Header], topic: str
) -> int:
    """An upper bound of the bytes that a record takes."""
    size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    return size + _headers_size(headers, topic) if headers else size


def _headers_size(headers: Sequence[Header], topic: str) -> int:
    """An upper bound of the bytes that headers take."""
    if isinstance(headers, Mapping):
        raise TypeError(
            f"topic {topic!r}: headers are a dict, but a name may come twice: give a list of names "
            'and bytes, as [("trace", b"1")]'
        )
    size = 0
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(
                f"topic {topic!r}: header {header!r} has to be a name and bytes, as "
                '("trace", b"1"); headers are a list of those'
            )
        name, data = header
        if not isinstance(name, str) or not (data is None or isinstance(data, bytes)):
            raise TypeError(
                f"topic {topic!r}: header {name!r} has to be a str with bytes or None, not "
                f"{type(data).__name__}"
            )
        try:
            size += len(name.encode()) + len(data or b"") + _HEADER_OVERHEAD
        except UnicodeEncodeError as error:
            raise ValueError(f"topic {topic!r}: header {name!r}: {error}") from None
    return size
