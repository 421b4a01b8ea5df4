"""The metrics that are on no board and in no rule, each with the reason."""

from __future__ import annotations

_STRIMZI = "a name that Strimzi's boards know; ours show the native metric"
_KMINION = "a name that kminion's boards know; ours show the probe's own metric"

NOT_ON_A_BOARD = {
    "kafka_broker_info": "for joins: which address a broker's id has",
    **dict.fromkeys(
        (
            "kafka_server_brokertopicmetrics_producemessageconversions_total",
            "kafka_server_brokertopicmetrics_fetchmessageconversions_total",
        ),
        "for who looks for clients from before Kafka 0.11: most clusters have none",
    ),
    **dict.fromkeys(
        (
            "kafka_server_replicamanager_leadercount",
            "kafka_server_replicamanager_partitioncount",
            "kafka_server_replicamanager_underreplicatedpartitions",
            "kafka_server_replicamanager_underminisrpartitioncount",
            "kafka_server_replicamanager_atminisrpartitioncount",
            "kafka_server_replicamanager_offlinereplicacount",
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
            "kafka_server_replicamanager_isrshrinks_total",
            "kafka_server_replicamanager_isrexpands_total",
            "kafka_controller_kafkacontroller_activecontrollercount",
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "kafka_cluster_partition_replicascount",
            "kafka_log_logmanager_offlinelogdirectorycount",
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "kafka_server_kafkaserver_linux_disk_read_bytes",
            "kafka_server_kafkaserver_linux_disk_write_bytes",
            "kafka_server_brokertopicmetrics_bytesin_total",
            "kafka_server_brokertopicmetrics_bytesout_total",
            "kafka_server_brokertopicmetrics_messagesin_total",
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            "kafka_network_requestmetrics_requests_total",
            "kafka_server_socket_server_metrics_connection_count",
            "kafka_server_raftmetrics_current_leader",
            "kafka_server_raftmetrics_current_epoch",
            "kafka_server_raftmetrics_current_vote",
            "kafka_server_raftmetrics_high_watermark",
            "kafka_server_raftmetrics_commit_latency_avg",
            "kafka_server_raftmetrics_append_records_rate",
            "kafka_server_raftmetrics_fetch_records_rate",
        ),
        _STRIMZI,
    ),
    **dict.fromkeys(
        (
            "kminion_end_to_end_messages_produced_in_flight",
            "kminion_end_to_end_messages_produced_total",
            "kminion_end_to_end_messages_produced_failed_total",
            "kminion_end_to_end_messages_received_total",
            "kminion_end_to_end_messages_lost_total",
            "kminion_end_to_end_offset_commits_total",
            "kminion_end_to_end_produce_latency_seconds",
            "kminion_end_to_end_roundtrip_latency_seconds",
            "kminion_end_to_end_offset_commit_latency_seconds",
        ),
        _KMINION,
    ),
}
"""By name; whatever else the catalogue has is shown somewhere."""


def problems(shown: set[str], catalog: set[str]) -> list[str]:
    """What is wrong between what is shown and what there is."""
    listed = set(NOT_ON_A_BOARD)
    found = (
        (shown - catalog, "is shown, but the catalogue doesn't have it"),
        (
            catalog - shown - listed,
            "is on no board (dashboards/generator/) and in no rule, and "
            "tests/dashboards/coverage.py says no reason",
        ),
        (shown & listed, "is listed in coverage.py as on no board, but is on one"),
        (listed - catalog, "is listed in coverage.py, but the catalogue doesn't have it"),
    )
    return [f"{name} {what}" for names, what in found for name in sorted(names)]
