"""Offsets in transactions: who may commit, what is pending, what the markers make of it."""

from __future__ import annotations

import random

import pytest

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups import CommittedOffset, GroupCodec, GroupMachine
from kraftpy.core.groups.pending_offsets import (
    PENDING_OFFSET_BYTES,
    TransactionEnds,
)
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker

from .driver import Driver, partitions_of

RETENTION_MS = 10_080 * 60_000
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
A, B = 7, 8  # producers


class TransactionalDriver(Driver):
    """Its log are batches, as a broker has them: a commit of a transaction is like no other."""

    batches: bytes = b""

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        if error is ErrorCode.NONE:
            self._append(self.in_flight[0])
        super().settle(error)

    def _append(self, write) -> None:
        if isinstance(write.records, TransactionEnds):
            parts = [
                build_end_txn_marker(
                    EndTxnMarker(committed, 0),
                    producer_id=producer_id,
                    producer_epoch=0,
                    timestamp_ms=self.now_ms,
                )
                for producer_id, committed in write.records.ends
            ]
        else:
            parts = [GroupCodec().encode(write, self.now_ms)]
        self.batches += b"".join(parts)

    def reloaded(self) -> TransactionalDriver:
        return self.loaded(self.batches)

    def loaded(self, batches: bytes) -> TransactionalDriver:
        """Another broker takes over, which has read these; a log that was compacted, say."""
        other = TransactionalDriver()
        other.config, other.topics = self.config, self.topics
        other.machine = GroupMachine(self.config, self.topics, other.memory)
        other.now_ms, other.batches = self.now_ms, batches
        loaded = Loaded()
        GroupCodec().replay(batches, other.machine, loaded)
        assert not loaded.skipped
        other.carry_out(other.machine.finish_load(other.now_ms))
        return other

    def commit_in(
        self,
        producer_id: int,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
    ) -> str:
        """A TxnOffsetCommit."""
        token = self._next()
        kinds = messages.TxnOffsetCommitRequest
        request = kinds(
            transactional_id="x",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                kinds.TxnOffsetCommitRequestTopic(
                    topic, [kinds.TxnOffsetCommitRequestPartition(index, offset, 5, metadata)]
                )
                for (topic, index), offset in offsets.items()
            ],
        )
        self.carry_out(
            self.machine.commit_in_transaction(token, request, partitions_of, self.now_ms)
        )
        return token

    def mark(self, producer_id: int, *, committed: bool) -> str:
        """The marker of the producer's transaction is in the log."""
        token = self._next()
        self.in_flight.append(self.machine.markers(token, [(producer_id, committed)]))
        while self.commits and self.in_flight:
            self.settle()
        return token

    def stable(self, *places: tuple[str, int], group: str = "g") -> list[int | ErrorCode]:
        """Offsets, or their errors, of an OffsetFetch that requires stable ones."""
        wanted = [(topic, [index]) for topic, index in places]
        found = self.machine.fetch(group, wanted, require_stable=True)
        return [row[4] if len(row) > 4 else row[1] for _, rows in found for row in rows]

    def only_error(self, token: str) -> ErrorCode:
        (error,) = self.commit_errors(token)
        return error


@pytest.fixture
def driver() -> TransactionalDriver:
    return TransactionalDriver()


