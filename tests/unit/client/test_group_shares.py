"""Who has which keys of a partition, as members of a group say it themselves."""

from __future__ import annotations

from kraftpy.client.cluster import BrokerInfo
from kraftpy.client.group_info import CLASSIC, GroupInfo, GroupMember
from kraftpy.client.group_shares import Share, next_of, owner_of_key, shares_of, slice_text
from kraftpy.client.ledger import Claim
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of, key_hash, slot_of
from kraftpy.protocol.key_shares import ALL_SLOTS, Shares, ShareSubscription

NAME = ("t", 0)
HALF = SLOTS // 2
LOWER, UPPER = hashes_of(0, HALF - 1), hashes_of(HALF, SLOTS - 1)


def member(name: str, shares: Shares, owned: Shares | None = None) -> GroupMember:
    sharing = None if owned is None else ShareSubscription(True, "", owned)
    return GroupMember(
        name, CLASSIC, None, name, "h", ("t",), None, tuple(shares), shares=shares, sharing=sharing
    )


def group(*members: GroupMember) -> GroupInfo:
    return GroupInfo("g", CLASSIC, "Stable", "range", BrokerInfo(1, "h", 1, None), members)


def test_shares_tile_a_partition() -> None:
    one = member("one", {NAME: ((HALF, SLOTS - 1),)})
    two = member("two", {NAME: ((0, HALF - 1),), ("t", 1): ALL_SLOTS})
    assert shares_of(group(one, two)) == {
        NAME: [Share(*LOWER, two), Share(*UPPER, one)],
        ("t", 1): [Share(0, HASH_MAX, two)],
    }


def test_what_nobody_has_yet_is_draining_from_who_listed_it() -> None:
    one = member("one", {NAME: ((0, 99),)}, {NAME: ((0, 199),)})
    two = member("two", {NAME: ((300, SLOTS - 1),)}, {})
    assert shares_of(group(one, two))[NAME] == [
        Share(*hashes_of(0, 99), one),
        Share(*hashes_of(100, 199), None, one),
        Share(*hashes_of(200, 299), None, None),
        Share(*hashes_of(300, SLOTS - 1), two),
    ]
    gone = member("gone", {}, {NAME: ALL_SLOTS})
    assert shares_of(group(gone, member("new", {}, {}))) == {NAME: [Share(0, HASH_MAX, None, gone)]}


def test_whose_a_key_is() -> None:
    one, two = member("one", {NAME: ((0, HALF - 1),)}), member("two", {NAME: ((HALF, SLOTS - 1),)})
    shares = shares_of(group(one, two))
    for number in range(20):
        key = b"%d" % number
        found = owner_of_key(NAME, key, shares)
        assert found.owner is (one if slot_of(key_hash(key, 0)) < HALF else two)
    assert owner_of_key(("t", 7), b"k", shares).owner is None


def test_how_far_a_slice_is() -> None:
    claims = [Claim(*LOWER, 10, 19), Claim(*UPPER, 10, 14), Claim(*UPPER, 16, 19)]
    assert next_of(*LOWER, 10, claims) == 20
    assert next_of(*UPPER, 10, claims) == 15
    assert next_of(0, HASH_MAX, 10, claims) == 15
    assert next_of(*LOWER, 5, claims) == 5
    # A slice that is read by somebody else since is as far as the least of its parts.
    assert next_of(LOWER[0], UPPER[1] - 1, 10, [Claim(*LOWER, 10, 19)]) == 10


def test_slices_for_people() -> None:
    assert slice_text(0, HASH_MAX) == "all"
    assert slice_text(*LOWER) == "0-32767"
    assert slice_text(1, HASH_MAX) == "0x0000000000000001-0x7fffffffffffffff"
