"""Which hashes of a partition the members of a classic group have, as their assignments say.

An assignment that says nothing of it, or nothing that can be read, gives its member whole
partitions; nobody is refused for that: clients that know nothing of shares don't claim.
"""

from __future__ import annotations

import contextlib
from weakref import WeakKeyDictionary

from kraftpy.core.groups.group import Group, GroupState
from kraftpy.protocol.codec import decode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import hashes_of
from kraftpy.protocol.key_shares import Shares, decode_shares
from kraftpy.protocol.messages import ConsumerProtocolAssignment

_Known = tuple[int, tuple[str, ...], GroupState, dict[str, Shares]]


class MemberShares:
    """Reads each group's assignments once a generation."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Group, _Known] = WeakKeyDictionary()

    def of_others(
        self, group: Group, member_id: str, topic: str, partition: int
    ) -> list[tuple[int, int]]:
        """The hashes of the partition that other members have been given."""
        return [
            hashes_of(*slots)
            for other, shares in self._of(group).items()
            if other != member_id
            for slots in shares.get((topic, partition), ())
        ]

    def of_member(
        self, group: Group, member_id: str, topic: str, partition: int
    ) -> list[tuple[int, int]]:
        """The hashes of the partition that a member has been given, as far as that is known."""
        shares = self._of(group).get(member_id, {})
        return [hashes_of(*slots) for slots in shares.get((topic, partition), ())]

    def _of(self, group: Group) -> dict[str, Shares]:
        found = self._known.get(group)
        # Members get what they are assigned after their generation has begun.
        now = group.generation, tuple(group.members), group.state
        if found is None or found[:3] != now:
            shares = {each.member_id: _shares(each.assignment) for each in group.members.values()}
            found = self._known[group] = *now, shares
        return found[3]


def _shares(assignment: bytes) -> Shares:
    if not assignment:
        return {}
    with contextlib.suppress(DecodeError):
        _, decoded = decode_versioned("ConsumerProtocolAssignment", assignment)
        assert isinstance(decoded, ConsumerProtocolAssignment)
        return decode_shares(decoded.user_data or b"") or {}
    return {}
