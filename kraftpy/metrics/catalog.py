"""Every metric that a node or the probe serves: name, type, help, labels, unit and family.

What isn't here isn't served, and what is here is (a test holds both). Three families of a node's:

* native, `kraftpy_*` and the process's own: base units, low cardinality;
* kafka_exporter: the names of the exporter of that name, so that its boards and alerts work. Each
  broker serves the partitions that it leads and the groups that it coordinates: the sum over the
  brokers is the cluster, each series exactly once;
* jmx: the names that Strimzi's rules give to Kafka's MBeans, as far as its boards use them and
  they mean something here.

`kraftpy probe` serves two of its own, at its own address: native ones, `kraftpy_probe_*`, and the
names that kminion gives to its end-to-end test, so that its boards work.

Metrics marked `per_partition` can be switched off (`kraftpy.metrics.partitions=false`). No metric
has a label for a client or for a member of a group.
"""

from __future__ import annotations

from kraftpy.metrics.instruments import (
    DISK_BUCKETS,
    LAG_BUCKETS,
    LOAD_BUCKETS,
    PROBE_BUCKETS,
    REQUEST_BUCKETS,
    TIMED_EVERY,
    TRANSACTION_BUCKETS,
)
from kraftpy.metrics.metric import Family, Kind, Metric, counter, gauge
from kraftpy.metrics.probe_catalog import KMINION, PROBE
from kraftpy.metrics.sharing_catalog import SHARING

__all__ = ["CATALOG", "Family", "Kind", "Metric"]


def _histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, help_, labels, "seconds", buckets=buckets)


