"""The share coordinator's machine, by value."""

from __future__ import annotations

import itertools
import random

from kraftpy.core.leases.state import (
    BATCHES_MAX,
    COLD_TOGETHER,
    QUEUE_MAX,
    UNKNOWN,
    ShareStateConfig,
    ShareStateMachine,
    StateAnswer,
)
from kraftpy.core.leases.state_memory import ShareMemory
from kraftpy.core.leases.state_records import ShareKey, ShareRecord, Snapshot, Update
from kraftpy.core.leases.terms import StateBatch
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.test_leases.state_driver import COLD_MS, KEY, Coordinator

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
OK = StateAnswer(ErrorCode.NONE)


def begun(updates_per_snapshot: int = 500, leader_epoch: int = 0) -> Coordinator:
    """One that has initialized a partition, which its leader has read."""
    coordinator = Coordinator(updates_per_snapshot)
    assert coordinator.error(coordinator.initialize(0)) is ErrorCode.NONE
    assert coordinator.error(coordinator.read(leader_epoch)) is ErrorCode.NONE
    return coordinator


# -- what is read and written


def test_a_write_needs_an_initialization() -> None:
    coordinator = Coordinator()
    assert coordinator.error(coordinator.write((0, 1, 2, 1))) is ErrorCode.INVALID_REQUEST
    assert coordinator.error(coordinator.read(0)) is ErrorCode.INVALID_REQUEST
    assert coordinator.machine.summary(KEY) == UNKNOWN == (0, 0, -1, -1)
    assert not coordinator.pending


def test_what_is_written_is_read_once_it_is_committed() -> None:
    coordinator = begun()
    token = coordinator.write((3, 5, ACKNOWLEDGED, 1), (6, 6, AVAILABLE, 2), start=2, finished=3)
    assert token not in coordinator.answers
    assert coordinator.machine.summary(KEY) == (0, 0, 0, 0)
    assert coordinator.commit() == [
        ShareRecord(KEY, Update(0, 0, 2, 3, (StateBatch(3, 5, 2, 1), StateBatch(6, 6, 0, 2))))
    ]
    assert coordinator.heard(token) == OK
    answer = coordinator.heard(coordinator.read(0))
    assert answer == (0, 0, 2, (StateBatch(3, 5, 2, 1), StateBatch(6, 6, 0, 2)))
    assert coordinator.machine.summary(KEY) == (0, 0, 2, 3)


def test_another_coordinator_has_what_was_committed() -> None:
    coordinator = begun(leader_epoch=4)
    coordinator.heard(coordinator.write((3, 5, ACKNOWLEDGED, 1), start=2, epochs=(0, 4)))
    coordinator.write((6, 6, ARCHIVED, 5), epochs=(0, 4))
    other = coordinator.reloaded()
    assert other.heard(other.read(4)) == (0, 0, 2, (StateBatch(3, 5, 2, 1),))
    assert other.error(other.write(epochs=(0, 3))) is ErrorCode.FENCED_LEADER_EPOCH


def test_newer_batches_win_and_equal_neighbours_join() -> None:
    coordinator = begun()
    coordinator.heard(coordinator.write((0, 9, AVAILABLE, 1)))
    coordinator.heard(coordinator.write((4, 5, ACKNOWLEDGED, 2), (6, 6, ACKNOWLEDGED, 2)))
    assert coordinator.batches() == ((0, 3, 0, 1), (4, 6, 2, 2), (7, 9, 0, 1))
    coordinator.heard(coordinator.write((7, 12, ACKNOWLEDGED, 2), (20, 20, AVAILABLE, 1)))
    assert coordinator.batches() == ((0, 3, 0, 1), (4, 12, 2, 2), (20, 20, 0, 1))
    coordinator.heard(coordinator.write(start=5))
    assert coordinator.batches() == ((5, 12, 2, 2), (20, 20, 0, 1))


def test_no_late_write_gives_back_what_is_finished() -> None:
    coordinator = begun()
    coordinator.heard(coordinator.write((0, 4, ACKNOWLEDGED, 2), (5, 9, AVAILABLE, 3)))
    coordinator.heard(coordinator.write((0, 9, AVAILABLE, 1), start=0))
    assert coordinator.batches() == ((0, 4, 2, 2), (5, 9, 0, 3))
    coordinator.heard(coordinator.write((5, 9, ACKNOWLEDGED, 1), start=7, finished=3))
    coordinator.heard(coordinator.write(start=3, finished=9))
    assert coordinator.batches() == ((7, 9, 2, 1),)
    assert coordinator.machine.summary(KEY) == (0, 0, 7, 3)


