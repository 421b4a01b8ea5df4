"""Claims of many places, or very many of one, go some at a time; others are served in between."""

from __future__ import annotations

import pytest

from kraftpy.core.groups.individual import plan
from kraftpy.core.groups.individual.coverage import WHOLE
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.places import TWIN
from kraftpy.core.groups.individual.plan import TOMBSTONES_TOGETHER
from kraftpy.protocol.errors import ErrorCode

from .claims_driver import KEY, LOW, ClaimsDriver, discard_from, ranges, sliced

OK = ErrorCode.NONE
PLACES = 3
TOGETHER = 10
EACH = 36


def many(count: int = EACH, first: int = 100) -> dict[int, bytes]:
    return ranges(*((first + 2 * n, first + 2 * n) for n in range(count)))


def claimed(count: int = EACH) -> ClaimsDriver:
    """Some places with so many claims, and what comes now stays in flight."""
    driver = ClaimsDriver()
    for number in range(PLACES):
        driver.commit((number, 40, None))
        driver.commit((number, -1, many(count)))
    driver.commits = False
    return driver


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TOMBSTONES_TOGETHER", TOGETHER)


def tombstones(driver: ClaimsDriver) -> int:
    """How many are in flight, in one batch."""
    (write,) = driver.in_flight[TWIN]
    assert not driver.in_flight[0]
    assert all(record.state is None for record in write.records)
    return len(write.records)


def living(driver: ClaimsDriver) -> int:
    """How many keys the claims' log has, of all places, that are no tombstones."""
    state = {record[:6]: record.state for record in driver.claims_log()}
    return len([each for each in state.values() if each is not None])


def reset(driver: ClaimsDriver) -> str:
    return driver.commit(*((number, 7, None) for number in range(PLACES)))


def offsets(driver: ClaimsDriver) -> set[int]:
    return {driver.machine.claims.stable_offset(("g", "t", n)) for n in range(PLACES)}


def test_a_reset_drops_so_many_at_a_time() -> None:
    driver = claimed(1_300)
    token = reset(driver)
    counts = []
    while token not in driver.replies:
        assert not any(driver.in_flight)
        assert driver.has_turn
        driver.take_turn()
        counts.append(tombstones(driver))
        assert not driver.has_turn  # Before it's committed nothing more is written.
        driver.settle(TWIN)
        if driver.in_flight[0]:
            break
    assert sum(counts) == PLACES * 1_300
    assert max(counts) == TOMBSTONES_TOGETHER
    assert driver.living() == set()
    driver.settle(0)
    assert driver.answers(token) == [(OK, None)] * PLACES
    assert offsets(driver) == {7}
    assert not driver.machine.claims.places


@pytest.mark.usefixtures("few")
def test_whoever_takes_over_in_between_has_the_offsets_of_before() -> None:
    """And claims of before, until all are gone: as little as may be is done, and never too much."""
    driver = claimed()
    token = reset(driver)
    left = PLACES * EACH
    while left:
        driver.take_turn()
        for kept in range(2):
            other = driver.reloaded(kept=(0, kept))
            assert offsets(other) == {40}
            assert living(other) == left - kept * tombstones(driver)
        left -= tombstones(driver)
        driver.settle(TWIN)
    assert [len(queue) for queue in driver.in_flight] == [1, 0]
    driver.settle_all()
    assert token in driver.replies
    assert (offsets(driver), driver.living()) == ({7}, set())


@pytest.mark.usefixtures("few")
def test_others_are_served_in_between_and_claims_wait() -> None:
    driver = claimed()
    token = reset(driver)
    driver.take_turn()
    driver.settle(TWIN)
    claim = driver.commit((0, -1, ranges((8, 9))))
    plain = driver.commit((5, 1, None), group="another")
    driver.settle(0)
    assert driver.answer(plain) == (OK, None)
    assert claim not in driver.replies
    driver.settle_all()
    assert driver.answers(token) == [(OK, None)] * PLACES
    assert driver.answer(claim) == (OK, 7)
    assert driver.whole() == [(8, 9)]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("what", ["group", "topic"])
