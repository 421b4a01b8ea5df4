"""Consumers that ask for the same records again and again, and those that only seem to."""

from __future__ import annotations

import pytest

from kraftpy.server.replication import damaged_replicas
from kraftpy.server.replication.damaged_replicas import REREADS, Rereads


def test_who_is_stuck_is_found_among_those_who_go_on() -> None:
    rereads = Rereads()
    stuck, other = ("a:1", "orders", 0, None), ("b:2", "orders", 0, None)
    elsewhere = "a:1", "orders", 1, None
    for offset in range(REREADS):
        assert not rereads.note(stuck, 7)
        assert not rereads.note(other, offset)
        assert not rereads.note(elsewhere, offset)
    assert rereads.note(stuck, 7)
    assert not rereads.note(stuck, 8)
    assert [rereads.note(stuck, 8) for _ in range(2 * REREADS)].count(True) == 2


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged_replicas, "READERS_MAX", 10)
    rereads = Rereads()
    for number in range(1000):
        rereads.note(("a:1", "orders", number, None), 0)
    assert len(rereads._last) == 10


def test_members_at_one_address_are_as_many_readers() -> None:
    rereads = Rereads()
    for slot in range(2 * REREADS):
        assert not rereads.note(("a:1", "orders", 0, ((slot, slot),)), 7)
    assert [rereads.note(("a:1", "orders", 0, ((0, 0),)), 7) for _ in range(REREADS)][-1]
