"""Every metric that a node or the probe serves: name, type, help, labels, unit and family.

What isn't here isn't served, and what is here is (a test holds both). Three families of a node's:

* native, `kraftpy_*` and the process's own: base units, low cardinality;
* kafka_exporter and jmx: the names that others gave (`borrowed_catalog`).

`kraftpy probe` serves two of its own, at its own address: native ones, `kraftpy_probe_*`, and the
names that kminion gives to its end-to-end test, so that its boards work.

Metrics marked `per_partition` can be switched off (`kraftpy.metrics.partitions=false`). No metric
has a label for a client or for a member of a group.
"""

from __future__ import annotations

from kraftpy.metrics.borrowed_catalog import JMX, KAFKA_EXPORTER, NOT_SERVED
from kraftpy.metrics.instruments import (
    DISK_BUCKETS,
    LAG_BUCKETS,
    LOAD_BUCKETS,
    PROBE_BUCKETS,
    REQUEST_BUCKETS,
    TIMED_EVERY,
    TRANSACTION_BUCKETS,
)
from kraftpy.metrics.metric import Family, Kind, Metric, counter, gauge, histogram
from kraftpy.metrics.probe_catalog import KMINION, PROBE
from kraftpy.metrics.share_catalog import SHARES
from kraftpy.metrics.sharing_catalog import SHARING

__all__ = ["CATALOG", "NOT_SERVED", "Family", "Kind", "Metric"]


_NATIVE = (
    # Requests.
    histogram(
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
    histogram(
        "kraftpy_log_append_seconds",
        "The write of one batch to a log as leader; of a partition's batches one in "
        f"{TIMED_EVERY} is timed.",
        DISK_BUCKETS,
    ),
    histogram(
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
    histogram(
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
    histogram(
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
    histogram(
        "kraftpy_transaction_duration_seconds",
        "From a transaction's first partition until all of its markers were written.",
        TRANSACTION_BUCKETS,
    ),
    histogram(
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
    histogram(
        "kraftpy_quorum_commit_seconds",
        "From a proposal to its command's being committed and applied, at the leader.",
        REQUEST_BUCKETS,
    ),
    histogram(
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
    histogram(
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
        "1 if there are more committed offsets, and partitions of share groups, than are served; "
        "the sums of groups lack the rest.",
    ),
    counter("process_cpu_seconds_total", "CPU time.", "process", unit="seconds"),
    gauge("process_resident_memory_bytes", "Resident memory.", "process", unit="bytes"),
    gauge("process_open_fds", "Open file descriptors.", "process"),
    gauge("process_max_fds", "The limit of open file descriptors.", "process"),
    gauge("process_start_time_seconds", "When it started, since 1970.", "process", unit="seconds"),
)

CATALOG: dict[str, Metric] = {
    metric.name: metric
    for metric in (*_NATIVE, *SHARING, *SHARES, *KAFKA_EXPORTER, *JMX, *PROBE, *KMINION)
}
"""All of them by name, in the order in which they are served."""
