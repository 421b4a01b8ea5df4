"""What a node tells of partitions that members of a group share."""

from __future__ import annotations

from kraftpy.metrics.metric import counter, gauge

SHARING = (
    # Fetches of some keys.
    counter(
        "kraftpy_range_fetch_scanned_bytes_total",
        "Bytes of record batches looked through for consumers that want some of their keys.",
        unit="bytes",
    ),
    counter(
        "kraftpy_range_fetch_sent_bytes_total",
        "Bytes of record batches, whole or cut, found for consumers that want some of their keys.",
        unit="bytes",
    ),
    counter(
        "kraftpy_range_fetch_batches_total",
        "Record batches looked through for such consumers, by how much of one was sent: none, cut "
        "to what was wanted, whole.",
        "how",
    ),
    gauge(
        "kraftpy_range_fetch_cache_bytes",
        "Memory of what is known of such batches (max.bytes.key.range.cache).",
        unit="bytes",
    ),
    # Claims on parts of partitions.
    gauge(
        "kraftpy_individual_commit_ranges",
        "Ranges of records that groups coordinated here have done beyond their offsets.",
    ),
    gauge(
        "kraftpy_individual_commit_bytes",
        "Memory of these ranges, and of what they are kept in (individual.commit.max.bytes).",
        unit="bytes",
    ),
    gauge(
        "kraftpy_individual_commit_stalled",
        "Partitions of groups coordinated here that have as many ranges as may be "
        "(individual.commit.max.ranges, individual.commit.max.bytes): their members wait.",
    ),
    counter(
        "kraftpy_individual_commits_total",
        "Claims on a partition that were answered here: NONE, or the error.",
        "result",
    ),
    gauge(
        "kraftpy_group_oldest_unclaimed_seconds",
        "For how long the group's offset has stood at a record while later ones are done: of the "
        "topic's partitions, in that with the longest.",
        "group",
        "topic",
        unit="seconds",
    ),
    gauge(
        "kraftpy_twins_apart",
        "Partitions of __consumer_offsets led here whose part of __individual_commit_offsets is "
        "led elsewhere, or by nobody: claims of their groups have to wait.",
    ),
)
"""Native metrics, of leaders and of coordinators."""