class TestPending:
    def test_pending_offsets_count_when_their_transaction_does(
        self, driver: TransactionalDriver
    ) -> None:
        driver.commit({("t", 0): 1})
        commit = driver.commit_in(A, {("t", 0): 5, ("u", 1): 7}, metadata="note")
        assert driver.commit_errors(commit) == [ErrorCode.NONE] * 2
        for each in (driver, driver.reloaded()):
            assert each.offsets() == {("t", 0): 1}
            assert each.stable(("t", 0), ("u", 1), ("u", 2)) == [
                1 and UNSTABLE,
                -1 and UNSTABLE,
                -1,
            ]
        assert driver.replies[driver.mark(A, committed=True)] is ErrorCode.NONE
        for each in (driver, driver.reloaded()):
            assert each.committed() == {
                ("t", 0): CommittedOffset(5, 5, "note", driver.now_ms, -1),
                ("u", 1): CommittedOffset(7, 5, "note", driver.now_ms, -1),
            }
            assert each.stable(("t", 0), ("u", 1)) == [5, 7]
            assert not len(each.machine.pending)

    def test_pending_offsets_of_an_aborted_transaction_are_dropped(
        self, driver: TransactionalDriver
    ) -> None:
        driver.commit({("t", 0): 1})
        driver.commit_in(A, {("t", 0): 5})
        driver.mark(A, committed=False)
        for each in (driver, driver.reloaded()):
            assert each.stable(("t", 0)) == [1]

    def test_pending_offsets_of_others_stay(self, driver: TransactionalDriver) -> None:
        driver.commit_in(A, {("t", 0): 5})
        driver.commit_in(B, {("t", 1): 6})
        driver.mark(A, committed=True)
        assert driver.stable(("t", 0), ("t", 1)) == [5, UNSTABLE]
        driver.mark(A, committed=True)  # again: it has none any more
        driver.mark(B, committed=True)
        assert driver.stable(("t", 0), ("t", 1)) == [5, 6]

    @pytest.mark.parametrize("how", ["commit", "tombstone", "transaction"])
    def test_pending_offsets_overtaken(self, driver: TransactionalDriver, how: str) -> None:
        """What was written later counts, whenever the transaction ends."""
        driver.commit({("t", 0): 1})
        driver.commit_in(A, {("t", 0): 5, ("t", 1): 6})
        expected = 2
        if how == "commit":
            driver.commit({("t", 0): 2})
        elif how == "tombstone":
            driver.delete_offsets(("t", 0))
            expected = -1
        else:
            driver.commit_in(B, {("t", 0): 2})
            driver.mark(B, committed=True)
        assert driver.stable(("t", 0), ("t", 1)) == [expected, UNSTABLE]
        other = driver.reloaded()
        for each in (driver, other):
            each.mark(A, committed=True)
            assert each.stable(("t", 0), ("t", 1)) == [expected, 6]
        assert driver.reloaded().stable(("t", 0), ("t", 1)) == [expected, 6]

    def test_pending_offsets_that_were_written_later_are_not_overtaken(
        self, driver: TransactionalDriver
    ) -> None:
        driver.commit_in(A, {("t", 0): 5})
        driver.commit_in(B, {("t", 0): 6})
        driver.mark(A, committed=True)
        assert driver.offsets() == {("t", 0): 5}
        assert driver.stable(("t", 0)) == [UNSTABLE]
        driver.mark(B, committed=True)
        assert driver.stable(("t", 0)) == [6]

    def test_pending_offsets_in_flight(self) -> None:
        driver = TransactionalDriver(commits=False)
        driver.commit({("t", 0): 1})
        driver.settle()
        commit = driver.commit_in(A, {("t", 0): 5})
        assert commit not in driver.replies
        assert driver.stable(("t", 0)) == [UNSTABLE]
        assert driver.offsets() == {("t", 0): 1}
        driver.settle()
        marker = driver.mark(A, committed=True)
        assert driver.stable(("t", 0)) == [UNSTABLE]
        assert marker not in driver.replies
        driver.settle()
        assert driver.replies[marker] is ErrorCode.NONE
        assert driver.stable(("t", 0)) == [5]

    def test_a_commit_that_failed_leaves_nothing(self) -> None:
        driver = TransactionalDriver(commits=False)
        commit = driver.commit_in(A, {("t", 0): 5})
        driver.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert driver.only_error(commit) is ErrorCode.NOT_COORDINATOR
        assert driver.stable(("t", 0)) == [-1]
        assert not len(driver.machine.pending)

    def test_a_marker_is_answered_like_those_of_other_partitions(self) -> None:
        driver = TransactionalDriver(commits=False)
        driver.commit_in(A, {("t", 0): 5})
        driver.settle()
        late, lost, closed = (driver.mark(A, committed=True) for _ in range(3))
        driver.time_out()
        assert driver.replies[late] is ErrorCode.REQUEST_TIMED_OUT
        driver.settle()
        assert driver.offsets() == {("t", 0): 5}
        driver.settle(ErrorCode.KAFKA_STORAGE_ERROR)
        assert driver.replies[lost] is ErrorCode.KAFKA_STORAGE_ERROR
        driver.carry_out(driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms))
        assert driver.replies[closed] is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_all_offsets_of_a_group_are_those_that_count(self, driver: TransactionalDriver) -> None:
        """Kafka, too, leaves out what is pending alone."""
        driver.commit({("t", 0): 1, ("t", 1): 2})
        driver.commit_in(A, {("t", 0): 5, ("u", 0): 6})
        found = dict(driver.machine.fetch("g", None, require_stable=True))
        assert found == {"t": [(0, -1, -1, "", UNSTABLE), (1, 2, 5, "")]}


