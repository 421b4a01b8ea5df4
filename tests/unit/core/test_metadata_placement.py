"""Where replicas go: apart from each other, evenly, and the same for everybody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.metadata import Broker
from kraftpy.core.metadata.placement import place


def brokers(*racks: str | None) -> list[Broker]:
    """Brokers 1, 2, ... in these racks."""
    return [
        Broker(number, number, bytes(16), (), rack, (), False)
        for number, rack in enumerate(racks, start=1)
    ]


@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 2**31),
)
def test_replicas_are_apart_and_leaders_even(
    racks: list[str | None], partitions: int, replication_factor: int, seed: int
) -> None:
    replication_factor = min(replication_factor, len(racks))
    placed = place(brokers(*racks), partitions, replication_factor, seed)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == replication_factor
        used = {racks[broker_id - 1] for broker_id in replicas}
        assert len(used) == min(replication_factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[broker_id] for broker_id in range(1, len(racks) + 1)]
    assert max(counts) - min(counts) <= 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9
    ).filter(lambda drawn: any(active for _, active in drawn)),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(0, 2**31),
)
def test_brokers_that_are_down_get_replicas_only_if_the_others_are_too_few(
    drawn: list[tuple[str | None, bool]], partitions: int, replication_factor: int, seed: int
) -> None:
    replication_factor = min(replication_factor, len(drawn))
    all_brokers = [
        Broker(number, number, bytes(16), (), rack, (), fenced=not active)
        for number, (rack, active) in enumerate(drawn, start=1)
    ]
    up = [broker.id for broker in all_brokers if broker.active]
    for replicas in place(all_brokers, partitions, replication_factor, seed):
        assert len(set(replicas)) == replication_factor
        assert set(replicas[: len(up)]) <= set(up)
        assert not set(replicas[len(up) :]) & set(up)


def test_a_broker_that_is_down_is_chosen_by_its_rack() -> None:
    known = [
        Broker(number, number, bytes(16), (), rack, (), fenced=number > 2)
        for number, rack in enumerate(("a", "b", "a", "b", "c"), start=1)
    ]
    assert all(replicas[2] == 5 for replicas in place(known, 12, 3, 0))


def test_the_order_in_which_brokers_come_does_not_matter() -> None:
    all_brokers = brokers("a", "b", "a", "b", "c")
    assert place(all_brokers, 7, 3, 5) == place(reversed(all_brokers), 7, 3, 5)


def test_the_seed_moves_the_start() -> None:
    starts = {place(brokers(None, None, None), 1, 1, seed)[0][0] for seed in range(3)}
    assert starts == {1, 2, 3}


@pytest.mark.parametrize("racks", [(None,) * 5, ("a", "b", "c", "a", "b", "c")])
def test_the_load_of_a_failed_broker_spreads_over_all_others(racks: tuple[str | None]) -> None:
    count = len(racks)
    placed = place(brokers(*racks), count * (count - 1), 2, 0)
    for failed in range(1, count + 1):
        heirs = {replicas[1] for replicas in placed if replicas[0] == failed}
        candidates = {
            other
            for other in range(1, count + 1)
            if other != failed and (racks[0] is None or racks[other - 1] != racks[failed - 1])
        }
        assert heirs == candidates