_NATIVE = (
    # Requests.
    _histogram(
        "kraftpy_request_duration_seconds",
        "From a request's last byte to its answer, waits included (acks=all, an empty fetch).",
        REQUEST_BUCKETS,
        "api",
    ),
    counter(
        "kraftpy_request_errors_total",
        "Errors in answers: that of the request as a whole, and those of its topics, partitions, "
        "groups and so on, up to 1000 of them.",
        "api",
        "error",
    ),
    gauge("kraftpy_purgatory_waiting", "Requests that wait for something to happen.", "kind"),
    gauge("kraftpy_connections", "Open connections of clients and other brokers."),
    counter("kraftpy_connections_accepted_total", "Connections accepted."),
    counter(
        "kraftpy_connections_refused_total",
        "Connections refused: their address has as many, or makes them as fast, as it may.",
    ),
    counter(
        "kraftpy_connections_delayed_total",
        "Connections that weren't accepted at once: there were too many, or they came too fast.",
        "listener",
    ),
    counter(
        "kraftpy_connections_wait_seconds_total",
        "Time in which a listener accepted none, for that reason.",
        "listener",
        unit="seconds",
    ),
    counter(
        "kraftpy_quota_throttles_total",
        "How often a client was told to wait because it is over this quota.",
        "quota",
    ),
    counter(
        "kraftpy_quota_throttle_seconds_total",
        "For how long in all clients were told to wait for this quota.",
        "quota",
        unit="seconds",
    ),
    counter(
        "kraftpy_tls_handshakes_total",
        "Handshakes of TLS that have ended: done, or failed, for whatever reason.",
        "result",
    ),
    gauge(
        "kraftpy_tls_certificate_expiry_timestamp_seconds",
        "When the certificate that a listener shows expires, in seconds since 1970.",
        "listener",
        unit="seconds",
    ),
    counter(
        "kraftpy_logins_total",
        "Logins by SASL: done, failed for whatever reason, renewed by who had logged in before, "
        "or expired while somebody went on.",
        "result",
    ),
    counter(
        "kraftpy_access_denials_total",
        "How often somebody was denied something by the ACLs; kafka.authorizer.logger says what.",
    ),
    gauge(
        "kraftpy_request_memory_bytes",
        "Memory of requests that have not arrived completely, and of long ones until they are "
        "answered (queued.max.request.bytes).",
        unit="bytes",
    ),
    gauge(
        "kraftpy_response_memory_bytes",
        "Memory of answers that are being built or that clients have not read "
        "(queued.max.response.bytes).",
        unit="bytes",
    ),
    # Traffic.
    counter(
        "kraftpy_topic_received_bytes_total",
        "Bytes of record batches that producers wrote to partitions led here.",
        "topic",
        unit="bytes",
    ),
    counter(
        "kraftpy_topic_received_records_total",
        "Records that producers wrote to partitions led here.",
        "topic",
    ),
    counter(
        "kraftpy_topic_sent_bytes_total",
        "Bytes of record batches sent to consumers.",
        "topic",
        unit="bytes",
    ),
    counter(
        "kraftpy_replication_received_bytes_total",
        "Bytes of record batches fetched from leaders.",
        unit="bytes",
    ),
    counter(
        "kraftpy_replication_sent_bytes_total",
        "Bytes of record batches sent to followers.",
        unit="bytes",
    ),
    # The log.
    _histogram(
        "kraftpy_log_append_seconds",
        "The write of one batch to a log as leader; of a partition's batches one in "
        f"{TIMED_EVERY} is timed.",
        DISK_BUCKETS,
    ),
    _histogram(
        "kraftpy_fsync_seconds", "The fsyncs of one flush of a log's segments.", DISK_BUCKETS
    ),
    gauge(
        "kraftpy_topic_log_size_bytes",
        "Size of the topic's replicas at this broker, without indexes.",
        "topic",
        unit="bytes",
    ),
    gauge("kraftpy_logs_offline", "Logs that take no requests until the broker is restarted."),
    gauge("kraftpy_log_dir_size_bytes", "Size of the file system.", "dir", unit="bytes"),
    gauge("kraftpy_log_dir_free_bytes", "Free space of the file system.", "dir", unit="bytes"),
    counter("kraftpy_cleaner_runs_total", "Compactions of a log that have ended.", "result"),
    gauge("kraftpy_cleaner_running", "1 while a log is being compacted."),
    counter(
        "kraftpy_cleaner_read_bytes_total", "Bytes of logs before their compaction.", unit="bytes"
    ),
    counter(
        "kraftpy_cleaner_written_bytes_total", "Bytes of logs after their compaction.", unit="bytes"
    ),
    counter("kraftpy_cleaner_seconds_total", "Time that compactions have taken.", unit="seconds"),
    gauge(
        "kraftpy_cleaner_uncleanable_logs",
        "Logs whose compaction failed; they grow until another try succeeds.",
    ),
    # Replication.
    gauge("kraftpy_partitions", "Replicas at this broker."),
    gauge("kraftpy_partitions_led", "Partitions that this broker leads."),
    gauge(
        "kraftpy_partitions_under_replicated",
        "Partitions led here that have replicas out of sync.",
    ),
    gauge(
        "kraftpy_partitions_under_min_isr",
        "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all fails.",
    ),
    gauge(
        "kraftpy_partitions_at_min_isr",
        "Partitions led here with exactly min.insync.replicas in sync.",
    ),
    gauge("kraftpy_partitions_reassigning", "Partitions led here that are being moved."),
    counter(
        "kraftpy_isr_changes_total",
        "Changes of the in-sync replicas of partitions led here.",
        "direction",
    ),
    counter(
        "kraftpy_unclean_elections_total",
        "Times that this broker began to lead a partition without having been in sync; the only"
        " replica of one doesn't count.",
    ),
    _histogram(
        "kraftpy_replication_commit_seconds",
        "From the append of a produce with acks=all to the high watermark: replication's lag.",
        REQUEST_BUCKETS,
    ),
    gauge(
        "kraftpy_follower_lag_records",
        "Records that a follower lacks of the partitions led here, as of its last fetch.",
        "follower",
    ),
    # The coordinator.
    gauge("kraftpy_groups", "Groups that this broker coordinates.", "type", "state"),
    gauge("kraftpy_committed_offsets", "Committed offsets of groups coordinated here."),
    gauge(
        "kraftpy_followed_committed_offsets",
        "Committed offsets that are kept here to take their groups over at once.",
    ),
    gauge(
        "kraftpy_coordinator_partitions", "Partitions of __consumer_offsets that are served here."
    ),
    gauge(
        "kraftpy_coordinator_loading_partitions",
        "Partitions of __consumer_offsets that are being loaded: their groups have to wait.",
    ),
    gauge("kraftpy_coordinator_loading_ratio", "How much of their bytes has been loaded, 0 to 1."),
    _histogram(
        "kraftpy_coordinator_load_seconds",
        "The load of one partition of __consumer_offsets.",
        LOAD_BUCKETS,
    ),
    # Transactions.
    gauge("kraftpy_transactions", "Transactional ids that this broker coordinates.", "state"),
    counter(
        "kraftpy_transactions_ended_total",
        "Transactions coordinated here whose markers were all written: committed, aborted by their "
        "producer, timed_out, or fenced by another producer with the same id.",
        "result",
    ),
    _histogram(
        "kraftpy_transaction_duration_seconds",
        "From a transaction's first partition until all of its markers were written.",
        TRANSACTION_BUCKETS,
    ),
    _histogram(
        "kraftpy_transaction_markers_seconds",
        "Of that, what came after the decision: its own write, and the markers.",
        PROBE_BUCKETS,
    ),
    gauge(
        "kraftpy_transaction_markers_oldest_seconds",
        "For how long the transaction waits for its markers that was decided first; 0 if none "
        "does.",
        unit="seconds",
    ),
    counter(
        "kraftpy_transaction_verifications_total",
        "Answers of coordinators to this broker, which asks whether a partition is in a producer's "
        "transaction before it takes the first batch: NONE, or the error.",
        "result",
    ),
    gauge(
        "kraftpy_transactions_late",
        "Transactions coordinated here that aren't over though their timeout is.",
    ),
    gauge(
        "kraftpy_partitions_with_hanging_transactions",
        "Partitions led here where the oldest open transaction's producer hasn't written for "
        "transaction.max.timeout.ms and 5 minutes: nobody ends it (kraftpy transaction hanging).",
    ),
    gauge(
        "kraftpy_lso_lag_records",
        "Committed records that read_committed doesn't get, as a transaction before them is open: "
        "of the topic's partitions led here, in that with the most.",
        "topic",
    ),
    # The broker in the cluster.
    gauge("kraftpy_build_info", "Always 1.", "version", "node"),
    gauge("kraftpy_broker_fenced", "1 while the quorum holds this broker for gone."),
    gauge("kraftpy_broker_in_touch", "1 while the quorum was heard of lately."),
    gauge("kraftpy_metadata_index", "Index of the last metadata command that the broker applied."),
    # The controller.
    gauge("kraftpy_quorum_term", "The Raft term of this voter: the controller epoch."),
    gauge("kraftpy_quorum_is_leader", "1 at the voter that leads: the active controller."),
    gauge("kraftpy_quorum_leader", "Id of the voter that leads as this one knows it, or -1."),
    gauge("kraftpy_quorum_voters", "Voters of the quorum."),
    gauge("kraftpy_quorum_committed_index", "Index of the last command known to be committed."),
    gauge("kraftpy_quorum_applied_index", "Index of the last command applied here."),
    gauge(
        "kraftpy_quorum_voter_lag_entries",
        "Log entries that a voter lacks; the leader knows.",
        "voter",
    ),
    _histogram(
        "kraftpy_quorum_commit_seconds",
        "From a proposal to its command's being committed and applied, at the leader.",
        REQUEST_BUCKETS,
    ),
    _histogram(
        "kraftpy_quorum_fsync_seconds",
        "The fdatasync of one write to the quorum's journal.",
        DISK_BUCKETS,
    ),
    gauge("kraftpy_controller_brokers", "Registered brokers; the leader knows.", "state"),
    gauge("kraftpy_controller_topics", "Topics of the cluster; the leader knows."),
    gauge("kraftpy_controller_partitions", "Partitions of the cluster; the leader knows."),
    gauge(
        "kraftpy_controller_offline_partitions",
        "Partitions of the cluster that nobody leads; 0 at voters that don't lead.",
    ),
    # The processes.
    _histogram(
        "kraftpy_event_loop_lag_seconds",
        "How late a timer was, ten times a second: how busy the process's only loop is.",
        LAG_BUCKETS,
        "process",
    ),
    counter(
        "kraftpy_event_loop_cpu_seconds_total",
        "CPU time of the thread that runs the process's loop: its rate is how busy the loop is.",
        "process",
        unit="seconds",
    ),
    counter(
        "kraftpy_disk_read_bytes_total",
        "Bytes that the process had read from disks, beyond the page cache.",
        "process",
        unit="bytes",
    ),
    counter(
        "kraftpy_disk_written_bytes_total",
        "Bytes that the process had written to disks.",
        "process",
        unit="bytes",
    ),
    gauge("kraftpy_process_up", "1 if the process answered this scrape.", "process"),
    gauge(
        "kraftpy_metrics_collect_seconds",
        "How long the process took to hand out its numbers, slice by slice.",
        "process",
        unit="seconds",
    ),
    gauge(
        "kraftpy_metrics_truncated",
        "1 if there are more committed offsets than are served; the sums of groups lack the rest.",
    ),
    counter("process_cpu_seconds_total", "CPU time.", "process", unit="seconds"),
    gauge("process_resident_memory_bytes", "Resident memory.", "process", unit="bytes"),
    gauge("process_open_fds", "Open file descriptors.", "process"),
    gauge("process_max_fds", "The limit of open file descriptors.", "process"),
    gauge("process_start_time_seconds", "When it started, since 1970.", "process", unit="seconds"),
)

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


_KAFKA_EXPORTER = (
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


_JMX = (
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

CATALOG: dict[str, Metric] = {
    metric.name: metric
    for metric in (*_NATIVE, *SHARING, *_KAFKA_EXPORTER, *_JMX, *PROBE, *KMINION)
}
"""All of them by name, in the order in which they are served."""

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
