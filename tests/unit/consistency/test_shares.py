"""Members that share a partition: a history that is sound, and what is found when it is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.testing.consistency import WORKLOADS
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict
from kraftpy.testing.consistency.workloads import PLAYS

Story = list[Operation]

RUN = 99
SENDER, READER = 90, 91
LOW, HIGH = [[0, 32767]], [[32768, 65535]]
WHOLE = [[0, 65535]]
SLOTS = {"a": 100, "b": 40_000, "c": 200}
KEYS = ["a", "b", "c", "b", "a", "b", "a", "b"]
"""Of the records of the log, by offset."""
MS = 1_000_000
OPTIONS = {"rests": True, "session_timeout_ms": 6000, "heartbeat_ms": 1000}


def at(now: int, process: int, f: str, *, asked: Any = None, **value: Any) -> Operation:
    """At a moment, in milliseconds; what is asked and answered takes one."""
    value = {"group": "g", **value} if f not in ("send", "frozen") else value
    brought = value["records"] if f == "send" else value
    took = MS if f in ("claim", "commit", "progress", "send") else 0
    begun = brought if asked is None else asked
    return Operation(now, process, f, "ok", now * MS, now * MS + took, begun, brought, "", "", "")


def given(now: int, process: int, slices: list[list[int]], epoch: int, **more: Any) -> Operation:
    its = {"keys": ["t-0"], "slices": {"t-0": slices}}
    return at(now, process, "assigned", **its, epoch=epoch, member=f"m{process}", **more)


def gone(now: int, process: int, slices: list[list[int]], f: str = "revoked") -> Operation:
    return at(now, process, f, keys=["t-0"], slices={"t-0": slices})


def did(now: int, process: int, offset: int, polled: int | None = None) -> Operation:
    """Processed what a poll brought that began just before, or at a moment."""
    key = KEYS[offset]
    polled_ns = (now - 1 if polled is None else polled) * MS
    its = {"of": key, "slot": SLOTS[key], "polled": polled_ns}
    return at(now, process, "processed", key="t-0", first=offset, last=offset, **its)


def claim(now: int, process: int, epoch: int, *offsets: int) -> Operation:
    records = {"t-0": [[SLOTS[KEYS[offset]], offset] for offset in offsets]}
    return at(now, process, "claim", epoch=epoch, records=records)


def read(now: int, stable: int, *claims: list[int]) -> Operation:
    asked = {"group": "g", "key": "t-0"}
    return at(now, READER, "progress", asked=asked, key="t-0", stable=stable, claims=list(claims))


def story() -> Story:
    """1 has all, then shares with 2, which crashes; 3 takes over, and 2's first record is anew."""
    sent = [
        at(n, SENDER, "send", records=[["t-0", f"{key}.{n}", n]]) for n, key in enumerate(KEYS, 1)
    ]
    sent = [
        each._replace(value=[[*each.value[0][:2], n]], asked=[each.value[0][:2]])
        for n, each in enumerate(sent)
    ]
    return [
        *sent,
        given(10, 1, WHOLE, 1),
        did(20, 1, 0),
        did(21, 1, 1),
        claim(30, 1, 1, 0, 1),
        read(40, 2),
        gone(50, 1, HIGH)._replace(value=one_of(gone(50, 1, HIGH))),
        given(60, 2, HIGH, 3),
        did(70, 1, 4, 64),  # out of order: of the other key nothing waits
        did(71, 2, 3),
        claim(80, 1, 1, 4),
        read(90, 2, [0, 32767, 4, 4]),
        did(95, 1, 2, 64),
        claim(97, 1, 1, 2),
        read(99, 3, [0, 32767, 4, 4]),
        at(6000, 2, "gone", keys=["t-0"]),
        given(6100, 3, HIGH, 4),
        did(6110, 3, 3),
        did(6120, 3, 5),
        did(6130, 3, 7),
        did(6140, 1, 6),
        claim(6150, 3, 4, 3, 5, 7),
        read(6155, 6, [32768, 65535, 7, 7]),
        claim(6160, 1, 1, 6),
        at(6170, RUN, "settled", keys=["t-0"], members={"m1": ["t-0"], "m3": ["t-0"]}, ms=5),
        at(6180, RUN, "ends", ends={"t-0": 8}),
        gone(6190, 1, LOW),
        gone(6191, 3, HIGH),
        at(6195, RUN, "left", members=[]),
        read(6200, 8),
    ]


