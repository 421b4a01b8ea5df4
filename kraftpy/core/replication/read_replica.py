"""Which replica a consumer should read from (KIP-392).

`replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector`: one in the
consumer's rack that has the offset it asks for; of several the leader, else the one that has most.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.replication.leader import Leadership


def preferred_read_replica(
    leadership: Leadership,
    racks: Mapping[int, str | None],
    leader_rack: str | None,
    client_rack: str,
    fetch_offset: int,
) -> int | None:
    """The id of the follower that a consumer in `client_rack` should read from, None: the leader.

    `racks` has the rack of each broker that is up; brokers that aren't in it don't count.
    """
    if not client_rack or client_rack == leader_rack:
        return None
    best = None
    for follower in leadership.followers:
        if (
            racks.get(follower.id) == client_rack
            and follower.log_start_offset <= fetch_offset <= follower.offset
            and (best is None or follower.offset > best.offset)
        ):
            best = follower
    return None if best is None else best.id
