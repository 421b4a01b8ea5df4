"""The inside of brokers: where the time of a request goes, what waits, disks and processes."""

from __future__ import annotations

from dashboards.generator.grafana import (
    BYTES,
    BYTES_RATE,
    COUNT,
    GREEN,
    ORANGE,
    PER_SECOND,
    RATIO,
    RED,
    SECONDS,
    SINCE,
    TROUBLE,
    Board,
    Row,
    graph,
    heatmap,
    p99,
    quantiles,
    stat,
)


def _rate(metric: str, legend: str, by: str, labels: str = "") -> tuple[str, str]:
    inside = f"@,{labels}" if labels else "@"
    return f"sum by ({by}) (rate({metric}{{{inside}}}[$__rate_interval]))", legend


_REQUESTS = Row(
    "Requests",
    [
        graph(
            "Duration by API, 99th percentile",
            "From a request's last byte to its answer. A Fetch without new records waits for "
            "fetch.max.wait.ms.",
            SECONDS,
            p99("kraftpy_request_duration_seconds", "api"),
            width=12,
        ),
        heatmap(
            "Produce times",
            "How often Produce requests took how long.",
            SECONDS,
            "sum by (le) (increase(kraftpy_request_duration_seconds_bucket"
            '{@,api="Produce"}[$__rate_interval]))',
        ),
        graph(
            "Waiting",
            "Requests that wait: for followers (Produce), for records (Fetch), for members "
            "(JoinGroup).",
            COUNT,
            ("sum by (kind) (kraftpy_purgatory_waiting{@})", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "Connections accepted and refused",
            "Refused: max.connections.per.ip was reached, or connection_creation_rate. Delayed: "
            "max.connections, or max.connection.creation.rate.",
            PER_SECOND,
            _rate("kraftpy_connections_accepted_total", "{{instance}} accepted", "instance"),
            _rate("kraftpy_connections_refused_total", "{{instance}} refused", "instance"),
            _rate("kraftpy_connections_delayed_total", "{{instance}} delayed", "instance"),
        ),
        graph(
            "Time in which none was accepted",
            "Seconds of a second: a connection waited for a slot of max.connections, or came "
            "sooner than max.connection.creation.rate allows.",
            RATIO,
            _rate(
                "kraftpy_connections_wait_seconds_total",
                "{{instance}} {{listener}}",
                "instance, listener",
            ),
        ),
        graph(
            "Held back by quotas",
            "How often clients are told to wait because they have had too much. `kraftpy quota "
            "list` shows who may have how much.",
            PER_SECOND,
            _rate("kraftpy_quota_throttles_total", "{{instance}} {{quota}}", "instance, quota"),
        ),
        graph(
            "Time that clients wait for quotas",
            "Seconds of a second, of all clients together.",
            RATIO,
            _rate(
                "kraftpy_quota_throttle_seconds_total", "{{instance}} {{quota}}", "instance, quota"
            ),
        ),
        graph(
            "Handshakes of TLS",
            "Failed: a client that isn't trusted or doesn't trust the broker, that has no TLS, or "
            "that left or took too long.",
            PER_SECOND,
            _rate("kraftpy_tls_handshakes_total", "{{instance}} {{result}}", "instance, result"),
        ),
        graph(
            "Logins",
            "Failed: another password, a user or mechanism that isn't there. The log says why, "
            "clients aren't told. Expired: a client that doesn't log in again "
            "(connections.max.reauth.ms) was disconnected.",
            PER_SECOND,
            _rate("kraftpy_logins_total", "{{instance}} {{result}}", "instance, result"),
        ),
        graph(
            "Denied by ACLs",
            "What clients asked for and may not do. The log of kafka.authorizer.logger says who "
            "and what.",
            PER_SECOND,
            _rate("kraftpy_access_denials_total", "{{instance}}", "instance"),
        ),
        graph(
            "Until certificates expire",
            "A certificate that is written anew is taken within ten seconds.",
            SECONDS,
            (
                "kraftpy_tls_certificate_expiry_timestamp_seconds{@} - time()",
                "{{instance}} {{listener}}",
            ),
        ),
        graph(
            "Memory of requests and answers",
            "Requests that have not arrived completely, bounded by queued.max.request.bytes, and "
            "answers that have not been read, by queued.max.response.bytes.",
            BYTES,
            ("kraftpy_request_memory_bytes{@}", "{{instance}} requests"),
            ("kraftpy_response_memory_bytes{@}", "{{instance}} answers"),
        ),
    ],
)

_LOOPS = Row(
    "Event loops",
    [
        graph(
            "Lag, 99th percentile",
            "How late timers are: what every request of the process waits at worst, before it is "
            "even looked at.",
            SECONDS,
            (
                "histogram_quantile(0.99, sum by (le, instance, process) "
                "(rate(kraftpy_event_loop_lag_seconds_bucket{@}[$__rate_interval])))",
                "{{instance}} {{process}}",
            ),
            steps=((GREEN, None), (ORANGE, 0.05), (RED, 0.1)),
            width=12,
        ),
        graph(
            "Busy",
            "Share of a core that the thread of the loop uses: 1 is all that it can.",
            RATIO,
            (
                "rate(kraftpy_event_loop_cpu_seconds_total{@}[$__rate_interval])",
                "{{instance}} {{process}}",
            ),
            steps=((GREEN, None), (ORANGE, 0.7), (RED, 0.9)),
            width=12,
            maximum=1,
        ),
    ],
)

_DISK = Row(
    "Log and disk",
    [
        graph(
            "Append",
            "The write of one batch to a log, as leader; that is the page cache, not the disk.",
            SECONDS,
            *quantiles("kraftpy_log_append_seconds"),
        ),
        graph(
            "Fsync",
            "The fsyncs of one flush of a log.",
            SECONDS,
            *quantiles("kraftpy_fsync_seconds"),
        ),
        graph(
            "Flushes",
            "Flushes of logs.",
            PER_SECOND,
            _rate("kraftpy_fsync_seconds_count", "{{instance}}", "instance"),
        ),
        graph(
            "Disk reads",
            "What processes had read from the disk, beyond the page cache.",
            BYTES_RATE,
            _rate("kraftpy_disk_read_bytes_total", "{{instance}} {{process}}", "instance, process"),
            width=12,
        ),
        graph(
            "Disk writes",
            "What processes had written to the disk.",
            BYTES_RATE,
            _rate(
                "kraftpy_disk_written_bytes_total", "{{instance}} {{process}}", "instance, process"
            ),
            width=12,
        ),
        graph(
            "Compactions",
            "Compactions of a log that ended, by result.",
            PER_SECOND,
            _rate("kraftpy_cleaner_runs_total", "{{instance}} {{result}}", "instance, result"),
            width=6,
        ),
        graph(
            "Compacted bytes",
            "Before and after.",
            BYTES_RATE,
            _rate("kraftpy_cleaner_read_bytes_total", "{{instance}} before", "instance"),
            _rate("kraftpy_cleaner_written_bytes_total", "{{instance}} after", "instance"),
            width=6,
        ),
        graph(
            "Time in compactions",
            "Share of time in which the node compacts; at 1 it may never catch up.",
            RATIO,
            _rate("kraftpy_cleaner_seconds_total", "{{instance}}", "instance"),
            width=6,
            maximum=1,
        ),
        graph(
            "Compacting now",
            "1 while a log is being compacted.",
            COUNT,
            ("kraftpy_cleaner_running{@}", "{{instance}}"),
            width=6,
        ),
    ],
)

_REPLICATION = Row(
    "Replication",
    [
        graph(
            "Wait for followers",
            "From the append of a Produce with acks=all to the high watermark.",
            SECONDS,
            *quantiles("kraftpy_replication_commit_seconds"),
        ),
        graph(
            "Followers behind",
            "Records that a follower lacks, as of its last fetch, by the leader's node.",
            COUNT,
            (
                "sum by (instance, follower) (kraftpy_follower_lag_records{@})",
                "{{instance}} to {{follower}}",
            ),
        ),
        graph(
            "ISR changes",
            "Replicas that left and came back in sync.",
            PER_SECOND,
            _rate("kraftpy_isr_changes_total", "{{instance}} {{direction}}", "instance, direction"),
        ),
        graph(
            "Replicas",
            "Replicas at each broker.",
            COUNT,
            ("kraftpy_partitions{@}", "{{instance}}"),
        ),
        graph(
            "At min ISR",
            "Partitions led here that refuse acks=all once they lose another replica.",
            COUNT,
            ("kraftpy_partitions_at_min_isr{@}", "{{instance}}"),
        ),
        stat(
            "Unclean elections",
            "Since the nodes' start: a replica out of sync began to lead, records were lost.",
            COUNT,
            "sum(kraftpy_unclean_elections_total{@})",
            TROUBLE,
            width=8,
        ),
    ],
)

_PROCESSES = Row(
    "Processes",
    [
        graph(
            "CPU",
            "Cores in use.",
            COUNT,
            _rate("process_cpu_seconds_total", "{{instance}} {{process}}", "instance, process"),
        ),
        graph(
            "Memory",
            "Resident memory.",
            BYTES,
            ("process_resident_memory_bytes{@}", "{{instance}} {{process}}"),
        ),
        graph(
            "Open files",
            "Share of the limit (ulimit -n): at 1 neither clients nor segments can be opened.",
            RATIO,
            ("process_open_fds{@} / process_max_fds{@}", "{{instance}} {{process}}"),
            steps=((GREEN, None), (ORANGE, 0.6), (RED, 0.8)),
            maximum=1,
        ),
        graph(
            "Scrape: collecting",
            "How long a process took to hand out its numbers, in slices of half a millisecond.",
            SECONDS,
            ("kraftpy_metrics_collect_seconds{@}", "{{instance}} {{process}}"),
        ),
        graph(
            "Processes up",
            "1 if the process answered the scrape.",
            COUNT,
            ("kraftpy_process_up{@}", "{{instance}} {{process}}"),
        ),
        stat(
            "Longest running",
            "Since when the process runs that was started first.",
            SINCE,
            "1000 * min(process_start_time_seconds{@})",
        ),
        stat(
            "Started last",
            "When a process of a node was started last.",
            SINCE,
            "1000 * max(process_start_time_seconds{@})",
        ),
        graph(
            "Versions",
            "Nodes by version: two of them while an upgrade is under way.",
            COUNT,
            ("count by (version) (kraftpy_build_info{@})", "{{version}}"),
        ),
        graph(
            "Brokers known",
            "Brokers that are up, as each broker knows them: they should agree.",
            COUNT,
            ("kafka_brokers{@}", "{{instance}}"),
        ),
    ],
)

BOARD = Board(
    "kraftpy-broker",
    "kraftpy: broker internals",
    "Where the time of a request goes, what waits, disks, replication, processes.",
    [_REQUESTS, _LOOPS, _DISK, _REPLICATION, _PROCESSES],
)
