"""What a node tells of share groups (KIP-932): leases on what it leads, and how far groups are.

How far a group is, the share coordinator of each partition knows. A topic's partitions may have
several, so the sum over the brokers is the topic.
"""

from __future__ import annotations

from kraftpy.metrics.instruments import REQUEST_BUCKETS
from kraftpy.metrics.metric import counter, gauge, histogram

_KEPT = (
    " Each share coordinator serves it of the partitions whose state it keeps: the sum over the "
    "brokers is the topic."
)

SHARES = (
    gauge(
        "kraftpy_leases",
        "Records of partitions led here between the first that a share group isn't done with and "
        "the last that it was leased, by state; in_transition: what becomes of it is being "
        "written.",
        "state",
    ),
    counter(
        "kraftpy_leases_acquired_total", "Records that were leased to members of share groups."
    ),
    counter(
        "kraftpy_leases_released_total",
        "Leases that were over without a word on the record, which is leased again, or archived at "
        "its delivery limit: its member gave it back (released) or said nothing in time "
        "(timed_out), is gone (session_ended), or was over its quota and not told of it "
        "(not_sent).",
        "reason",
    ),
    counter(
        "kraftpy_leases_archived_total",
        "Records that a share group gets no more though nobody accepted them: rejected, said to be "
        "a gap, delivered as often as they may be (delivery_limit), or the log has nothing for "
        "members there (not_in_log): it was deleted, compacted, aborted, or is a marker.",
        "reason",
    ),
    histogram(
        "kraftpy_share_state_write_seconds",
        "From what becomes of leases, at a partition's leader, to its being kept by the share "
        "coordinator: what an acknowledgement waits for.",
        REQUEST_BUCKETS,
    ),
    gauge("kraftpy_share_sessions", "Members of share groups that fetch from this broker."),
    gauge(
        "kraftpy_share_partitions_full",
        "Partitions led here of which a share group is leased nothing new, as it isn't done with "
        "as many records as may be (group.share.partition.max.record.locks).",
    ),
    gauge(
        "kraftpy_share_group_lag_records",
        "Committed records that the share group isn't done with (KIP-1226)." + _KEPT,
        "group",
        "topic",
    ),
    gauge(
        "kraftpy_share_group_finished_offset_sum",
        "How far the share group is: the offsets where it begins, and what is done above them. It "
        "grows with every record that is accepted, rejected or archived." + _KEPT,
        "group",
        "topic",
    ),
)
"""Native metrics, of leaders and of share coordinators."""
