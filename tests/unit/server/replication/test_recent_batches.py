"""The newest batches, kept for followers."""

from __future__ import annotations

from kraftpy.server.replication.recent_batches import KEPT_BYTES, RecentBatches

EPOCH = 3


def kept(*batches: tuple[int, int, bytes]) -> RecentBatches:
    recent = RecentBatches()
    for base_offset, end_offset, data in batches:
        recent.add(EPOCH, base_offset, end_offset, memoryview(data))
    return recent


def joined(recent: RecentBatches, offset: int, end_offset: int, epoch: int = EPOCH) -> bytes | None:
    found = recent.since(epoch, offset, end_offset)
    return None if found is None else b"".join(found)


def test_all_from_an_offset_to_the_end() -> None:
    recent = kept((5, 7, b"a"), (7, 8, b"b"), (8, 12, b"c"))
    assert joined(recent, 5, 12) == b"abc"
    assert joined(recent, 7, 12) == b"bc"
    assert joined(recent, 8, 12) == b"c"


def test_nothing_where_something_would_be_missing() -> None:
    recent = kept((5, 7, b"a"), (7, 8, b"b"))
    assert joined(RecentBatches(), 0, 0) is None
    assert joined(recent, 4, 8) is None, "what is before was not made here"
    assert joined(recent, 6, 8) is None, "inside of a batch"
    assert joined(recent, 5, 9) is None, "something else came behind"
    assert joined(recent, 8, 8) is None


def test_a_gap_and_another_epoch_begin_anew() -> None:
    recent = kept((5, 7, b"a"), (9, 10, b"b"))
    assert joined(recent, 5, 10) is None
    assert joined(recent, 9, 10) == b"b"
    assert joined(recent, 9, 10, EPOCH + 1) is None
    recent.add(EPOCH + 1, 10, 11, memoryview(b"c"))
    assert joined(recent, 9, 11, EPOCH + 1) is None
    assert joined(recent, 10, 11, EPOCH + 1) == b"c"


def test_only_so_much_is_kept() -> None:
    half = bytes(KEPT_BYTES // 2)
    recent = kept((0, 1, half), (1, 2, half), (2, 3, b"x"))
    assert joined(recent, 0, 3) is None
    assert joined(recent, 1, 3) == half + b"x"
    recent.add(EPOCH, 3, 4, memoryview(bytes(KEPT_BYTES + 1)))
    assert joined(recent, 3, 4) is None
    recent.add(EPOCH, 4, 5, memoryview(b"y"))
    assert joined(recent, 4, 5) == b"y"
