"""Decides from the history of one group (history.py) whether anything went wrong.

It looks at plain data only; test_checker.py plants what it has to find. What it holds a group to:

* **double ownership**: in a generation of the classic protocol no partition is two members'. And
  whatever the protocol, nobody is assigned a partition that another member still has: a member
  has it from its callback on until it notes, before the coordinator can hear of it, that it gives
  it up. The exception is the one that Kafka makes: a member that was thrown out of its group goes
  on until it hears of that. So what it had may overlap with what others have if its client told it
  that it lost its partitions, or if it next got another member id (not every client tells), or if
  it ended before either and the coordinator can't have heard of it for a session timeout.
* **zombie commit**: a commit that a member began when another had been assigned the partition after
  it is refused.
* **went back**: committed offsets never do: neither as they are read one after the other, nor below
  what was acknowledged before a read began, nor for a member that begins where they tell it to.
* **skipped**: what is committed as processed was processed; **unprocessed**: in the end, all is.
* **needless rebalance**: nothing is assigned, revoked or lost while only the coordinator moves.
* **unsettled**: the group comes to rest in time, with each partition owned by one of its members.
* **ended**: no member's process ends by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from tests.consistency.checker import Anomaly

Event = dict[str, Any]

_NEVER = float("inf")
_UNKNOWN_EPOCH = -1


@dataclass(slots=True)
class Claim:
    """A member has a partition from `start` to `end`; `lost` if it learned too late of the end."""

    member: str
    partition: int
    start: float
    end: float = _NEVER
    lost: bool = False


@dataclass(slots=True)
class Commit:
    member: str
    began: float
    offsets: dict[int, int]
    acknowledged: float = _NEVER


@dataclass(slots=True)
class Processed:
    member: str
    at: float
    first: int


@dataclass(slots=True)
class Past:
    """The history, sorted out."""

    claims: dict[int, list[Claim]]  # by partition, in the order in which they start
    commits: list[Commit]  # in the order in which they began
    processed: dict[tuple[str, int], list[Processed]]
    contacts: dict[str, list[float]] = field(default_factory=dict)
    """Moments before which the coordinator has not forgotten a member."""


def check(
    events: Sequence[Event], *, partitions: int, session_timeout_s: float, classic: bool
) -> list[Anomaly]:
    """All that is wrong with one group.

    Args:
        events: in the order in which they happened
        partitions: how many the topic has
        session_timeout_s: how long the coordinator waits for a member that is silent
        classic: generations are the group's; with KIP-848 each member has an epoch of its own
    """
    past = _sort_out(events)
    found = list(_check_generations(events)) if classic else []
    found += _check_owners(past, session_timeout_s)
    found += _check_zombies(past)
    found += _check_reads(events, past)
    found += _check_starts(past)
    found += _check_processed(events)
    found += _check_moves(events)
    found += _check_driver(events, partitions)
    return found


def _sort_out(events: Sequence[Event]) -> Past:
    claims: dict[int, list[Claim]] = defaultdict(list)
    of_member: dict[str, list[Claim]] = defaultdict(list)
    member_ids: dict[str, str] = {}
    commits: dict[tuple[str, int], Commit] = {}
    past = Past(claims, [], defaultdict(list), defaultdict(list))
    for event in events:
        member, at = event.get("member", ""), event["at"]
        match event["event"]:
            case "assigned":
                if member_ids.setdefault(member, event["member_id"]) != event["member_id"]:
                    member_ids[member] = event["member_id"]
                    for claim in of_member.pop(member, []):
                        if claim.end >= past.contacts[member][-1]:
                            claim.end, claim.lost = min(claim.end, at), True
                held = {c.partition for c in of_member[member] if c.end == _NEVER}
                for partition in event["partitions"]:
                    if partition not in held:
                        claim = Claim(member, partition, at)
                        claims[partition].append(claim)
                        of_member[member].append(claim)
                past.contacts[member].append(at)
            case "revoked" | "lost" as kind:
                for claim in of_member[member]:
                    if claim.end == _NEVER and claim.partition in event["partitions"]:
                        claim.end, claim.lost = at, kind == "lost"
            case "killed" | "left" | "ended":
                for claim in of_member[member]:
                    claim.end = min(claim.end, at)
            case "processed":
                entry = Processed(member, at, event["first"])
                past.processed[member, event["partition"]].append(entry)
            case "committing":
                commit = Commit(member, at, event["offsets"])
                commits[member, event["commit"]] = commit
                past.commits.append(commit)
            case "committed":
                commits[member, event["commit"]].acknowledged = at
    for commit in past.commits:
        if commit.acknowledged != _NEVER:
            past.contacts[commit.member].append(commit.began)
    for moments in past.contacts.values():
        moments.sort()
    return past


def _check_generations(events: Sequence[Event]) -> Iterator[Anomaly]:
    owner: dict[tuple[int, int], str] = {}
    for event in events:
        if event["event"] != "assigned" or event["epoch"] == _UNKNOWN_EPOCH:
            continue
        for partition in event["owned"]:
            first = owner.setdefault((event["epoch"], partition), event["member"])
            if first != event["member"]:
                where = f"partition {partition} in generation {event['epoch']}"
                yield Anomaly("double ownership", f"{where}: {first} and {event['member']}")


def _check_owners(past: Past, session_timeout_s: float) -> Iterator[Anomaly]:
    for partition, claims in past.claims.items():
        for one, two in combinations(claims, 2):
            if one.member == two.member or one.end <= two.start or one.lost:
                continue
            moments = past.contacts[one.member]
            silent_s = two.start - moments[bisect_right(moments, two.start) - 1]
            if silent_s < session_timeout_s:
                yield Anomaly(
                    "double ownership",
                    f"partition {partition}: {two.member} was assigned it at {two.start:.3f}, and "
                    f"{one.member}, heard {silent_s:.1f} s before, had it until {one.end:.3f}",
                )


def _check_zombies(past: Past) -> Iterator[Anomaly]:
    for commit in past.commits:
        if commit.acknowledged == _NEVER:
            continue
        for partition in commit.offsets:
            claims = past.claims.get(partition, [])
            mine = [c for c in claims if c.member == commit.member and c.start <= commit.began]
            if not mine:
                detail = f"{commit.member} committed partition {partition}, which it never had"
                yield Anomaly("zombie commit", detail)
                continue
            for other in claims:
                newer = mine[-1].start < other.start < commit.began
                if newer and other.member != commit.member and other.end > commit.acknowledged:
                    yield Anomaly(
                        "zombie commit",
                        f"partition {partition}: {commit.member} committed at {commit.began:.3f}, "
                        f"when it had been {other.member}'s since {other.start:.3f}",
                    )


def _acknowledgements(past: Past) -> Callable[[int, float], int]:
    """What tells the largest offset of a partition that was acknowledged before a moment."""
    moments: dict[int, list[float]] = defaultdict(list)
    largest: dict[int, list[int]] = defaultdict(list)
    done = [commit for commit in past.commits if commit.acknowledged != _NEVER]
    for commit in sorted(done, key=lambda commit: commit.acknowledged):
        for partition, offset in commit.offsets.items():
            moments[partition].append(commit.acknowledged)
            largest[partition].append(max(offset, *largest[partition][-1:], 0))

    def before(partition: int, moment: float) -> int:
        place = bisect_right(moments[partition], moment)
        return largest[partition][place - 1] if place else 0

    return before


def _check_reads(events: Sequence[Event], past: Past) -> Iterator[Anomaly]:
    acknowledged = _acknowledgements(past)
    seen: dict[int, int] = {}
    for event in events:
        if event["event"] != "read":
            continue
        offsets = event["offsets"]
        for partition in sorted(seen.keys() | offsets.keys() | past.claims.keys()):
            offset = max(0, offsets.get(partition, 0))
            floor = acknowledged(partition, event["began"])
            if offset < seen.get(partition, 0):
                detail = f"partition {partition} from {seen[partition]} to {offset}"
                yield Anomaly("went back", f"{detail} at {event['at']:.3f}")
            elif offset < floor:
                detail = f"partition {partition} was read as {offset} at {event['at']:.3f}"
                yield Anomaly("went back", f"{detail}, when {floor} had been acknowledged")
            seen[partition] = max(offset, seen.get(partition, 0))


def _check_starts(past: Past) -> Iterator[Anomaly]:
    acknowledged = _acknowledgements(past)
    for partition, claims in past.claims.items():
        for claim in claims:
            some = past.processed.get((claim.member, partition), [])
            first = next((each for each in some if claim.start <= each.at <= claim.end), None)
            floor = acknowledged(partition, claim.start)
            if first is not None and first.first < floor:
                yield Anomaly(
                    "went back",
                    f"partition {partition}: {claim.member}, assigned it at {claim.start:.3f}, "
                    f"began with {first.first}, when {floor} had been acknowledged",
                )


def _check_processed(events: Sequence[Event]) -> Iterator[Anomaly]:
    done: dict[int, _Coverage] = defaultdict(_Coverage)
    for event in events:
        match event["event"]:
            case "processed":
                done[event["partition"]].add(event["first"], event["end"])
            case "committing":
                for partition, offset in event["offsets"].items():
                    if offset > done[partition].end:
                        detail = f"partition {partition}: {event['member']} committed {offset}"
                        there = f"when all up to {done[partition].end} was processed"
                        yield Anomaly("skipped", f"{detail} at {event['at']:.3f}, {there}")
            case "written":
                for partition, end in event["ends"].items():
                    if done[partition].end < end:
                        detail = f"partition {partition}: from {done[partition].end} of {end} on"
                        yield Anomaly("unprocessed", detail)


class _Coverage:
    """Ranges of offsets; `end` is where the first hole begins."""

    def __init__(self) -> None:
        self.end = 0
        self._beyond: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        self._beyond.append((first, end))
        self._beyond.sort()
        while self._beyond and self._beyond[0][0] <= self.end:
            self.end = max(self.end, self._beyond.pop(0)[1])


def _check_moves(events: Sequence[Event]) -> Iterator[Anomaly]:
    moving = False
    for event in events:
        kind = event["event"]
        if kind in ("moving", "moved"):
            moving = kind == "moving"
        elif moving and kind in ("assigned", "revoked", "lost"):
            detail = f"{event['member']} at {event['at']:.3f}: {kind} {event['partitions']}"
            yield Anomaly("needless rebalance", detail)


def _check_driver(events: Sequence[Event], partitions: int) -> Iterator[Anomaly]:
    for event in events:
        if event["event"] in ("unsettled", "ended"):
            yield Anomaly(event["event"], f"{event.get('member', 'the group')}: {event['detail']}")
        elif event["event"] == "settled":
            owned = sorted(index for some in event["owners"].values() for index in some)
            if owned != list(range(partitions)):
                yield Anomaly("unsettled", f"it settled with {event['owners']}")
    kinds = {event["event"] for event in events}
    if missing := {"settled", "written", "read", "committed"} - kinds:
        yield Anomaly("unsettled", f"the history has nothing {' or '.join(sorted(missing))}")
