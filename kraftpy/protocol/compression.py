"""The four compression codecs of Kafka's records, with bounded output.

`decompress` is for bytes from outside: the output never grows past the limit, and the memory for it
is sized from what the compressed stream can hold at most, so a small bomb fails without a large
allocation. Any damage raises `DecodeError`.

What each codec's stream looks like is what Kafka's Java client writes and reads:

* gzip: RFC 1952, one member or several.
* snappy: the xerial framing (32 KiB blocks, each raw snappy); raw snappy is read too, as several
  clients write it.
* lz4: the frame format with independent blocks, because the Java reader refuses linked ones.
  Linked blocks are read.
* zstd: RFC 8878 frames.

`cramjam` holds the native codecs. It is loaded on first use: most brokers never open a batch.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import Buffer

_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
_XERIAL_BLOCK_SIZE_BYTES = 32 << 10
_BIG_ENDIAN_SIZE = struct.Struct(">i")
# The densest element is a copy of 64 bytes in three.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = 0x184D2204
# Version 1, independent blocks, no checksums; blocks of at most 64 KiB; checksum of the two bytes.
_LZ4_HEADER = struct.pack("<I3B", _LZ4_MAGIC, 0x60, 0x40, 0x82)
_LZ4_BLOCK_SIZE_BYTES = 64 << 10
_LZ4_BLOCK_SIZES_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_STORED_BIT = 0x80000000
_LZ4_MAX_RATIO = 255
# Kafka's default: it stands for the fast compressor, all others for the thorough one.
_LZ4_USUAL_LEVEL = 9

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50  # and the 15 numbers after it
_ZSTD_MAX_BLOCK_SIZE_BYTES = 128 << 10
_ZSTD_USUAL_LEVEL = 3
_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED = 0, 1, 2

_LITTLE_ENDIAN_SIZE = struct.Struct("<I")
_unpack_from = _LITTLE_ENDIAN_SIZE.unpack_from

# A run of 128 KiB takes four bytes of zstd; deflate's densest code is 258 bytes in two bits.
_OUTLINE_MAX_BLOCKS = 2048
_NO_LIMIT = 1 << 62
_MAX_RATIOS = {"gzip": 1032, "snappy": _SNAPPY_MAX_RATIO, "lz4": _LZ4_MAX_RATIO, "zstd": 32 << 10}


class _TooManyBlocks(DecodeError):
    """A stream's outline takes longer than it is worth."""


class OversizedData(DecodeError):
    """A stream decompresses to more than whoever asked allows."""


def compress(codec: str, data: Buffer, level: int | None = None) -> bytes:
    """Compresses `data` with "gzip", "snappy", "lz4" or "zstd".

    `level` is one of the codec's, as Kafka numbers them; None is its usual one, and snappy has
    none.
    """
    if codec == "gzip":
        return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW_BITS)
    if codec == "snappy":
        return _compress_snappy(data)
    if codec == "lz4":
        return _compress_lz4(data, _LZ4_USUAL_LEVEL if level is None else level)
    if codec == "zstd":
        return bytes(_cramjam().zstd.compress(data, level=level or _ZSTD_USUAL_LEVEL))
    raise ValueError(f"no compression codec {codec!r}; there are gzip, snappy, lz4 and zstd")


def decompress(codec: str, data: Buffer, max_size_bytes: int) -> bytes:
    """Decompresses `data`; raises `DecodeError` if damaged, `OversizedData` beyond the limit."""
    view = memoryview(data)
    if codec == "gzip":
        return _decompress_gzip(view, max_size_bytes)
    if codec == "snappy":
        return _decompress_snappy(view, max_size_bytes)
    if codec == "lz4":
        return _decompress_into("lz4", view, _lz4_size_bound(view), max_size_bytes)
    if codec == "zstd":
        return _decompress_into("zstd", view, _zstd_size_bound(view), max_size_bytes)
    raise DecodeError(f"no compression codec {codec!r}; there are gzip, snappy, lz4 and zstd")


def may_exceed(codec: str, data: Buffer, max_size_bytes: int) -> bool:
    """Whether `data` may decompress to more than `max_size_bytes`; a stream's outline is read.

    True may be wrong, as for streams of many small blocks. False is right but for gzip, whose
    trailer is believed. False for streams that can't be decompressed at all.
    """
    view = memoryview(data)
    if len(view) * _MAX_RATIOS.get(codec, 0) <= max_size_bytes:
        return False
    if codec == "gzip":
        return bool(_LITTLE_ENDIAN_SIZE.unpack_from(view, len(view) - 4)[0] > max_size_bytes)
    bound = {"snappy": _snappy_size_bound, "lz4": _lz4_size_bound, "zstd": _zstd_size_bound}[codec]
    try:
        return bound(view, _OUTLINE_MAX_BLOCKS) > max_size_bytes
    except _TooManyBlocks:
        return True
    except DecodeError:
        return False


def _cramjam() -> Any:
    import cramjam

    return cramjam


