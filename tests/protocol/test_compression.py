"""The codecs against other libraries' streams, against damage and against bombs."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
import textwrap

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka.codec import snappy_decode, snappy_encode

from kraftpy.protocol.compression import compress, decompress, xxh32_short
from kraftpy.protocol.errors import DecodeError

CODECS = ["gzip", "snappy", "lz4", "zstd"]
LIMIT = 1 << 20

NOISE = random.Random(1).randbytes(200_000)
MIXED = b"".join(NOISE[i : i + 40] * 3 for i in range(0, 100_000, 40))
SAMPLES = [b"", b"a", b"\0" * 300_000, NOISE, MIXED]


def zstd_without_content_size(data: bytes) -> bytes:
    """What Java's stream writer makes: the size is not known when the header is written."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


WRITERS = {
    "gzip": [gzip.compress, lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:])],
    "snappy": [
        snappy.compress,
        snappy_encode,
        lambda data: snappy_encode(data, xerial_blocksize=1000),
    ],
    "lz4": [
        lz4.frame.compress,
        lambda data: lz4.frame.compress(data, block_linked=True, store_size=False),
        lambda data: lz4.frame.compress(data, block_checksum=True, content_checksum=True),
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ],
    "zstd": [
        zstandard.compress,
        zstd_without_content_size,
        lambda data: zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data),
        lambda data: zstandard.compress(data[:10]) + zstandard.compress(data[10:]),
        lambda data: struct.pack("<II", 0x184D2A53, 3) + b"abc" + zstandard.compress(data),
    ],
}
# The lowest and the highest that Kafka takes, and some between them.
LEVELS = {
    "gzip": (1, -1, 9),
    "lz4": (1, 3, 9, 12, 17),
    "zstd": (-131072, -1, 0, 1, 3, 22),
}
USUAL = {"gzip": -1, "lz4": 9, "zstd": 3}

READERS = {
    "gzip": gzip.decompress,
    "snappy": snappy_decode,
    "lz4": lz4.frame.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 20),
}


@pytest.mark.parametrize(
    ("codec", "data"),
    # kafka-python takes a snappy header without blocks, which is what nothing becomes, for raw.
    [(codec, data) for codec in CODECS for data in SAMPLES if data or codec != "snappy"],
)
def test_other_libraries_read_what_we_write(codec, data):
    assert READERS[codec](compress(codec, data)) == data


@pytest.mark.parametrize("data", SAMPLES, ids=len)
@pytest.mark.parametrize(
    ("codec", "level"),
    [(codec, level) for codec, levels in LEVELS.items() for level in levels],
)
def test_other_libraries_read_what_we_write_at_any_level(codec, level, data):
    packed = compress(codec, data, level)
    assert READERS[codec](packed) == decompress(codec, packed, len(data)) == data


@pytest.mark.parametrize("codec", LEVELS)
def test_a_higher_level_packs_tighter(codec):
    data = b" ".join(b"%d" % (n * n % 9973) for n in range(50_000))
    lowest, *_, highest = (len(compress(codec, data, level)) for level in LEVELS[codec])
    assert highest < lowest * 0.99
    assert len(compress(codec, data)) == len(compress(codec, data, USUAL[codec]))


@pytest.mark.parametrize("data", SAMPLES, ids=len)
@pytest.mark.parametrize(
    ("codec", "write"), [(codec, write) for codec in CODECS for write in WRITERS[codec]]
)
def test_we_read_what_other_libraries_write(codec, write, data):
    assert decompress(codec, memoryview(write(data)), LIMIT) == data


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=5000))
def test_round_trip(codec, data):
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "write"), [(codec, write) for codec in CODECS for write in WRITERS[codec]]
)
def test_the_limit_is_exact(codec, write):
    packed = write(MIXED)
    assert decompress(codec, packed, len(MIXED)) == MIXED
    with pytest.raises(DecodeError, match=f"more than {len(MIXED) - 1} bytes"):
        decompress(codec, packed, len(MIXED) - 1)


