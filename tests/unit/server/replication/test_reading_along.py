"""A replica is read as far as it's committed; cut, replaced or cleaned, it's known for another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.server.replication.reading_along import Place, has_place, read_along
from tests.unit.storage.cleaning import COMPACT, clean, inline
from tests.unit.storage.support import Store, fill, records_of


class Replica:
    """What is asked of a partition, around a log on a disk."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder, COMPACT)
        self.log = self.store.log()
        self.high_watermark = 0

    def append(self, count: int, epoch: int, committed: int) -> None:
        fill(self.log, count, epoch=epoch)
        self.high_watermark = committed

    @property
    def as_partition(self) -> Any:
        return SimpleNamespace(log=self.log, high_watermark=self.high_watermark)

    def read(self, place: Place | None) -> tuple[list[int], Place]:
        data, place = read_along(self.as_partition, place, 1 << 20)
        return [record.offset for record in records_of(data)], place

    def has(self, place: Place) -> bool:
        return has_place(self.as_partition, place)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(tmp_path)
    yield replica
    replica.store.close()


def test_only_what_is_committed_is_read(replica: Replica) -> None:
    replica.append(5, epoch=1, committed=3)
    offsets, place = replica.read(None)
    assert offsets == [0, 1, 2]
    assert place == Place(3, 1, 0)
    assert replica.read(place) == ([], place)
    replica.high_watermark = 5
    assert replica.read(place) == ([3, 4], Place(5, 1, 0))


def test_an_empty_log_has_its_place_until_something_is_there(replica: Replica) -> None:
    offsets, place = replica.read(None)
    assert (offsets, place) == ([], Place(0, -1, 0))
    replica.append(2, epoch=1, committed=2)
    assert replica.has(place)
    assert replica.read(place) == ([0, 1], Place(2, 1, 0))


def test_a_log_that_was_cut_behind_it_is_the_same(replica: Replica) -> None:
    replica.append(5, epoch=1, committed=3)
    _, place = replica.read(None)
    replica.log.truncate_to(3)
    replica.append(2, epoch=2, committed=5)
    assert replica.has(place)


@pytest.mark.parametrize("kept", [0, 2])
def test_a_log_that_was_cut_before_it_is_another(replica: Replica, kept: int) -> None:
    replica.append(5, epoch=1, committed=3)
    _, place = replica.read(None)
    replica.log.truncate_to(kept)
    assert not replica.has(place)
    replica.append(5, epoch=2, committed=kept + 5)
    assert not replica.has(place)


def test_a_log_that_begins_elsewhere_is_another(replica: Replica) -> None:
    replica.append(5, epoch=1, committed=3)
    _, place = replica.read(None)
    replica.log.truncate_fully_and_start_at(100)
    assert not replica.has(place)


def test_who_has_not_read_what_was_cleaned_since_reads_anew(replica: Replica) -> None:
    processes = inline(replica.store)
    replica.append(6, epoch=1, committed=3)
    _, early = replica.read(None)
    replica.high_watermark = 6
    _, late = replica.read(early)
    replica.log.roll()
    clean(replica.store)
    assert processes.jobs
    assert replica.log.first_dirty_offset > early.offset
    assert replica.has(late)
    assert not replica.has(early)
    # Who begins then reads what is clean already, in pieces, and goes on.
    data, amid = read_along(replica.as_partition, None, 1)
    assert data
    assert replica.has(amid)