def test_a_write_may_leave_the_start_as_it_is() -> None:
    coordinator = begun()
    coordinator.heard(coordinator.write((4, 4, ACKNOWLEDGED, 1), start=2, finished=1))
    coordinator.heard(coordinator.write((5, 5, ACKNOWLEDGED, 1), start=-1, finished=2))
    assert coordinator.machine.summary(KEY) == (0, 0, 2, 2)


def test_what_no_leader_writes_is_refused() -> None:
    coordinator = begun()
    for bad in (
        (5, 4, 2, 1),
        (-1, 4, 2, 1),
        (0, 0, 1, 1),
        (0, 0, 3, 1),
        (0, 0, 9, 1),
        (0, 0, 2, -1),
    ):
        assert coordinator.error(coordinator.write(bad)) is ErrorCode.INVALID_REQUEST
    many = [(offset, offset, 2, 1) for offset in range(BATCHES_MAX + 1)]
    assert coordinator.error(coordinator.write(*many)) is ErrorCode.INVALID_REQUEST


# -- epochs


def test_trap_8_a_late_write_of_the_old_leader_is_refused() -> None:
    coordinator = begun(leader_epoch=4)
    late = coordinator.write((0, 0, ACKNOWLEDGED, 1), epochs=(0, 4))
    read = coordinator.read(5)
    later = coordinator.write((1, 1, ACKNOWLEDGED, 1), epochs=(0, 4))
    # What came before the new leader's read is in its answer, what came behind it is not taken.
    assert coordinator.heard(read).batches == (StateBatch(0, 0, 2, 1),)
    assert coordinator.error(late) is ErrorCode.NONE
    assert coordinator.error(later) is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.error(coordinator.read(4)) is ErrorCode.FENCED_LEADER_EPOCH
    other = coordinator.reloaded()
    assert other.error(other.write(epochs=(0, 4))) is ErrorCode.FENCED_LEADER_EPOCH


def test_trap_8_a_late_write_from_before_offsets_were_altered_is_refused() -> None:
    coordinator = begun(leader_epoch=4)
    coordinator.heard(coordinator.write((0, 9, ACKNOWLEDGED, 1), start=10, epochs=(0, 4)))
    assert coordinator.error(coordinator.initialize(1, start=0)) is ErrorCode.NONE
    late = coordinator.write((10, 19, ACKNOWLEDGED, 1), start=20, epochs=(0, 4))
    assert coordinator.error(late) is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.heard(coordinator.read(4)) == (0, 1, 0, ())
    # The leader's epoch is not forgotten.
    assert coordinator.machine.summary(KEY).leader_epoch == 4
    assert coordinator.error(coordinator.read(3)) is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.error(coordinator.initialize(0)) is ErrorCode.FENCED_STATE_EPOCH


def test_who_initializes_again_takes_nothing_away() -> None:
    coordinator = begun()
    coordinator.heard(coordinator.write((0, 9, ACKNOWLEDGED, 1), start=10))
    assert coordinator.error(coordinator.initialize(0, start=0)) is ErrorCode.NONE
    assert coordinator.machine.summary(KEY).start_offset == 10


def test_an_epoch_that_is_not_told_is_not_looked_at() -> None:
    coordinator = begun(leader_epoch=4)
    assert coordinator.error(coordinator.write(epochs=(-1, -1))) is ErrorCode.NONE
    assert coordinator.machine.summary(KEY).leader_epoch == 4


# -- one write at a time


def test_what_comes_meanwhile_is_one_batch() -> None:
    coordinator = begun()
    tokens = [coordinator.write((each, each, ACKNOWLEDGED, 1)) for each in range(5)]
    assert len(coordinator.pending) == 1
    coordinator.commit()
    assert [len(write.records) for write in coordinator.pending] == [4]
    assert all(coordinator.heard(token) == OK for token in tokens)
    assert coordinator.batches() == ((0, 4, 2, 1),)


def test_partitions_do_not_wait_for_each_other() -> None:
    coordinator = begun()
    other = KEY._replace(partition=4)
    coordinator.write((0, 0, ACKNOWLEDGED, 1))
    coordinator.initialize(0, key=other)
    assert len(coordinator.pending) == 2


