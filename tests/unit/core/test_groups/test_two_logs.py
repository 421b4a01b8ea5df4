"""The offsets and the claims are in two logs: a crash may come between any two of their writes.

Whatever each log has of what was in flight, the next coordinator knows what was answered, and no
more as done than somebody said.
"""

from __future__ import annotations

import itertools
import random

import pytest

from kraftpy.core.groups.individual import commits, plan
from kraftpy.core.groups.individual.places import TWIN
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState, encode_record
from kraftpy.protocol.errors import ErrorCode

from .claims_driver import HIGH, KEY, LOW, ClaimsDriver, ranges, sliced

OK = ErrorCode.NONE
OFFSETS = range(14)
SLICES = (LOW, HIGH)

Done = dict[tuple[int, int], set[int]]


def nothing() -> Done:
    return {hashes: set() for hashes in SLICES}


def done(driver: ClaimsDriver) -> Done:
    """The offsets that a member would not be handed out, by slice."""
    found = {hashes: set(range(max(driver.stable, 0))) for hashes in SLICES}
    for low, high, first, last in driver.claimed():
        for hashes in SLICES:
            if low <= hashes[0] and hashes[1] <= high:
                found[hashes].update(range(first, last + 1))
    return found


def crashes(driver: ClaimsDriver) -> list[ClaimsDriver]:
    """What may be read after a crash now."""
    offsets, claims = [range(len(queue) + 1) for queue in driver.in_flight]
    return [driver.reloaded(kept=kept) for kept in itertools.product(offsets, claims)]


class Story:
    """What members and operators did, and what they have been told."""

    def __init__(self, offset: int = 0) -> None:
        self.driver = ClaimsDriver()
        self.driver.begin(offset)
        self.driver.commits = False
        self.said = nothing()
        self.answered = nothing()
        for hashes in SLICES:
            self.said[hashes].update(range(offset))
            self.answered[hashes].update(range(offset))
        self.open: dict[str, Done] = {}
        self.resets: dict[str, int] = {}

    def claim(self, hashes: tuple[int, int] | None, first: int, last: int) -> None:
        tags = ranges((first, last)) if hashes is None else sliced((hashes, [(first, last)]))
        claimed = nothing()
        for each in SLICES if hashes is None else (hashes,):
            claimed[each].update(range(first, last + 1))
            self.said[each].update(range(first, last + 1))
        self.open[self.driver.claim(tags)] = claimed
        self.hear()

    def reset(self, offset: int) -> None:
        """Somebody from outside; nothing else is asked for until it is answered."""
        while offset == self.driver.stable:
            offset += 1
        token = self.driver.plain(offset)
        self.resets[token] = offset
        self.hear()
        while token in self.resets:
            self.check()
            self.settle(random.Random(len(self.driver.logs[1])).randrange(2))

    def settle(self, number: int) -> None:
        queues = self.driver.in_flight
        number = number if queues[number] else 1 - number
        if queues[number]:
            self.driver.settle(number)
        elif self.driver.has_turn:
            self.driver.take_turn()
        self.hear()

    def hear(self) -> None:
        """Takes in the answers that have come."""
        for token in list(self.open):
            if token in self.driver.replies:
                error, _ = self.driver.answer(token)
                claimed = self.open.pop(token)
                assert error in (OK, ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD)
                for hashes in SLICES:
                    self.answered[hashes] |= claimed[hashes]
        for token in list(self.resets):
            if token in self.driver.replies:
                assert self.driver.answer(token)[0] is OK
                offset = self.resets.pop(token)
                self.said = {hashes: set(range(offset)) for hashes in SLICES}
                self.answered = {hashes: set(range(offset)) for hashes in SLICES}

    def check(self) -> None:
        """Invariants, of the coordinator that there is and of all that may follow it."""
        for driver in [self.driver, *crashes(self.driver)]:
            self._check(driver)

    def _check(self, driver: ClaimsDriver) -> None:
        found = done(driver)
        if self.resets:
            (offset,) = self.resets.values()
            if driver.stable == offset:
                # It has taken effect: then nothing above is left.
                assert found == {hashes: set(range(offset)) for hashes in SLICES}
                return
            assert all(found[hashes] <= self.said[hashes] for hashes in SLICES)
            return
        for hashes in SLICES:
            assert found[hashes] <= self.said[hashes], "more is done than somebody said"
            assert found[hashes] >= self.answered[hashes], "what was answered is lost"
        stable = min((o for o in OFFSETS if any(o not in found[h] for h in SLICES)), default=14)
        if driver is not self.driver:
            # `replay` looks again: what claims in flight have made, nobody else will find.
            assert driver.stable == stable
            assert len(driver.living()) == len(driver.claimed())

    def end(self) -> None:
        """All that was in flight lands; memory is what a replay gives."""
        self.driver.settle_all()
        self.hear()
        assert not self.open
        assert not self.resets
        assert done(self.driver) == self.said
        for _ in range(2):
            other = self.driver.reloaded()
            assert other.claimed() == self.driver.claimed()
            assert other.stable == self.driver.stable
            assert other.living() == self.driver.living()
            assert len(other.living()) == len(other.claimed())
            self.driver.compact()


@pytest.mark.parametrize("seed", range(60))
def test_at_every_crash_point(seed: int) -> None:
    tell_a_story(seed)


