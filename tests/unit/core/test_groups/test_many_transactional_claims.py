"""Of a transaction's claims that count, very many are written anew in turns; others are served."""

from __future__ import annotations

import pytest

from kraftpy.core.groups.individual.pending import TOGETHER
from kraftpy.core.groups.individual.places import TWIN
from kraftpy.protocol.errors import ErrorCode

from .claims_driver import HIGH, LOW, ClaimsDriver, ranges, sliced

OK = ErrorCode.NONE
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
PRODUCER = 7
COUNT = 3 * TOGETHER + 100
CLAIMED = [(60 + 2 * n, 60 + 2 * n) for n in range(COUNT)]


def committed(*last: tuple[int, int]) -> ClaimsDriver:
    """The marker of a transaction with very many claims is about to be in the log."""
    driver = ClaimsDriver()
    driver.begin(40)
    for claims in (CLAIMED, last):
        if claims:
            assert driver.answer(driver.claim_in(PRODUCER, ranges(*claims))) == (OK, 40)
    driver.commits = False
    driver.mark(PRODUCER, committed=True)
    return driver


def step(driver: ClaimsDriver) -> int:
    """A write lands, or who waits for a turn has it; the records of what is in flight then."""
    if any(driver.in_flight):
        driver.settle(int(not driver.in_flight[0]))
    else:
        driver.take_turn()
    return sum(len(write.records) for queue in driver.in_flight for write in queue)


def under_way(driver: ClaimsDriver) -> bool:
    return any(driver.in_flight) or driver.has_turn


def test_so_many_are_written_at_a_time() -> None:
    driver = committed()
    steps = []
    while under_way(driver):
        steps.append(step(driver))
        assert driver.whole() == CLAIMED  # They count from the marker on.
    assert max(steps) == TOGETHER
    # Each is written anew, and then its record in the transaction gets a tombstone.
    assert sum(steps) == 2 * COUNT
    assert driver.living() == {(0, (1 << 63) - 1, first) for first, _ in CLAIMED}
    assert (driver.living_in(), driver.machine.claims.pending_count) == (set(), 0)


def test_whoever_takes_over_in_between_has_them_all() -> None:
    driver = committed()
    while under_way(driver):
        step(driver)
        for kept in range(2):
            other = driver.reloaded(kept=(0, kept))
            assert other.whole() == CLAIMED
            assert (other.living_in(), other.machine.claims.pending_count) == (set(), 0)
            assert len(other.living()) == COUNT


def test_others_are_served_in_between() -> None:
    driver = committed()
    driver.settle(TWIN)
    assert driver.has_turn
    assert not any(driver.in_flight)
    claim = driver.claim(sliced((LOW, [(50, 51)])))
    plain = driver.commit((5, 1, None), group="another")
    # Of the transaction no more than in a turn is written with the claim.
    assert len(driver.in_flight[TWIN][0].records) == TOGETHER + 1
    while not {claim, plain} <= driver.replies.keys():
        step(driver)
    assert driver.machine.claims.pending_count > COUNT - TOGETHER
    assert (driver.answer(claim), driver.answer(plain)) == ((OK, 40), (OK, None))
    driver.settle_all()
    assert {each[:2] for each in driver.claimed()} == {(0, (1 << 63) - 1), LOW}


def test_two_transactions_of_a_partition_take_no_more() -> None:
    driver = ClaimsDriver()
    driver.begin(40)
    for producer, hashes in ((PRODUCER, LOW), (8, HIGH)):
        driver.claim_in(producer, sliced((hashes, CLAIMED)))
    driver.commits = False
    for producer in (PRODUCER, 8):
        driver.mark(producer, committed=True)
    driver.settle(TWIN)
    driver.settle(TWIN)
    while under_way(driver):
        assert step(driver) <= TOGETHER
    assert len(driver.claimed()) == 2 * COUNT


def test_nobody_is_told_the_offset_of_before_while_it_has_to_move() -> None:
    driver = committed((40, 58))
    assert driver.read() is UNSTABLE
    while driver.stable == 40:
        assert driver.read() is UNSTABLE
        step(driver)
    assert driver.read(asker="somebody") == 59  # who knows what was claimed needn't wait
    driver.settle_all()
    assert (driver.read(), driver.stable) == (59, 59)


def test_who_knows_of_claims_is_told_at_once() -> None:
    driver = committed((40, 58))
    driver.settle(TWIN)
    assert driver.read(asker="somebody") == 40
    assert driver.whole()[0] == (40, 58)


def test_what_fails_is_nothing_to_wait_for() -> None:
    """Who claims something next has it mended; until then the offset is that of before."""
    driver = committed((40, 58))
    driver.settle(TWIN)
    driver.take_turn()
    while any(driver.in_flight):
        driver.settle(int(not driver.in_flight[0]), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert not driver.has_turn
    assert driver.read() == 40
    driver.claim(ranges((59, 59)))
    driver.settle_all()
    assert driver.read() == 61
    assert driver.living_in() == set()


def test_a_refusal_names_the_limit_that_was_met(caplog: pytest.LogCaptureFixture) -> None:
    driver = ClaimsDriver(individual_commit_max_ranges=5)
    driver.begin(40)
    driver.claim_in(PRODUCER, ranges(*CLAIMED[:3]))
    token = driver.claim_in(PRODUCER, ranges(*CLAIMED[3:6]))
    assert driver.answer(token)[0] is ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
    assert "t-0 has 3 ranges above its offset" in caplog.text
    assert "setting=individual.commit.max.ranges" in caplog.text
