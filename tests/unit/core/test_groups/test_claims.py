"""Claims of a group: what a commit of them does, and what else there is to them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups.individual.places import ClaimsLog
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import OFFSET_RANGES_TAG, SLICES_TAG, encode_ranges
from kraftpy.protocol.key_hash import HASH_MAX

from .claims_driver import HALF, HIGH, KEY, LOW, ClaimsDriver, discard_from, ranges, sliced

OK = ErrorCode.NONE
TOO_OLD = ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD
FULL = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED


def begun(offset: int = 40, **config: object) -> ClaimsDriver:
    driver = ClaimsDriver(**config)  # type: ignore[arg-type]
    assert driver.answer(driver.begin(offset)) == (OK, None)
    return driver


def check(driver: ClaimsDriver) -> None:
    """What is in memory is in the log, compacted or not."""
    for _ in range(2):
        other = driver.reloaded()
        assert other.claimed() == driver.claimed()
        assert other.stable == driver.stable
        assert other.living() == driver.living()
        assert len(driver.living()) == len(driver.claimed())
        driver.compact()


# -- the draft's examples


def test_a_range_between_two_makes_one_of_three() -> None:
    driver = begun(40)
    assert driver.answer(driver.claim(ranges((45, 47), (50, 50)))) == (OK, 40)
    assert driver.answer(driver.claim(ranges((48, 49)))) == (OK, 40)
    assert driver.whole() == [(45, 50)]
    *_, value, tombstone = driver.claims_log()
    assert value.claim == (0, HASH_MAX, 45, 50)
    assert (tombstone.first, tombstone.state) == (50, None)
    assert len(driver.claims_log()) == 4
    check(driver)


def test_the_hole_is_filled_and_the_stable_offset_moves() -> None:
    driver = begun(43)
    driver.claim(ranges((45, 47)))
    assert driver.answer(driver.claim(ranges((43, 44)))) == (OK, 48)
    assert (driver.stable, driver.whole(), driver.living()) == (48, [], set())
    assert driver.machine.fetch("g", [("t", [0])]) == [("t", [(0, 48, 7, "")])]
    check(driver)


def test_gaps_are_amended() -> None:
    """Stable at 41 (the draft counts the last one done), 43-45 and 48-49 done, 40-50 fetched."""
    driver = begun(41)
    driver.claim(ranges((43, 45), (48, 49)))
    assert driver.answer(driver.claim(ranges((41, 42), (46, 47), (50, 50)))) == (OK, 51)
    check(driver)


# -- slices


def test_an_offset_is_done_when_all_hashes_are() -> None:
    driver = begun(0)
    assert driver.answer(driver.claim(sliced((LOW, [(0, 99)])))) == (OK, 0)
    assert driver.answer(driver.claim(sliced((HIGH, [(0, 49), (60, 79)])))) == (OK, 50)
    assert driver.claimed() == [(*LOW, 0, 99), (*HIGH, 60, 79)]
    assert driver.answer(driver.claim(sliced((HIGH, [(50, 59)])))) == (OK, 80)
    assert driver.claimed() == [(*LOW, 0, 99)]
    check(driver)


def test_commits_that_wait_go_together() -> None:
    driver = begun(0, commits=True)
    driver.commits = False
    first = driver.claim(sliced((LOW, [(0, 9)])))
    others = [driver.claim(sliced((HIGH, [(n, n)]))) for n in range(10)]
    assert [len(queue) for queue in driver.in_flight] == [0, 1]
    driver.settle(1)
    assert driver.answer(first) == (OK, 0)
    assert [len(queue) for queue in driver.in_flight] == [1, 0]  # the stable offset alone
    assert not any(token in driver.replies for token in others)
    driver.settle(0)
    assert {driver.answer(token) for token in others} == {(OK, 10)}
    driver.settle_all()
    assert driver.living() == set()
    check(driver)


def test_a_claim_of_several_partitions_is_judged_by_partition() -> None:
    driver = ClaimsDriver()
    token = driver.commit((0, 5, None), (1, -1, ranges((3, 4))), (2, -1, ranges((4, 3))))
    assert driver.answers(token) == [
        (OK, None),
        (ErrorCode.INVALID_REQUEST, -1),  # Nobody has said where the group begins.
        (ErrorCode.INVALID_REQUEST, -1),
    ]
    assert driver.stable == 5
    assert driver.machine.claims.keys_of("g") == []
    driver.commit((1, 0, None))
    token = driver.commit((0, -1, ranges((7, 8))), (1, -1, ranges((0, 3))))
    assert driver.answers(token) == [(OK, 5), (OK, 4)]
    assert driver.claimed() == [(0, HASH_MAX, 7, 8)]


# -- what is asked again, or too late


def test_duplicates_are_no_error() -> None:
    driver = begun(40)
    driver.claim(ranges((45, 50)))
    before = list(driver.logs[1])
    assert driver.answer(driver.claim(ranges((46, 48)))) == (OK, 40)
    assert driver.machine.claims.duplicates == 1
    assert driver.logs[1] == before


def test_what_is_below_is_too_old_and_what_is_partly_so_is_clipped() -> None:
    driver = begun(40)
    assert driver.answer(driver.claim(ranges((30, 35), (38, 39)))) == (TOO_OLD, 40)
    assert driver.answer(driver.claim(ranges((30, 35), (38, 42)))) == (OK, 43)
    check(driver)


# -- traps


def test_a_topic_made_anew_has_no_claims() -> None:
    """Whether somebody coordinated meanwhile or not."""
    driver = begun(0)
    driver.claim(ranges((5, 9)))
    driver.carry_out(driver.machine.delete_topic("t", driver.now_ms))
    assert (driver.stable, driver.claimed(), driver.living()) == (-1, [], set())

    away = begun(0)
    away.claim(ranges((5, 9)))
    away.topics.create("t")  # while nobody coordinated
    other = away.reloaded()
    assert (other.claimed(), other.living()) == ([], set())
    assert other.answer(other.claim(ranges((7, 7)))) == (OK, 0)
    assert other.whole() == [(7, 7)]


def test_the_log_is_cut_below_claims() -> None:
    """After an unclean election; whoever finds the epoch gone says from where on."""
    driver = begun(0)
    driver.claim(ranges((5, 9), (12, 14), (20, 29)))
    assert driver.answer(driver.claim(discard_from(13))) == (OK, 0)
    assert driver.whole() == [(5, 9), (12, 12)]
    check(driver)
    assert driver.answer(driver.claim(discard_from(8) | ranges((9, 9)))) == (OK, 0)
    assert driver.whole() == [(5, 7), (9, 9)]
    check(driver)
    driver.claim(ranges((20, 25)))
    assert driver.answer(driver.claim(discard_from(20) | ranges((15, 19)))) == (OK, 0)
    assert driver.whole() == [(5, 7), (9, 9), (15, 19)]  # And nothing of what is void beside it.
    check(driver)


@pytest.mark.parametrize(
    ("offset", "stable"), [(0, 0), (30, 30), (45, 45), (46, 46), (48, 48), (90, 90)]
)
def test_a_plain_commit_from_outside_drops_claims(offset: int, stable: int) -> None:
    """Below, inside and above the claims: as the reset tool and stock clients do."""
    driver = begun(40)
    driver.claim(ranges((45, 47), (50, 60)))
    assert driver.answer(driver.plain(offset)) == (OK, None)
    assert (driver.stable, driver.claimed(), driver.living()) == (stable, [], set())
    check(driver)


def test_a_full_place_takes_what_fills_holes(caplog: pytest.LogCaptureFixture) -> None:
    """Else the offset could never move again."""
    driver = begun(0, individual_commit_max_ranges=3)
    driver.claim(ranges((2, 2), (4, 4), (6, 6)))
    assert driver.answer(driver.claim(ranges((8, 8)))) == (FULL, 0)
    assert "group-limit group=g " in caplog.text
    assert "setting=individual.commit.max.ranges" in caplog.text
    assert driver.whole() == [(2, 2), (4, 4), (6, 6)]
    assert driver.answer(driver.claim(ranges((3, 3)))) == (OK, 0)
    assert driver.whole() == [(2, 4), (6, 6)]
    driver.claim(ranges((8, 8)))
    assert driver.answer(driver.claim(ranges((0, 0)))) == (OK, 1)
    assert driver.answer(driver.claim(ranges((1, 1), (10, 10), (12, 12)))) == (FULL, 5)
    assert driver.whole() == [(6, 6), (8, 8), (10, 10)]
    assert driver.answer(driver.claim(ranges((5, 5)))) == (OK, 7)
    check(driver)


# -- bad input


@pytest.mark.parametrize(
    "tags",
    [
        ranges((5, 4)),
        ranges((5, 6), (6, 7)),
        ranges((5, 6), (1, 2)),
        ranges((-1, 2)),
        ranges((0, 2**63 - 1)),
        sliced(((5, 4), [(1, 2)])),
        sliced(((-1, 4), [(1, 2)])),
        sliced((LOW, [(1, 2)]), (LOW, [(3, 4)])),
        sliced((HIGH, [(1, 2)]), (LOW, [(3, 4)])),
        sliced((LOW, [(3, 2)])),
        discard_from(-1),
        {OFFSET_RANGES_TAG: b""},
        {OFFSET_RANGES_TAG: b"\0"},
        {OFFSET_RANGES_TAG: encode_ranges([(1, 2)])[:-1]},
        {SLICES_TAG: b"\2"},
        ranges(*((2 * n, 2 * n) for n in range(60_001))),
    ],
)
def test_bad_ranges_change_nothing(tags: dict[int, bytes]) -> None:
    driver = begun(40)
    driver.claim(ranges((45, 50)))
    logs = [list(log) for log in driver.logs]
    assert driver.answer(driver.claim(tags)) == (ErrorCode.INVALID_REQUEST, 40)
    assert [list(log) for log in driver.logs] == logs
    assert driver.whole() == [(45, 50)]


def test_a_claim_has_no_offset_beside_it() -> None:
    driver = begun(40)
    token = driver.commit((0, 41, ranges((45, 50))))
    assert driver.answer(token) == (ErrorCode.INVALID_REQUEST, 40)


def test_sixty_thousand_are_taken() -> None:
    driver = begun(0, individual_commit_max_ranges=100_000)
    most = ranges(*((2 * n + 1, 2 * n + 1) for n in range(60_000)))
    assert driver.answer(driver.claim(most)) == (OK, 0)
    assert len(driver.living()) == 60_000
    assert driver.answer(driver.claim(ranges((0, 120_000)))) == (OK, 120_001)
    assert driver.living() == set()


def test_who_does_not_want_them_says_so() -> None:
    driver = begun(40, accept_individual_commit=False)
    error = ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
    assert driver.answer(driver.claim(ranges((45, 50)))) == (error, 40)


def test_zombies_and_strangers_are_refused() -> None:
    driver = begun(40)
    token = driver.claim(ranges((45, 50)), member="gone", generation=3)
    assert driver.answer(token)[0] is ErrorCode.ILLEGAL_GENERATION
    assert driver.claimed() == []


# -- the log of the claims


def test_claims_wait_for_their_log_and_plain_commits_do_not() -> None:
    driver = begun(40)
    driver.claim(ranges((45, 50)))
    other = driver.reloaded(opened=False)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert other.state is ClaimsLog.CLOSED
    assert other.answer(other.claim(ranges((41, 41)))) == (loading, 40)
    assert other.answer(other.plain(42)) == (OK, None)
    assert other.answer(other.plain(41)) == (loading, None)  # it may need claims dropped
    other.carry_out(other.machine.log_opened(1, other.now_ms))
    assert other.whole() == [(45, 50)]
    assert other.answer(other.plain(41)) == (OK, None)
    assert (other.stable, other.claimed()) == (41, [])


def test_who_loses_the_log_answers_all_that_wait() -> None:
    driver = begun(40)
    driver.commits = False
    tokens = [driver.claim(ranges((n, n))) for n in (45, 47)]
    reset = driver.plain(0)
    driver.in_flight[1].clear()
    driver.carry_out(driver.machine.log_closed(1, driver.now_ms, exists=True))
    error = ErrorCode.NOT_COORDINATOR
    assert [driver.answer(token) for token in tokens] == [(error, 40), (error, 40)]
    assert driver.answer(reset) == (error, None)
    assert not driver.in_flight[0]
    assert driver.machine.claims.keys_of("g") == []


def test_a_failed_write_is_told_and_nothing_is_done() -> None:
    driver = begun(40)
    driver.commits = False
    token = driver.claim(ranges((40, 41), (45, 50)))
    driver.settle(1)
    driver.settle(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.answer(token) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 40)
    assert (driver.stable, driver.whole()) == (40, [(45, 50)])
    assert not any(driver.in_flight)
    driver.commits = True
    assert driver.answer(driver.claim(ranges((40, 44)))) == (OK, 51)
    check(driver)


# -- what else is done with offsets


def test_a_deleted_group_has_no_claims() -> None:
    driver = begun(40)
    driver.claim(ranges((45, 50)))
    driver.commits = False
    driver.carry_out(driver.machine.delete_group("deletion", "g", driver.now_ms))
    assert [len(queue) for queue in driver.in_flight] == [0, 1]  # the claims go first
    driver.settle(1)
    driver.settle_all()
    assert driver.replies["deletion"] is OK
    assert (driver.stable, driver.claimed(), driver.living()) == (-1, [], set())
    assert driver.machine.claims.keys_of("g") == []


def test_claims_keep_the_offset_from_expiring() -> None:
    day_ms = 24 * 3600_000
    driver = begun(40)
    driver.now_ms += 6 * day_ms
    driver.claim(ranges((45, 50)))

    def expire() -> int:
        count, effects = driver.machine.expire_offsets(["g"], driver.now_ms)
        driver.carry_out(effects)
        return count

    driver.now_ms += 6 * day_ms
    assert expire() == 0
    assert driver.whole() == [(45, 50)]
    driver.now_ms += 2 * day_ms
    assert expire() == 0
    assert (driver.stable, driver.claimed(), driver.living()) == (40, [], set())
    assert expire() == 1
    assert driver.stable == -1


def test_the_first_offset_is_the_winners() -> None:
    driver = begun(40)
    assert driver.answer(driver.begin(45))[0] is ErrorCode.UNEXPECTED_OFFSET
    assert driver.stable == 40


def test_epochs_are_those_of_the_last_offset() -> None:
    driver = begun(0)
    driver.claim(ranges((5, 9)), epoch=3)
    driver.claim(ranges((10, 12)), epoch=4)
    driver.claim(ranges((1, 4)), epoch=2)
    coverage = driver.machine.claims.coverage(KEY)
    assert coverage is not None
    assert coverage.slices() == [(0, HASH_MAX, [(1, 12, 4)])]
    driver.claim(ranges((0, 0)), epoch=1)
    assert driver.machine.fetch("g", [("t", [0])]) == [("t", [(0, 13, 4, "")])]


_halves = st.sampled_from([LOW, HIGH, LOW, HIGH, (0, HASH_MAX), (HALF // 2, HASH_MAX - 1)])
# From the stable offset on mostly: what fills holes.
_gaps = st.sampled_from([0, 0, 0, 1, 4, -2])
_claims = st.tuples(_halves, _gaps, st.integers(0, 8), st.integers(1, 3))
# A claim, an offset that is committed as it is, or a log of which a write has landed.
_steps = st.one_of(_claims, _claims, _claims, st.integers(38, 60), st.sampled_from("01"))


def plan_all(driver: ClaimsDriver) -> None:
    """No short ways."""
    claims: Any = driver.machine.claims
    claims._write_short = claims._write_tombstones = lambda *_: False


@pytest.mark.parametrize("seed", range(6))
def test_members_of_any_speed_need_no_plan(seed: int) -> None:
    """What they claim is written as if each had had one."""
    chosen = random.Random(seed)
    bounds = [0, *sorted(chosen.sample(range(1, HASH_MAX), 3)), HASH_MAX + 1]
    slices = [(low, high - 1) for low, high in pairwise(bounds)]
    speeds = [chosen.choice([1, 3, 10]) for _ in slices]
    short, planned = begun(40), begun(40)
    plan_all(planned)
    done = [40] * len(slices)
    for _ in range(300):
        member = chosen.choices(range(len(slices)), speeds)[0]
        first = done[member] + chosen.choice([0, 0, 0, 0, 3])
        last = first + chosen.randrange(9)
        if first == done[member]:
            done[member] = last + 1
        tags, epoch = sliced((slices[member], [(first, last)])), chosen.randrange(4)
        answers = [each.answer(each.claim(tags, epoch=epoch)) for each in (short, planned)]
        assert answers[0] == answers[1]
    assert short.stable == planned.stable > 60
    assert short.claimed() == planned.claimed()
    assert short.logs == planned.logs
    assert short.claim_memory.used_bytes == planned.claim_memory.used_bytes


@given(st.lists(_steps, max_size=30), st.sampled_from([2, 20_000]), st.booleans())
def test_what_is_written_without_a_plan_is_what_a_plan_makes(
    steps: list[Any], most: int, waits: bool
) -> None:
    """Offset for offset and record for record, also where there is no room."""
    drivers = []
    for planned in (False, True):
        driver = begun(40, individual_commit_max_ranges=most)
        driver.commits = not waits
        if planned:
            plan_all(driver)
        tokens = []
        for step in steps:
            if isinstance(step, tuple):
                hashes, gap, more, epoch = step
                first = driver.stable + gap
                tokens.append(driver.claim(sliced((hashes, [(first, first + more)])), epoch=epoch))
            elif isinstance(step, int):
                tokens.append(driver.plain(step))
            elif driver.in_flight[int(step)]:
                driver.settle(int(step))
        driver.settle_all()
        driver.commits = True
        check(driver)
        answers = [driver.answer(token) for token in tokens]
        drivers.append((answers, driver.logs, driver.claim_memory.used_bytes))
        assert driver.machine.claims.duplicates <= len(steps)
    assert drivers[0] == drivers[1]


def test_one_claim_is_answered_as_one_of_several() -> None:
    """Of a request with another partition, which is judged partition by partition."""
    requests: list[tuple[int, dict[int, bytes]]] = [
        (-1, sliced((LOW, [(40, 49)]))),
        (-1, sliced((HIGH, [(40, 44)]))),
        (-1, sliced((LOW, [(42, 43)]))),
        (-1, sliced((LOW, [(3, 9)]))),
        (-1, sliced((LOW, [(9, 3)]))),
        (7, sliced((LOW, [(50, 51)]))),
        (-1, sliced((LOW, [(50, 51)])) | ranges((60, 61))),
        (-1, sliced((LOW, []))),
        (-1, {SLICES_TAG: b"?"}),
    ]
    alone, among = begun(40), begun(40)
    for offset, tags in requests:
        expected = among.commit((0, offset, tags), (1, 0, None))
        found = alone.commit((0, offset, tags))
        assert alone.answer(found) == among.answers(expected)[0]
        assert alone.claimed() == among.claimed()
    assert alone.claim_memory.answers == among.claim_memory.answers