def one_of(operation: Operation) -> dict[str, Any]:
    """The same of a partition that it goes on to have a part of."""
    return {**operation.value, "keys": []}


def judge(operations: Story) -> dict[str, Verdict]:
    checkers = WORKLOADS["cooperative"](OPTIONS)
    ordered = sorted(operations, key=lambda each: each.ended_ns)
    for n, operation in enumerate(ordered, 2):
        for checker in checkers:
            checker.observe(operation._replace(line=n))
    return {verdict.checker: verdict for each in checkers for verdict in each.verdicts()}


def wrong(operations: Story) -> set[str]:
    return {name for name, each in judge(operations).items() if each.valid is not True}


def without(*moments: int) -> Story:
    return [each for each in story() if each.invoked_ns not in [moment * MS for moment in moments]]


def test_silence_on_members_that_share() -> None:
    verdicts = judge(story())
    assert {name: each.explanation for name, each in verdicts.items() if not each.valid} == {}
    assert verdicts["key-order"].counts == {"processed": 9, "claimed": 8, "read": 5}
    assert verdicts["double-ownership"].counts["assignments"] == 4


PLANTS: list[tuple[str, Callable[[], Story]]] = [
    # A slot is given to who comes before its owner has given it up; or the owner goes on.
    ("double-ownership", lambda: [*without(60), given(45, 2, HIGH, 3)]),
    ("double-ownership", lambda: [*without(60), given(60, 2, [[32000, 65535]], 3)]),
    ("double-ownership", lambda: [*without(6000, 6100), *taken_early()]),
    # Who was replaced claims, by the time or by the generation; or who never had it.
    ("stale-commit", lambda: [*story(), claim(6115, 2, 3, 3)]),
    ("stale-commit", lambda: [*story(), claim(65, 1, 1, 1)]),
    ("stale-commit", lambda: [*story(), claim(65, 7, 1, 1)]),
    ("unowned-processing", lambda: [*story(), did(6141, 1, 5)]),
    # What comes later of a key is processed while nobody has processed what came before.
    ("key-order", lambda: [*without(71, 6110), did(6145, 3, 3)]),
    ("key-order", lambda: [*without(21), did(75, 2, 1)]),
    ("key-order", lambda: [*without(21), stock(6130, 4, 1)]),
    # Done, says the coordinator: below the stable offset, of a slice, before it was processed.
    ("claimed-unprocessed", lambda: [*without(6140, 6155), read(6155, 7), did(6157, 1, 6)]),
    ("claimed-unprocessed", lambda: [*without(90), read(90, 2, [0, 65535, 4, 5])]),
    ("claimed-unprocessed", lambda: [*without(90), read(90, 2, [0, 32767, 4, 6])]),
    ("processed-anew", lambda: [*story(), did(35, 1, 0, polled=33)]),
    ("processed-anew", lambda: [*story(), did(93, 1, 4, polled=92)]),
    ("processed-anew", lambda: [*without(30), did(45, 1, 0, polled=43)]),  # as it was read
    ("processed-anew", lambda: [*story(), stock(6210, 1, 7, since=6205)]),
    ("claim-lost", lambda: [*without(90), read(90, 2)]),
    ("claim-lost", lambda: [*without(90), read(90, 2, [32768, 65535, 4, 4])]),
    ("claim-lost", lambda: [*without(90), read(90, 2, [0, 32767, 5, 9])]),
    ("stable-back", lambda: [*without(40, 90), read(40, 3), read(90, 2, [0, 32767, 4, 4])]),
    ("stable-back", lambda: [*story(), at(31, 4, "commit", key="t-0", offset=3, epoch=-1)]),
    ("unfinished", lambda: [*without(6200), read(6200, 7)]),
    ("unfinished", lambda: [*without(6200), read(6200, -1)]),
    ("settling", lambda: [*story(), at(6175, RUN, "unsettled", detail="it is Empty")]),
    ("settling", lambda: [*without(6170), settled(6170, m1=["t-0"])]),
    ("settling", lambda: [*without(6170), settled(6170, m1=["t-0"], m2=["t-0"])]),
    ("all-processed", lambda: without(6140)),
    ("needless-rebalance", lambda: [*story(), at(65, RUN, "calm"), gone(66, 1, [[0, 0]])]),
    ("leaving", lambda: [*story(), at(6196, RUN, "left", members=["m1"])]),
]