def test_deletions_drop_so_many_at_a_time(what: str) -> None:
    driver = claimed()
    if what == "group":
        driver.carry_out(driver.machine.delete_group("deletion", "g", driver.now_ms))
    else:
        driver.carry_out(driver.machine.delete_topic("t", driver.now_ms))
    assert not any(driver.in_flight)
    for _ in range(PLACES * EACH // TOGETHER):
        driver.take_turn()
        assert tombstones(driver) == TOGETHER
        driver.settle(TWIN)
    driver.settle_all()
    assert driver.replies.get("deletion") is (OK if what == "group" else None)
    assert (offsets(driver), driver.living()) == ({-1}, set())
    assert not driver.machine.claims.places


@pytest.mark.usefixtures("few")
def test_two_drops_take_turns() -> None:
    driver = claimed()
    driver.commits = True
    driver.commit((0, 40, None), group="h")
    driver.commit((0, -1, many()), group="h")
    driver.commits = False
    reset(driver)
    driver.commit((0, 7, None), group="h")
    groups = []
    for _ in range(4):
        driver.take_turn()
        groups.append(driver.in_flight[TWIN][0].keys)
        driver.settle(TWIN)
    assert groups == [("g",), ("h",)] * 2
    driver.settle_all()
    assert driver.living() == set()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("in_flight", [False, True])
def test_who_loses_the_log_in_between_answers(in_flight: bool) -> None:
    driver = claimed()
    token = reset(driver)
    driver.take_turn()
    if not in_flight:
        driver.settle(TWIN)
    driver.in_flight[TWIN].clear()
    driver.carry_out(driver.machine.log_closed(TWIN, driver.now_ms, exists=True))
    assert driver.answers(token) == [(ErrorCode.NOT_COORDINATOR, None)] * PLACES
    assert not driver.has_turn
    assert not any(driver.in_flight)
    assert offsets(driver) == {40}


@pytest.mark.usefixtures("few")
def test_who_is_closed_in_between_answers() -> None:
    driver = claimed()
    token = reset(driver)
    driver.take_turn()
    driver.settle(TWIN)
    driver.carry_out(driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms))
    assert driver.answers(token) == [(ErrorCode.NOT_COORDINATOR, None)] * PLACES


@pytest.mark.usefixtures("few")
def test_what_fails_ends_the_reset_and_the_next_one_drops_the_rest() -> None:
    driver = claimed()
    token = reset(driver)
    driver.take_turn()
    driver.settle(TWIN)
    driver.take_turn()
    driver.settle(TWIN, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.answers(token) == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)] * PLACES
    assert not any(driver.in_flight)
    assert offsets(driver) == {40}
    assert living(driver) == PLACES * EACH - TOGETHER
    driver.commits = True
    assert driver.answer(driver.claim(ranges((40, 41)))) == (OK, 42)
    assert driver.answers(reset(driver)) == [(OK, None)] * PLACES
    assert (offsets(driver), driver.living()) == ({7}, set())


@pytest.mark.usefixtures("few")
def test_what_lands_too_late_goes_on_with_nothing() -> None:
    driver = claimed()
    token = reset(driver)
    driver.take_turn()
    (write,) = driver.in_flight[TWIN]
    driver.carry_out(driver.machine.timed_out(write, driver.now_ms))
    assert driver.answers(token) == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)] * PLACES
    driver.settle_all()
    assert offsets(driver) == {40}
    driver.commits = True
    assert driver.answers(reset(driver)) == [(OK, None)] * PLACES
    assert (offsets(driver), driver.living()) == ({7}, set())


