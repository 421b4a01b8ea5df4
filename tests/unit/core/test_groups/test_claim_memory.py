"""The memory of claims: what is counted is what Python keeps, and it has a limit."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable

import pytest

from kraftpy.core.groups.individual.memory import (
    PLACE_BYTES,
    RANGE_BYTES,
    SLICE_BYTES,
    ClaimMemory,
)
from kraftpy.core.groups.individual.records import (
    ClaimRecord,
    ClaimState,
    decode_record,
    encode_record,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.key_hash import HASH_MAX

from .claims_driver import HIGH, KEY, LOW, ClaimsDriver, ranges, sliced

OK = ErrorCode.NONE
FULL = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
PLACE = PLACE_BYTES + len("g" + "t")
WIDTH = 1 << 40
LIMIT_BYTES = 2 << 20

Records = Iterable[tuple[bytes, bytes | None]]


def tiny(number: int) -> tuple[int, int]:
    """One of very many slices."""
    return number * WIDTH, (number + 1) * WIDTH - 1


def record(
    slice_: tuple[int, int],
    first: int,
    *,
    group: str = "a group",
    partition: int = 0,
    producer_id: int | None = None,
) -> tuple[bytes, bytes | None]:
    """As it is in the log: each has its own names, as it's read."""
    transaction = None if producer_id is None else (producer_id, 3)
    state = ClaimState(b"x" * 16, first + 5, 7, 1_700_000_000_000)
    key = group, "a topic", partition, *slice_, first
    return encode_record(ClaimRecord(*key, state, transaction))


def tombstone(slice_: tuple[int, int], first: int) -> tuple[bytes, bytes | None]:
    return record(slice_, first)[0], None


def tiny_slices() -> Records:
    return (record(tiny(n), 10**6) for n in range(5_000))


def slices_of_a_few() -> Records:
    return (record(tiny(n), 10**6 + 10 * i) for n in range(1_000) for i in range(7))


def one_slice() -> Records:
    return (record(tiny(0), 10 * n) for n in range(20_000))


def many_partitions() -> Records:
    return (record(tiny(0), 10**6, partition=n) for n in range(3_000))


def many_groups() -> Records:
    return (record(tiny(0), 10**6, group=f"group-{n}") for n in range(3_000))


def long_names() -> Records:
    return (record(tiny(0), 10**6, group=f"{n:30000}") for n in range(100))


def few_of_many_ranges() -> Records:
    yield from one_slice()
    yield from (tombstone(tiny(0), 10 * n) for n in range(10, 20_000))


def few_of_many_slices() -> Records:
    yield from (record(tiny(n), 10**6) for n in range(20_000))
    yield from (tombstone(tiny(n), 10**6) for n in range(100, 20_000))


def stale_keys() -> Records:
    """Each claim is in another one, and its tombstone is yet to come."""
    yield from (record(tiny(1), n) for n in range(0, 20_000, 10))
    yield from (record(tiny(1), n + 5) for n in range(0, 20_000, 10))


