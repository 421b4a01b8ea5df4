"""Claims read many at a time are what reading one by one makes of them."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups import CommittedOffset, GroupConfig, GroupMachine, GroupMemory
from kraftpy.core.groups import OffsetRecord as Offset
from kraftpy.core.groups.individual.claim_runs import ClaimRuns
from kraftpy.core.groups.individual.codec import ClaimsCodec
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.records import (
    ClaimRecord,
    ClaimState,
    decode_record,
    encode_record,
)
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.protocol.records import batch_data, build_batch, read_batch_header, read_records

from .claims_driver import HIGH, LOW
from .topics import KnownTopics

NAMES = ["", "g", "ä", "long" * 30]
STABLE = 12

states = st.builds(
    ClaimState,
    st.sampled_from([b"i" * 16] * 9 + [b"j" * 16]),
    st.integers(0, 4),
    st.integers(-1, 3),
    st.integers(0, 9),
)


@st.composite
def records(draw: st.DrawFn) -> ClaimRecord:
    """Often alike, and often behind those that came before."""
    place = draw(st.sampled_from([("g", "t", 0)] * 6 + [("g", "t", 1), ("h", "t", 0)]))
    slice_ = draw(st.sampled_from([LOW, HIGH]))
    first = draw(st.integers(0, 60))
    state = draw(st.sampled_from([*[True] * 9, False]))
    its = draw(states)
    its = its._replace(last=first + its.last) if state else None
    transaction = draw(st.sampled_from([None] * 30 + [(5, 0)])) if its is None else None
    return ClaimRecord(*place, *slice_, first, its, transaction)


def batch_of(claims: list[ClaimRecord], times_ms: list[int], **fields: Any) -> bytes:
    inputs: Any = [
        (times_ms[number % len(times_ms)], *encode_record(each), [])
        for number, each in enumerate(claims)
    ]
    return bytes(build_batch(inputs, **fields))


def machine(stable: int) -> GroupMachine:
    found = GroupMachine(
        GroupConfig(), KnownTopics(t=2), GroupMemory(1 << 40), claim_memory=ClaimMemory(1 << 40)
    )
    if stable:
        found.load(Offset("g", "t", 0, CommittedOffset(stable, 1, "", 7, -1)))
    return found


def known(of: GroupMachine) -> Any:
    """All that it knows of claims."""
    places = {
        key: (
            place.coverage.slices(),
            place.coverage.count,
            set(place.stale),
            place.topic_id,
            place.commit_timestamp_ms,
            set(place.pending.log_keys()),
        )
        for its in of.claims.places.values()
        for key, place in its.items()
    }
    return places, of.claims.ranges_count, of.claims.pending_count


@given(
    st.lists(st.lists(records(), min_size=1, max_size=12), max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(0, 8),
    st.sampled_from([0, STABLE]),
)
def test_what_is_loaded_is_what_each_record_says(
    batches: list[list[ClaimRecord]],
    ascending: bool,
    times_ms: list[int],
    together: int,
    stable: int,
) -> None:
    if ascending:
        batches = [sorted(batch, key=lambda each: each.first) for batch in batches]
    one_by_one, at_once = machine(stable), machine(stable)
    for batch in batches:
        for record in batch:
            one_by_one.load_claims([record])
    parts = [batch_of(batch, times_ms) for batch in batches]
    loaded = Loaded()
    for some in (parts[:together], parts[together:]):
        ClaimsCodec().replay(b"".join(some), at_once, loaded)
    assert known(at_once) == known(one_by_one)
    assert loaded == Loaded(records=sum(map(len, batches)))


def apart(group_id: str, topic: str, count: int) -> list[ClaimRecord]:
    state = ClaimState(b"i" * 16, 0, 1, 7)
    return [
        ClaimRecord(group_id, topic, 0, *slice_, 3 * number, state._replace(last=3 * number + 1))
        for number in range(count)
        for slice_ in (LOW, HIGH)
    ]


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(1, 200))
def test_claims_that_lie_apart_are_read_at_once(group_id: str, topic: str, count: int) -> None:
    """Offset deltas of one and of two bytes."""
    claims = apart(group_id, topic, count)
    runs = ClaimRuns()
    batch = batch_of(claims, [7])
    header = read_batch_header(batch)
    assert runs.read(header, batch_data(header, batch))
    found = [record for run in runs.take() for record in run.records()]
    assert sorted(found) == sorted(claims)
    assert runs.take() == []


def test_what_a_transaction_claims_comes_between() -> None:
    state = ClaimState(b"i" * 16, 9, 1, 7)
    plain = ClaimRecord("g", "t", 0, *LOW, 5, state)
    pending = plain._replace(transaction=(5, 0))
    tombstone = pending._replace(state=None)
    found = machine(0)
    batches = (
        batch_of([plain], [7]),
        batch_of([pending], [7], producer_id=5, producer_epoch=0, transactional=True),
        batch_of([plain._replace(first=20, state=state._replace(last=30)), tombstone], [7]),
    )
    ClaimsCodec().replay(b"".join(batches), found, Loaded())
    (place,) = found.claims.places["g"].values()
    assert place.coverage.slices() == [(*LOW, [(5, 9, 1), (20, 30, 1)])]
    assert not place.pending


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(1, 4),
)
@example([(4, 1)], 1)  # An offset below the batch's, and one beyond its last.
@example([(4, 8)], 1)
def test_damaged_records_are_left_to_the_slow_way(
    damages: list[tuple[int, int]], count: int
) -> None:
    """What is read at once is what reading one by one gives."""
    batch = batch_of(apart("g", "t", count), [7])
    header = read_batch_header(batch)
    data = bytearray(batch_data(header, batch))
    for at, byte in damages:
        data[at % len(data)] = byte
    runs = ClaimRuns()
    if not runs.read(header, bytes(data)):
        return
    expected = []
    for record in read_records(header, bytes(data)):
        with contextlib.suppress(DecodeError):
            expected.append(decode_record(record.key, record.value))
    assert len(expected) == header.records_count
    found = [record for run in runs.take() for record in run.records()]
    assert sorted(found) == sorted(expected)  # type: ignore[type-var]


def test_times_beyond_their_bounds_are_left_to_the_slow_way() -> None:
    batch = batch_of(apart("g", "t", 2), [7, 9])
    header = read_batch_header(batch)
    data = batch_data(header, batch)
    assert ClaimRuns().read(header, data)
    header.base_timestamp = (1 << 63) - 2
    assert not ClaimRuns().read(header, data)


def test_bounds_of_hashes_and_offsets() -> None:
    edge = (1 << 63) - 1
    claims = [ClaimRecord("g", "t", 2**31 - 1, 0, HASH_MAX, 0, ClaimState(bytes(16), edge, -1, -1))]
    found = machine(0)
    ClaimsCodec().replay(batch_of(claims, [7]), found, Loaded())
    (place,) = found.claims.places["g"].values()
    assert place.coverage.slices() == [(0, HASH_MAX, [(0, edge, -1)])]
