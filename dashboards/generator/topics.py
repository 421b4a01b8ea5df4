"""What topics get and give, how large they are, and whether their replicas are in sync."""

from __future__ import annotations

from dashboards.generator.grafana import (
    BYTES,
    BYTES_RATE,
    CAUTION,
    COUNT,
    PER_SECOND,
    TOPIC,
    TROUBLE,
    Board,
    Row,
    graph,
    stat,
)

_T = '@,topic=~"$topic"'


def _rate(metric: str) -> tuple[str, str]:
    return f"sum by (topic) (rate({metric}{{{_T}}}[$__rate_interval]))", "{{topic}}"


_STATE = Row(
    "Chosen topics",
    [
        stat(
            "Topics",
            "How many topics are chosen.",
            COUNT,
            f"count(count by (topic) (kraftpy_topic_log_size_bytes{{{_T}}}))",
        ),
        stat(
            "Partitions",
            "Their partitions, replicas not counted.",
            COUNT,
            f"sum(kafka_topic_partitions{{{_T}}})",
        ),
        stat(
            "Under-replicated",
            "Their partitions that have replicas out of sync.",
            COUNT,
            f"sum(kafka_topic_partition_under_replicated_partition{{{_T}}})",
            CAUTION,
        ),
        stat(
            "Under min ISR",
            "Their partitions that refuse acks=all.",
            COUNT,
            f"sum(kafka_cluster_partition_underminisr{{{_T}}})",
            TROUBLE,
        ),
        stat(
            "At min ISR",
            "Their partitions that refuse acks=all once they lose another replica.",
            COUNT,
            f"sum(kafka_cluster_partition_atminisr{{{_T}}})",
            CAUTION,
        ),
        stat(
            "Not led by the preferred replica",
            "Partitions whose leader isn't the first of their replicas: load may be uneven.",
            COUNT,
            f"count(kafka_topic_partition_leader_is_preferred{{{_T}}} == 0) or vector(0)",
            CAUTION,
        ),
    ],
)

_TRAFFIC = Row(
    "Traffic",
    [
        graph(
            "Records in",
            "Records that producers wrote.",
            PER_SECOND,
            _rate("kraftpy_topic_received_records_total"),
            stacked=True,
        ),
        graph(
            "Bytes in",
            "Record batches of producers, as they are stored (compressed).",
            BYTES_RATE,
            _rate("kraftpy_topic_received_bytes_total"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "Record batches sent to consumers.",
            BYTES_RATE,
            _rate("kraftpy_topic_sent_bytes_total"),
            stacked=True,
        ),
        graph(
            "Batches in, and refused",
            "Batches that producers wanted to be written, and of these those refused.",
            PER_SECOND,
            (_rate("kafka_server_brokertopicmetrics_totalproducerequests_total")[0], "{{topic}}"),
            (
                _rate("kafka_server_brokertopicmetrics_failedproducerequests_total")[0],
                "{{topic}} refused",
            ),
        ),
        graph(
            "Reads, and refused",
            "Looks at a partition for a consumer, and of these those that got an error.",
            PER_SECOND,
            (_rate("kafka_server_brokertopicmetrics_totalfetchrequests_total")[0], "{{topic}}"),
            (
                _rate("kafka_server_brokertopicmetrics_failedfetchrequests_total")[0],
                "{{topic}} refused",
            ),
        ),
        graph(
            "Committed records",
            "How fast high watermarks grow: what consumers can read.",
            PER_SECOND,
            (
                "sum by (topic) (rate(kafka_topic_partition_current_offset"
                f"{{{_T}}}[$__rate_interval]))",
                "{{topic}}",
            ),
            stacked=True,
        ),
    ],
)

_STORAGE = Row(
    "Storage",
    [
        graph(
            "Size",
            "Logs of all replicas, without indexes.",
            BYTES,
            (f"sum by (topic) (kraftpy_topic_log_size_bytes{{{_T}}})", "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Retained offsets",
            "High watermark less the oldest offset: the records, gaps of compaction included.",
            COUNT,
            (
                f"sum by (topic) (kafka_topic_partition_current_offset{{{_T}}} "
                f"- kafka_topic_partition_oldest_offset{{{_T}}})",
                "{{topic}}",
            ),
        ),
        graph(
            "Largest replicas",
            "The ten largest logs of a partition.",
            BYTES,
            (
                f"topk(10, max by (topic, partition) (kafka_log_log_size{{{_T}}}))",
                "{{topic}}-{{partition}}",
            ),
        ),
    ],
)

_REPLICAS = Row(
    "Replicas",
    [
        graph(
            "Replicas out of sync",
            "Replicas less in-sync replicas.",
            COUNT,
            (
                f"sum by (topic) (kafka_topic_partition_replicas{{{_T}}} "
                f"- kafka_topic_partition_in_sync_replica{{{_T}}})",
                "{{topic}}",
            ),
            stacked=True,
        ),
        graph(
            "Leaderships by broker",
            "How many of the partitions each broker leads.",
            COUNT,
            (f'count_values("broker", kafka_topic_partition_leader{{{_T}}})', "broker {{broker}}"),
            stacked=True,
        ),
        graph(
            "Being reassigned",
            "Partitions, of all topics, whose replicas are being moved.",
            COUNT,
            ("sum by (instance) (kraftpy_partitions_reassigning{@})", "{{instance}}"),
        ),
    ],
)

BOARD = Board(
    "kraftpy-topics",
    "kraftpy: topics",
    "What topics get and give, how large they are, whether their replicas are in sync.",
    [_STATE, _TRAFFIC, _STORAGE, _REPLICAS],
    (TOPIC,),
)
