"""What `make groups` runs: every size, every client, and groups of no more members than fit."""

from __future__ import annotations

from kraftpy.testing.consistency.clients import LIBRARIES
from kraftpy.testing.consistency.faults import FAULTS, kinds
from kraftpy.testing.consistency.workloads import PLAYS
from tests.consistency import groups


def test_every_client_plays_in_groups_of_every_size() -> None:
    plans = list(groups.plans([1, 3, 10, 50], list(groups.KINDS)))
    assert {kind for kind, _, _ in plans} == {*LIBRARIES, "mixed"}
    assert max(workers for _, _, workers in plans) == 52
    play = PLAYS["groups"]
    for kind in groups.KINDS:
        large = [roles for each, roles, workers in plans if each == kind and workers == 52]
        assert len(large) >= len(groups.KINDS[kind])  # one group each, of 50
    for kind, roles, _ in plans:
        assert roles[:2] == [*play.first_out, "look"]
        able = {part.role: part.clients for part in play.cast}
        assert all(kind == "mixed" or kind in able[role] for role in roles[2:])


def test_its_faults_are_there() -> None:
    assert set(kinds(groups.FAULTS)) <= FAULTS.keys()