def transactions() -> Records:
    return (record(tiny(n), 10**6, producer_id=n // 50) for n in range(3_000))


@pytest.mark.parametrize(
    "records",
    [
        tiny_slices,
        slices_of_a_few,
        one_slice,
        many_partitions,
        many_groups,
        long_names,
        few_of_many_ranges,
        few_of_many_slices,
        stale_keys,
        transactions,
    ],
)
def test_what_is_counted_is_what_is_kept(records: Callable[[], Records]) -> None:
    log = list(records())
    driver = ClaimsDriver()
    driver.machine.log_closed(1, 0, exists=True)
    gc.collect()
    tracemalloc.start()
    try:
        for key, value in log:
            found = decode_record(key, value)
            assert found is not None
            if found.transaction is None:
                driver.machine.load_claims([found])
            else:
                driver.machine.load_pending_claims(found.transaction[0], [found])
        del found
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert driver.claim_memory.used_bytes == pytest.approx(kept_bytes, rel=0.3)


def fill(driver: ClaimsDriver, slices_each: int = 500, first: int = 1) -> int:
    """Claims of one slice after the other until there is no room; how many were taken."""
    slices_count = 0
    while True:
        some = [(tiny(slices_count + n), [(first, first)]) for n in range(slices_each)]
        error, _ = driver.answer(driver.claim(sliced(*some)))
        if error is not OK:
            assert error is FULL
            return len(driver.claimed())
        slices_count += slices_each


def test_tiny_slices_take_no_more_than_there_may_be() -> None:
    driver = ClaimsDriver(memory=ClaimMemory(LIMIT_BYTES))
    driver.begin(0)
    count = fill(driver)
    assert count == (LIMIT_BYTES - PLACE) // (SLICE_BYTES + RANGE_BYTES)
    assert driver.claim_memory.used_bytes <= LIMIT_BYTES
    log = driver.logs[1]
    gc.collect()
    tracemalloc.start()
    try:
        other = ClaimsDriver(opened=False, memory=ClaimMemory(LIMIT_BYTES))
        other.machine.log_closed(1, 0, exists=True)
        before_bytes, _ = tracemalloc.get_traced_memory()
        for key, value, _ in log:
            found = decode_record(key, value)
            assert found is not None
            other.machine.load_claims([found])
        del found
        gc.collect()
        kept_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert kept_bytes == pytest.approx(LIMIT_BYTES, rel=0.3)
    assert other.claim_memory.used_bytes == driver.claim_memory.used_bytes


def test_group_partitions_take_no_more_than_there_may_be() -> None:
    driver = ClaimsDriver(memory=ClaimMemory(LIMIT_BYTES))
    taken = 0
    for number in range(2 * LIMIT_BYTES // PLACE):
        group = f"g{number}"
        driver.begin(0, group=group)
        taken += driver.answer(driver.claim(ranges((5, 5)), group=group)) == (OK, 0)
    assert taken == pytest.approx(LIMIT_BYTES / (PLACE + SLICE_BYTES + RANGE_BYTES), rel=0.01)


def test_what_fills_holes_has_an_end_too() -> None:
    """All of these begin where the offset stands, and it can't move."""
    driver = ClaimsDriver(memory=ClaimMemory(LIMIT_BYTES))
    driver.begin(0)
    fill(driver, first=0)
    memory = driver.claim_memory
    assert LIMIT_BYTES < memory.used_bytes <= LIMIT_BYTES + memory.reserve_bytes
    assert driver.answer(driver.claim(sliced((LOW, [(1, 1)])))) == (FULL, 0)
    # Nor do they end anything: what grows needs no room.
    assert driver.answer(driver.claim(sliced((tiny(0), [(1, 100)])))) == (OK, 0)


def test_what_is_in_flight_counts() -> None:
    driver = ClaimsDriver(memory=ClaimMemory(2 * (PLACE + SLICE_BYTES + RANGE_BYTES)))
    for group in ("g", "h", "i"):
        driver.begin(0, group=group)
    driver.commits = False
    tokens = [driver.claim(ranges((5, 5)), group=group) for group in ("g", "h")]
    late = driver.claim(ranges((5, 5)), group="i")
    driver.settle(1, ErrorCode.NOT_COORDINATOR)
    assert driver.answer(tokens[0])[0] is ErrorCode.NOT_COORDINATOR
    driver.settle_all()
    assert driver.answer(tokens[1]) == (OK, 0)
    assert driver.answer(late) == (FULL, 0)
    driver.commits = True
    assert driver.answer(driver.claim(ranges((5, 5)), group="i")) == (OK, 0)


def test_all_groups_together_have_so_much_memory(caplog: pytest.LogCaptureFixture) -> None:
    memory = ClaimMemory(PLACE + SLICE_BYTES + 3 * RANGE_BYTES)
    driver = ClaimsDriver(memory=memory)
    driver.begin(0)
    assert driver.answer(driver.claim(ranges((2, 2), (4, 4), (6, 6)))) == (OK, 0)
    assert memory.used_bytes == memory.limit_bytes
    driver.begin(0, group="h")
    assert driver.answer(driver.claim(ranges((2, 2)), group="h")) == (FULL, 0)
    assert "group-limit group=h " in caplog.text
    assert "setting=individual.commit.max.bytes" in caplog.text
    # What fills holes always may.
    assert driver.answer(driver.claim(sliced((LOW, [(0, 1)])))) == (OK, 0)
    assert driver.answer(driver.claim(sliced((HIGH, [(0, 1)])))) == (OK, 3)
    assert driver.answer(driver.claim(ranges((3, 6)))) == (OK, 7)
    assert memory.used_bytes == 0
    assert driver.answer(driver.claim(ranges((2, 2)), group="h")) == (OK, 0)
    driver.machine.close(ErrorCode.NOT_COORDINATOR, 0)
    assert memory.used_bytes == 0


def test_who_has_taken_over_too_much_still_fills_holes() -> None:
    """Of two brokers that were full one is left: no offset could move any more."""
    driver = ClaimsDriver(memory=ClaimMemory(8 * LIMIT_BYTES))
    driver.begin(0)
    assert driver.answer(driver.claim(sliced((HIGH, [(1, 9)])))) == (OK, 0)
    fill(driver)
    memory = ClaimMemory(LIMIT_BYTES)
    other = driver.reloaded(memory=memory)
    assert memory.used_bytes > LIMIT_BYTES + memory.reserve_bytes
    assert other.answer(other.claim(sliced((LOW, [(20, 20)])))) == (FULL, 0)
    assert other.answer(other.claim(sliced((LOW, [(0, 9)])))) == (OK, 0)
    assert other.answer(other.claim(sliced((HIGH, [(0, 0)])))) == (OK, 10)
    assert memory.used_bytes == 0
    assert other.machine.claims.coverage(KEY) is None


def test_the_whole_slice_counts_as_one() -> None:
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(sliced(((0, HASH_MAX), [(5, 5), (7, 7)])))
    assert driver.claim_memory.used_bytes == PLACE + SLICE_BYTES + 2 * RANGE_BYTES
