"""From the frames of a scrape to metric families of prometheus-client.

Families come one at a time, so that only one of them is in memory beside the frames: with ten
thousand partitions a family is ten thousand samples, and there are a dozen.

A metric that the catalogue doesn't have can't be served (KeyError): names come from there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import Metric as Served
from prometheus_client.exposition import choose_encoder

from kraftpy.metrics import frames as kinds
from kraftpy.metrics.catalog import CATALOG, Kind, Metric
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.frames import PartitionRow, label

Value = Any  # a number, or [counts, sum] of a histogram
Sample = tuple[tuple[str, ...], Value]
Source = Callable[["Scrape"], Iterable[Sample]]


class Scrape:
    """All that the node's processes said, by kind; `collect` is what prometheus-client asks for."""

    def __init__(self, frames: Iterable[Frame], node_id: int) -> None:
        self.node_id = node_id
        self.samples: dict[str, list[Sample]] = {}
        self.partitions: list[tuple[str, int | None, list[PartitionRow]]] = []
        self.groups: list[tuple[str, int | None, list[list[Any]]]] = []
        self.group_offsets: list[tuple[str, str, list[list[Any]], bool]] = []
        self.share_states: list[list[Any]] = []
        for kind, payload in frames:
            if kind == kinds.SAMPLES:
                for name, labels, value in payload:
                    self.add(name, value, *labels)
            elif kind == kinds.PARTITIONS:
                topic, count, rows = payload
                self.partitions.append((topic, count, [PartitionRow(*row) for row in rows]))
            elif kind == kinds.GROUP:
                self.groups.append(payload)
            elif kind == kinds.GROUP_OFFSETS:
                self.group_offsets.append(payload)
            elif kind == kinds.SHARE_STATES:
                self.share_states += payload

    def add(self, name: str, value: Value, *labels: str) -> None:
        """One more sample of a metric."""
        self.samples.setdefault(name, []).append((labels, value))

    def collect(self) -> Iterator[Served]:
        """The families that have samples, in the catalogue's order."""
        unknown = self.samples.keys() - CATALOG.keys()
        if unknown:
            raise KeyError(f"not in the catalogue: {', '.join(sorted(unknown))}")
        for metric in CATALOG.values():
            source = _DERIVED.get(metric.name)
            found = self.samples.get(metric.name, ()) if source is None else source(self)
            family = _family(metric, found)
            if family.samples:
                yield family


def encoder_for(accept: str) -> tuple[Callable[[Any], bytes], str]:
    """The encoder and content type that Accept asks for; the default ones if it makes no sense, for
    prometheus-client compares whatever stands for a version with numbers.
    """
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")


def _family(metric: Metric, samples: Iterable[Sample]) -> Served:
    # prometheus-client puts _total behind a counter's name.
    name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
    family = Served(name, metric.help, metric.kind.value)
    for labels, value in samples:
        named = dict(zip(metric.labels, map(label, labels), strict=True))
        if metric.kind is Kind.HISTOGRAM:
            _add_histogram(family, metric, named, *value)
        else:
            family.add_sample(metric.name, named, value)
    return family


def _add_histogram(
    family: Served, metric: Metric, labels: dict[str, str], counts: list[int], total: float
) -> None:
    below = 0
    for bound, count in zip((*metric.buckets, float("inf")), counts, strict=True):
        below += count
        le = "+Inf" if bound == float("inf") else str(bound)
        family.add_sample(f"{metric.name}_bucket", labels | {"le": le}, below)
    family.add_sample(f"{metric.name}_count", labels, below)
    family.add_sample(f"{metric.name}_sum", labels, total)


# -- metrics that are made here, from rows or from other metrics


def _led(value: Callable[[PartitionRow], float]) -> Source:
    """A metric of every partition that is led here."""

    def samples(scrape: Scrape) -> Iterator[Sample]:
        for topic, _, rows in scrape.partitions:
            for row in rows:
                if row.is_led:
                    yield (topic, str(row.partition)), value(row)

    return samples


def _leader(scrape: Scrape) -> Iterator[Sample]:
    return ((labels, scrape.node_id) for labels, _ in _led(lambda row: 0)(scrape))


def _log_size(scrape: Scrape) -> Iterator[Sample]:
    for topic, _, rows in scrape.partitions:
        for row in rows:
            yield (topic, str(row.partition)), row.size_bytes


def _topic_partitions(scrape: Scrape) -> Iterator[Sample]:
    for topic, count, _ in scrape.partitions:
        if count is not None:
            yield (topic,), count


def _group_members(scrape: Scrape) -> Iterator[Sample]:
    for group_id, members, _ in scrape.groups:
        if members is not None:
            yield (group_id,), members


def _group_topics(place: int) -> Source:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        for group_id, _, topics in scrape.groups:
            for row in topics:
                if row[place] is not None:
                    yield (group_id, row[0]), row[place]

    return samples


def _group_offsets(place: int) -> Source:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        for group_id, topic, rows, shown in scrape.group_offsets:
            for row in rows if shown else ():
                if row[place] is not None:
                    yield (group_id, topic, str(row[0])), row[place]

    return samples


def _share_groups(place: int) -> Source:
    """By group and topic; what isn't known of a partition isn't of its topic."""

    def samples(scrape: Scrape) -> Iterator[Sample]:
        sums: dict[tuple[str, str], int | None] = {}
        for row in scrape.share_states:
            before, more = sums.get((row[0], row[1]), 0), row[place]
            sums[row[0], row[1]] = None if before is None or more is None else before + more
        for labels, value in sums.items():
            if value is not None:
                yield labels, value

    return samples


