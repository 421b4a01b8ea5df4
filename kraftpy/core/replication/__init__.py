"""Leader to follower replication: the rules, without sockets, files or clocks.

Used unchanged by the server and by tests/simulation; neither keeps a second copy of a rule.

    leader        `Leadership`: one partition in one leader epoch as its leader sees it; followers'
                  offsets, high watermark, who joins and leaves the ISR
    follower      `Following`: one partition in one leader epoch as a follower sees it; what it asks
                  for, which answers it takes, its high watermark
    epochs        leader epochs: fencing, divergence, where to truncate
    read_replica  which replica a consumer should read from (KIP-392)

How a leader answers one partition of a follower's Fetch, in this order:

1. `Leadership.check_fetch`: the epochs are right and the replica is one. Else its error.
2. `epochs.divergence`: the logs agree up to the fetch offset. Else the diverging epoch, and the
   fetch doesn't count.
3. Read. OFFSET_OUT_OF_RANGE doesn't count either.
4. `Leadership.fetched`, once, when the request arrives, also if it then waits for records. It may
   move the high watermark, and set `expansion_due`.

What moves a leader's high watermark: `advance` (its own records: appended, or with
`flush.messages=1` flushed), `fetched`, `update` (new committed state) and `propose` (time passed).
Each says whether it did.

How a follower takes an answer, in this order: `Following.accepts`; a diverging epoch is
`Following.truncation`, OFFSET_OUT_OF_RANGE is `Following.restart`; else append (and flush, with
`flush.messages=1`: the next fetch acknowledges), then `Following.appended`.

The rules are those of KIP-101, 279, 320, 392, 497, 841, 903 and 966: docs/rules.md, rules 1-21
and 26. Comments that begin with `GUARD` mark those whose removal loses or duplicates acknowledged
records; tests/simulation proves it of them.
"""

from __future__ import annotations

from kraftpy.core.replication.epochs import ReplicaLog, check_leader_epoch, divergence
from kraftpy.core.replication.follower import Following, Truncation, may_begin_anew
from kraftpy.core.replication.leader import IsrProposal, Leadership
from kraftpy.core.replication.read_replica import preferred_read_replica

__all__ = [
    "Following",
    "IsrProposal",
    "Leadership",
    "ReplicaLog",
    "Truncation",
    "check_leader_epoch",
    "divergence",
    "may_begin_anew",
    "preferred_read_replica",
]