class TestLife:
    def test_pending_offsets_do_not_expire_nor_does_their_group(
        self, driver: TransactionalDriver
    ) -> None:
        driver.commit({("t", 0): 1, ("t", 1): 2})
        driver.commit_in(A, {("t", 0): 5})
        driver.commit_in(B, {("t", 3): 5}, group="other")
        driver.advance(RETENTION_MS)
        assert driver.expire() == 1
        assert driver.offsets() == {("t", 0): 1}
        assert driver.state("other") == "Empty"
        driver.mark(A, committed=False)
        driver.mark(B, committed=True)
        assert driver.expire() == 2
        assert driver.state() == driver.state("other") == "Dead"

    def test_a_group_that_has_only_pending_ones_is_there(self, driver: TransactionalDriver) -> None:
        driver.commit_in(A, {("t", 0): 5})
        for each in (driver, driver.reloaded()):
            assert each.state() == "Empty"
            assert list(each.machine.group_ids()) == ["g"]
            assert each.machine.groups_count == 1
            assert [row.group_state for row in each.machine.list_groups([], [])] == ["Empty"]

    @pytest.mark.parametrize("landed", [True, False])
    def test_deleting_a_group_buries_them(self, landed: bool) -> None:
        driver = TransactionalDriver(commits=False)
        driver.commit_in(A, {("t", 0): 5})
        if landed:
            driver.settle()
        delete = driver.delete_group()
        while driver.in_flight:
            driver.settle()
        assert driver.replies[delete] is ErrorCode.NONE
        driver.commits = True
        for each in (driver, driver.reloaded()):
            assert not len(each.machine.pending)
            each.mark(A, committed=True)
            assert each.offsets() == {}
            assert each.state() == "Dead"

    def test_deleting_a_topic_buries_them(self, driver: TransactionalDriver) -> None:
        driver.commit_in(A, {("t", 0): 5, ("u", 0): 6})
        assert driver.machine.pending.topics() == {"t", "u"}
        driver.carry_out(driver.machine.delete_topic("t", driver.now_ms))
        driver.mark(A, committed=True)
        assert driver.offsets() == driver.reloaded().offsets() == {("u", 0): 6}

    def test_an_expected_offset_is_in_doubt_while_one_is_pending(
        self, driver: TransactionalDriver
    ) -> None:
        driver.commit({("t", 0): 1})
        driver.commit_in(A, {("t", 0): 5})
        refused = driver.commit({("t", 0): 2}, expected=1)
        assert driver.only_error(refused) is ErrorCode.UNEXPECTED_OFFSET
        driver.mark(A, committed=False)
        taken = driver.commit({("t", 0): 2}, expected=1)
        assert driver.only_error(taken) is ErrorCode.NONE

    def test_what_is_pending_is_counted_and_bounded(self) -> None:
        driver = TransactionalDriver(memory_bytes=3 * PENDING_OFFSET_BYTES)
        driver.commit_in(A, {("t", 0): 5})
        driver.commit_in(A, {("t", 0): 6})  # in its place
        one = driver.memory.used_bytes
        assert PENDING_OFFSET_BYTES < one < 2 * PENDING_OFFSET_BYTES
        driver.commit_in(B, {("t", 1): 5}, group="other")
        assert driver.memory.used_bytes == 2 * one
        refused = driver.commit_in(B, {("t", 2): 5}, metadata="x" * 1000)
        assert driver.only_error(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.reloaded().memory.used_bytes == 2 * one
        driver.mark(B, committed=True)
        assert driver.memory.used_bytes == one
        driver.commit({("t", 0): 7})
        assert driver.memory.used_bytes == 0
        driver.commit_in(A, {("t", 0): 5})
        driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms)
        assert driver.memory.used_bytes == 0


