"""Unsigned varints at their borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.varint import decode_uvarint, encode_uvarint

BORDERS = [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2**28, 5), (2**32 - 1, 5)]


@pytest.mark.parametrize(("value", "size"), BORDERS)
def test_sizes(value: int, size: int) -> None:
    assert len(encode_uvarint(value)) == size


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_round_trip_with_bytes_before_and_behind(value: int, noise: bytes) -> None:
    data = noise + encode_uvarint(value) + noise
    assert decode_uvarint(memoryview(data), len(noise)) == (value, len(data) - len(noise))


@pytest.mark.parametrize("value", [-1, 2**32])
def test_values_out_of_range(value: int) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        encode_uvarint(value)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00"])
def test_more_than_32_bits_or_five_bytes(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_uvarint(memoryview(data), 0)