@pytest.mark.usefixtures("few")
def test_what_transactions_have_claimed_goes_too() -> None:
    """What they claim from when it's their place's turn is claimed behind the reset."""
    driver = claimed()
    driver.commits = True
    driver.claim_in(1, sliced((LOW, [(60 + 2 * n, 60 + 2 * n) for n in range(15)])))
    driver.commits = False
    token = driver.plain(7)
    for _ in range(5):
        driver.take_turn()
        driver.settle(TWIN)
    driver.claim_in(2, sliced((LOW, [(300, 301)])))
    driver.settle_all()
    assert driver.answer(token) == (OK, None)
    assert driver.living_in() == {(*LOW, 300)}
    driver.mark(1, committed=True)
    driver.mark(2, committed=True)
    driver.settle_all()
    assert (driver.stable, driver.claimed()) == (7, [(*LOW, 300, 301)])


def test_what_is_passed_goes_some_at_a_time() -> None:
    driver = claimed(1_900)
    token = driver.claim(ranges((0, 150), (153, 4_500)))
    assert not any(driver.in_flight)  # It has to do with so much that it waits for a turn.
    driver.take_turn()
    driver.settle(0)
    driver.settle(TWIN)
    assert driver.answer(token) == (OK, 151)
    counts = []
    while driver.has_turn:
        driver.take_turn()
        counts.append(tombstones(driver))
        driver.settle(TWIN)
        if len(counts) == 1:  # Whoever claims something doesn't wait for the end.
            served = driver.claim(ranges((5_000, 5_001)))
            driver.settle(TWIN)
            assert driver.answer(served)[0] is OK
            assert driver.has_turn
    assert counts[0] == TOMBSTONES_TOGETHER
    assert len(counts) == 2
    assert driver.claimed() == [(*WHOLE, 152, 4_500), (*WHOLE, 5_000, 5_001)]
    assert living(driver) == (PLACES - 1) * 1_900 + 2
    assert driver.reloaded().claimed() == driver.claimed()


@pytest.mark.parametrize("landed", range(4))
def test_whoever_reads_the_log_takes_the_rest_away(landed: int) -> None:
    driver = claimed(1_300)
    driver.claim(ranges((0, 3_000)))
    driver.take_turn()
    driver.settle(0)
    for _ in range(landed):
        if driver.has_turn:
            driver.take_turn()
            driver.settle(TWIN)
    other = driver.reloaded()
    assert other.stable == 3_001
    assert living(other) == (PLACES - 1) * 1_300 <= living(driver)
    assert other.claimed(KEY) == []
    assert other.claimed(("g", "t", 1)) == driver.claimed(("g", "t", 1))


def test_of_a_log_that_was_cut_no_key_is_left_for_later() -> None:
    """Compacted, the log would have what was claimed behind the cut."""
    driver = claimed(1_300)
    driver.claim(ranges((99, 3_000)))
    driver.take_turn()
    driver.settle(TWIN)
    assert len(driver.machine.claims.places["g"][KEY].stale) == 1_300 - TOMBSTONES_TOGETHER
    token = driver.claim(discard_from(120))
    while token not in driver.replies:
        driver.settle(TWIN)
    assert driver.claimed() == [(*WHOLE, 99, 119)]
    driver.compact()
    assert driver.reloaded().claimed() == driver.claimed()


def test_what_is_cut_in_the_commit_that_made_it_one_is_gone() -> None:
    driver = claimed(1_300)
    first = driver.claim(ranges((50, 51)))
    driver.claim(ranges((99, 3_000)))
    token = driver.claim(discard_from(120))
    driver.settle(TWIN)
    assert first in driver.replies
    while token not in driver.replies:
        driver.settle(TWIN)
    assert driver.claimed() == [(*WHOLE, 50, 51), (*WHOLE, 99, 119)]
    driver.compact()
    assert driver.reloaded().claimed() == driver.claimed()


def test_no_memory_is_kept_of_it() -> None:
    memory = ClaimMemory(1 << 30)
    driver = ClaimsDriver(memory=memory)
    driver.plain(40)
    driver.claim(many(2_000))
    driver.plain(7)
    assert memory.used_bytes == 0