class TestWhoMay:
    def test_whoever_says_nothing_of_itself(self, driver: TransactionalDriver) -> None:
        """In any state: old clients can't say more."""
        assert driver.only_error(driver.commit_in(A, {("t", 0): 5})) is ErrorCode.NONE
        driver.stable_group()
        assert driver.only_error(driver.commit_in(A, {("t", 0): 5})) is ErrorCode.NONE
        assert driver.only_error(driver.commit({("t", 0): 5})) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_generation_of_a_group_that_is_not_there(self, driver: TransactionalDriver) -> None:
        commit = driver.commit_in(A, {("t", 0): 5}, member_id="m", generation=3)
        assert driver.only_error(commit) is ErrorCode.ILLEGAL_GENERATION

    def test_members_of_a_classic_group(self, driver: TransactionalDriver) -> None:
        (member,), generation = driver.stable_group()

        def error(member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
            commit = driver.commit_in(
                A, {("t", 0): 5}, member_id=member_id, generation=generation, instance=instance
            )
            return driver.only_error(commit)

        assert error(member, generation) is ErrorCode.NONE
        assert error(member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
        assert error(member, -1) is ErrorCode.ILLEGAL_GENERATION
        assert error("nobody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
        assert error("", generation) is ErrorCode.UNKNOWN_MEMBER_ID
        assert error(member, generation, "i") is ErrorCode.UNKNOWN_MEMBER_ID

    def test_while_a_classic_group_waits_for_its_assignment(
        self, driver: TransactionalDriver
    ) -> None:
        member = driver.new_member()
        join = driver.join(member)
        driver.advance(2 * driver.config.group_initial_rebalance_delay_ms)
        assert driver.state() == "CompletingRebalance"
        generation = driver.replies[join].generation_id
        how = {"member_id": member, "generation": generation}
        plain = driver.commit({("t", 0): 5}, **how)
        assert driver.only_error(plain) is ErrorCode.REBALANCE_IN_PROGRESS
        assert driver.only_error(driver.commit_in(A, {("t", 0): 5}, **how)) is ErrorCode.NONE

    def test_static_members_are_fenced(self, driver: TransactionalDriver) -> None:
        _, generation = driver.static_group("i")
        commit = driver.commit_in(
            A, {("t", 0): 5}, member_id="another", generation=generation, instance="i"
        )
        assert driver.only_error(commit) is ErrorCode.FENCED_INSTANCE_ID

    def test_partitions_that_are_not_there_and_metadata_that_is_too_large(
        self, driver: TransactionalDriver
    ) -> None:
        commit = driver.commit_in(A, {("t", 0): 5, ("z", 0): 5, ("t", 99): 5})
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver.commit_errors(commit) == [ErrorCode.NONE, unknown, unknown]
        large = driver.commit_in(A, {("t", 1): 5}, metadata="x" * 5000)
        assert driver.only_error(large) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert driver.only_error(driver.commit_in(A, {("t", 1): -77})) is ErrorCode.INVALID_REQUEST
        driver.mark(A, committed=True)
        assert driver.offsets() == {("t", 0): 5}

    def test_while_a_group_is_being_deleted(self) -> None:
        driver = TransactionalDriver(commits=False)
        driver.commit({("t", 0): 1})
        driver.settle()
        driver.delete_group()
        commit = driver.commit_in(A, {("t", 0): 5})
        assert driver.only_error(commit) is ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- beside Kafka's rule


class ByRecordOffsets:
    """Kafka's rule, naively: offsets and pending ones with the offsets of their records."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], tuple[int, int]]] = {}

    def commit(self, place: tuple[str, str, int], at: int, offset: int) -> None:
        self.offsets[place] = at, offset

    def commit_in(
        self, producer_id: int, place: tuple[str, str, int], at: int, offset: int
    ) -> None:
        self.pending.setdefault(producer_id, {})[place] = at, offset

    def bury(self, place: tuple[str, str, int]) -> None:
        self.offsets.pop(place, None)
        for pending in self.pending.values():
            pending.pop(place, None)

    def end(self, producer_id: int, committed: bool) -> None:
        for place, (at, offset) in self.pending.pop(producer_id, {}).items():
            if committed and (place not in self.offsets or self.offsets[place][0] < at):
                self.offsets[place] = at, offset

    def unstable(self) -> set[tuple[str, str, int]]:
        """Those whose transaction may change something."""
        return {
            place
            for pending in self.pending.values()
            for place, (at, _) in pending.items()
            if place not in self.offsets or self.offsets[place][0] < at
        }


class History:
    """A random one; the log, and what the naive rule and a machine that lives through it say."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.driver = TransactionalDriver()
        self.model = ByRecordOffsets()
        self._at = 0

    def step(self) -> None:
        draw = self._random
        place = draw.choice("gh"), draw.choice("tu"), draw.randrange(2)
        producer_id, offset = draw.randrange(4), draw.randrange(1000)
        group, topic, index = place
        self._at += 1
        kind = draw.choices(["plain", "transactional", "marker", "tombstone"], [3, 6, 3, 1])[0]
        if kind == "plain":
            # Metadata makes another kind of batch.
            self.driver.commit(
                {(topic, index): offset}, group=group, metadata=draw.choice(["", "m"])
            )
            self.model.commit(place, self._at, offset)
        elif kind == "transactional":
            metadata = draw.choice(["", "m"])
            self.driver.commit_in(
                producer_id, {(topic, index): offset}, group=group, metadata=metadata
            )
            self.model.commit_in(producer_id, place, self._at, offset)
        elif kind == "marker":
            committed = draw.random() < 0.7
            self.driver.mark(producer_id, committed=committed)
            self.model.end(producer_id, committed)
        else:
            self.driver.delete_offsets((topic, index), group=group)
            self.model.bury(place)

    def check(self, driver: TransactionalDriver) -> None:
        unstable = self.model.unstable()
        for group in "gh":
            for topic in "tu":
                for index in range(2):
                    place = group, topic, index
                    known = self.model.offsets.get(place, (0, -1))[1]
                    assert driver.offsets(group).get((topic, index), -1) == known
                    seen = driver.stable((topic, index), group=group)
                    assert seen == [UNSTABLE if place in unstable else known]


@pytest.mark.parametrize("seed", range(60))
def test_kafkas_rule_by_record_offsets_is_kept(seed: int) -> None:
    """Whatever happened, and wherever a coordinator takes over."""
    history = History(seed)
    for number in range(80):
        history.step()
        history.check(history.driver)
        if number % 9 == seed % 9:
            loaded = history.driver.reloaded()
            history.check(loaded)
            # It goes on with what it has read.
            history.driver = loaded
