"""Whether the cluster goes on without this broker, or has stopped as a whole.

A broker whose session with the quorum has lapsed leads nothing any more, in either case. What it
tells clients depends on it (docs/rules.md, "A broker out of touch with the quorum"):

* Cut off, others may lead by now what its metadata says that it leads. It names no leader and no
  coordinator for that, no controller, and leaves itself out of the brokers while it can name
  another: clients ask those then.
* If the quorum has lost its majority, nobody can have been elected. The metadata stays what it was,
  so that clients are where they have to be when the quorum is back.

How it tells the two apart: if a voter that it hears knows a leader, the quorum lives. If none does
and other brokers are still heard, by the fetches of followers or the answers of leaders, the quorum
has lost its majority. A broker that hears nobody takes itself for cut off: if all others are dead,
there is nobody to be sent to anyway.
"""

from __future__ import annotations

from kraftpy.core.config import BrokerConfig


def is_cut_off(
    now_s: float,
    config: BrokerConfig,
    *,
    quorum_has_leader: bool,
    follower_heard_s: float,
    leader_heard_s: float,
) -> bool:
    """Whether others may have taken over from a broker whose session has lapsed.

    `follower_heard_s` and `leader_heard_s` are when another broker was last heard, in seconds of
    the clock of `now_s`.
    """
    recent_ms = max(2 * config.broker_heartbeat_interval_ms, 3 * config.replica_fetch_wait_max_ms)
    heard_s = max(follower_heard_s, leader_heard_s)
    return quorum_has_leader or now_s - heard_s > recent_ms / 1000
