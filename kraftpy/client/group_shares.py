"""Who of a group has which keys of a partition, and how far they are with them.

Rules:
* The shares of a partition tile its hashes. What nobody has been given is *draining*: its last
  owner listed it when it joined and has been given the partition without it; who takes it over gets
  it when that one has joined again.
* How far a slice is, is its lowest offset that isn't claimed for all of its hashes: what lies
  behind is an upper bound of what it has left, as records of other slices are among it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from kraftpy.client.group_info import GroupInfo, GroupMember
from kraftpy.client.ledger import Claim
from kraftpy.client.offsets import Partition
from kraftpy.client.spans import join, uncovered_from
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of, key_hash, slot_of


class Share(NamedTuple):
    """The hashes from low to high, both ends in, and who has them.

    Without an owner they are draining, if `last_owner` is known; else nobody reads them.
    """

    low: int
    high: int
    owner: GroupMember | None
    last_owner: GroupMember | None = None


class KeyOwner(NamedTuple):
    """Where the records of a key are, and whose they are; None for nobody's at the moment."""

    partition: Partition
    hash: int
    owner: GroupMember | None
    last_owner: GroupMember | None


def shares_of(info: GroupInfo) -> dict[Partition, list[Share]]:
    """The shares of each partition that somebody has some of, sorted."""
    pieces: dict[Partition, list[tuple[int, int, GroupMember]]] = {}
    listed: dict[Partition, list[tuple[int, int, GroupMember]]] = {}
    for member in info.members:
        for name, slots in member.shares.items():
            pieces.setdefault(name, []).extend((*each, member) for each in slots)
        if member.sharing is not None:
            for name, slots in member.sharing.owned.items():
                listed.setdefault(name, []).extend((*each, member) for each in slots)
    found: dict[Partition, list[Share]] = {}
    for name in sorted(pieces.keys() | listed.keys()):
        shares: list[Share] = []
        expected = 0
        for first, last, member in sorted(pieces.get(name, ()), key=lambda piece: piece[:2]):
            shares += _unowned(expected, first - 1, listed.get(name, ()))
            shares.append(Share(*hashes_of(first, last), member))
            expected = max(expected, last + 1)
        shares += _unowned(expected, SLOTS - 1, listed.get(name, ()))
        found[name] = shares
    return found


def _unowned(first: int, last: int, listed: Iterable[tuple[int, int, GroupMember]]) -> list[Share]:
    """Slots that nobody has, by who had them."""
    found: list[Share] = []
    at = first
    for begin, end, member in sorted(listed, key=lambda piece: piece[:2]):
        if end < at or begin > last:
            continue
        if begin > at:
            found.append(Share(*hashes_of(at, begin - 1), None))
        found.append(Share(*hashes_of(max(begin, at), min(end, last)), None, member))
        at = end + 1
    if at <= last:
        found.append(Share(*hashes_of(at, last), None))
    return found


def owner_of_key(
    name: Partition, key: bytes, shares: Mapping[Partition, Iterable[Share]]
) -> KeyOwner:
    """Who of these has a key's records."""
    hash_ = key_hash(key, 0)
    for share in shares.get(name, ()):
        if share.low <= hash_ <= share.high:
            return KeyOwner(name, hash_, share.owner, share.last_owner)
    return KeyOwner(name, hash_, None, None)


def next_of(low: int, high: int, stable: int, claims: Iterable[Claim]) -> int:
    """The lowest offset that isn't claimed for all hashes of a slice."""
    claims = [claim for claim in claims if claim.low <= high and low <= claim.high]
    bounds = sorted(
        {low, high + 1}
        | {
            bound
            for claim in claims
            for bound in (claim.low, claim.high + 1)
            if low < bound <= high
        }
    )
    return min(
        uncovered_from(
            join(
                (claim.first, claim.last + 1)
                for claim in claims
                if claim.low <= begin <= claim.high
            ),
            stable,
        )
        for begin, _ in pairwise(bounds)
    )


def slice_text(low: int, high: int) -> str:
    """Hashes for people: `all`, slots if they begin and end where slots do, or hashes in hex."""
    if (low, high) == (0, HASH_MAX):
        return "all"
    first, last = slot_of(low), slot_of(high)
    if hashes_of(first, last) == (low, high):
        return f"{first}-{last}"
    return f"0x{low:016x}-0x{high:016x}"
