"""The metadata quorum: who leads, how fast it commits, who lags, and what it decides."""

from __future__ import annotations

from dashboards.generator.grafana import (
    CAUTION,
    COUNT,
    EXACTLY_ONE,
    GREEN,
    PER_SECOND,
    RED,
    SECONDS,
    TROUBLE,
    Board,
    Row,
    graph,
    heatmap,
    p99,
    quantiles,
    stat,
)

_STATE = Row(
    "State",
    [
        stat(
            "Leader",
            "Id of the voter that leads, as most of them know it.",
            "none",
            "quantile(0.5, kraftpy_quorum_leader{@})",
            ((RED, None), (GREEN, 0)),
        ),
        stat(
            "Term",
            "The Raft term, which is the controller epoch: it grows with each election.",
            "none",
            "max(kraftpy_quorum_term{@})",
        ),
        stat(
            "Active controllers",
            "Voters that lead: exactly one in a cluster that works.",
            COUNT,
            "sum(kraftpy_quorum_is_leader{@})",
            EXACTLY_ONE,
        ),
        stat(
            "Voters",
            "Voters of the quorum; more than half of them have to work.",
            COUNT,
            "max(kraftpy_quorum_voters{@})",
        ),
        stat(
            "Brokers out of touch",
            "Brokers that have not heard of the quorum lately.",
            COUNT,
            "count(kraftpy_broker_in_touch{@} == 0) or vector(0)",
            TROUBLE,
        ),
        stat(
            "Furthest voter behind",
            "Log entries that the slowest voter lacks.",
            COUNT,
            "max(kraftpy_quorum_voter_lag_entries{@})",
            ((GREEN, None), ("orange", 1000)),
        ),
    ],
)

_RAFT = Row(
    "Raft",
    [
        graph(
            "Commit",
            "From a proposal to its command's being committed and applied, at the leader.",
            SECONDS,
            *quantiles("kraftpy_quorum_commit_seconds"),
        ),
        graph(
            "Commits",
            "Commands that the leader committed.",
            PER_SECOND,
            (
                "sum(rate(kraftpy_quorum_commit_seconds_count{@}[$__rate_interval]))",
                "commands",
            ),
        ),
        graph(
            "Lag of voters",
            "Log entries that a voter lacks; the leader knows.",
            COUNT,
            ("max by (voter) (kraftpy_quorum_voter_lag_entries{@})", "voter {{voter}}"),
        ),
        graph(
            "Elections",
            "Changes of the term. A stable quorum has none for weeks.",
            COUNT,
            ("changes(kraftpy_quorum_term{@}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Roles",
            "What each voter is: leader, follower, candidate or observer (it has yet to catch up).",
            COUNT,
            (
                "sum by (current_state) (kafka_server_raftmetrics_current_state{@})",
                "{{current_state}}",
            ),
            stacked=True,
        ),
        graph(
            "Not applied yet",
            "Committed commands that a voter has not applied; more than a few is a slow machine.",
            COUNT,
            (
                "kraftpy_quorum_committed_index{@} - kraftpy_quorum_applied_index{@}",
                "{{instance}}",
            ),
        ),
        graph(
            "Not committed yet",
            "Entries of a voter's log beyond the last committed one.",
            COUNT,
            (
                "kafka_server_raftmetrics_log_end_offset{@} - 1 "
                "- kraftpy_quorum_committed_index{@}",
                "{{instance}}",
            ),
        ),
        graph(
            "Journal: fsync",
            "The fdatasync of one write to the quorum's journal: a command waits for those of a "
            "majority.",
            SECONDS,
            *quantiles("kraftpy_quorum_fsync_seconds"),
        ),
        graph(
            "Controller loop lag",
            "How late timers of the controllers are, 99th percentile. An election comes when a "
            "leader is late by seconds.",
            SECONDS,
            p99("kraftpy_event_loop_lag_seconds", "instance", 'process="controller"'),
        ),
        heatmap(
            "Commit times",
            "How often commits took how long.",
            SECONDS,
            "sum by (le) (increase(kraftpy_quorum_commit_seconds_bucket{@}[$__rate_interval]))",
            width=24,
        ),
    ],
)

_CLUSTER = Row(
    "What the controller knows",
    [
        graph(
            "Brokers by state",
            "Active, fenced (held for gone) and shutting down.",
            COUNT,
            ("sum by (state) (kraftpy_controller_brokers{@})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Brokers behind",
            "Committed metadata commands that a broker has not applied yet.",
            COUNT,
            (
                "scalar(max(kraftpy_quorum_committed_index{@})) - kraftpy_metadata_index{@}",
                "{{instance}}",
            ),
        ),
        graph(
            "Fenced, as brokers see it",
            "Brokers that know that the quorum holds them for gone.",
            COUNT,
            ("kraftpy_broker_fenced{@}", "{{instance}}"),
            steps=CAUTION,
        ),
        graph(
            "Offline partitions",
            "Partitions that nobody leads.",
            COUNT,
            ("sum(kraftpy_controller_offline_partitions{@})", "partitions"),
            steps=TROUBLE,
            width=12,
        ),
        graph(
            "Topics and partitions",
            "Of the cluster.",
            COUNT,
            ("max(kraftpy_controller_topics{@})", "topics"),
            ("max(kraftpy_controller_partitions{@})", "partitions"),
            width=12,
        ),
    ],
)

BOARD = Board(
    "kraftpy-quorum",
    "kraftpy: quorum",
    "Who leads the metadata quorum, how fast it commits, who lags, what it decides.",
    [_STATE, _RAFT, _CLUSTER],
)