def _too_large(codec: str, max_size_bytes: int) -> OversizedData:
    return OversizedData(f"{codec} stream decompresses to more than {max_size_bytes} bytes")


def _decompress_into(codec: str, view: memoryview, bound: int, max_size_bytes: int) -> bytes:
    """Runs cramjam's frame decoder into a buffer that the frame can't outgrow.

    The zeroed buffer costs address space only until the decoder writes to it.
    """
    cramjam = _cramjam()
    output = bytearray(min(bound, max_size_bytes))
    try:
        size = getattr(cramjam, codec).decompress_into(view, output)
    except cramjam.DecompressionError as error:
        if bound > max_size_bytes and "whole buffer" in str(error):
            raise _too_large(codec, max_size_bytes) from None
        raise DecodeError(f"damaged {codec} stream: {error}") from None
    return bytes(memoryview(output)[:size])


# gzip


def _decompress_gzip(view: memoryview, max_size_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest: Buffer = view
    try:
        while True:
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            # One byte more than allowed tells "just fits" from "too large".
            part = member.decompress(rest, max_size_bytes - size + 1)
            size += len(part)
            if size > max_size_bytes:
                raise _too_large("gzip", max_size_bytes)
            parts.append(part)
            if not member.eof:
                raise DecodeError("gzip stream ends early")
            rest = member.unused_data
            if not rest:
                return b"".join(parts)
    except zlib.error as error:
        raise DecodeError(f"damaged gzip stream: {error}") from None


# snappy


def _compress_snappy(data: Buffer) -> bytes:
    compress_raw = _cramjam().snappy.compress_raw
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE_BYTES):
        block = bytes(compress_raw(data[start : start + _XERIAL_BLOCK_SIZE_BYTES]))
        parts += (_BIG_ENDIAN_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, max_size_bytes: int) -> bytes:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, 0, max_size_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise DecodeError("snappy stream ends inside its header")
    parts: list[bytes] = []
    size, pos = 0, len(_XERIAL_HEADER)
    while pos < len(view):
        if len(view) - pos < _BIG_ENDIAN_SIZE.size:
            raise DecodeError("snappy stream ends inside a block's size")
        (length,) = _BIG_ENDIAN_SIZE.unpack_from(view, pos)
        pos += _BIG_ENDIAN_SIZE.size
        if not 0 < length <= len(view) - pos:
            raise DecodeError(f"snappy block of {length} bytes with {len(view) - pos} bytes left")
        part = _decompress_raw_snappy(view[pos : pos + length], size, max_size_bytes)
        parts.append(part)
        size += len(part)
        pos += length
    return b"".join(parts)


def _decompress_raw_snappy(view: memoryview, size_so_far: int, max_size_bytes: int) -> bytes:
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_len(view)
        if size_so_far + size > max_size_bytes:
            raise _too_large("snappy", max_size_bytes)
        if size > len(view) * _SNAPPY_MAX_RATIO:
            raise DecodeError(f"snappy block of {len(view)} bytes claims to hold {size}")
        return bytes(cramjam.snappy.decompress_raw(view, output_len=size))
    except cramjam.DecompressionError as error:
        raise DecodeError(f"damaged snappy block: {error}") from None


def _snappy_size_bound(view: memoryview, max_blocks: int) -> int:
    """How many bytes the blocks say that they decompress to."""
    cramjam = _cramjam()
    try:
        if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            return int(cramjam.snappy.decompress_raw_len(view))
        bound, pos = 0, len(_XERIAL_HEADER)
        while pos < len(view):
            max_blocks -= 1
            if max_blocks < 0:
                raise _TooManyBlocks
            (length,) = _BIG_ENDIAN_SIZE.unpack_from(view, pos)
            pos += _BIG_ENDIAN_SIZE.size
            if length <= 0:
                raise DecodeError(f"snappy block of {length} bytes")
            bound += cramjam.snappy.decompress_raw_len(view[pos : pos + length])
            pos += length
    except (struct.error, cramjam.DecompressionError) as error:
        raise DecodeError(f"damaged snappy stream: {error}") from None
    return bound


# lz4


