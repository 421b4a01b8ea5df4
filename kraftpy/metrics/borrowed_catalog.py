"""Metrics of a node under the names that others gave, so that their boards and alerts work.

* kafka_exporter: the names of the exporter of that name. Each broker serves the partitions that it
  leads and the groups that it coordinates: the sum over the brokers is the cluster, each series
  exactly once.
* jmx: the names that Strimzi's rules give to Kafka's MBeans, as far as its boards use them and
  they mean something here.
"""

from __future__ import annotations

from kraftpy.metrics.metric import Family, Kind, Metric

_TOPIC = ("topic",)
_OLD = "Records that clients from before Kafka 0.11 "
_PARTITION = ("topic", "partition")
_GROUP = ("consumergroup",)
_GROUP_TOPIC = ("consumergroup", "topic")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_LED = " Served by the partition's leader."
_COORDINATED = " Served by the group's coordinator."
_LAG = (
    " Served by the group's coordinator, which asks the partition's leader if that is another "
    "broker: as of at most 2 s ago; 30 s if the leader doesn't answer, and then not at all."
)


def _exporter(name: str, help_: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(
        name,
        Kind.GAUGE,
        help_,
        labels,
        family=Family.KAFKA_EXPORTER,
        per_partition="partition" in labels,
    )


KAFKA_EXPORTER = (
    _exporter("kafka_brokers", "Brokers of the cluster that are up, as this broker knows them."),
    _exporter(
        "kafka_broker_info",
        "Always 1; each broker serves its own.",
        ("id", "address"),
    ),
    _exporter(
        "kafka_topic_partitions",
        "Partitions of the topic. Served by the leader of its partition 0.",
        _TOPIC,
    ),
    _exporter(
        "kafka_topic_partition_current_offset",
        "The high watermark: the offset after the last committed record." + _LED,
        _PARTITION,
    ),
    _exporter(
        "kafka_topic_partition_oldest_offset",
        "The offset of the oldest record." + _LED,
        _PARTITION,
    ),
    _exporter("kafka_topic_partition_in_sync_replica", "Replicas in sync." + _LED, _PARTITION),
    _exporter("kafka_topic_partition_replicas", "Replicas." + _LED, _PARTITION),
    _exporter("kafka_topic_partition_leader", "Id of the leader." + _LED, _PARTITION),
    _exporter(
        "kafka_topic_partition_leader_is_preferred",
        "1 if the leader is the preferred one." + _LED,
        _PARTITION,
    ),
    _exporter(
        "kafka_topic_partition_under_replicated_partition",
        "1 if replicas are out of sync." + _LED,
        _PARTITION,
    ),
    _exporter("kafka_consumergroup_members", "Members of the group." + _COORDINATED, _GROUP),
    _exporter(
        "kafka_consumergroup_current_offset", "Committed offset." + _COORDINATED, _GROUP_PARTITION
    ),
    _exporter(
        "kafka_consumergroup_current_offset_sum",
        "Committed offsets of the topic's partitions, summed." + _COORDINATED,
        _GROUP_TOPIC,
    ),
    _exporter(
        "kafka_consumergroup_lag",
        "Committed records that the group has not committed as read." + _LAG,
        _GROUP_PARTITION,
    ),
    _exporter(
        "kafka_consumergroup_lag_sum",
        "The lag of the topic's partitions, summed." + _LAG,
        _GROUP_TOPIC,
    ),
)


def _jmx(name: str, help_: str, *labels: str) -> Metric:
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    return Metric(name, kind, help_, labels, family=Family.JMX, per_partition="partition" in labels)


JMX = (
    _jmx("kafka_server_replicamanager_leadercount", "As kraftpy_partitions_led."),
    _jmx("kafka_server_replicamanager_partitioncount", "As kraftpy_partitions."),
    _jmx(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "As kraftpy_partitions_under_replicated.",
    ),
    _jmx(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "As kraftpy_partitions_under_min_isr.",
    ),
    _jmx("kafka_server_replicamanager_atminisrpartitioncount", "As kraftpy_partitions_at_min_isr."),
    _jmx("kafka_server_replicamanager_offlinereplicacount", "As kraftpy_logs_offline."),
    _jmx(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "As kraftpy_partitions_with_hanging_transactions; on no board of Strimzi's, but KIP-664 "
        "says to have an alert on it.",
    ),
    _jmx("kafka_server_replicamanager_isrshrinks_total", "As kraftpy_isr_changes_total."),
    _jmx("kafka_server_replicamanager_isrexpands_total", "As kraftpy_isr_changes_total."),
    _jmx("kafka_controller_kafkacontroller_activecontrollercount", "As kraftpy_quorum_is_leader."),
    _jmx(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "As kraftpy_controller_offline_partitions.",
    ),
    _jmx(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "As kraftpy_unclean_elections_total; each is counted by the broker that leads then.",
    ),
    _jmx(
        "kafka_cluster_partition_atminisr",
        "1 if exactly min.insync.replicas are in sync." + _LED,
        *_PARTITION,
    ),
    _jmx(
        "kafka_cluster_partition_underminisr",
        "1 if fewer than min.insync.replicas are in sync." + _LED,
        *_PARTITION,
    ),
    _jmx("kafka_cluster_partition_replicascount", "Replicas." + _LED, *_PARTITION),
    _jmx(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1 if there are logs offline. A broker whose folder fails altogether stops.",
    ),
    _jmx(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "Idle share of the broker's only loop since the last scrape, 0 to 1.",
    ),
    _jmx(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "As kafka_network_socketserver_networkprocessoravgidle_percent.",
    ),
    _jmx("kafka_server_kafkaserver_linux_disk_read_bytes", "As kraftpy_disk_read_bytes_total."),
    _jmx("kafka_server_kafkaserver_linux_disk_write_bytes", "As kraftpy_disk_written_bytes_total."),
    _jmx(
        "kafka_server_brokertopicmetrics_bytesin_total",
        "As kraftpy_topic_received_bytes_total.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_bytesout_total",
        "As kraftpy_topic_sent_bytes_total.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_messagesin_total",
        "As kraftpy_topic_received_records_total.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_totalproducerequests_total",
        "Batches that were to be written, one for each partition of a request.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_failedproducerequests_total",
        "Of these, those refused.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_totalfetchrequests_total",
        "Reads for consumers, one for each look at a partition of a request.",
        "topic",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_failedfetchrequests_total",
        "Of these, those refused.",
        "topic",
    ),
    *(
        _jmx(f"kafka_server_brokertopicmetrics_{each}messageconversions_total", _OLD + did, "topic")
        for each, did in (("produce", "wrote."), ("fetch", "were sent."))
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_replicationbytesin_total",
        "As kraftpy_replication_received_bytes_total.",
    ),
    _jmx(
        "kafka_server_brokertopicmetrics_replicationbytesout_total",
        "As kraftpy_replication_sent_bytes_total.",
    ),
    _jmx("kafka_network_requestmetrics_requests_total", "Requests that were answered.", "request"),
    _jmx("kafka_server_socket_server_metrics_connection_count", "As kraftpy_connections."),
    _jmx("kafka_log_log_size", "Bytes of the replica's log at this broker.", *_PARTITION),
    _jmx("kafka_server_raftmetrics_current_leader", "As kraftpy_quorum_leader."),
    _jmx("kafka_server_raftmetrics_current_epoch", "As kraftpy_quorum_term."),
    _jmx(
        "kafka_server_raftmetrics_current_state",
        "Always 1; the label has the role of this voter: leader, follower, candidate or observer.",
        "current_state",
    ),
    _jmx(
        "kafka_server_raftmetrics_current_vote", "Id of the voter that got this one's vote, or -1."
    ),
    _jmx("kafka_server_raftmetrics_high_watermark", "As kraftpy_quorum_committed_index."),
    _jmx("kafka_server_raftmetrics_log_end_offset", "The offset after this voter's last entry."),
    _jmx(
        "kafka_server_raftmetrics_commit_latency_avg",
        "Mean of kraftpy_quorum_commit_seconds since the start, in milliseconds.",
    ),
    _jmx(
        "kafka_server_raftmetrics_append_records_rate",
        "Entries that this voter appended as the leader, a second, since the last scrape.",
    ),
    _jmx(
        "kafka_server_raftmetrics_fetch_records_rate",
        "Entries that this voter got from the leader, a second, since the last scrape.",
    ),
)

_NO_JVM = "there is no JVM: memory and threads are those of processes, process_*"
_MESSAGES = (
    "voters send each other messages over one connection, which are neither requests nor answers, "
    "and nobody counts their bytes"
)
_NOT_A_NODE = "served by Kubernetes itself (cAdvisor, kubelet), of our pods as of any"

NOT_SERVED = {
    "jvm_gc_collection_seconds_count": _NO_JVM,
    "jvm_gc_collection_seconds_sum": _NO_JVM,
    "jvm_memory_used_bytes": _NO_JVM,
    "jvm_threads_current": _NO_JVM,
    "kafka_server_raftchannelmetrics_incoming_byte_total": _MESSAGES,
    "kafka_server_raftchannelmetrics_outgoing_byte_total": _MESSAGES,
    "kafka_server_raftchannelmetrics_request_total": _MESSAGES,
    "kafka_server_raftchannelmetrics_response_total": _MESSAGES,
    "kafka_consumergroupzookeeper_lag_zookeeper": "there is no ZooKeeper",
    "container_cpu_usage_seconds_total": _NOT_A_NODE,
    "container_memory_usage_bytes": _NOT_A_NODE,
    "kubelet_volume_stats_available_bytes": _NOT_A_NODE,
}
"""What the boards and exporters whose names we serve have besides, each with why we don't."""