def test_lz4_has_independent_blocks():
    """Kafka's Java reader refuses linked ones."""
    assert lz4.frame.get_frame_info(compress("lz4", MIXED))["block_linked"] is False


def test_snappy_is_framed_as_xerial_does():
    packed = compress("snappy", MIXED)
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    (length,) = struct.unpack_from(">i", packed, 16)
    assert snappy.uncompress(packed[20 : 20 + length]) == MIXED[: 32 << 10]


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_found(codec):
    packed = compress(codec, MIXED[:300])
    for cut in range(len(packed)):
        if codec == "snappy" and cut == 16:
            continue  # the header alone is a stream of nothing
        with pytest.raises(DecodeError):
            decompress(codec, packed[:cut], LIMIT)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_after_the_end_are_found(codec):
    for junk in (b"\0", b"junk", b"\x04\x22\x4d\x18"):
        with pytest.raises(DecodeError):
            decompress(codec, compress(codec, MIXED) + junk, LIMIT)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=3000), changes=st.lists(st.tuples(st.integers(0), st.binary())))
def test_damage_raises_decode_error_only(codec, data, changes):
    packed = bytearray(compress(codec, data))
    for position, replacement in changes:
        at = position % (len(packed) + 1)
        packed[at : at + len(replacement)] = replacement
    try:
        plain = decompress(codec, packed, 100_000)
    except DecodeError:
        return
    assert len(plain) <= 100_000


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=100))
def test_random_bytes_raise_decode_error_only(codec, data):
    magic = {"gzip": b"\x1f\x8b\x08", "lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}
    for prefix in (b"", magic.get(codec, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")):
        try:
            plain = decompress(codec, prefix + data, 10_000)
        except DecodeError:
            continue
        assert len(plain) <= 10_000


def test_a_snappy_block_may_not_claim_more_than_it_can_hold():
    claim = b"\xff\xff\xff\x1f"  # 64 MiB
    with pytest.raises(DecodeError, match="claims"):
        decompress("snappy", claim + b"\0a", 1 << 30)


@pytest.mark.parametrize("codec", ["none", "brotli", "unknown"])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(DecodeError):
        decompress(codec, b"", LIMIT)
    with pytest.raises(ValueError, match="no compression codec"):
        compress(codec, b"")


# Known values of xxHash32, seed 0.
@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)]
)
def test_xxh32_of_short_inputs(data, expected):
    assert xxh32_short(data) == expected


@given(st.integers(1, 1 << 40))
def test_xxh32_is_the_lz4_header_checksum(size):
    """Frames with a content size have ten bytes of descriptor."""
    context = lz4.frame.create_compression_context()
    frame = lz4.frame.compress_begin(context, source_size=size)
    assert xxh32_short(frame[4:14]) >> 8 & 0xFF == frame[14]


BOMB_SIZE = 256 << 20
BOMB_LIMIT = 4 << 20


def bomb(codec: str) -> bytes:
    plain = bytes(BOMB_SIZE)
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(plain))
    if codec == "zstd":
        return zstd_without_content_size(plain)
    return compress(codec, plain)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_takes_little_memory(codec, tmp_path):
    """256 MiB of zeros against a limit of 4 MiB, measured in a process of its own."""
    (tmp_path / "bomb").write_bytes(bomb(codec))
    code = f"""
        import re
        from pathlib import Path
        from kraftpy.protocol.compression import compress, decompress
        from kraftpy.protocol.errors import DecodeError

        def peak_kib():
            return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

        decompress({codec!r}, compress({codec!r}, bytes(100)), 100)
        packed = Path({str(tmp_path / "bomb")!r}).read_bytes()
        before = peak_kib()
        try:
            decompress({codec!r}, packed, {BOMB_LIMIT})
        except DecodeError as error:
            assert "more than {BOMB_LIMIT} bytes" in str(error), error
            print(peak_kib() - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) * 1024 <= 3 * BOMB_LIMIT
