"""Plans which replicas move where: away from a broker, or evenly over brokers.

A plan is a proposal for `alter_reassignments`; whoever runs the cluster looks at it first. Rules:

* Data moves only for a reason: a replica stays where it is unless its broker is to be freed, its
  rack has another replica of the partition while a rack has none, or its broker has at least two
  replicas more than the one that it moves to.
* The replicas of a partition lie on different brokers, and on as many racks as there are; brokers
  without a rack count as one rack (as in `placement`).
* First replicas, the preferred leaders, are spread as evenly as changing their order can.
* The same input gives the same plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

Replicas = tuple[int, ...]
Racks = Mapping[int, str | None]

_P = TypeVar("_P")


class PlanError(ValueError):
    """What was asked for can't be; the text says why and what would help."""


def drain(
    partitions: Mapping[_P, Replicas], racks: Racks, leaving: Container[int]
) -> dict[_P, Replicas]:
    """New replicas of the partitions that have one on a broker in `leaving`.

    `partitions` are all of the cluster (their replicas are the brokers' load), `racks` the brokers
    that may take replicas. Raises PlanError.
    """
    layout = _Layout(racks)
    for replicas in partitions.values():
        layout.count(replicas)
    plan = {}
    for partition, old in partitions.items():
        if not any(broker in leaving for broker in old):
            continue
        if len(old) > len(layout.brokers):
            raise PlanError(
                f"{partition} needs {len(old)} broker{'' if len(old) == 1 else 's'} and "
                f"{_there_are(layout)} to take it: start one, or reduce the topic's replicas first"
            )
        layout.count(old, -1)
        new = [broker for broker in old if broker not in leaving]
        first_stays = new[:1] == [old[0]]
        while len(new) < len(old):
            new.append(layout.choose(new))
        if not first_stays:
            first = min(new, key=lambda broker: layout.leaders[broker])
            new.remove(first)
            new.insert(0, first)
        plan[partition] = tuple(new)
        layout.count(new)
    return plan


def spread(
    partitions: Mapping[_P, Replicas], racks: Racks, replication_factor: int | None = None
) -> dict[_P, Replicas]:
    """New replicas of those partitions that have to change to lie evenly on the brokers in `racks`.

    Only the partitions given count as load. Raises PlanError.
    """
    layout = _Layout(racks)
    new: dict[_P, list[int]] = {}
    for partition, old in partitions.items():
        new[partition] = [broker for broker in old if broker in racks]
        layout.count(new[partition])
    for partition, replicas in new.items():
        size = replication_factor or len(partitions[partition])
        if size > len(layout.brokers):
            raise PlanError(
                f"{size} replicas need {size} brokers and {_there_are(layout)} to choose from: "
                "name or start more, or ask for fewer replicas"
            )
        layout.count(replicas, -1)
        layout.resize(replicas, size)
        layout.diversify(replicas)
        layout.count(replicas)
    _even_out(layout, new)
    _even_out_leaders(layout, new)
    return {
        partition: tuple(replicas)
        for partition, replicas in new.items()
        if tuple(replicas) != partitions[partition]
    }


def _there_are(layout: _Layout) -> str:
    count = len(layout.brokers)
    return "there is 1 broker" if count == 1 else f"there are {count} brokers"


class _Layout:
    """The brokers that may have replicas, and how many replicas and first ones each has."""

    def __init__(self, racks: Racks) -> None:
        self.brokers = sorted(racks)
        self.racks = {broker: rack or "" for broker, rack in racks.items()}
        self.rack_count = len(set(self.racks.values()))
        self.replicas = dict.fromkeys(self.brokers, 0)
        self.leaders = dict.fromkeys(self.brokers, 0)

    def count(self, replicas: Iterable[int], by: int = 1) -> None:
        for position, broker in enumerate(replicas):
            if broker in self.replicas:
                self.replicas[broker] += by
                self.leaders[broker] += by if position == 0 else 0

    def choose(self, others: list[int]) -> int:
        """The best broker for one more replica beside `others`."""
        used = {self.racks.get(broker, "") for broker in others}
        return min(
            (broker for broker in self.brokers if broker not in others),
            key=lambda broker: (
                self.racks[broker] in used,
                self.replicas[broker],
                self.leaders[broker],
            ),
        )

    def resize(self, replicas: list[int], size: int) -> None:
        """Adds the best brokers to `replicas`, or drops the worst of them but the first."""
        while len(replicas) < size:
            replicas.append(self.choose(replicas))
        while len(replicas) > size:
            replicas.remove(
                max(
                    replicas[1:],
                    key=lambda broker: (self._shares_rack(broker, replicas), self.replicas[broker]),
                )
            )

    def diversify(self, replicas: list[int]) -> None:
        """Moves replicas that share a rack while a rack has none."""
        while self.diversity(replicas) < min(len(replicas), self.rack_count):
            surplus = max(
                (broker for broker in replicas if self._shares_rack(broker, replicas)),
                key=lambda broker: (broker != replicas[0], self.replicas[broker]),
            )
            position = replicas.index(surplus)
            replicas[position] = self.choose(replicas)

    def diversity(self, replicas: Iterable[int]) -> int:
        """On how many racks the replicas lie."""
        return len({self.racks[broker] for broker in replicas})

    def _shares_rack(self, broker: int, replicas: list[int]) -> bool:
        return any(self.racks[broker] == self.racks[other] for other in replicas if other != broker)


def _even_out(layout: _Layout, partitions: dict[_P, list[int]]) -> None:
    """Moves replicas from brokers with many to brokers with few, without losing a rack."""
    hosted: dict[int, dict[_P, None]] = {broker: {} for broker in layout.brokers}
    for partition, replicas in partitions.items():
        for broker in replicas:
            hosted[broker][partition] = None
    average = sum(layout.replicas.values()) / len(layout.brokers)
    while _even_out_once(layout, partitions, hosted, average):
        pass


def _even_out_once(
    layout: _Layout,
    partitions: dict[_P, list[int]],
    hosted: Mapping[int, dict[_P, None]],
    average: float,
) -> bool:
    """One round over all pairs of brokers; whether anything moved.

    From above the average to below it while that is possible: each such move is needed. Only where
    racks make the average out of reach, others follow.
    """
    by_load = sorted(layout.brokers, key=lambda broker: layout.replicas[broker])
    for needed_only in (True, False):
        moved = False
        for few, many in itertools.product(by_load, reversed(by_load)):
            # Followers first: a leader that moves costs a change of leader, too.
            for partition in sorted(hosted[many], key=lambda each: partitions[each][0] == many):
                low, high = layout.replicas[few], layout.replicas[many]
                if high - low < 2 or (needed_only and not low < average < high):
                    break
                replicas = partitions[partition]
                after = [few if broker == many else broker for broker in replicas]
                if few in replicas or layout.diversity(after) < layout.diversity(replicas):
                    continue
                layout.count(replicas, -1)
                layout.count(after)
                partitions[partition] = after
                del hosted[many][partition]
                hosted[few][partition] = None
                moved = True
        if moved:
            return True
    return False


def _even_out_leaders(layout: _Layout, partitions: Mapping[_P, list[int]]) -> None:
    """Puts another replica first where its broker is first for fewer partitions, by two or more."""
    moved = True
    while moved:
        moved = False
        for replicas in partitions.values():
            fewest = min(replicas, key=lambda broker: layout.leaders[broker])
            if layout.leaders[replicas[0]] - layout.leaders[fewest] >= 2:
                layout.count(replicas, -1)
                position = replicas.index(fewest)
                replicas[0], replicas[position] = fewest, replicas[0]
                layout.count(replicas)
                moved = True
