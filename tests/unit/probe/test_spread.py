"""Where the heartbeat topic's partitions are put."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.probe.spread import Plan, plan

IDS = st.integers(1, 9)


def test_what_is_right_stays() -> None:
    assert plan([1, 2, 3], {0: (3, 1, 2), 1: (1, 2, 3), 2: (2, 3, 1)}) == Plan(3, {})


def test_a_new_broker_gets_a_partition_and_then_the_lead_of_it() -> None:
    before = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
    assert plan([1, 2, 3, 4], before) == Plan(4, {})
    assert plan([1, 2, 3, 4], before | {3: (1, 3, 2)}) == Plan(4, {3: (4, 1, 3)})


def test_a_broker_that_is_gone_leads_and_keeps_nothing() -> None:
    before = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
    assert plan([1, 2], before) == Plan(3, {0: (1, 2), 1: (2, 1), 2: (1, 2)})


def test_one_broker_has_all() -> None:
    assert plan([5], {0: (5,)}) == Plan(1, {})


def test_nothing_moves_while_no_broker_is_up() -> None:
    assert plan([], {0: (1, 2), 1: (2, 1)}) == Plan(2, {})


@given(st.sets(IDS, min_size=1), st.lists(st.lists(IDS, min_size=1, max_size=4, unique=True)))
def test_when_it_is_done_each_broker_leads_and_nothing_is_left_to_do(
    brokers: set[int], replicas: list[list[int]]
) -> None:
    partitions = {index: tuple(each) for index, each in enumerate(replicas)}
    first = plan(brokers, partitions)
    assert first.partitions == max(len(brokers), len(partitions))
    for index in range(len(partitions), first.partitions):
        partitions[index] = (min(brokers),)  # wherever the controller puts it
    after = partitions | plan(brokers, partitions).moves
    assert {each[0] for each in after.values()} == brokers
    for each in after.values():
        assert set(each) <= brokers
        assert len(each) == len(set(each)) == min(3, len(brokers))
    assert plan(brokers, after).moves == {}
