"""Signed varints of at most 32 and 64 bits: the numbers in a record (KIP-98)."""

from __future__ import annotations

from kraftpy.protocol.record_batch import InvalidBatch


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """(zigzag number of at most 32 bits, position after it); InvalidBatch, IndexError."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long_varint(data, pos, 5, 32)


def read_varlong(data: bytes, pos: int) -> tuple[int, int]:
    """(zigzag number of at most 64 bits, position after it); InvalidBatch, IndexError."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long_varint(data, pos, 10, 64)


def _read_long_varint(data: bytes, pos: int, max_bytes: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(pos, pos + max_bytes):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    raise InvalidBatch(f"variable-length number of more than {bits} bits")


def encode_varint(value: int) -> bytes:
    """The zigzag number as bytes; ValueError for one of more than 64 bits."""
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return _ONE_BYTE[value]
    if value >> 64:
        raise ValueError("a record's field needs more than 64 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
