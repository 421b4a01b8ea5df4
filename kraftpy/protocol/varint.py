"""Unsigned varints of at most 32 bits: Kafka's compact lengths, counts and tags (KIP-482)."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.protocol.errors import DecodeError

_MAX_SHIFT = 28  # five groups of seven bits hold 32 bits; the fifth carries only four of them
_UINT32_MAX = 0xFFFFFFFF

ONE_BYTE: Sequence[bytes] = tuple(bytes((n,)) for n in range(128))
"""The encoding of every varint that fits in one byte, ready made."""


def encode_uvarint(n: int) -> bytes:
    """Returns `n` (0 to 2**32-1) as 1 to 5 bytes; `ValueError` outside that range."""
    if 0 <= n < 128:
        return ONE_BYTE[n]
    if not 0 <= n <= _UINT32_MAX:
        raise ValueError(f"{n} does not fit in an unsigned 32-bit varint")
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """Returns (value, position after it); `DecodeError` when it has more than 32 bits.

    Raises `IndexError` when `buf` ends inside it: the generated decoders turn that into
    `DecodeError` once per message instead of once per byte.
    """
    first = buf[pos]
    if first < 128:
        return first, pos + 1
    return finish_uvarint(buf, pos + 1, first)


def finish_uvarint(buf: memoryview, pos: int, first: int) -> tuple[int, int]:
    """Goes on with a varint whose `first` byte (128 or more) has been read; `pos` is behind it."""
    n = first & 127
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        n |= (byte & 127) << shift
        if byte < 128:
            if n > _UINT32_MAX:
                raise DecodeError("a varint has more than 32 bits")
            return n, pos
        shift += 7
        if shift > _MAX_SHIFT:
            raise DecodeError("a varint has more than five bytes")
