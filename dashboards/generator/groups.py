"""Groups, share groups too: how far behind they are, whether they catch up, what brokers do."""

from __future__ import annotations

from dashboards.generator.grafana import (
    BYTES,
    BYTES_RATE,
    CAUTION,
    COUNT,
    GROUP,
    PER_SECOND,
    RATIO,
    SECONDS,
    Board,
    Row,
    graph,
    p99,
    quantiles,
    stat,
)

_G = '@,consumergroup=~"$group"'
_COORDINATION = 'api=~"OffsetCommit|OffsetFetch|JoinGroup|SyncGroup|ConsumerGroupHeartbeat"'

_STATE = Row(
    "Chosen groups",
    [
        stat(
            "Groups",
            "How many groups are chosen.",
            COUNT,
            f"count(kafka_consumergroup_members{{{_G}}})",
        ),
        stat(
            "Members",
            "Their members.",
            COUNT,
            f"sum(kafka_consumergroup_members{{{_G}}})",
        ),
        stat(
            "Lag",
            "Committed records that they have not committed as read.",
            COUNT,
            f"sum(kafka_consumergroup_lag_sum{{{_G}}})",
        ),
        stat(
            "Groups without members",
            "Groups that have offsets, and nobody who reads on.",
            COUNT,
            f"count(kafka_consumergroup_members{{{_G}}} == 0) or vector(0)",
            CAUTION,
        ),
        stat(
            "Coordinators loading",
            "Partitions of __consumer_offsets that are being loaded: their groups have to wait.",
            COUNT,
            "sum(kraftpy_coordinator_loading_partitions{@})",
            CAUTION,
        ),
        stat(
            "Lag left out",
            "Nodes with more committed offsets than they serve as metrics: sums lack the rest.",
            COUNT,
            "sum(kraftpy_metrics_truncated{@})",
            CAUTION,
        ),
    ],
)

_LAG = Row(
    "How far behind",
    [
        graph(
            "Lag by group and topic",
            "Records that the group has still to read.",
            COUNT,
            (
                f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_G}}})",
                "{{consumergroup}} {{topic}}",
            ),
            width=12,
        ),
        graph(
            "Partitions furthest behind",
            "The ten partitions with the largest lag. One that grows by itself has a stuck member "
            "or a hot key.",
            COUNT,
            (
                "topk(10, max by (consumergroup, topic, partition) "
                f"(kafka_consumergroup_lag{{{_G}}}))",
                "{{consumergroup}} {{topic}}-{{partition}}",
            ),
            width=12,
        ),
        graph(
            "Reading",
            "How fast committed offsets grow.",
            PER_SECOND,
            (
                "sum by (consumergroup, topic) "
                f"(rate(kafka_consumergroup_current_offset_sum{{{_G}}}[$__rate_interval]))",
                "{{consumergroup}} {{topic}}",
            ),
        ),
        graph(
            "Time to catch up",
            "Lag divided by the rate of reading: how old the end of the queue is, as long as the "
            "rate holds. No line where nothing is read.",
            SECONDS,
            (
                f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_G}}}) / "
                "(sum by (consumergroup, topic) "
                f"(rate(kafka_consumergroup_current_offset_sum{{{_G}}}[$__rate_interval])) > 0)",
                "{{consumergroup}} {{topic}}",
            ),
        ),
        graph(
            "Committed offsets",
            "Partitions of topics for which the groups have committed an offset.",
            COUNT,
            (
                f"count by (consumergroup) (kafka_consumergroup_current_offset{{{_G}}})",
                "{{consumergroup}}",
            ),
        ),
    ],
)

_MEMBERS = Row(
    "Members and rebalances",
    [
        graph(
            "Members by group",
            "Members of each group.",
            COUNT,
            (f"sum by (consumergroup) (kafka_consumergroup_members{{{_G}}})", "{{consumergroup}}"),
        ),
        graph(
            "Groups by state",
            "All groups. Many that rebalance at once, or one for long, keep records waiting.",
            COUNT,
            ("sum by (type, state) (kraftpy_groups{@})", "{{type}} {{state}}"),
            stacked=True,
        ),
        graph(
            "Coordination requests",
            "Commits, joins and heartbeats, by API.",
            PER_SECOND,
            (
                "sum by (api) (rate(kraftpy_request_duration_seconds_count"
                f"{{@,{_COORDINATION}}}[$__rate_interval]))",
                "{{api}}",
            ),
        ),
    ],
)