def taken_early() -> Story:
    """Whoever is killed may not be replaced before its session is over."""
    return [given(4000, 3, HIGH, 4), at(6000, 2, "gone", keys=["t-0"])]


def settled(now: int, **members: list[str]) -> Operation:
    return at(now, RUN, "settled", keys=["t-0"], members=members, ms=5)


def stock(now: int, process: int, offset: int, since: int | None = None) -> Operation:
    """Processed by a member that knows of no slices."""
    made = did(now, process, offset, since)
    return made._replace(value={**made.value, "of": "", "slot": -1}) if since is None else made


@pytest.mark.parametrize(("name", "plant"), PLANTS)
def test_what_is_spoiled_is_found(name: str, plant: Callable[[], Story]) -> None:
    verdict = judge(plant())[name]
    assert verdict.valid is False
    assert verdict.findings[0].lines


def test_each_promise_can_be_broken() -> None:
    assert set(judge(story())) == {name for name, _ in PLANTS}


def test_who_knows_of_no_claims_may_process_what_is_claimed() -> None:
    """A member of another client has the partition from the stable offset on."""
    operations = [
        *[each for each in story() if each.invoked_ns < 6000 * MS],
        gone(100, 1, LOW),
        at(6000, 2, "gone", keys=["t-0"]),
        at(6100, 5, "assigned", keys=["t-0"], epoch=4, member="m5"),
        *[at(6110 + n, 5, "processed", key="t-0", first=n, last=n) for n in range(3, 8)],
        at(6130, 5, "commit", key="t-0", offset=8, epoch=4),
    ]
    assert wrong(operations) <= {"settling", "all-processed", "leaving"}
    again = at(6140, 5, "processed", key="t-0", first=4, last=4)
    assert "processed-anew" in wrong([*operations, again])


def test_who_had_all_and_was_replaced_may_go_on_for_a_while() -> None:
    """It stood still, and what it had fetched it hands out until it hears of that."""
    after = [
        at(6300, 5, "assigned", keys=["t-0"], epoch=5, member="m5"),
        given(6400, 6, LOW, 6),
        at(12_500, 5, "frozen", ms=6190),
        at(12_510, 5, "processed", key="t-0", first=6, last=6),
    ]
    assert "processed-anew" not in wrong([*story(), *after])
    assert "processed-anew" in wrong([*story(), *after, did(12_520, 6, 6)])


@pytest.mark.parametrize(("epoch", "anew"), [(5, False), (7, True)])
def test_who_hears_late_of_having_all_may_have_been_replaced_before(epoch: int, anew: bool) -> None:
    """It stood still with the answer before it: by then others had been given the partition."""
    after = [
        given(6400, 6, LOW, 6),
        at(12_500, 5, "frozen", ms=6190),
        at(12_505, 5, "assigned", keys=["t-0"], epoch=epoch, member="m5"),
        at(12_510, 5, "processed", key="t-0", first=6, last=6),
    ]
    assert ("processed-anew" in wrong([*story(), *after])) is anew


@pytest.mark.parametrize(("heard", "clash"), [(100, False), (2000, True)])
def test_who_stands_still_amid_a_join_was_silent_before(heard: int, clash: bool) -> None:
    """It keeps its slices while it joins, and sends no heartbeats then."""
    operations = [
        given(10, 1, WHOLE, 1),
        did(20, 1, 0),
        claim(heard, 1, 1, 0),
        given(6100, 2, WHOLE, 2),
        at(12_000, 1, "frozen", ms=9000),
        gone(12_010, 1, WHOLE),
    ]
    assert ("double-ownership" in wrong(operations)) is clash


def test_what_goes_on_in_a_handover_excuses_nobody() -> None:
    """Of slices a member that stood still hands nothing out before it is heard of."""
    zombie = [at(6300, 2, "frozen", ms=6200), did(6310, 2, 3, polled=6305)]
    operations = [each for each in story() if each.f != "gone"]
    assert wrong([*operations, *zombie]) >= {"processed-anew"}


def test_a_run_has_the_groups_that_its_members_are_in() -> None:
    play = PLAYS["cooperative"]
    assert set(play.members.values()) <= set(play.options("x", 60.0)["groups"])
    assert set(play.members) | {"send", "look-at-all"} == set(play.roles)
