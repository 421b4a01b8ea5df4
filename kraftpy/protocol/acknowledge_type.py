"""What a member of a share group says of a record (KIP-932; RENEW: KIP-1222)."""

from __future__ import annotations

from enum import IntEnum


class AcknowledgeType(IntEnum):
    """The `AcknowledgeTypes` of ShareFetch and ShareAcknowledge.

    GAP: there is no record. ACCEPT: it's done. RELEASE: another may have it. REJECT: nobody is to
    have it again. RENEW: it takes longer.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
