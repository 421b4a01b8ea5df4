"""The board to look at first: is the cluster whole, what does it do, do its nodes have air."""

from __future__ import annotations

from dashboards.generator.grafana import (
    BYTES,
    BYTES_RATE,
    CAUTION,
    COUNT,
    EXACTLY_ONE,
    GREEN,
    ORANGE,
    PER_SECOND,
    RATIO,
    RED,
    SECONDS,
    TROUBLE,
    Board,
    Row,
    graph,
    quantiles,
    stat,
)

_HEALTH = Row(
    "Health",
    [
        stat(
            "Nodes answering",
            "Nodes that Prometheus could scrape the last time.",
            COUNT,
            "sum(up{@})",
            ((RED, None), (GREEN, 1)),
        ),
        stat(
            "Brokers",
            "Brokers that are up, as the brokers themselves know them.",
            COUNT,
            "max(kafka_brokers{@})",
            ((RED, None), (GREEN, 1)),
        ),
        stat(
            "Active controllers",
            "Voters that lead the quorum: exactly one in a cluster that works.",
            COUNT,
            "sum(kraftpy_quorum_is_leader{@})",
            EXACTLY_ONE,
        ),
        stat(
            "Offline partitions",
            "Partitions that nobody leads: they can't be written or read.",
            COUNT,
            "sum(kraftpy_controller_offline_partitions{@})",
            TROUBLE,
        ),
        stat(
            "Under min ISR",
            "Partitions with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
            COUNT,
            "sum(kraftpy_partitions_under_min_isr{@})",
            TROUBLE,
        ),
        stat(
            "Under-replicated",
            "Partitions that have replicas out of sync.",
            COUNT,
            "sum(kraftpy_partitions_under_replicated{@})",
            CAUTION,
        ),
        stat(
            "Fenced brokers",
            "Registered brokers that the controller holds for gone.",
            COUNT,
            'sum(kraftpy_controller_brokers{@,state="fenced"})',
            CAUTION,
        ),
        stat(
            "Processes missing",
            "Processes of nodes that didn't answer the last scrape.",
            COUNT,
            "count(kraftpy_process_up{@}) - sum(kraftpy_process_up{@})",
            TROUBLE,
        ),
        stat(
            "Logs offline",
            "Logs that take no requests until their broker is restarted.",
            COUNT,
            "sum(kraftpy_logs_offline{@})",
            TROUBLE,
        ),
        stat(
            "Lowest free disk",
            "Free share of the fullest file system of a data folder.",
            RATIO,
            "min(kraftpy_log_dir_free_bytes{@} / kraftpy_log_dir_size_bytes{@})",
            ((RED, None), (ORANGE, 0.05), (GREEN, 0.15)),
        ),
        stat(
            "Topics",
            "Topics of the cluster.",
            COUNT,
            "max(kraftpy_controller_topics{@})",
        ),
        stat(
            "Partitions",
            "Partitions of the cluster, replicas not counted.",
            COUNT,
            "max(kraftpy_controller_partitions{@})",
        ),
    ],
)

_TRAFFIC = Row(
    "Traffic",
    [
        graph(
            "Records in",
            "Records that producers wrote, by node.",
            PER_SECOND,
            (
                "sum by (instance) (rate(kraftpy_topic_received_records_total{@}"
                "[$__rate_interval]))",
                "{{instance}}",
            ),
            stacked=True,
        ),
        graph(
            "Bytes in and out",
            "Record batches of producers, and those sent to consumers.",
            BYTES_RATE,
            ("sum(rate(kraftpy_topic_received_bytes_total{@}[$__rate_interval]))", "in"),
            ("sum(rate(kraftpy_topic_sent_bytes_total{@}[$__rate_interval]))", "out"),
        ),
        graph(
            "Replication",
            "Record batches that followers fetched, as both ends count them.",
            BYTES_RATE,
            ("sum(rate(kraftpy_replication_sent_bytes_total{@}[$__rate_interval]))", "sent"),
            (
                "sum(rate(kraftpy_replication_received_bytes_total{@}[$__rate_interval]))",
                "received",
            ),
        ),
        graph(
            "Requests",
            "Requests answered, by API.",
            PER_SECOND,
            (
                "sum by (api) (rate(kraftpy_request_duration_seconds_count{@}[$__rate_interval]))",
                "{{api}}",
            ),
            stacked=True,
        ),
        graph(
            "Produce latency",
            "From a Produce request's last byte to its answer; with acks=all that waits for the "
            "followers.",
            SECONDS,
            *quantiles("kraftpy_request_duration_seconds", 'api="Produce"'),
        ),
        graph(
            "Errors in answers",
            "By API and error. Some are part of life (NOT_LEADER_OR_FOLLOWER after a leader "
            "moved); UNKNOWN_SERVER_ERROR is a defect.",
            PER_SECOND,
            (
                "sum by (api, error) (rate(kraftpy_request_errors_total{@}[$__rate_interval]))",
                "{{api}} {{error}}",
            ),
            stacked=True,
        ),
    ],
)

_NODES = Row(
    "Nodes",
    [
        graph(
            "CPU",
            "Cores that the processes of a node use.",
            COUNT,
            (
                "sum by (instance) (rate(process_cpu_seconds_total{@}[$__rate_interval]))",
                "{{instance}}",
            ),
        ),
        graph(
            "Memory",
            "Resident memory of the processes of a node; pages that they share count in each.",
            BYTES,
            ("sum by (instance) (process_resident_memory_bytes{@})", "{{instance}}"),
        ),
        graph(
            "Free disk",
            "Free share of the file systems of the data folders.",
            RATIO,
            (
                "kraftpy_log_dir_free_bytes{@} / kraftpy_log_dir_size_bytes{@}",
                "{{instance}} {{dir}}",
            ),
            maximum=1,
        ),
        graph(
            "Broker loop: busy",
            "Share of a core that the thread of the broker's event loop uses. At 1 the broker is "
            "saturated, whatever other cores do.",
            RATIO,
            (
                'rate(kraftpy_event_loop_cpu_seconds_total{@,process="broker"}[$__rate_interval])',
                "{{instance}}",
            ),
            steps=((GREEN, None), (ORANGE, 0.7), (RED, 0.9)),
            maximum=1,
        ),
        graph(
            "Connections",
            "Open connections of clients and other brokers.",
            COUNT,
            ("kraftpy_connections{@}", "{{instance}}"),
        ),
        graph(
            "Partitions led",
            "How evenly leadership is spread.",
            COUNT,
            ("kraftpy_partitions_led{@}", "{{instance}}"),
        ),
    ],
)

BOARD = Board(
    "kraftpy-overview",
    "kraftpy: overview",
    "Is the cluster whole, what does it do, do its nodes have air.",
    [_HEALTH, _TRAFFIC, _NODES],
)
