"""What a member does with a new assignment while it keeps what it has.

Rules:
* Draining is by slot: what isn't given any more is revoked and joined without, all else is read on.
* What is new is nobody else's: the leader gives no slot that another member listed when it joined.
  So whoever lists less than it reads, or reads more than it is given, breaks the group.

Source: KIP-429, by slot.
"""

from __future__ import annotations

from kraftpy.client.shares import without
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.key_shares import Shares


class Handover(NamedTuple):
    """Shares that go and shares that come; who had `revoked` has to join again without."""

    revoked: Shares
    added: Shares


def hand_over(has: Shares, given: Shares) -> Handover:
    """What changes for a member that has shares and is given shares."""
    return Handover(without(has, given), without(given, has))
