"""The hash by which consumers share a partition."""

from __future__ import annotations

import zlib

import pytest

from kraftpy.client.partitioner import murmur2
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of, key_hash, slot_of


@pytest.mark.parametrize(
    ("key", "offset", "wanted"),
    [
        (b"", 7, 0),
        (b"a", 0, 8608764366449303928),
        (b"a", 99, 8608764366449303928),
        (None, 1, 5700357409661599242),
    ],
)
def test_it_is_part_of_the_format(key: bytes | None, offset: int, wanted: int) -> None:
    assert key_hash(key, offset) == wanted


def test_it_stays_in_63_bits() -> None:
    hashes = [key_hash(b"%d" % number, 0) for number in range(5000)]
    hashes += [key_hash(None, offset) for offset in (0, 1, 2**31, 2**62, 2**63 - 1)]
    assert min(hashes) >= 0
    assert max(hashes) <= HASH_MAX
    assert {type(each) for each in hashes} == {int}


def test_slots_tile_the_hashes() -> None:
    assert hashes_of(0, SLOTS - 1) == (0, HASH_MAX)
    assert hashes_of(0, 0)[1] + 1 == hashes_of(1, 1)[0]
    for slot in (0, 1, 32_767, SLOTS - 1):
        assert [slot_of(each) for each in hashes_of(slot, slot)] == [slot, slot]


_KINDS = {
    "numbers": lambda n: b"%d" % n,
    "padded": lambda n: b"user-%08d" % n,
    "uuids": lambda n: zlib.crc32(b"%d" % n).to_bytes(4, "big").hex().encode() * 4,
    "binary": lambda n: n.to_bytes(8, "big"),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("partitioner", [lambda key: murmur2(key) & 0x7FFFFFFF, zlib.crc32])
def test_key_hash_does_not_follow_the_partitioner(kind: str, partitioner: object) -> None:
    """The keys of one partition of 16, in 8 slices: murmur2 mod 8 would have all in one."""
    keys = [_KINDS[kind](number) for number in range(32_000)]
    mine = [key for key in keys if partitioner(key) % 16 == 5]  # type: ignore[operator]
    slices = [0] * 8
    for key in mine:
        slices[slot_of(key_hash(key, 0)) * 8 // SLOTS] += 1
    assert len(mine) > 1000
    assert max(slices) <= 1.25 * len(mine) / 8


def test_records_without_a_key_are_spread() -> None:
    slices = [0] * 8
    for offset in range(8000):
        slices[slot_of(key_hash(None, offset)) * 8 // SLOTS] += 1
    assert max(slices) <= 1.05 * 1000