def _same(name: str, *labels: str) -> Source:
    """Another name of a metric; of one with labels, the samples that begin with these."""

    def samples(scrape: Scrape) -> Iterator[Sample]:
        for found, value in scrape.samples.get(name, ()):
            if found[: len(labels)] == labels:
                yield found[len(labels) :], value

    return samples


def _answered(scrape: Scrape) -> Iterator[Sample]:
    for labels, (counts, _) in scrape.samples.get("kraftpy_request_duration_seconds", ()):
        yield labels, sum(counts)


def _offline_folders(scrape: Scrape) -> Iterator[Sample]:
    for labels, logs in scrape.samples.get("kraftpy_logs_offline", ()):
        yield labels, min(logs, 1)


def _commit_latency(scrape: Scrape) -> Iterator[Sample]:
    for _, (counts, total_s) in scrape.samples.get("kraftpy_quorum_commit_seconds", ()):
        yield (), 1000 * total_s / max(sum(counts), 1)


_DERIVED: dict[str, Source] = {
    "kafka_topic_partitions": _topic_partitions,
    "kafka_topic_partition_current_offset": _led(lambda row: row.high_watermark),
    "kafka_topic_partition_oldest_offset": _led(lambda row: row.log_start_offset),
    "kafka_topic_partition_in_sync_replica": _led(lambda row: row.isr),
    "kafka_topic_partition_replicas": _led(lambda row: row.replicas),
    "kafka_topic_partition_leader": _leader,
    "kafka_topic_partition_leader_is_preferred": _led(lambda row: row.is_preferred),
    "kafka_topic_partition_under_replicated_partition": _led(lambda row: row.isr < row.replicas),
    "kafka_consumergroup_members": _group_members,
    "kafka_consumergroup_current_offset": _group_offsets(1),
    "kafka_consumergroup_lag": _group_offsets(2),
    "kafka_consumergroup_current_offset_sum": _group_topics(1),
    "kafka_consumergroup_lag_sum": _group_topics(2),
    "kraftpy_share_group_finished_offset_sum": _share_groups(3),
    "kraftpy_share_group_lag_records": _share_groups(4),
    "kafka_server_replicamanager_leadercount": _same("kraftpy_partitions_led"),
    "kafka_server_replicamanager_partitioncount": _same("kraftpy_partitions"),
    "kafka_server_replicamanager_underreplicatedpartitions": _same(
        "kraftpy_partitions_under_replicated"
    ),
    "kafka_server_replicamanager_underminisrpartitioncount": _same(
        "kraftpy_partitions_under_min_isr"
    ),
    "kafka_server_replicamanager_atminisrpartitioncount": _same("kraftpy_partitions_at_min_isr"),
    "kafka_server_replicamanager_offlinereplicacount": _same("kraftpy_logs_offline"),
    "kafka_server_replicamanager_partitionswithlatetransactionscount": _same(
        "kraftpy_partitions_with_hanging_transactions"
    ),
    "kafka_server_replicamanager_isrshrinks_total": _same("kraftpy_isr_changes_total", "shrink"),
    "kafka_server_replicamanager_isrexpands_total": _same("kraftpy_isr_changes_total", "expand"),
    "kafka_controller_kafkacontroller_activecontrollercount": _same("kraftpy_quorum_is_leader"),
    "kafka_controller_kafkacontroller_offlinepartitionscount": _same(
        "kraftpy_controller_offline_partitions"
    ),
    "kafka_controller_controllerstats_uncleanleaderelections_total": _same(
        "kraftpy_unclean_elections_total"
    ),
    "kafka_cluster_partition_atminisr": _led(lambda row: row.min_isr == 0),
    "kafka_cluster_partition_underminisr": _led(lambda row: row.min_isr < 0),
    "kafka_cluster_partition_replicascount": _led(lambda row: row.replicas),
    "kafka_log_logmanager_offlinelogdirectorycount": _offline_folders,
    "kafka_server_kafkaserver_linux_disk_read_bytes": _same(
        "kraftpy_disk_read_bytes_total", "broker"
    ),
    "kafka_server_kafkaserver_linux_disk_write_bytes": _same(
        "kraftpy_disk_written_bytes_total", "broker"
    ),
    "kafka_server_brokertopicmetrics_bytesin_total": _same("kraftpy_topic_received_bytes_total"),
    "kafka_server_brokertopicmetrics_bytesout_total": _same("kraftpy_topic_sent_bytes_total"),
    "kafka_server_brokertopicmetrics_messagesin_total": _same(
        "kraftpy_topic_received_records_total"
    ),
    "kafka_server_brokertopicmetrics_replicationbytesin_total": _same(
        "kraftpy_replication_received_bytes_total"
    ),
    "kafka_server_brokertopicmetrics_replicationbytesout_total": _same(
        "kraftpy_replication_sent_bytes_total"
    ),
    "kafka_network_requestmetrics_requests_total": _answered,
    "kafka_server_socket_server_metrics_connection_count": _same("kraftpy_connections"),
    "kafka_log_log_size": _log_size,
    "kafka_server_raftmetrics_current_leader": _same("kraftpy_quorum_leader"),
    "kafka_server_raftmetrics_current_epoch": _same("kraftpy_quorum_term"),
    "kafka_server_raftmetrics_high_watermark": _same("kraftpy_quorum_committed_index"),
    "kafka_server_raftmetrics_commit_latency_avg": _commit_latency,
}
