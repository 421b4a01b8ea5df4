"""What others' boards and exporters call things: names and labels, as data.

Of Strimzi's boards (examples/metrics/grafana-dashboards of strimzi-kafka-operator 1.3, for
jmx_exporter with its kafka-metrics.yaml) and of kafka_exporter 1.9. The labels are those that a
panel filters, groups or writes by; those of the scrape are left out (`SCRAPED`).
"""

from __future__ import annotations

SCRAPED = {"namespace", "kubernetes_pod_name", "strimzi_io_cluster", "strimzi_io_name", "container"}
"""What Strimzi's PodMonitor gives to every series."""

_POD = ("pod",)
_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_GROUP_TOPIC = ("consumergroup", "topic")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")

_OF_EVERY_NODE: dict[str, tuple[str, ...]] = {
    "container_cpu_usage_seconds_total": _POD,
    "container_memory_usage_bytes": _POD,
    "jvm_gc_collection_seconds_count": (),
    "jvm_gc_collection_seconds_sum": (),
    "jvm_memory_used_bytes": (),
    "jvm_threads_current": (),
    "kubelet_volume_stats_available_bytes": ("persistentvolumeclaim",),
    "process_open_fds": (),
}

USED: dict[str, dict[str, tuple[str, ...]]] = {
    "strimzi-kafka.json": {
        **_OF_EVERY_NODE,
        "kafka_cluster_partition_atminisr": (),
        "kafka_cluster_partition_replicascount": _PARTITION,
        "kafka_cluster_partition_underminisr": (),
        "kafka_controller_controllerstats_uncleanleaderelections_total": (),
        "kafka_controller_kafkacontroller_activecontrollercount": (),
        "kafka_controller_kafkacontroller_offlinepartitionscount": (),
        "kafka_log_log_size": _PARTITION,
        "kafka_network_socketserver_networkprocessoravgidle_percent": (),
        "kafka_server_brokertopicmetrics_bytesin_total": _TOPIC,
        "kafka_server_brokertopicmetrics_bytesout_total": _TOPIC,
        "kafka_server_brokertopicmetrics_failedfetchrequests_total": _TOPIC,
        "kafka_server_brokertopicmetrics_failedproducerequests_total": _TOPIC,
        "kafka_server_brokertopicmetrics_messagesin_total": _TOPIC,
        "kafka_server_brokertopicmetrics_totalfetchrequests_total": _TOPIC,
        "kafka_server_brokertopicmetrics_totalproducerequests_total": _TOPIC,
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (),
        "kafka_server_kafkaserver_linux_disk_read_bytes": (),
        "kafka_server_kafkaserver_linux_disk_write_bytes": (),
        "kafka_server_replicamanager_leadercount": (),
        "kafka_server_replicamanager_partitioncount": (),
        "kafka_server_replicamanager_underreplicatedpartitions": (),
        "kafka_server_socket_server_metrics_connection_count": ("listener",),
    },
    "strimzi-kafka-exporter.json": {
        "kafka_broker_info": (),
        "kafka_cluster_partition_atminisr": _TOPIC,
        "kafka_cluster_partition_underminisr": _TOPIC,
        "kafka_consumergroup_current_offset": _GROUP_PARTITION,
        "kafka_consumergroup_lag": _GROUP_PARTITION,
        "kafka_topic_partition_current_offset": _PARTITION,
        "kafka_topic_partition_in_sync_replica": _TOPIC,
        "kafka_topic_partition_leader_is_preferred": _TOPIC,
        "kafka_topic_partition_oldest_offset": _PARTITION,
        "kafka_topic_partition_replicas": _TOPIC,
        "kafka_topic_partition_under_replicated_partition": _TOPIC,
        "kafka_topic_partitions": _TOPIC,
    },
    "strimzi-kraft.json": {
        **_OF_EVERY_NODE,
        "kafka_server_raftchannelmetrics_incoming_byte_total": (),
        "kafka_server_raftchannelmetrics_outgoing_byte_total": (),
        "kafka_server_raftchannelmetrics_request_total": (),
        "kafka_server_raftchannelmetrics_response_total": (),
        "kafka_server_raftmetrics_append_records_rate": (),
        "kafka_server_raftmetrics_commit_latency_avg": (),
        "kafka_server_raftmetrics_current_epoch": (),
        "kafka_server_raftmetrics_current_leader": (),
        "kafka_server_raftmetrics_current_state": ("current_state",),
        "kafka_server_raftmetrics_current_vote": (),
        "kafka_server_raftmetrics_fetch_records_rate": (),
        "kafka_server_raftmetrics_high_watermark": (),
        "kafka_server_raftmetrics_log_end_offset": (),
    },
    "kafka_exporter": {
        "kafka_broker_info": ("id", "address"),
        "kafka_brokers": (),
        "kafka_consumergroup_current_offset": _GROUP_PARTITION,
        "kafka_consumergroup_current_offset_sum": _GROUP_TOPIC,
        "kafka_consumergroup_lag": _GROUP_PARTITION,
        "kafka_consumergroup_lag_sum": _GROUP_TOPIC,
        "kafka_consumergroup_members": ("consumergroup",),
        "kafka_consumergroupzookeeper_lag_zookeeper": _GROUP_PARTITION,
        "kafka_topic_partition_current_offset": _PARTITION,
        "kafka_topic_partition_in_sync_replica": _PARTITION,
        "kafka_topic_partition_leader": _PARTITION,
        "kafka_topic_partition_leader_is_preferred": _PARTITION,
        "kafka_topic_partition_oldest_offset": _PARTITION,
        "kafka_topic_partition_replicas": _PARTITION,
        "kafka_topic_partition_under_replicated_partition": _PARTITION,
        "kafka_topic_partitions": _TOPIC,
    },
}
"""By board or exporter: the metrics, each with its labels."""

LABELS_WE_LACK = {
    ("kafka_server_socket_server_metrics_connection_count", "listener"): (
        "connections are counted of all listeners together: the panel has one line a node"
    ),
}
