"""What members say of shares, as bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    ShareSubscription,
    SlotRanges,
    decode_share_subscription,
    decode_shares,
    encode_share_subscription,
    encode_shares,
)


def slot_ranges(bounds: list[int]) -> SlotRanges:
    """Every other gap between the bounds."""
    ordered = sorted(bounds)
    pairs = zip(ordered[::2], ordered[1::2], strict=False)
    found: list[tuple[int, int]] = []
    for first, last in pairs:
        if not found or first > found[-1][1] + 1:
            found.append((first, last))
    return tuple(found) or ALL_SLOTS


SLOT_RANGES = st.lists(st.integers(0, SLOTS - 1), max_size=8, unique=True).map(slot_ranges)
SHARES = st.dictionaries(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)), SLOT_RANGES)


@given(st.booleans(), st.text(max_size=8), SHARES)
def test_what_is_said_is_understood(allow: bool, host: str, shares: dict) -> None:  # type: ignore[type-arg]
    said = ShareSubscription(allow, host, shares)
    data = encode_share_subscription(said)
    assert decode_share_subscription(data) == said
    assert decode_shares(encode_shares(shares)) == shares


def test_the_bytes() -> None:
    """Members of several releases read them, so they stay."""
    shares = {("t", 1): ((0, 9), (20, 65535)), ("t", 0): ALL_SLOTS}
    entries = (
        "00000001" "000174" "00000002"
        "00000000" "00000001" "0000ffff"
        "00000001" "00000002" "00000009" "0014ffff"
    )  # fmt: skip
    assert encode_shares(shares).hex() == "6b706b73000001" + entries
    said = encode_share_subscription(ShareSubscription(True, "h", shares))
    assert said.hex() == "6b706b7300000001000168" + entries


def test_later_versions_add_at_the_end() -> None:
    shares = {("t", 0): ALL_SLOTS}
    later = b"kpks\0\7" + encode_shares(shares)[6:] + b"more"
    assert decode_shares(later) == shares


@pytest.mark.parametrize("data", [b"", b"kpk", b"\0\0\0\1", b"KPKS\0\0\0\0\0\0"])
def test_other_programs_data_is_left_to_them(data: bytes) -> None:
    assert decode_shares(data) is None
    assert decode_share_subscription(data) is None


def shares_of(*ranges: tuple[int, int], count: int | None = None) -> bytes:
    data = b"".join(a.to_bytes(2, "big") + b.to_bytes(2, "big") for a, b in ranges)
    number = len(ranges) if count is None else count
    return (
        b"kpks\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0" + number.to_bytes(4, "big", signed=True) + data
    )


@pytest.mark.parametrize(
    "data",
    [
        b"kpks",
        b"kpks\xff\xff\1\0\0\0\0",
        b"kpks\0\0\1\xff\xff\xff\xff",
        b"kpks\0\0\1\x7f\xff\xff\xff",
        b"kpks\0\0\1\0\0\0\1\0\5t",
        b"kpks\0\0\1\0\0\0\1\xff\xfft",
        b"kpks\0\0\1\0\0\0\1\0\1\xff\0\0\0\0",
        shares_of(),
        shares_of((9, 8)),
        shares_of((0, 9), (10, 20)),
        shares_of((0, 9), (5, 20)),
        shares_of((0, 9), count=2),
        shares_of((0, 9), count=-1),
        shares_of((0, 9), count=2**31 - 1),
        b"kpks\0\0\1\0\0\0\1\0\1t\0\0\0\2" + 2 * b"\0\0\0\0\0\0\0\1\0\0\0\1",
    ],
)
def test_what_can_t_be_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_shares(data)
    with pytest.raises(DecodeError):
        decode_share_subscription(data[:6] + b"\0\1\0\0" + data[7:])


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(data: bytes) -> None:
    for decode in (decode_shares, decode_share_subscription):
        with contextlib.suppress(DecodeError):
            decode(b"kpks\0\0" + data)


def test_a_subscription_that_comes_back_is_no_assignment() -> None:
    """librdkafka's leader gives members what they sent."""
    shares = {("t", 0): ALL_SLOTS}
    assert decode_shares(encode_share_subscription(ShareSubscription(True, "", shares))) is None
    assert decode_share_subscription(encode_shares(shares)) is None