_SHARED = Row(
    "Shared partitions",
    [
        graph(
            "Oldest record that isn't done",
            "For how long the group's offset has stood at a record while later ones are done. A "
            "line that climbs is a key that somebody is stuck at.",
            SECONDS,
            (
                'max by (group, topic) (kraftpy_group_oldest_unclaimed_seconds{@,group=~"$group"})',
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Ranges done beyond the offsets",
            "How much lies between the slowest member of a partition and the others.",
            COUNT,
            ("kraftpy_individual_commit_ranges{@}", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Claims",
            "What became of commits of members that share partitions, by partition.",
            PER_SECOND,
            (
                "sum by (result) (rate(kraftpy_individual_commits_total{@}[$__rate_interval]))",
                "{{result}}",
            ),
        ),
        graph(
            "Looked through and sent",
            "Record batches for members that want some of the keys: what brokers look through for "
            "them, each for himself, and what of it they are sent.",
            BYTES_RATE,
            (
                "sum(rate(kraftpy_range_fetch_scanned_bytes_total{@}[$__rate_interval]))",
                "looked through",
            ),
            ("sum(rate(kraftpy_range_fetch_sent_bytes_total{@}[$__rate_interval]))", "sent"),
        ),
        graph(
            "Batches by how much was sent",
            "None of a batch, a part that was cut out, or all of it because most was wanted.",
            PER_SECOND,
            (
                "sum by (how) (rate(kraftpy_range_fetch_batches_total{@}[$__rate_interval]))",
                "{{how}}",
            ),
        ),
        graph(
            "Memory",
            "Of ranges at coordinators, and of what leaders know of batches.",
            BYTES,
            ("sum(kraftpy_individual_commit_bytes{@})", "ranges"),
            ("sum(kraftpy_range_fetch_cache_bytes{@})", "batches"),
        ),
        stat(
            "Partitions that wait",
            "Partitions of groups with as many ranges as may be: their members wait for the oldest "
            "record.",
            COUNT,
            "sum(kraftpy_individual_commit_stalled{@})",
            CAUTION,
        ),
        stat(
            "Logs of claims led elsewhere",
            "Partitions of __consumer_offsets whose log of claims has another leader: claims wait.",
            COUNT,
            "sum(kraftpy_twins_apart{@})",
            CAUTION,
        ),
    ],
)

_H = '@,group=~"$group"'

_SHARES = Row(
    "Share groups",
    [
        graph(
            "Lag of share groups",
            "Committed records that the group isn't done with, by topic.",
            COUNT,
            (
                f"sum by (group, topic) (kraftpy_share_group_lag_records{{{_H}}})",
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Done",
            "Records that are accepted, rejected or archived.",
            PER_SECOND,
            (
                "sum by (group, topic) "
                f"(rate(kraftpy_share_group_finished_offset_sum{{{_H}}}[$__rate_interval]))",
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Records by state",
            "Between the first that a group isn't done with and the last that it was leased: much "
            "that is acquired waits for members, much that is acknowledged for one record before.",
            COUNT,
            ("sum by (state) (kraftpy_leases{@})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Leased and given back",
            "Records that are leased, and leases that are over without a word on the record: it's "
            "leased again.",
            PER_SECOND,
            ("sum(rate(kraftpy_leases_acquired_total{@}[$__rate_interval]))", "leased"),
            (
                "sum by (reason) (rate(kraftpy_leases_released_total{@}[$__rate_interval]))",
                "{{reason}}",
            ),
        ),
        graph(
            "Archived",
            "Records that nobody gets any more, though nobody accepted them. Those at their "
            "delivery_limit were given up: something fails at them.",
            PER_SECOND,
            (
                "sum by (reason) (rate(kraftpy_leases_archived_total{@}[$__rate_interval]))",
                "{{reason}}",
            ),
        ),
        graph(
            "Acknowledged until kept",
            "What an acknowledgement waits for: its write at the share coordinator.",
            SECONDS,
            *quantiles("kraftpy_share_state_write_seconds"),
        ),
        graph(
            "Sessions",
            "Members that fetch, by broker.",
            COUNT,
            ("kraftpy_share_sessions{@}", "{{instance}}"),
            stacked=True,
        ),
        stat(
            "Partitions at their limit",
            "Of these a group is leased nothing new: it isn't done with as many records as may be.",
            COUNT,
            "sum(kraftpy_share_partitions_full{@})",
            CAUTION,
        ),
    ],
)

_COORDINATORS = Row(
    "Coordinators",
    [
        graph(
            "Commit latency",
            "OffsetCommit, which waits until the commit is replicated.",
            SECONDS,
            *quantiles("kraftpy_request_duration_seconds", 'api="OffsetCommit"'),
        ),
        graph(
            "Offsets kept",
            "Committed offsets of all groups in memory: of coordinators, and to take over.",
            COUNT,
            ("kraftpy_committed_offsets{@}", "{{instance}}"),
            ("kraftpy_followed_committed_offsets{@}", "{{instance}}, to take over"),
            stacked=True,
        ),
        graph(
            "Partitions of __consumer_offsets",
            "How evenly groups are spread over coordinators.",
            COUNT,
            ("kraftpy_coordinator_partitions{@}", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Load of a coordinator, 99th percentile",
            "How long it took to load one partition of __consumer_offsets, since the node's start.",
            SECONDS,
            (
                "histogram_quantile(0.99, sum by (le, instance) "
                "(kraftpy_coordinator_load_seconds_bucket{@}))",
                "{{instance}}",
            ),
            width=12,
        ),
        graph(
            "Loaded share",
            "Of the partitions of __consumer_offsets that are being loaded; 1 if there are none.",
            RATIO,
            ("kraftpy_coordinator_loading_ratio{@}", "{{instance}}"),
            width=12,
            maximum=1,
        ),
        graph(
            "Slowest coordination",
            "The 99th percentile by API; a JoinGroup waits for the other members.",
            SECONDS,
            p99("kraftpy_request_duration_seconds", "api", _COORDINATION),
            width=24,
        ),
    ],
)

BOARD = Board(
    "kraftpy-groups",
    "kraftpy: groups and lag",
    "How far behind consumer groups are, whether they catch up, what their coordinators do.",
    [_STATE, _LAG, _MEMBERS, _SHARED, _SHARES, _COORDINATORS],
    (GROUP,),
)
