"""Which replicas move where."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.metadata.placement import place
from kraftpy.core.metadata.planning import PlanError, drain, spread
from kraftpy.core.metadata.records import Broker

Partitions = dict[str, tuple[int, ...]]
Racks = dict[int, str | None]


def no_racks(*brokers: int) -> Racks:
    return dict.fromkeys(brokers)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Partitions, Racks]:
    """Partitions on brokers 0..n-1, placed at random."""
    racks: Racks = dict(
        enumerate(draw(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7)))
    )
    factor = draw(st.integers(1, min(4, len(racks))))
    replicas = st.permutations(sorted(racks)).map(lambda order: tuple(order[:factor]))
    placed = draw(st.lists(replicas, max_size=40))
    return {f"t-{index}": each for index, each in enumerate(placed)}, racks


def diversity(replicas: tuple[int, ...], racks: Racks) -> int:
    return len({racks[broker] for broker in replicas})


def rack_count(racks: Racks) -> int:
    return len(set(racks.values()))


def loads(partitions: Partitions, brokers: Racks) -> list[int]:
    counted = Counter(broker for replicas in partitions.values() for broker in replicas)
    return [counted[broker] for broker in brokers]


def check_valid(plan: Partitions, racks: Racks, factor: int) -> None:
    for replicas in plan.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(racks)


@given(clusters())
def test_what_is_spread_is_even_and_on_all_racks(cluster: tuple[Partitions, Racks]) -> None:
    partitions, racks = cluster
    plan = spread(partitions, racks)
    assert all(plan[name] != partitions[name] for name in plan)
    after = {**partitions, **plan}
    for replicas in after.values():
        check_valid({"": replicas}, racks, len(replicas))
        assert diversity(replicas, racks) == min(len(replicas), rack_count(racks))
    if rack_count(racks) == 1:
        assert max(loads(after, racks)) - min(loads(after, racks)) <= 1
    assert spread(after, racks) == {}, "a plan that was carried out leaves nothing to plan"


@given(clusters(), st.integers(1, 4))
def test_another_replication_factor(cluster: tuple[Partitions, Racks], factor: int) -> None:
    partitions, racks = cluster
    if factor > len(racks):
        if partitions:
            with pytest.raises(PlanError, match="name or start more"):
                spread(partitions, racks, factor)
        return
    after = {**partitions, **spread(partitions, racks, factor)}
    check_valid(after, racks, factor)


@given(clusters(), st.data())
def test_what_is_drained_is_free_and_the_rest_stays(
    cluster: tuple[Partitions, Racks], data: st.DataObject
) -> None:
    partitions, racks = cluster
    leaving = data.draw(st.sampled_from(sorted(racks)))
    others = {broker: rack for broker, rack in racks.items() if broker != leaving}
    crowded = [
        name for name, old in partitions.items() if leaving in old and len(old) > len(others)
    ]
    if crowded:
        with pytest.raises(PlanError, match="start one"):
            drain(partitions, others, {leaving})
        return
    plan = drain(partitions, others, {leaving})
    assert set(plan) == {name for name, old in partitions.items() if leaving in old}
    for name, new in plan.items():
        old = partitions[name]
        check_valid({name: new}, others, len(old))
        kept = [broker for broker in old if broker != leaving]
        assert set(kept) <= set(new)
        assert diversity(new, racks) >= diversity(tuple(kept), racks)
        if old[0] != leaving:
            assert new[0] == old[0], "its leader has no reason to change"


def test_a_new_broker_gets_its_share_and_no_more_moves_than_that() -> None:
    partitions = {
        f"t-{index}": replicas
        for index, replicas in enumerate(
            place([Broker(i, 0, b"", (), None, (), False) for i in (1, 2, 3)], 12, 2, 0)
        )
    }
    plan = spread(partitions, no_racks(1, 2, 3, 4))
    after = {**partitions, **plan}
    assert loads(after, no_racks(1, 2, 3, 4)) == [6, 6, 6, 6]
    moved = sum(len(set(new) - set(partitions[name])) for name, new in plan.items())
    assert moved == 6
    leaders = Counter(replicas[0] for replicas in after.values())
    assert [leaders[broker] for broker in (1, 2, 3, 4)] == [3, 3, 3, 3]


def test_what_lies_well_stays() -> None:
    racks: Racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    partitions = {"t-0": (1, 2), "t-1": (2, 3), "t-2": (3, 4), "t-3": (4, 1)}
    assert spread(partitions, racks) == {}


def test_replicas_on_one_rack_are_parted() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b"}
    assert spread({"t-0": (1, 2)}, racks) == {"t-0": (1, 3)}


def test_a_replica_that_leaves_is_replaced_on_another_rack_than_the_others() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b"}
    plan = drain({"t-0": (1, 4), "u-0": (3, 2), "u-1": (3, 1)}, racks, {4})
    assert plan == {"t-0": (1, 3)}, "although broker 3 has more replicas than broker 2"


def test_leaderships_of_a_drained_broker_go_to_who_has_fewest() -> None:
    partitions = {f"t-{index}": (1, 2, 3) for index in range(4)} | {"u-0": (2, 1, 3)}
    plan = drain(partitions, no_racks(2, 3, 4), {1})
    leaders = Counter(replicas[0] for replicas in {**partitions, **plan}.values())
    assert max(leaders.values()) == 2
    assert set(leaders) == {2, 3, 4}


def test_a_thousand_partitions_on_ten_brokers_are_planned_at_once() -> None:
    racks: Racks = {broker: "abc"[broker % 3] for broker in range(10)}
    crowded = {f"t-{index}": (0, 1, 2) for index in range(1000)}
    after = {**crowded, **spread(crowded, racks)}
    # Four brokers share rack a, three each the others, and every partition needs all three racks.
    assert sorted(loads(after, racks)) == [250] * 4 + [333] * 4 + [334] * 2
