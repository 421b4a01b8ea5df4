"""What kraftpy adds to Kafka's messages: the contents of tagged fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import extensions
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import HASH_MAX

ONE = "0000000000000001"
TWO = "0000000000000002"
MAX = "7fffffffffffffff"

RANGES: list[tuple[list[Any], str]] = [
    ([], "01"),
    ([(1, 2)], f"02 {ONE}{TWO}00"),
    ([(1, 1), (2, HASH_MAX)], f"03 {ONE}{ONE}00 {TWO}{MAX}00"),
]
EPOCH_RANGES: list[tuple[list[Any], str]] = [
    ([], "01"),
    ([(1, 2, 5), (2, 2, -1)], f"03 {ONE}{TWO}0000000500 {TWO}{TWO}ffffffff00"),
]
SLICES: list[tuple[list[Any], str]] = [
    ([], "01"),
    ([(0, HASH_MAX, [(1, 2)])], f"02 {0:016x}{MAX} 02 {ONE}{TWO}00 00"),
    (
        [(1, 2, []), (2, 2, [(1, 1), (2, 2)])],
        f"03 {ONE}{TWO}01 00 {TWO}{TWO} 03 {ONE}{ONE}00 {TWO}{TWO}00 00",
    ),
]
EPOCH_SLICES: list[tuple[list[Any], str]] = [
    ([], "01"),
    ([(1, 2, [(1, 2, 7)])], f"02 {ONE}{TWO} 02 {ONE}{TWO}0000000700 00"),
]

CODECS: dict[
    str, tuple[Callable[[Any], bytes], Callable[..., Any], list[tuple[list[Any], str]]]
] = {
    "ranges": (extensions.encode_ranges, extensions.decode_ranges, RANGES),
    "epoch ranges": (
        extensions.encode_epoch_ranges,
        extensions.decode_epoch_ranges,
        EPOCH_RANGES,
    ),
    "slices": (extensions.encode_slices, extensions.decode_slices, SLICES),
    "epoch slices": (
        extensions.encode_epoch_slices,
        extensions.decode_epoch_slices,
        EPOCH_SLICES,
    ),
}
BY_VALUE = [
    pytest.param(encode, decode, value, bytes.fromhex(data), id=f"{name}: {value}")
    for name, (encode, decode, examples) in CODECS.items()
    for value, data in examples
]


@pytest.mark.parametrize(("encode", "decode", "value", "data"), BY_VALUE)
def test_by_value(
    encode: Callable[[Any], bytes], decode: Callable[..., Any], value: Any, data: bytes
) -> None:
    assert encode(value) == data
    assert decode(data, 10) == value
    assert decode(bytes(bytearray(data)), 10) == value


@pytest.mark.parametrize(("encode", "decode", "value", "data"), BY_VALUE)
def test_cut_or_longer_ones_are_refused(
    encode: Callable[[Any], bytes], decode: Callable[..., Any], value: Any, data: bytes
) -> None:
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end], 10)
    with pytest.raises(DecodeError, match="1 bytes are left over"):
        decode(data + b"\0", 10)


@pytest.mark.parametrize("name", CODECS)
def test_null_and_endless_lengths_are_refused(name: str) -> None:
    _, decode, _ = CODECS[name]
    for data in (b"\0", b"\xff\xff\xff\xff\x0f", b"\xff" * 5, b"\xff" * 6):
        with pytest.raises(DecodeError):
            decode(data, 10)


@pytest.mark.parametrize("name", CODECS)
def test_tagged_fields_of_later_releases_are_refused(name: str) -> None:
    encode, decode, examples = CODECS[name]
    data = bytearray(encode(examples[1][0]))
    assert data[-1] == 0
    data[-1] = 1
    with pytest.raises(DecodeError):
        decode(bytes(data), 10)


def test_there_are_no_more_than_the_reader_allows() -> None:
    most = [(number, number) for number in range(extensions.RANGES_MAX)]
    assert extensions.decode_ranges(extensions.encode_ranges(most), extensions.RANGES_MAX) == most
    too_many = extensions.encode_ranges([*most, (0, 0)])
    with pytest.raises(DecodeError, match="60001 ranges, and at most 60000"):
        extensions.decode_ranges(too_many, extensions.RANGES_MAX)


def test_slices_have_no_more_together() -> None:
    slices = [(1, 2, [(1, 1), (3, 3)]), (3, 4, [(5, 5)]), (5, 6, [])]
    data = extensions.encode_slices(slices)
    assert extensions.decode_slices(data, 4) == slices
    for fewer in range(4):
        with pytest.raises(DecodeError):
            extensions.decode_slices(data, fewer)


@pytest.mark.parametrize(("number", "data"), [(-1, "ff" * 8), (0, "00" * 8), (48, f"{48:016x}")])
def test_numbers(number: int, data: str) -> None:
    assert extensions.encode_int64(number) == bytes.fromhex(data)
    assert extensions.decode_int64(bytes.fromhex(data)) == number
    for wrong in (data[2:], data + "00"):
        with pytest.raises(DecodeError, match="an int64 has 8 bytes"):
            extensions.decode_int64(bytes.fromhex(wrong))


def test_one_range_of_one_slice_is_read_as_others_are() -> None:
    data = extensions.encode_slices([(1, 2, [(3, 4)])])
    assert extensions.decode_slices(data, 1) == [(1, 2, [(3, 4)])]
    with pytest.raises(DecodeError):
        extensions.decode_slices(data, 0)
    for place in (0, 17, len(data) - 2, len(data) - 1):
        wrong = bytearray(data)
        wrong[place] += 1
        with pytest.raises(DecodeError):
            extensions.decode_slices(bytes(wrong), 5)
