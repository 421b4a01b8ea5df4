"""The settings of share groups, as their coordinator keeps them (KIP-932)."""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.groups import GroupSettings
from kraftpy.core.config.kinds import boolean, int32
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings(GroupSettings):
    """What `BrokerConfig` has for members of share groups.

    It's on top of the other groups' because a class with slots can have one such parent only.
    """

    group_share_max_size: int = setting(
        int32(1, 1000), "200", "Members of one share group at most."
    )
    group_share_session_timeout_ms: int = setting(
        int32(1), "45000", "Time without a heartbeat after which a member is taken out."
    )
    group_share_min_session_timeout_ms: int = setting(
        int32(1), "45000", "The smallest group.share.session.timeout.ms."
    )
    group_share_max_session_timeout_ms: int = setting(
        int32(1), "60000", "The largest group.share.session.timeout.ms."
    )
    group_share_heartbeat_interval_ms: int = setting(
        int32(1), "5000", "Time between two heartbeats of a member: members are told."
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        int32(1), "5000", "The smallest group.share.heartbeat.interval.ms."
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        int32(1), "15000", "The largest group.share.heartbeat.interval.ms."
    )
    group_share_assignors: tuple[str, ...] = setting(
        kinds.text_list("simple", "simple"),
        "simple",
        "No effect: there is one way to assign partitions.",
    )
    group_share_assignment_interval_ms: int = setting(
        int32(0), "1000", "No effect: partitions are assigned at once."
    )
    group_share_min_assignment_interval_ms: int = setting(
        int32(0), "0", "No effect: the smallest group.share.assignment.interval.ms."
    )
    group_share_max_assignment_interval_ms: int = setting(
        int32(0), "15000", "No effect: the largest group.share.assignment.interval.ms."
    )
    group_share_assignor_offload_enable: bool = setting(
        boolean(), "true", "No effect: the coordinator assigns partitions itself."
    )
    group_share_initialize_retry_interval_ms: int = setting(
        int32(1),
        "30000",
        "When a share coordinator that hasn't answered is asked again to keep a state.",
    )
