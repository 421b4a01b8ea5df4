"""How far all is done, pending or waited with: kept up with claims it is what they all say."""

from __future__ import annotations

import random

import pytest

from kraftpy.core.groups.individual import pending
from kraftpy.core.groups.individual.coverage import Coverage

from .claims_driver import HIGH, KEY, LOW, ClaimsDriver, discard_from, ranges, sliced

PRODUCERS = (7, 8)


def check_reached(driver: ClaimsDriver) -> None:
    claims = driver.machine.claims
    place = claims.places.get(KEY[0], {}).get(KEY)
    if place is not None:
        more = [(claim, -1) for claim in place.pending]
        anew = place.known().joined(more).stable_from(claims.stable_offset(KEY))
        assert claims.reached(KEY, Coverage()) == anew


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims, transactions, resets, logs that are cut, topics that are made anew, in any order."""
    choose = random.Random(seed)
    monkeypatch.setattr(pending, "TOGETHER", choose.choice([1, 2, 500]))
    driver = ClaimsDriver()
    driver.begin(0)
    driver.commits = False
    epochs = dict.fromkeys(PRODUCERS, 0)
    for _ in range(60):
        first = choose.randrange(12)
        claimed = (first, first + choose.randrange(4))
        hashes = choose.choice([LOW, HIGH, None])
        tags = ranges(claimed) if hashes is None else sliced((hashes, [claimed]))
        producer = choose.choice(PRODUCERS)
        what = choose.random()
        if what < 0.2:
            driver.claim(tags)
        elif what < 0.4:
            driver.claim_in(producer, tags, epoch=epochs[producer])
        elif what < 0.5:
            while any(driver.in_flight):
                step(driver, choose)
            driver.mark(producer, committed=choose.random() < 0.7)
            epochs[producer] += 1
        elif what < 0.53:
            driver.plain(choose.randrange(8))
        elif what < 0.57:
            driver.claim(tags | discard_from(choose.randrange(10)))
        elif what < 0.58:
            driver.topics.create("t")
        else:
            step(driver, choose)
        check_reached(driver)
    while any(driver.in_flight) or driver.has_turn:
        step(driver, choose)
        check_reached(driver)


def step(driver: ClaimsDriver, choose: random.Random) -> None:
    """Something lands, or who waits for a turn has it."""
    logs = [number for number in range(2) if driver.in_flight[number]]
    if logs:
        driver.settle(choose.choice(logs))
    elif driver.has_turn:
        driver.take_turn()
    check_reached(driver)


def test_nothing_is_kept_of_what_is_passed() -> None:
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(ranges((1_000, 1_000)))
    for number in range(100):
        driver.claim_in(7, sliced((LOW, [(2 * number, 2 * number)])), epoch=number)
        check_reached(driver)
        driver.mark(7, committed=True)
        driver.claim(sliced((HIGH, [(2 * number, 2 * number)])))
        driver.claim(ranges((2 * number + 1, 2 * number + 1)))
        assert driver.stable == 2 * number + 2
    (place,) = driver.machine.claims.places["g"].values()
    assert place.pending.covered.count <= 1