@pytest.mark.parametrize("seed", range(60, 90))
def test_at_every_crash_point_between_few_tombstones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of tombstones in a turn of its own."""
    monkeypatch.setattr(commits, "FEW_RECORDS", 0)
    monkeypatch.setattr(plan, "TOMBSTONES_TOGETHER", 1)
    tell_a_story(seed)


def tell_a_story(seed: int) -> None:
    choose = random.Random(seed)
    story = Story(choose.randrange(3))
    for _ in range(12):
        what = choose.random()
        if what < 0.5:
            hashes = choose.choice([LOW, HIGH, None])
            first = choose.choice(OFFSETS)
            story.claim(hashes, first, min(first + choose.randrange(4), OFFSETS[-1]))
        elif what < 0.56:
            story.driver.settle_all()
            story.hear()
            story.reset(choose.randrange(6))
        else:
            story.settle(choose.randrange(2))
        story.check()
    story.end()


@pytest.mark.parametrize("order", set(itertools.permutations([0, 0, 1, 1])))
def test_tombstones_come_when_the_stable_offset_is_committed(order: tuple[int, ...]) -> None:
    """Else a crash between skips nothing, but forgets what was answered."""
    story = Story(0)
    story.claim(None, 2, 3)
    story.driver.settle_all()
    story.claim(None, 0, 1)
    assert [len(queue) for queue in story.driver.in_flight] == [1, 0]
    for number in order:
        story.check()
        story.settle(number)
    story.check()
    story.end()
    assert story.driver.stable == 4
    assert story.driver.living() == set()


def test_a_reset_takes_the_claims_first() -> None:
    """Else a crash between skips what somebody wanted again."""
    story = Story(0)
    story.claim(None, 5, 9)
    story.driver.settle_all()
    story.hear()
    story.driver.plain(0)
    story.driver.plain(3)
    assert [len(queue) for queue in story.driver.in_flight] == [0, 1]
    story.driver.settle(1)
    assert [len(queue) for queue in story.driver.in_flight] == [1, 0]
    assert story.driver.living() == set()


def test_claims_that_meet_in_flight_move_the_stable_offset() -> None:
    """Neither coordinator wrote it: the one that reads both does."""
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(sliced((LOW, [(0, 4)])))
    driver.commits = False
    driver.claim(sliced((HIGH, [(0, 2), (4, 4)])))
    assert [len(queue) for queue in driver.in_flight] == [1, 1]
    other = driver.reloaded(kept=(0, 0))
    assert other.stable == 0
    # The offset is lost, and so is what it stood for; a claim above it isn't.
    assert other.reloaded().claimed() == [(*LOW, 0, 4)]
    another = driver.reloaded(kept=(1, 1))
    assert another.stable == 3
    assert another.claimed() == [(*LOW, 0, 4), (*HIGH, 4, 4)]


def test_what_follows_on_a_claim_that_is_passed_outlives_it() -> None:
    """The tombstone of the one comes with the other; whoever reads both knows that they are two."""
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(sliced((LOW, [(0, 4)])))
    driver.commits = False
    driver.claim(sliced((HIGH, [(0, 4)])))
    driver.claim(sliced((LOW, [(5, 9)])))
    driver.settle(0)
    driver.settle(1)
    assert (driver.stable, driver.claimed()) == (5, [(*LOW, 5, 9)])
    other = driver.reloaded()
    assert (other.stable, other.claimed()) == (5, [(*LOW, 5, 9)])
    assert other.living() == {(*LOW, 5)}


def test_a_batch_that_was_cut_in_two_leaves_no_stale_key() -> None:
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(ranges(*((2 * n + 1, 2 * n + 1) for n in range(4_000))))
    driver.commits = False
    more = [(10_000 + 2 * n, 10_000 + 2 * n) for n in range(2_000)]
    driver.claim(ranges((1, 9_000), *more))
    driver.take_turn()
    assert len(driver.in_flight[1]) > 1
    for kept in range(len(driver.in_flight[1]) + 1):
        other = driver.reloaded(kept=(0, kept))
        assert len(other.living()) == len(other.claimed())
        assert other.claimed()[0][3] >= (9_000 if kept else 1)
        # A reset after this leaves nothing that could come again.
        other.plain(0)
        assert other.living() == set()
        assert other.reloaded().claimed() == []


def test_tombstones_that_failed_are_written_later() -> None:
    driver = ClaimsDriver()
    driver.begin(0)
    driver.claim(ranges((1, 2)))
    driver.commits = False
    driver.claim(ranges((0, 0)))
    driver.settle(0)
    driver.settle(1, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.living() == {(0, 2**63 - 1, 1)}
    driver.commits = True
    driver.plain(0)
    assert (driver.stable, driver.living()) == (0, set())
    assert driver.machine.claims.coverage(KEY) is None


def test_what_is_passed_keeps_the_stable_offset_from_nothing() -> None:
    """A claim that the log still has from before, and others that a crash kept from counting."""
    driver = ClaimsDriver()
    driver.begin(40)
    driver.claim(sliced((LOW, [(40, 49)])))
    state = ClaimState(driver.topics.find("t").topic_id, 34, 7, 0)  # type: ignore[union-attr]
    driver.logs[TWIN].append((*encode_record(ClaimRecord(*KEY, *LOW, 30, state)), None))
    driver.commits = False
    driver.claim(sliced((HIGH, [(40, 60)])))
    other = driver.reloaded(kept=(0, 1))
    assert other.stable == 50
    assert other.claimed() == [(*HIGH, 40, 60)]
    assert other.living() == {(*HIGH, 40)}
