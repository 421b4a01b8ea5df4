"""Groups at rest: a history of a run that went well, and what is found when it is spoiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency.checkers.pieces import SLOTS
from kraftpy.testing.consistency.checkers.rest import RestChecker
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.rest import Claims
from kraftpy.testing.consistency.verdicts import Verdict
from kraftpy.testing.consistency.worker import SESSIONS_MAX

KEYS = ["t-0", "t-1"]
ALL = [(0, SLOTS)]
RUN = 99
"""The process in whose name the run notes what it sees."""

Story = list[Operation]


def at(now: int, process: int, f: str, **value: Any) -> Operation:
    value = {"group": "g", **value} if f != "ended" else value
    return Operation(now, process, f, "ok", now, now, value, value, "", "", "")


def settled(now: int, **members: list[str]) -> Operation:
    return at(now, RUN, "settled", keys=KEYS, members=members, ms=5)


def story() -> Story:
    """1 has both partitions, then shares them with 2; the coordinator moves; all is processed."""
    return [
        at(10, 1, "assigned", keys=KEYS, epoch=1, member="m1"),
        at(20, 1, "processed", key="t-0", first=0, last=4),
        at(21, 1, "processed", key="t-1", first=0, last=4),
        at(25, 1, "commit", key="t-0", offset=5),
        at(30, 1, "revoked", keys=["t-1"]),
        at(40, 2, "assigned", keys=["t-1"], epoch=2, member="m2"),
        settled(50, m1=["t-0"], m2=["t-1"]),
        at(60, RUN, "calm"),
        at(70, 2, "processed", key="t-1", first=5, last=7),
        at(80, RUN, "uproar"),
        at(90, 2, "lost", keys=["t-1"]),
        at(100, 3, "assigned", keys=["t-1"], epoch=3, member="m3"),
        at(110, 3, "processed", key="t-1", first=8, last=9),
        at(115, 3, "commit", key="t-1", offset=10),
        settled(120, m1=["t-0"], m3=["t-1"]),
        at(130, RUN, "ends", ends={"t-0": 5, "t-1": 10}),
        at(140, 1, "revoked", keys=["t-0"]),
        at(150, 3, "revoked", keys=["t-1"]),
        at(160, RUN, "left", members=[]),
    ]


def judge(operations: Story, *, expected: bool = True) -> dict[str, Verdict]:
    checker = RestChecker(expected=expected)
    for operation in sorted(operations, key=lambda each: each.invoked_ns):
        checker.observe(operation)
    return {verdict.checker: verdict for verdict in checker.verdicts()}


def without(*moments: int) -> Story:
    return [each for each in story() if each.invoked_ns not in moments]


def test_silence_on_groups_that_rest() -> None:
    verdicts = judge(story())
    assert [each.valid for each in verdicts.values()] == [True] * 4
    assert [next(iter(each.counts.values())) for each in verdicts.values()] == [1, 2, 15, 1]


def given_back(how: str) -> Story:
    """While only the coordinator moves; it is known by the first half alone."""
    again = at(81, 1, "assigned", keys=["t-0"], epoch=3, member="m1")
    return [at(65, 1, how, keys=["t-0"]), again]


PLANTS: list[tuple[str, Callable[[], Story]]] = [
    ("needless-rebalance", lambda: [*story(), at(65, 1, "assigned", keys=[], epoch=3)]),
    ("needless-rebalance", lambda: [*story(), *given_back("revoked")]),
    ("needless-rebalance", lambda: [*story(), *given_back("lost")]),
    ("settling", lambda: [*story(), at(55, RUN, "unsettled", detail="it is Empty")]),
    # What the coordinator says: nobody's, two members', another one's, of another topic.
    ("settling", lambda: [*without(120), settled(120, m1=["t-0"])]),
    ("settling", lambda: [*without(120), settled(120, m1=KEYS, m3=["t-1"])]),
    ("settling", lambda: [*without(120), settled(120, m1=["t-1"], m3=["t-0"])]),
    ("settling", lambda: [*without(120), settled(120, m1=["t-0"], m3=["t-1", "u-0"])]),
    # What members say: one has what it gave up, nobody has it.
    ("settling", lambda: without(30)),
    ("settling", lambda: without(40)),
    ("all-processed", lambda: [*story(), at(25, 1, "commit", key="t-0", offset=6)]),
    ("all-processed", lambda: [*story(), at(75, 2, "commit", key="t-1", offset=9)]),  # too early
    ("all-processed", lambda: without(70)),
    ("all-processed", lambda: without(110)),
    ("all-processed", lambda: [*without(130), at(130, RUN, "ends", ends={"t-0": 5, "t-1": 11})]),
    ("leaving", lambda: [*without(160), at(160, RUN, "left", members=["m3"])]),
    ("leaving", lambda: [*story(), at(155, 3, "ended", detail="had not left after 25 s")]),
]


@pytest.mark.parametrize(("name", "plant"), PLANTS)
def test_what_is_planted_is_found(name: str, plant: Callable[[], Story]) -> None:
    verdicts = judge(plant())
    assert verdicts[name].valid is False
    assert verdicts[name].findings[0].lines
    assert [each.checker for each in verdicts.values() if each.valid is False] == [name]


@pytest.mark.parametrize(
    ("name", "moments"), [("settling", (50, 120)), ("all-processed", (130,)), ("leaving", (160,))]
)
def test_what_was_not_looked_at_is_not_known(name: str, moments: tuple[int, ...]) -> None:
    assert judge(without(*moments))[name].valid is None
    verdict = judge(without(*moments), expected=False)[name]
    assert verdict.valid is True
    assert not next(iter(verdict.counts.values()))  # nothing to judge


def test_a_library_that_does_not_tell_member_ids_is_believed() -> None:
    operations = [
        each._replace(value={**each.value, "member": ""}) if each.f == "assigned" else each
        for each in story()
    ]
    assert judge(operations)["settling"].valid is True


def test_a_run_reads_what_members_note_while_they_do(tmp_path: Path) -> None:
    """The newest line has no end yet, and is read all the same."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"history":1}')
    claims = Claims(path)

    def note(worker: int, session: int, f: str, *keys: str, epoch: int = 0) -> None:
        value = {"group": "g", "keys": list(keys)} | ({"epoch": epoch} if epoch else {})
        entry = {"process": worker * SESSIONS_MAX + session, "f": f, "value": value}
        line = b"\n" + json.dumps(entry).encode()
        with path.open("ab") as file:
            file.write(line[:20])
            file.flush()
            claims.read()
            file.write(line[20:])
        claims.read()

    note(1, 0, "assigned", "t-0", "t-1", epoch=1)
    assert claims.owned == {"g": {1: {"t-0": ALL, "t-1": ALL}}}
    note(1, 0, "revoked", "t-1")
    note(2, 0, "assigned", "t-1", epoch=2)
    assert claims.owned == {"g": {1: {"t-0": ALL}, 2: {"t-1": ALL}}}
    assert claims.epochs == {"g": {1: 1, 2: 2}}
    note(1, 1, "assigned", epoch=2)  # its next session has nothing of what the last one had
    note(2, 0, "gone", "t-0", "t-1")
    assert claims.owned == {"g": {1: {}}}
    assert claims.epochs == {"g": {1: 2}}
    claims.close()
