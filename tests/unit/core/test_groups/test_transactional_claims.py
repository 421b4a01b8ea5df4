"""Claims in transactions: pending until the marker, at every crash point; who may, and how much."""

from __future__ import annotations

import random

import pytest

from kraftpy.core.groups.individual import pending
from kraftpy.core.groups.individual.memory import PENDING_CLAIM_BYTES, PLACE_BYTES, ClaimMemory
from kraftpy.core.groups.individual.waiting import CLAIMS_MAX, WAITING_MAX
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.key_hash import hashes_of

from .claims_driver import HIGH, KEY, LOW, ClaimsDriver, discard_from, ranges, sliced
from .test_claims_of_members import FIRST, SECOND, Members
from .test_reached import check_reached
from .test_two_logs import OFFSETS, SLICES, Done, Story, crashes, done, nothing

OK = ErrorCode.NONE
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
A, B = 7, 8  # producers


@pytest.fixture
def driver() -> ClaimsDriver:
    made = ClaimsDriver()
    made.begin(40)
    return made


class TestPending:
    def test_claims_count_when_their_transaction_does(self, driver: ClaimsDriver) -> None:
        token = driver.claim_in(A, ranges((43, 45), (48, 49)))
        assert driver.answer(token) == (OK, 40)
        for each in (driver, driver.reloaded()):
            assert (each.stable, each.claimed(), each.read()) == (40, [], UNSTABLE)
        assert driver.replies[driver.mark(A, committed=True)] is OK
        for each in (driver, driver.reloaded()):
            assert (each.stable, each.whole(), each.read()) == (40, [(43, 45), (48, 49)], 40)
            assert len(each.living()) == 2
            assert each.living_in() == set()

    def test_the_stable_offset_follows_the_marker(self, driver: ClaimsDriver) -> None:
        driver.claim(ranges((43, 45)))
        driver.claim_in(A, ranges((40, 42)))
        assert (driver.stable, driver.read()) == (40, UNSTABLE)
        driver.mark(A, committed=True)
        for each in (driver, driver.reloaded()):
            assert (each.stable, each.claimed(), each.read()) == (46, [], 46)
            assert (each.living(), each.living_in()) == (set(), set())

    def test_claims_of_an_aborted_transaction_are_dropped(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((40, 45)))
        driver.claim_in(B, ranges((50, 55)))
        driver.mark(A, committed=False)
        for each in (driver, driver.reloaded()):
            assert (each.stable, each.claimed(), each.read()) == (40, [], UNSTABLE)
            each.mark(B, committed=False)
            assert (each.stable, each.claimed(), each.read()) == (40, [], 40)
            assert each.machine.claims.keys_of("g") == []
            assert each.claim_memory.used_bytes == 0

    def test_the_next_transaction_claims_what_the_last_one_did_not(
        self, driver: ClaimsDriver
    ) -> None:
        driver.claim_in(A, ranges((45, 50)))
        driver.mark(A, committed=True)
        driver.claim_in(A, ranges((45, 47)), epoch=1)
        driver.mark(A, committed=True)
        driver.compact()
        assert driver.whole() == driver.reloaded().whole() == [(45, 50)]
        driver.claim_in(A, ranges((40, 44)), epoch=2)
        driver.mark(A, committed=False)
        assert driver.stable == driver.reloaded().stable == 40

    def test_what_was_answered_does_not_shrink(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((45, 50)))
        driver.claim_in(A, ranges((45, 47)))
        driver.commits = False
        driver.claim_in(A, ranges((60, 65)))
        driver.claim_in(A, ranges((60, 61)))
        driver.settle_all()
        driver.compact()
        for each in (driver, driver.reloaded()):
            each.commits = True
            each.mark(A, committed=True)
            assert each.whole() == [(45, 50), (60, 65)]

    def test_a_transaction_in_flight_is_unstable(self, driver: ClaimsDriver) -> None:
        driver.commits = False
        driver.claim_in(A, ranges((40, 45)))
        assert driver.read() is UNSTABLE
        driver.settle(1, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.read() == 40
        assert driver.machine.claims.keys_of("g") == []

    def test_a_marker_that_failed_is_told_so(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((40, 45)))
        driver.commits = False
        token = driver.mark(A, committed=True)
        driver.settle(1, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.replies[token] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert driver.read() is UNSTABLE

    def test_what_could_not_be_written_anew_is_by_the_next_commit(
        self, driver: ClaimsDriver
    ) -> None:
        driver.claim_in(A, ranges((43, 45)))
        driver.commits = False
        driver.mark(A, committed=True)
        driver.settle(1)
        driver.settle(1, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert (driver.whole(), driver.read(), driver.living()) == ([(43, 45)], 40, set())
        driver.commits = True
        driver.claim(ranges((50, 50)))
        assert driver.living_in() == set()
        assert driver.whole() == driver.reloaded().whole() == [(43, 45), (50, 50)]

    def test_claims_of_two_transactions_meet(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, sliced((LOW, [(40, 49)])))
        driver.claim_in(B, sliced((HIGH, [(40, 44)])))
        driver.mark(B, committed=True)
        assert driver.stable == 40
        driver.mark(A, committed=True)
        for each in (driver, driver.reloaded()):
            assert each.stable == 45
            assert each.claimed() == [(*LOW, 40, 49)]


class TestResets:
    def test_a_reset_drops_what_is_pending(self, driver: ClaimsDriver) -> None:
        """Who resets wants these records again, whatever becomes of the transaction."""
        driver.claim_in(A, ranges((43, 45)))
        driver.plain(30)
        for each in (driver, driver.reloaded()):
            assert each.read() == 30
            each.mark(A, committed=True)
            assert (each.stable, each.claimed(), each.living_in()) == (30, [], set())

    def test_a_topic_made_anew_has_none(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((43, 45)))
        driver.topics.create("t")
        driver.claim(ranges((50, 50)))
        driver.mark(A, committed=True)
        for each in (driver, driver.reloaded()):
            assert (each.whole(), each.living_in()) == ([(50, 50)], set())

    def test_pending_claims_do_not_expire(self) -> None:
        driver = ClaimsDriver(offsets_retention_ms=1_000)
        driver.begin(40)
        driver.claim_in(A, ranges((43, 45)))
        driver.now_ms += 10_000
        for _ in range(2):
            count, effects = driver.machine.expire_offsets(["g"], driver.now_ms)
            driver.carry_out(effects)
            assert count == 0
        driver.mark(A, committed=True)
        assert driver.whole() == [(43, 45)]

    def test_a_group_that_is_deleted_has_none(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((43, 45)))
        driver.carry_out(driver.machine.delete_group("deletion", "g", driver.now_ms))
        assert driver.replies["deletion"] is OK
        driver.mark(A, committed=True)
        assert (driver.stable, driver.claimed(), driver.living_in()) == (-1, [], set())


class TestRefused:
    @pytest.mark.parametrize(
        ("tags", "offset"),
        [
            (ranges((45, 43)), -1),
            (ranges((43, 45), (44, 46)), -1),
            (ranges((-2, 3)), -1),
            (ranges((43, 45)), 46),
            (ranges(), -1),
            (discard_from(43), -1),
            (ranges((43, 45)) | discard_from(44), -1),
            ({10_001: b"\xff"}, -1),
        ],
    )
    def test_bad_claims(self, driver: ClaimsDriver, tags: dict[int, bytes], offset: int) -> None:
        token = driver.claim_in(A, tags, offset=offset)
        assert driver.answer(token) == (ErrorCode.INVALID_REQUEST, 40)
        assert driver.read() == 40

    def test_before_version_5(self, driver: ClaimsDriver) -> None:
        token = driver.claim_in(A, ranges((43, 45)), version=4)
        assert driver.answer(token)[0] is ErrorCode.INVALID_REQUEST

    def test_before_somebody_said_where_to_begin(self) -> None:
        driver = ClaimsDriver()
        assert driver.answer(driver.claim_in(A, ranges((3, 5)))) == (
            ErrorCode.INVALID_REQUEST,
            -1,
        )
        assert driver.machine.claims.keys_of("g") == []

    def test_below_the_stable_offset(self, driver: ClaimsDriver) -> None:
        token = driver.claim_in(A, ranges((30, 39)))
        assert driver.answer(token) == (ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD, 40)
        driver.claim_in(A, ranges((30, 42)))
        driver.mark(A, committed=True)
        assert driver.stable == 43

    def test_where_claims_are_not_taken(self, driver: ClaimsDriver) -> None:
        driver.machine.claims.is_offered = lambda: False
        token = driver.claim_in(A, ranges((43, 45)))
        assert driver.answer(token) == (ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED, 40)

    def test_while_the_log_is_read(self) -> None:
        driver = ClaimsDriver(opened=False)
        driver.begin(40)
        driver.machine.log_closed(1, driver.now_ms, exists=True)
        token = driver.claim_in(A, ranges((43, 45)))
        assert driver.answer(token)[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_of_a_generation_that_there_is_not(self, driver: ClaimsDriver) -> None:
        token = driver.claim_in(A, ranges((43, 45)), member="m", generation=3)
        assert driver.answer(token)[0] is ErrorCode.ILLEGAL_GENERATION
        assert driver.read() == 40

    def test_more_than_there_may_be(self) -> None:
        driver = ClaimsDriver(individual_commit_max_ranges=4)
        driver.begin(40)
        driver.claim(ranges((43, 43), (45, 45), (47, 47)))
        full = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        assert driver.answer(driver.claim_in(A, ranges((50, 50), (60, 60)))) == (full, 40)
        assert driver.read() == 40
        assert driver.answer(driver.claim_in(A, ranges((50, 50)))) == (OK, 40)
        assert driver.answer(driver.claim_in(B, ranges((52, 52)))) == (full, 40)
        # What fills holes always may.
        assert driver.answer(driver.claim_in(B, ranges((44, 44)))) == (OK, 40)
        assert driver.answer(driver.claim_in(B, ranges((40, 40)))) == (OK, 40)
        driver.mark(B, committed=True)
        assert driver.stable == 41

    def test_more_than_memory_takes(self) -> None:
        memory = ClaimMemory(16 * PENDING_CLAIM_BYTES + PLACE_BYTES + len("g" + "t"))
        memory.reserve_bytes = 2 * PENDING_CLAIM_BYTES
        driver = ClaimsDriver(memory=memory)
        driver.begin(0)
        full = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        many = ranges(*((2 * n, 2 * n) for n in range(1, 17)))
        assert driver.answer(driver.claim_in(A, many)) == (OK, 0)
        assert memory.used_bytes == memory.limit_bytes
        assert driver.answer(driver.claim_in(B, ranges((50, 50)))) == (full, 0)
        # That what fills holes may has an end, too.
        assert driver.answer(driver.claim_in(B, ranges((0, 0)))) == (OK, 0)
        assert driver.answer(driver.claim_in(B, ranges((0, 1)))) == (OK, 0)
        assert driver.answer(driver.claim_in(B, sliced((LOW, [(0, 0)])))) == (OK, 0)
        assert driver.answer(driver.claim_in(B, sliced((HIGH, [(0, 0)])))) == (full, 0)
        driver.mark(A, committed=False)
        driver.mark(B, committed=False)
        assert memory.used_bytes == 0


class TestMembers:
    """Two members, each with half of the keys."""

    def test_who_asks_is_concerned_where_it_has_the_keys(self) -> None:
        members = Members()
        driver = members.driver
        one, other = members.ids
        mine = hashes_of(*FIRST)
        who = {"member": one, "generation": members.generation}
        assert driver.answer(driver.claim_in(A, sliced((mine, [(0, 4)])), **who)) == (OK, 0)
        assert (driver.read(one), driver.read(other)) == (UNSTABLE, 0)
        # Who doesn't know of claims, or isn't known, reads all keys.
        assert (driver.read(), driver.read("stranger")) == (UNSTABLE, UNSTABLE)
        driver.mark(A, committed=True)
        assert driver.read() == 0
        assert driver.claimed() == [(*mine, 0, 4)]

    def test_each_claims_of_its_own_share(self) -> None:
        members = Members()
        driver = members.driver
        who = {"member": members.ids[0], "generation": members.generation}
        theirs = sliced((hashes_of(*SECOND), [(0, 4)]))
        not_owned = ErrorCode.KEY_RANGE_NOT_OWNED
        assert driver.answer(driver.claim_in(A, theirs, **who)) == (not_owned, 0)
        late = who | {"generation": members.generation - 1}
        mine = sliced((hashes_of(*FIRST), [(0, 4)]))
        assert driver.answer(driver.claim_in(A, mine, **late))[0] is ErrorCode.ILLEGAL_GENERATION
        assert driver.read() == 0

    def test_who_waits_hears_of_the_next_generation(self) -> None:
        """At once: the one that it waits for is gone, and the group waits for itself."""
        members = Members()
        driver = members.driver
        who = {"member": members.ids[0], "generation": members.generation}
        token = driver.wait_in(A, sliced((hashes_of(*FIRST), [(5, 9)])), timeout_ms=1 << 40, **who)
        assert token not in driver.replies
        kinds = messages.LeaveGroupRequest
        leaving = kinds("g", members=[kinds.MemberIdentity(members.ids[1])])
        driver.carry_out(driver.machine.leave("leave", leaving, driver.now_ms))
        assert driver.replies[token] is ErrorCode.ILLEGAL_GENERATION
        again = driver.wait_in(A, sliced((hashes_of(*FIRST), [(5, 9)])), **who)
        assert driver.replies[again] is ErrorCode.ILLEGAL_GENERATION
        # What needn't wait is taken, as the rebalance began after it had.
        first = sliced((hashes_of(*FIRST), [(0, 9)]))
        assert driver.replies[driver.wait_in(A, first, **who)] is OK
        assert driver.answer(driver.claim_in(A, first, **who)) == (OK, 0)


class TestWaiting:
    """`wait_for_stable`: until all below is committed, pending or waited with."""

    def test_evens_and_odds(self, driver: ClaimsDriver) -> None:
        """Two transactions have each other's records between theirs: neither may wait for the
        other's end, which waits for its own.
        """
        for offset in range(40, 60, 2):
            even, odd = ranges((offset, offset)), ranges((offset + 1, offset + 1))
            waits_odd = driver.wait_in(B, odd)
            assert waits_odd not in driver.replies
            assert driver.replies[driver.wait_in(A, even)] is OK
            assert driver.answer(driver.claim_in(A, even))[0] is OK
            assert driver.replies[waits_odd] is OK
            assert driver.answer(driver.claim_in(B, odd))[0] is OK
            assert driver.stable == 40  # Waiting for that, nobody would go on.
        driver.mark(B, committed=True)
        assert driver.stable == 40
        driver.mark(A, committed=True)
        assert driver.stable == 60

    def test_who_waits_is_waited_with(self, driver: ClaimsDriver) -> None:
        """Of claims that lie between each other's, all are let in together."""
        tokens = [
            driver.wait_in(A, ranges((42, 42), (44, 44))),
            driver.wait_in(B, ranges((43, 43), (45, 45))),
            driver.wait_in(A, ranges((46, 46))),
        ]
        driver.claim(ranges((40, 40)))
        assert not any(token in driver.replies for token in tokens)
        driver.claim_in(A, ranges((41, 41)))
        assert all(driver.replies[token] is OK for token in tokens)

    def test_of_slices_the_one_that_is_behind_is_waited_for(self, driver: ClaimsDriver) -> None:
        ahead = driver.wait_in(A, sliced((LOW, [(45, 49)])))
        driver.claim_in(B, sliced((HIGH, [(40, 49)])))
        assert ahead not in driver.replies
        driver.claim(sliced((LOW, [(40, 43)])))
        assert ahead not in driver.replies
        driver.claim_in(B, sliced((LOW, [(44, 44)])))
        assert driver.replies[ahead] is OK

    def test_the_lowest_does_not_wait(self, driver: ClaimsDriver) -> None:
        for tags in (ranges((40, 44)), ranges((30, 44)), ranges((30, 39))):
            assert driver.replies[driver.wait_in(A, tags)] is OK

    def test_what_is_wrong_is_said_by_the_commit(self, driver: ClaimsDriver) -> None:
        for tags in (ranges((45, 43)), {}):
            assert driver.replies[driver.wait_in(A, tags)] is OK
        zombie = driver.wait_in(A, ranges((45, 49)), member="m", generation=3)
        assert driver.replies[zombie] is ErrorCode.ILLEGAL_GENERATION

    def test_a_plain_commit_is_waited_for_as_well(self, driver: ClaimsDriver) -> None:
        token = driver.wait_in(A, ranges((45, 49)))
        driver.plain(44)
        assert token not in driver.replies
        driver.plain(45)
        assert driver.replies[token] is OK

    def test_it_ends_with_its_transaction(self, driver: ClaimsDriver) -> None:
        tokens = [driver.wait_in(producer, ranges((45, 49))) for producer in (A, B)]
        driver.mark(A, committed=False)
        assert driver.replies[tokens[0]] is ErrorCode.INVALID_TXN_STATE
        assert tokens[1] not in driver.replies

    def test_what_is_aborted_is_not_waited_with(self, driver: ClaimsDriver) -> None:
        driver.claim_in(A, ranges((40, 42)))
        token = driver.wait_in(B, ranges((45, 49)))
        driver.mark(A, committed=False)
        driver.claim(ranges((43, 44)))
        assert token not in driver.replies
        driver.claim(ranges((40, 42)))
        assert driver.replies[token] is OK

    def test_it_ends_with_its_time(self, driver: ClaimsDriver) -> None:
        token = driver.wait_in(A, ranges((45, 49)), timeout_ms=1_000)
        assert driver.machine.next_deadline() == driver.now_ms + 1_000
        driver.carry_out(driver.machine.handle_timers(driver.now_ms + 999))
        assert token not in driver.replies
        driver.carry_out(driver.machine.handle_timers(driver.now_ms + 1_000))
        assert driver.replies[token] is ErrorCode.REQUEST_TIMED_OUT
        assert driver.claim_memory.used_bytes == 0

    def test_it_ends_with_its_coordinator(self, driver: ClaimsDriver) -> None:
        token = driver.wait_in(A, ranges((45, 49)))
        driver.carry_out(driver.machine.log_closed(1, driver.now_ms, exists=True))
        assert driver.replies[token] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert driver.replies[driver.wait_in(A, ranges((45, 49)))] is (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        driver.carry_out(driver.machine.log_opened(1, driver.now_ms))
        token = driver.wait_in(A, ranges((45, 49)))
        driver.carry_out(driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms))
        assert driver.replies[token] is ErrorCode.NOT_COORDINATOR

    def test_who_goes_is_not_waited_with(self, driver: ClaimsDriver) -> None:
        first, second = driver.wait_in(A, ranges((41, 44))), driver.wait_in(B, ranges((45, 49)))
        driver.carry_out(driver.machine.abandon_wait("g", first))
        driver.claim(ranges((40, 40)))
        assert first not in driver.replies
        assert second not in driver.replies
        assert driver.replies[driver.wait_in(A, ranges((41, 44)))] is OK

    def test_so_many_may_wait(self, driver: ClaimsDriver) -> None:
        full = ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
        many = ranges(*((2 * n, 2 * n) for n in range(50, 50 + CLAIMS_MAX + 1)))
        assert driver.replies[driver.wait_in(A, many)] is full
        tokens = [driver.wait_in(A, ranges((45, 49))) for _ in range(WAITING_MAX)]
        assert not any(token in driver.replies for token in tokens)
        assert driver.replies[driver.wait_in(A, ranges((45, 49)))] is full
        driver.claim(ranges((40, 44)))
        assert all(driver.replies[token] is OK for token in tokens)
        assert driver.claim_memory.used_bytes == 0
        driver.claim_memory.limit_bytes = 1_000
        assert driver.replies[driver.wait_in(A, ranges((47, 49)))] is full


class TransactionStory(Story):
    """Members that claim in transactions, too."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__(offset)
        self.epochs = {A: 0, B: 0}
        self.pending: dict[int, Done] = {}
        self.answered_in: dict[int, Done] = {A: nothing(), B: nothing()}
        self.open_in: dict[str, tuple[int, Done]] = {}
        self.ends: dict[str, Done] = {}

    def claim_in(
        self, producer: int, hashes: tuple[int, int] | None, first: int, last: int
    ) -> None:
        tags = ranges((first, last)) if hashes is None else sliced((hashes, [(first, last)]))
        claimed = nothing()
        pending = self.pending.setdefault(producer, nothing())
        for each in SLICES if hashes is None else (hashes,):
            claimed[each].update(range(first, last + 1))
            pending[each].update(range(first, last + 1))
        token = self.driver.claim_in(producer, tags, epoch=self.epochs[producer])
        self.open_in[token] = producer, claimed
        self.hear()

    def end_transaction(self, producer: int, *, committed: bool) -> None:
        """Its producer does so when all that it has asked for is answered."""
        while any(each[0] == producer for each in self.open_in.values()):
            self.settle(1)
        claimed = self.pending.pop(producer, nothing())
        answered, self.answered_in[producer] = self.answered_in[producer], nothing()
        token = self.driver.mark(producer, committed=committed)
        if committed:
            for hashes in SLICES:
                self.said[hashes] |= claimed[hashes]
            self.ends[token] = answered
        self.epochs[producer] += 1
        self.hear()

    def reset(self, offset: int) -> None:
        self.pending.clear()
        self.answered_in = {A: nothing(), B: nothing()}
        super().reset(offset)

    def hear(self) -> None:
        super().hear()
        for token in list(self.open_in):
            if token in self.driver.replies:
                error, _ = self.driver.answer(token)
                producer, claimed = self.open_in.pop(token)
                assert error in (OK, ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD)
                for hashes in SLICES:
                    self.answered_in[producer][hashes] |= claimed[hashes]
        for token in list(self.ends):
            if token in self.driver.replies:
                assert self.driver.replies[token] is OK
                for hashes, offsets in self.ends.pop(token).items():
                    self.answered[hashes] |= offsets

    def check(self) -> None:
        super().check()
        check_reached(self.driver)
        if self.resets:
            return
        for driver in [self.driver, *crashes(self.driver)]:
            for answered in self.answered_in.values():
                if any(answered[h] - done(driver)[h] for h in SLICES):
                    assert driver.read() is UNSTABLE


@pytest.mark.parametrize("seed", range(80))
def test_at_every_crash_point(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(pending, "TOGETHER", 1 + seed % 3)
    story = TransactionStory(choose.randrange(3))
    for _ in range(14):
        what = choose.random()
        first = choose.choice(OFFSETS)
        last = min(first + choose.randrange(4), OFFSETS[-1])
        if what < 0.3:
            hashes = choose.choice([LOW, HIGH, None])
            story.claim_in(choose.choice([A, B]), hashes, first, last)
        elif what < 0.4:
            story.claim(choose.choice([LOW, HIGH, None]), first, last)
        elif what < 0.6:
            story.end_transaction(choose.choice([A, B]), committed=choose.random() < 0.7)
        elif what < 0.65:
            story.driver.settle_all()
            story.hear()
            story.reset(choose.randrange(6))
        else:
            story.settle(choose.randrange(2))
        story.check()
    for producer in (A, B):
        story.end_transaction(producer, committed=choose.random() < 0.7)
        story.check()
    story.end()
    assert story.driver.living_in() == set()
    assert story.driver.machine.claims.pending_count == 0
    assert KEY in story.driver.machine.claims or not story.driver.claimed()