def test_a_write_that_fails_changes_nothing_and_the_next_ones_go_on() -> None:
    coordinator = begun()
    first = coordinator.write((0, 0, ACKNOWLEDGED, 1))
    second = coordinator.write((1, 1, ACKNOWLEDGED, 1))
    coordinator.fail()
    assert coordinator.error(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.error(second) is ErrorCode.NONE
    assert coordinator.batches() == ((1, 1, 2, 1),)


def test_a_write_that_takes_too_long_counts_if_it_is_committed() -> None:
    coordinator = begun()
    token = coordinator.write((0, 0, ACKNOWLEDGED, 1))
    behind = coordinator.read(0)
    coordinator.do(coordinator.machine.timed_out(coordinator.pending[0], 0))
    assert coordinator.error(token) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.heard(behind).batches == (StateBatch(0, 0, 2, 1),)


def test_so_many_wait() -> None:
    coordinator = begun()
    tokens = [coordinator.write((each, each, ACKNOWLEDGED, 1)) for each in range(QUEUE_MAX + 2)]
    assert coordinator.error(tokens[-1]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {coordinator.error(token) for token in tokens[:-1]} == {ErrorCode.NONE}


def test_all_hear_of_the_end() -> None:
    coordinator = begun()
    tokens = [coordinator.write((each, each, ACKNOWLEDGED, 1)) for each in range(3)]
    coordinator.do(coordinator.machine.close(ErrorCode.NOT_COORDINATOR, 0))
    assert {coordinator.answers[token].error for token in tokens} == {ErrorCode.NOT_COORDINATOR}


def test_deleted_while_others_wait() -> None:
    coordinator = begun()
    coordinator.write((0, 0, ACKNOWLEDGED, 1))
    read = coordinator.read(1)
    deleted = coordinator.delete()
    written = coordinator.write((1, 1, ACKNOWLEDGED, 1), epochs=(0, 1))
    assert coordinator.error(read) is ErrorCode.INVALID_REQUEST
    assert coordinator.error(deleted) is ErrorCode.NONE
    assert coordinator.error(written) is ErrorCode.INVALID_REQUEST
    assert len(coordinator.machine) == len(coordinator.reloaded().machine) == 0
    assert coordinator.error(coordinator.delete()) is ErrorCode.NONE
    assert coordinator.error(coordinator.initialize(0, start=7)) is ErrorCode.NONE
    assert coordinator.heard(coordinator.read(0)) == (0, 0, 7, ())


# -- snapshots and what of the log is needed


def test_after_so_many_updates_a_snapshot_is_written() -> None:
    coordinator = begun(updates_per_snapshot=3)
    kinds = []
    for offset in range(9):
        token = coordinator.write((offset, offset, ACKNOWLEDGED, 1))
        kinds += [type(record.value).__name__ for record in coordinator.commit()]
        assert coordinator.heard(token) == OK
    # The read of its leader was an update, too.
    assert kinds == ["Update"] * 2 + ["Snapshot"] + (["Update"] * 3 + ["Snapshot"]) + ["Update"] * 2
    assert coordinator.batches() == ((0, 8, 2, 1),)
    assert coordinator.reloaded().batches() == ((0, 8, 2, 1),)


def test_a_snapshot_among_what_waited_has_all_before_it() -> None:
    coordinator = begun(updates_per_snapshot=2)
    tokens = [coordinator.write((each, each, ACKNOWLEDGED, 1)) for each in range(6)]
    assert {coordinator.error(token) for token in tokens} == {ErrorCode.NONE}
    assert coordinator.batches() == coordinator.reloaded().batches() == ((0, 5, 2, 1),)


def test_what_gets_no_more_updates_has_a_snapshot_after_a_while() -> None:
    coordinator = begun(leader_epoch=1)
    coordinator.now_ms = 1_000
    coordinator.heard(coordinator.write((0, 0, ACKNOWLEDGED, 1), epochs=(0, 1)))
    assert coordinator.machine.next_deadline() == 1_000 + COLD_MS
    coordinator.do(coordinator.machine.handle_timers(1_000 + COLD_MS))
    (record,) = coordinator.commit()
    assert isinstance(record.value, Snapshot)
    assert record.value[:5] == (1, 0, 1, 0, 0)
    assert coordinator.machine.next_deadline() is None
    assert coordinator.machine.needed_from() == coordinator.end_offset - 1


def test_a_snapshot_that_cannot_be_written_is_tried_again() -> None:
    coordinator = begun(leader_epoch=1)
    coordinator.do(coordinator.machine.handle_timers(COLD_MS))
    coordinator.now_ms = COLD_MS
    coordinator.fail()
    assert coordinator.machine.next_deadline() == 2 * COLD_MS
    many = Coordinator()
    for partition in range(COLD_TOGETHER + 1):
        key = KEY._replace(partition=partition)
        many.heard(many.initialize(0, key=key))
        many.heard(many.read(1, key))
    many.do(many.machine.handle_timers(COLD_MS))
    assert len(many.pending) == COLD_TOGETHER
    assert many.machine.next_deadline() == COLD_MS


def test_trap_13_a_snapshot_is_needed_until_its_successor_is_committed() -> None:
    coordinator = begun(updates_per_snapshot=3)
    assert coordinator.machine.needed_from() == 0
    for offset in range(2):
        coordinator.heard(coordinator.write((offset, offset, ACKNOWLEDGED, 1)))
    token = coordinator.write((2, 2, ACKNOWLEDGED, 1))
    assert isinstance(coordinator.pending[0].records[0].value, Snapshot)
    assert coordinator.machine.needed_from() == 0
    assert coordinator.reloaded(0).batches() == ((0, 1, 2, 1),)
    coordinator.heard(token)
    needed = coordinator.machine.needed_from()
    assert needed == 4
    assert coordinator.reloaded(needed).batches() == ((0, 2, 2, 1),)


def test_of_a_log_without_partitions_nothing_is_needed() -> None:
    coordinator = begun()
    coordinator.heard(coordinator.delete())
    assert coordinator.machine.needed_from() == coordinator.end_offset
    assert len(coordinator.reloaded(coordinator.end_offset).machine) == 0


def test_an_update_of_another_snapshot_is_left_out() -> None:
    machine = ShareStateMachine(ShareStateConfig(500, COLD_MS), ShareMemory(1 << 30))
    assert not machine.load(ShareRecord(KEY, Update(0, 0, 0, 0, ())), 0)
    assert machine.load(ShareRecord(KEY, Snapshot(3, 0, 0, 0, 0, 0, 0, ())), 1)
    assert not machine.load(ShareRecord(KEY, Update(2, 0, 5, 0, ())), 2)
    assert machine.load(ShareRecord(KEY, Update(3, 0, 6, 0, ())), 3)
    assert machine.summary(KEY).start_offset == 6


# -- against a state that keeps each offset


def test_what_is_read_is_the_sum_of_what_was_written() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        coordinator = begun(updates_per_snapshot=rng.choice((1, 3, 500)))
        cells: dict[int, tuple[int, int]] = {}
        start = 0
        for _ in range(30):
            batches = []
            at = rng.randint(0, 20)
            for _ in range(rng.randint(0, 4)):
                last = at + rng.randint(0, 5)
                batches.append((at, last, rng.choice((0, 2, 4)), rng.randint(1, 4)))
                at = last + rng.randint(1, 4)
            start = max(start, rng.randint(-15, start + 2))
            token = coordinator.write(*batches, start=rng.choice((start, start, max(start - 2, 0))))
            for first, last, state, deliveries in batches:
                for offset in range(first, last + 1):
                    old_state, old_deliveries = cells.get(offset, (0, 0))
                    if state or (not old_state and old_deliveries <= deliveries):
                        cells[offset] = (state, deliveries)
            if rng.random() < 0.5:
                coordinator.heard(token)
        coordinator.heard(coordinator.read(0))
        known = coordinator if rng.random() < 0.5 else coordinator.reloaded()
        said = {
            offset: (state, deliveries)
            for first, last, state, deliveries in known.batches()
            for offset in range(first, last + 1)
        }
        now = known.machine.summary(KEY).start_offset
        assert said == {offset: cell for offset, cell in cells.items() if offset >= now}
        runs = known.batches()
        for before, after in itertools.pairwise(runs):
            assert before[1] < after[0]
            assert before[1] + 1 < after[0] or before[2:] != after[2:]


def test_two_groups_and_topics_are_told_apart() -> None:
    coordinator = begun()
    keys = [
        KEY,
        KEY._replace(group_id="h"),
        KEY._replace(topic_id=bytes(16)),
        ShareKey("g", KEY[1], 0),
    ]
    for number, key in enumerate(keys):
        coordinator.heard(coordinator.initialize(0, start=number, key=key))
    starts = [coordinator.machine.summary(key).start_offset for key in keys]
    assert starts == [0, 1, 2, 3]
    assert set(coordinator.machine.keys()) == set(keys)
