"""What a share coordinator forgets, and what it writes anew so that its log gets shorter."""

from __future__ import annotations

from kraftpy.core.leases.state import BATCHES_MAX, OUTDATED_AFTER_MIN, RUNS_MAX
from kraftpy.core.leases.state_memory import RUN_BYTES, SHARE_BYTES, ShareMemory
from kraftpy.core.leases.state_records import Snapshot
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.test_leases.state_driver import KEY, Coordinator

ACKNOWLEDGED = 2
OTHER = KEY._replace(partition=4)


def with_two() -> Coordinator:
    coordinator = Coordinator()
    for key in (KEY, OTHER):
        assert coordinator.error(coordinator.initialize(0, key=key)) is ErrorCode.NONE
    return coordinator


def drop(coordinator: Coordinator) -> int:
    count, effects = coordinator.machine.drop([KEY, KEY._replace(group_id="none")], 0)
    coordinator.do(effects)
    return count


def test_trap_14_what_a_topic_leaves_is_dropped() -> None:
    coordinator = with_two()
    assert drop(coordinator) == 1
    assert list(coordinator.machine.keys()) == [KEY, OTHER]
    coordinator.commit()
    assert list(coordinator.machine.keys()) == [OTHER]
    assert list(coordinator.reloaded().machine.keys()) == [OTHER]
    assert drop(coordinator) == 0
    assert coordinator.error(coordinator.write()) is ErrorCode.INVALID_REQUEST


def test_trap_14_also_while_it_is_written() -> None:
    coordinator = with_two()
    under_way = coordinator.write((0, 0, ACKNOWLEDGED, 1))
    assert drop(coordinator) == 1
    late = coordinator.write((1, 1, ACKNOWLEDGED, 1))
    assert coordinator.error(under_way) is ErrorCode.NONE
    assert coordinator.error(late) is ErrorCode.INVALID_REQUEST
    coordinator.commit()
    assert list(coordinator.machine.keys()) == [OTHER]


def test_a_drop_that_fails_is_nobodys() -> None:
    coordinator = with_two()
    drop(coordinator)
    coordinator.fail()
    assert list(coordinator.machine.keys()) == [KEY, OTHER]
    assert not coordinator.answers


def test_what_holds_back_the_log_is_written_anew() -> None:
    coordinator = with_two()
    for offset in range(OUTDATED_AFTER_MIN + 20):
        coordinator.heard(coordinator.write((offset, offset, ACKNOWLEDGED, 1), key=OTHER))
    machine = coordinator.machine
    assert machine.needed_from() == 0
    assert machine.outdated() == [KEY]
    count, effects = machine.renew([KEY], 0)
    coordinator.do(effects)
    assert machine.renew([KEY], 0)[0] == 0 < count  # that is on its way
    assert machine.needed_from() == 0
    (record,) = coordinator.commit()
    assert isinstance(record.value, Snapshot)
    assert record.value.epoch == 1
    assert not machine.outdated()
    assert machine.needed_from() > OUTDATED_AFTER_MIN - 500
    assert coordinator.batches() == ()


def test_one_write_takes_in_no_more_than_a_leader_has() -> None:
    coordinator = with_two()
    under_way = coordinator.write()
    many = [(2 * each, 2 * each, ACKNOWLEDGED, 1) for each in range(BATCHES_MAX)]
    tokens = [coordinator.write(*many), coordinator.write((1, 1, ACKNOWLEDGED, 1))]
    assert coordinator.error(under_way) is ErrorCode.NONE
    assert [coordinator.error(token) for token in tokens] == [
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,  # it is written again, by itself
    ]
    end = 2 * BATCHES_MAX
    errors: list[ErrorCode] = []
    while len(errors) < RUNS_MAX // BATCHES_MAX:
        more = [(end + first, end + last, kind, count) for first, last, kind, count in many]
        errors.append(coordinator.error(coordinator.write(*more)))
        end += 2 * BATCHES_MAX
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE in errors
    # The start passes them, and there is room.
    assert coordinator.error(coordinator.write(start=end)) is ErrorCode.NONE
    assert coordinator.error(coordinator.write(*many, start=end)) is ErrorCode.NONE


def test_who_is_in_stays_in_when_memory_is_used_up() -> None:
    memory = ShareMemory(2 * (SHARE_BYTES + 2))
    coordinator = Coordinator(memory=memory)
    assert coordinator.error(coordinator.initialize(0)) is ErrorCode.NONE
    assert memory.used_bytes == SHARE_BYTES + 1
    assert coordinator.error(coordinator.initialize(0, key=OTHER)) is ErrorCode.NONE
    third = KEY._replace(partition=5)
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.error(coordinator.initialize(0, key=third)) is refused
    assert coordinator.error(coordinator.write((1, 1, ACKNOWLEDGED, 1))) is ErrorCode.NONE
    assert memory.used_bytes == 2 * (SHARE_BYTES + 1 + RUN_BYTES)  # the gap before it is a run
    assert coordinator.error(coordinator.write((3, 3, ACKNOWLEDGED, 1))) is refused
    assert coordinator.error(coordinator.write(start=2)) is ErrorCode.NONE
    assert memory.used_bytes == 2 * (SHARE_BYTES + 1)
    other = coordinator.reloaded()
    assert other.memory.used_bytes == memory.used_bytes
    other.machine.close(ErrorCode.NOT_COORDINATOR, 0)
    assert other.memory.used_bytes == 0
    assert coordinator.error(coordinator.delete()) is ErrorCode.NONE
    assert coordinator.error(coordinator.initialize(0, key=third)) is ErrorCode.NONE
