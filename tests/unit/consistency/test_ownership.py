"""Ownership in groups: random groups that hand partitions over, and what can go wrong there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kraftpy.testing.consistency.checkers.ownership import OwnershipChecker
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict

KEYS = ("t-0", "t-1", "t-2")


def at(now: int, process: int, f: str, outcome: str = "ok", **value: Any) -> Operation:
    if f != "send":
        value = {"group": "g", **value}
    records = value.get("records", value)
    return Operation(now, process, f, outcome, now, now, records, records, "", "", "")


def random_group(rng: random.Random, rounds: int = 30) -> list[Operation]:
    """Partitions go round; some owners are fenced and find out only later."""
    now = 1
    operations = []
    position = dict.fromkeys(KEYS, 0)
    owners: dict[str, tuple[int, int]] = {}
    for epoch in range(1, rounds):
        for key in KEYS:
            if key in owners and rng.random() < 0.5:
                continue
            now += 10
            if key in owners:
                old, old_epoch = owners[key]
                if rng.random() < 0.7:
                    operations.append(at(now, old, "revoked", keys=[key]))
                else:
                    late = at(now + 15, old, "lost", keys=[key])
                    refused = {"key": key, "offset": 0, "epoch": old_epoch}
                    operations += [late, at(now + 12, old, "commit", "fail", **refused)]
            new = epoch * len(KEYS) + KEYS.index(key)  # a session is never used again
            operations.append(at(now + 1, new, "assigned", keys=[key], epoch=epoch))
            owners[key] = new, epoch
        for key, (owner, owned_since) in owners.items():
            now += 20
            count = rng.randrange(1, 5)
            first, last = position[key], position[key] + count - 1
            for offset in range(first, last + 1):
                operations.append(at(now - 5, 999, "send", records=[[key, offset, offset]]))
            operations.append(at(now, owner, "processed", key=key, first=first, last=last))
            if rng.random() < 0.8:
                commit = {"key": key, "offset": last + 1, "epoch": owned_since}
                operations.append(at(now + 1, owner, "commit", **commit))
                position[key] = last + 1
    operations.sort(key=lambda operation: operation.invoked_ns)
    return [operation._replace(line=n + 2) for n, operation in enumerate(operations)]


def judge(operations: list[Operation]) -> dict[str, Verdict]:
    checker = OwnershipChecker()
    for operation in operations:
        checker.observe(operation)
    return {verdict.checker: verdict for verdict in checker.verdicts()}


@pytest.mark.parametrize("seed", range(30))
def test_silence_on_groups_that_work(seed: int) -> None:
    verdicts = judge(random_group(random.Random(seed)))
    wrong = [each.explanation for each in verdicts.values() if each.valid is not True]
    assert len(verdicts) == 5
    assert not wrong
    assert verdicts["double-ownership"].counts["fenced owners that didn't know yet"] > 0


def late_release(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """An owner that knew all the time lets go only after the next one has begun."""
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "revoked"])
    moved = operations.pop(index)
    time = operations[index].invoked_ns + 5  # behind the assignment that follows it
    moved = moved._replace(invoked_ns=time, ended_ns=time)
    return sorted([*operations, moved], key=lambda operation: operation.invoked_ns)


def no_release(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """An owner goes on as if nothing had happened."""
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "revoked"])
    gone = operations.pop(index)
    (key,) = gone.value["keys"]
    later = operations[-1].invoked_ns + 1
    return [*operations, at(later, gone.process, "processed", key=key, first=0, last=0)]


def same_epoch(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "assigned"])
    return [*operations, operations[index]._replace(process=5000, line=10**6)]


def stale_commit(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    index = rng.choice([i for i, o in enumerate(operations) if o.outcome == "fail"])
    operations[index] = operations[index]._replace(outcome="ok")
    return operations


def stale_commit_without_epochs(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """Only time tells that somebody else had the partition."""
    return [
        each
        if "epoch" not in each.value
        else each._replace(value=(value := each.value | {"epoch": -1}), asked=value)
        for each in stale_commit(rng, operations)
    ]


def commit_of_nothing(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """Whoever commits never had the partition."""
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "commit"])
    operations[index] = operations[index]._replace(process=5000, outcome="ok")
    return operations


def early_start(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """An owner begins below what was committed before it came."""
    committed: set[str] = set()
    begun: set[tuple[int, str]] = set()
    found = []
    for index, each in enumerate(operations):
        key = each.value["key"] if each.f in ("commit", "processed") else ""
        if each.f == "commit" and each.outcome == "ok":
            committed.add(key)
        if each.f == "processed" and (each.process, key) not in begun:
            begun.add((each.process, key))
            if key in committed and each.value["first"] > 0:
                found.append(index)
    index = rng.choice(found)
    value = operations[index].value | {"first": operations[index].value["first"] - 1}
    operations[index] = operations[index]._replace(value=value, asked=value)
    return operations


def unowned(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "processed"])
    operations[index] = operations[index]._replace(process=5000)
    return operations


def left_out(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    index = rng.choice([i for i, o in enumerate(operations) if o.f == "commit"])
    value = operations[index].value
    key, offset = value["key"], value["offset"] - 1
    return [
        operation
        for operation in operations
        if not (
            operation.f == "processed"
            and operation.value["key"] == key
            and operation.value["first"] <= offset <= operation.value["last"]
        )
    ]


PLANTS = [
    ("double-ownership", late_release),
    ("double-ownership", no_release),
    ("double-ownership", same_epoch),
    ("stale-commit", stale_commit),
    ("stale-commit", stale_commit_without_epochs),
    ("stale-commit", commit_of_nothing),
    ("early-start", early_start),
    ("unowned-processing", unowned),
    ("committed-unprocessed", left_out),
]


@pytest.mark.parametrize(("name", "plant"), PLANTS)
def test_what_is_planted_is_found(name: str, plant: Any) -> None:
    found = 0
    for seed in range(30):
        rng = random.Random(seed)
        operations = random_group(rng)
        if plant is left_out:  # what failed commits ask for isn't below any committed offset
            operations = [each for each in operations if each.outcome == "ok"]
        verdict = judge(plant(rng, operations))[name]
        assert verdict.valid is False, seed
        assert verdict.findings[0].lines
        found += 1
    assert found == 30


def test_a_static_member_that_comes_back_is_no_rival() -> None:
    first = at(10, 1, "assigned", keys=["t-0"], epoch=3, instance="a")
    again = at(20, 2, "assigned", keys=["t-0"], epoch=3, instance="a")
    assert judge([first, again])["double-ownership"].valid is True
    other = at(20, 2, "assigned", keys=["t-0"], epoch=3, instance="b")
    assert judge([first, other])["double-ownership"].valid is False


_SECOND = 10**9


def handed_over(*between: Operation, ended: str, ended_s: int) -> Verdict:
    """Member 1 has a partition from second 1 on, 2 from second 10 on; a session lasts 6 s."""
    operations = [
        at(1 * _SECOND, 1, "assigned", keys=["t-0"], epoch=1, member="a"),
        *between,
        at(10 * _SECOND, 2, "assigned", keys=["t-0"], epoch=2, member="b"),
        at(ended_s * _SECOND, 1, ended, keys=["t-0"]),
    ]
    checker = OwnershipChecker(6.0)
    for operation in sorted(operations, key=lambda each: each.invoked_ns):
        checker.observe(operation)
    return next(each for each in checker.verdicts() if each.checker == "double-ownership")


def test_who_was_killed_may_have_been_fenced_if_it_was_silent() -> None:
    assert handed_over(ended="gone", ended_s=12).valid is True
    heard = at(7 * _SECOND, 1, "commit", key="t-0", offset=0, epoch=1)
    assert handed_over(heard, ended="gone", ended_s=12).valid is False
    refused = heard._replace(outcome="info")
    assert handed_over(refused, ended="gone", ended_s=12).valid is True
    # One that stood still from second 3 to 11 hasn't heard of anything either.
    frozen = at(11 * _SECOND, 1, "frozen", ms=8000)
    assert handed_over(frozen, ended="revoked", ended_s=12).valid is True
    assert handed_over(frozen, heard, ended="revoked", ended_s=12).valid is False
    short = at(11 * _SECOND, 1, "frozen", ms=5000)
    assert handed_over(short, ended="revoked", ended_s=12).valid is False
    # One that lives and isn't told that it lost anything has been a member all the time.
    assert handed_over(ended="revoked", ended_s=12).valid is False
    assert handed_over(ended="lost", ended_s=12).valid is True


def test_a_member_with_another_id_has_lost_what_it_had() -> None:
    def again(member: str) -> Operation:
        return at(13 * _SECOND, 1, "assigned", keys=[], epoch=3, member=member)

    assert handed_over(again("c"), ended="revoked", ended_s=12).valid is True
    assert handed_over(again("a"), ended="revoked", ended_s=12).valid is False
