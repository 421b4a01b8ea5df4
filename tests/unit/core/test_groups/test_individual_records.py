"""The records of claims: their bytes, and what happens to damaged ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.individual.coverage import Claim
from kraftpy.core.groups.individual.records import (
    ClaimRecord,
    ClaimState,
    decode_record,
    encode_record,
)
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import HASH_MAX

names = st.text(st.characters(codec="utf-8"), max_size=20)
_int64 = st.integers(-(2**63), 2**63 - 1)
_int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def records(draw: st.DrawFn) -> ClaimRecord:
    low, high = sorted([draw(st.integers(0, HASH_MAX)), draw(st.integers(0, HASH_MAX))])
    first, last = sorted([draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**63 - 1))])
    topic_id = draw(st.binary(min_size=16, max_size=16))
    state = ClaimState(topic_id, last, draw(_int32), draw(_int64))
    partition = draw(st.integers(0, 2**31 - 1))
    wanted = draw(st.sampled_from([state, None]))
    return ClaimRecord(draw(names), draw(names), partition, low, high, first, wanted)


RECORD = ClaimRecord("g", "top", 5, 16, 32, 45, ClaimState(bytes(range(16)), 50, 7, 1_000))


@given(records())
def test_what_is_written_is_what_is_read(record: ClaimRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_the_bytes_are_those_of_the_format() -> None:
    key, value = encode_record(RECORD)
    assert key.hex(" ", 1) == (
        "00 00 00 01 67 00 03 74 6f 70 00 00 00 05 "
        "00 00 00 00 00 00 00 10 00 00 00 00 00 00 00 20 00 00 00 00 00 00 00 2d"
    )
    assert value is not None
    assert value.hex(" ", 1) == (
        "00 00 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f "
        "00 00 00 00 00 00 00 32 00 00 00 07 00 00 00 00 00 00 03 e8 00"
    )
    assert RECORD.claim == Claim(16, 32, 45, 50)
    assert RECORD._replace(state=None).claim is None


def test_a_transactions_claim_by_value() -> None:
    record = RECORD._replace(transaction=(0x0102030405060708, 9))
    key, value = encode_record(record)
    assert key.hex(" ", 1) == (
        "00 01 "
        + encode_record(RECORD)[0].hex(" ", 1).removeprefix("00 00 ")
        + " 01 02 03 04 05 06 07 08 00 09"
    )
    assert value == encode_record(RECORD)[1]
    assert decode_record(key, value) == record
    assert decode_record(key, None) == record._replace(state=None)
    with pytest.raises(DecodeError, match="would have"):
        decode_record(key[:-1], value)


def test_what_a_later_release_wrote_is_passed_over() -> None:
    key, value = encode_record(RECORD)
    assert value is not None
    assert decode_record(b"\0\2" + key[2:], value) is None
    assert decode_record(key, b"\0\1" + value[2:]) is None
    assert decode_record(key, value[:-1] + b"\1\5\1x") == RECORD, "a tagged field"


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (RECORD._replace(partition=-1), "-1"),
        (RECORD._replace(low=33), "33 to 32"),
        (RECORD._replace(low=-1), "-1 to 32"),
        (RECORD._replace(first=-2), "offset -2"),
        (RECORD._replace(first=51), "ends at 50 and begins at 51"),
    ],
)
def test_a_claim_that_could_not_have_been_is_refused(record: ClaimRecord, what: str) -> None:
    with pytest.raises(DecodeError, match=what):
        decode_record(*encode_record(record))


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long for a claim: 40000 bytes"):
        encode_record(RECORD._replace(topic="x" * 40_000))


@given(st.data())
def test_damaged_bytes_are_a_decode_error_or_a_record(data: st.DataObject) -> None:
    key, value = encode_record(RECORD)
    assert value is not None
    both = []
    for part in (key, value):
        at = data.draw(st.integers(0, len(part)))
        both.append(
            part[:at]
            + data.draw(st.binary(max_size=9))
            + part[at:][: data.draw(st.integers(0, 60))]
        )
    with contextlib.suppress(DecodeError):
        decode_record(both[0], both[1])
    with contextlib.suppress(DecodeError):
        decode_record(both[0], None)


def test_a_record_without_a_key_is_refused() -> None:
    with pytest.raises(DecodeError, match="starts with its version"):
        decode_record(None, b"")
