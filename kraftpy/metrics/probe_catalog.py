"""The probe's part of the catalogue: metrics that `kraftpy probe` serves, and no node."""

from __future__ import annotations

from kraftpy.metrics.instruments import PROBE_BUCKETS
from kraftpy.metrics.metric import Family, Kind, Metric


def _probe(
    name: str, kind: Kind, help_: str, *labels: str, unit: str = "", family: Family = Family.PROBE
) -> Metric:
    buckets = PROBE_BUCKETS if kind is Kind.HISTOGRAM else ()
    return Metric(name, kind, help_, labels, "seconds" if buckets else unit, family, False, buckets)


_BY_LEADER = " By the broker that led the partition when the message was sent."

PROBE = (
    _probe(
        "kraftpy_probe_produce_seconds",
        Kind.HISTOGRAM,
        "From a message's sending to its acknowledgement by all in-sync replicas." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_roundtrip_seconds",
        Kind.HISTOGRAM,
        "From a message's sending to its arrival at the consumer." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_offset_commit_seconds",
        Kind.HISTOGRAM,
        "The commit of the consumer's positions, tries that failed included. By the coordinator.",
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_produced_total",
        Kind.COUNTER,
        "Messages that were acknowledged." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_failed_total",
        Kind.COUNTER,
        "Messages that were given up without an acknowledgement." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_received_total",
        Kind.COUNTER,
        "Messages that arrived, late ones included, each counted once." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_lost_total",
        Kind.COUNTER,
        "Messages that had not arrived when the SLA was over since their acknowledgement. Those "
        "that came after all are in kraftpy_probe_messages_late_total too." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_late_total",
        Kind.COUNTER,
        "Messages counted as lost that came after all." + _BY_LEADER,
        "broker",
    ),
    _probe(
        "kraftpy_probe_messages_duplicated_total",
        Kind.COUNTER,
        "Arrivals of messages that had arrived from another offset before." + _BY_LEADER,
        "broker",
    ),
    _probe("kraftpy_probe_offset_commits_total", Kind.COUNTER, "Commits that succeeded."),
    _probe("kraftpy_probe_offset_commits_failed_total", Kind.COUNTER, "Commits that failed."),
    _probe(
        "kraftpy_probe_sla_broken_total",
        Kind.COUNTER,
        "Steps (produce, roundtrip, offset_commit) that succeeded but took longer than the SLA.",
        "step",
    ),
    _probe(
        "kraftpy_probe_sla_seconds",
        Kind.GAUGE,
        "How long each step may take (--sla).",
        unit="seconds",
    ),
    _probe(
        "kraftpy_probe_oldest_pending_seconds",
        Kind.GAUGE,
        "Age of the oldest message that is on its way and not counted as lost; 0 if there is none.",
        unit="seconds",
    ),
    _probe("kraftpy_probe_brokers", Kind.GAUGE, "Brokers that are up, as the probe knows them."),
    _probe(
        "kraftpy_probe_brokers_covered",
        Kind.GAUGE,
        "Brokers among them that lead a partition of the heartbeat topic.",
    ),
)


def _kminion(name: str, kind: Kind, help_: str, *labels: str) -> Metric:
    return _probe(f"kminion_end_to_end_{name}", kind, help_, *labels, family=Family.KMINION)


KMINION = (
    _kminion(
        "messages_produced_in_flight",
        Kind.GAUGE,
        "Messages sent that are not acknowledged yet.",
        "partition_id",
    ),
    _kminion(
        "messages_produced_total",
        Kind.COUNTER,
        "Messages that were acknowledged or given up.",
        "partition_id",
    ),
    _kminion(
        "messages_produced_failed_total",
        Kind.COUNTER,
        "As kraftpy_probe_messages_failed_total.",
        "partition_id",
    ),
    _kminion(
        "messages_received_total",
        Kind.COUNTER,
        "Messages that arrived before they counted as lost.",
        "partition_id",
    ),
    _kminion(
        "messages_lost_total",
        Kind.COUNTER,
        "As kraftpy_probe_messages_lost_total.",
        "partition_id",
    ),
    _kminion("offset_commits_total", Kind.COUNTER, "Commits that kept the SLA."),
    _kminion(
        "produce_latency_seconds",
        Kind.HISTOGRAM,
        "As kraftpy_probe_produce_seconds.",
        "partition_id",
    ),
    _kminion(
        "roundtrip_latency_seconds",
        Kind.HISTOGRAM,
        "As kraftpy_probe_roundtrip_seconds.",
        "partition_id",
    ),
    _kminion(
        "offset_commit_latency_seconds",
        Kind.HISTOGRAM,
        "As kraftpy_probe_offset_commit_seconds.",
        "group_coordinator_broker_id",
    ),
)