def _compress_lz4(data: Buffer, level: int) -> bytes:
    compress_block = _cramjam().lz4.compress_block
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_SIZE_BYTES):
        block = bytes(data[start : start + _LZ4_BLOCK_SIZE_BYTES])
        if level != _LZ4_USUAL_LEVEL:
            parts.append(_lz4_block(block, level))
            continue
        packed = bytes(compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (_LITTLE_ENDIAN_SIZE.pack(len(packed)), packed)
        else:
            parts += (_LITTLE_ENDIAN_SIZE.pack(len(block) | _LZ4_STORED_BIT), block)
    parts.append(_LITTLE_ENDIAN_SIZE.pack(0))
    return b"".join(parts)


def _lz4_block(block: bytes, level: int) -> bytes:
    """A block at this level, its size in front.

    cramjam knows levels of frames only: this is the one block of a frame.
    """
    frame = memoryview(_cramjam().lz4.compress(block, level=level))
    (length,) = _LITTLE_ENDIAN_SIZE.unpack_from(frame, len(_LZ4_HEADER))
    end = len(_LZ4_HEADER) + _LITTLE_ENDIAN_SIZE.size + (length & ~_LZ4_STORED_BIT)
    return bytes(frame[len(_LZ4_HEADER) : end])


def _lz4_size_bound(view: memoryview, max_blocks: int = _NO_LIMIT) -> int:
    """How many bytes the frame can decompress to at most; checks its outline on the way."""
    try:
        magic, flags, block_descriptor = struct.unpack_from("<IBB", view)
        if magic != _LZ4_MAGIC or flags >> 6 != 1:
            raise DecodeError("not an lz4 frame")
        block_size = _LZ4_BLOCK_SIZES_BYTES.get(block_descriptor >> 4 & 0x07)
        if block_size is None:
            raise DecodeError("lz4 frame of an unknown block size")
        has_content_size, has_dictionary = flags & 0x08, flags & 0x01
        pos = 7 + (8 if has_content_size else 0) + (4 if has_dictionary else 0)
        block_checksum_size = 4 if flags & 0x10 else 0
        bound = 0
        while True:
            (length,) = _LITTLE_ENDIAN_SIZE.unpack_from(view, pos)
            pos += 4
            if not length:
                break
            max_blocks -= 1
            if max_blocks < 0:
                raise _TooManyBlocks
            if length & _LZ4_STORED_BIT:
                length ^= _LZ4_STORED_BIT
                bound += length
            else:
                bound += min(block_size, length * _LZ4_MAX_RATIO)
            pos += length + block_checksum_size
    except struct.error:
        raise DecodeError("lz4 frame ends early") from None
    if pos + (4 if flags & 0x04 else 0) != len(view):
        raise DecodeError("lz4 frame has bytes after its end")
    return bound


def xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: the lz4 frame's header checksum."""
    value = (0x165667B1 + len(data)) & 0xFFFFFFFF
    words = len(data) // 4
    for (word,) in _LITTLE_ENDIAN_SIZE.iter_unpack(data[: words * 4]):
        value = (value + word * 0xC2B2AE3D) & 0xFFFFFFFF
        value = (_rotate_left(value, 17) * 0x27D4EB2F) & 0xFFFFFFFF
    for byte in data[words * 4 :]:
        value = (value + byte * 0x165667B1) & 0xFFFFFFFF
        value = (_rotate_left(value, 11) * 0x9E3779B1) & 0xFFFFFFFF
    value = ((value ^ value >> 15) * 0x85EBCA77) & 0xFFFFFFFF
    value = ((value ^ value >> 13) * 0xC2B2AE3D) & 0xFFFFFFFF
    return value ^ value >> 16


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF


# zstd


def _zstd_size_bound(view: memoryview, max_blocks: int = _NO_LIMIT) -> int:
    """How many bytes the frames can decompress to at most; checks their outline on the way."""
    bound = pos = 0
    try:
        while pos < len(view):
            (magic,) = _LITTLE_ENDIAN_SIZE.unpack_from(view, pos)
            max_blocks -= 1
            if max_blocks < 0:
                raise _TooManyBlocks
            if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC:
                (length,) = _LITTLE_ENDIAN_SIZE.unpack_from(view, pos + 4)
                pos += 8 + length
                continue
            if magic != _ZSTD_MAGIC:
                raise DecodeError("not a zstd frame")
            frame_bound, pos = _zstd_frame_bound(view, pos + 4, max_blocks)
            bound += frame_bound
    except (struct.error, IndexError):
        raise DecodeError("zstd frame ends early") from None
    if pos != len(view):
        raise DecodeError("zstd frame ends early")
    return bound


def _zstd_frame_bound(view: memoryview, pos: int, max_blocks: int) -> tuple[int, int]:
    """Size bound of the frame whose descriptor is at `pos`, and where the frame ends."""
    descriptor = view[pos]
    single_segment = descriptor & 0x20
    dictionary_id_size = (0, 1, 2, 4)[descriptor & 0x03]
    content_size_size = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    pos += 1 + (0 if single_segment else 1) + dictionary_id_size + content_size_size
    bound = 0
    while True:
        max_blocks -= 1
        if max_blocks < 0:
            raise _TooManyBlocks
        (block,) = _unpack_from(view, pos - 1)  # with the byte before it
        block >>= 8
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        pos += 3
        if kind == _ZSTD_RLE:
            bound += size
            pos += 1
        elif kind == _ZSTD_RAW:
            bound += size
            pos += size
        elif kind == _ZSTD_COMPRESSED:
            bound += _ZSTD_MAX_BLOCK_SIZE_BYTES
            pos += size
        else:
            raise DecodeError("zstd block of an undefined kind")
        if is_last:
            return bound, pos + (4 if descriptor & 0x04 else 0)
