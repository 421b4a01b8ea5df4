"""The cluster as a client sees it: what `kraftpy probe` measures from end to end."""

from __future__ import annotations

from dashboards.generator.grafana import (
    CAUTION,
    COUNT,
    GREEN,
    PER_SECOND,
    RED,
    SECONDS,
    TROUBLE,
    Board,
    Row,
    graph,
    p99,
    stat,
)


def _rate(metric: str, what: str) -> tuple[str, str]:
    return f"sum(rate({metric}{{@}}[$__rate_interval]))", what


_STATE = Row(
    "State",
    [
        stat(
            "Lost, last hour",
            "Messages that were acknowledged and had not arrived when the SLA was over, less those "
            "that came after all.",
            COUNT,
            "sum(increase(kraftpy_probe_messages_lost_total{@}[1h])) "
            "- sum(increase(kraftpy_probe_messages_late_total{@}[1h]))",
            TROUBLE,
        ),
        stat(
            "Not acknowledged, last hour",
            "Messages that were given up.",
            COUNT,
            "sum(increase(kraftpy_probe_messages_failed_total{@}[1h]))",
            CAUTION,
        ),
        stat(
            "Oldest message under way",
            "Age of the oldest message that has not arrived and is not counted as lost.",
            SECONDS,
            "max(kraftpy_probe_oldest_pending_seconds{@})",
        ),
        stat(
            "SLA",
            "How long each step may take (`--sla`).",
            SECONDS,
            "max(kraftpy_probe_sla_seconds{@})",
        ),
        stat(
            "Brokers",
            "Brokers that are up, as the probe knows them.",
            COUNT,
            "max(kraftpy_probe_brokers{@})",
            ((RED, None), (GREEN, 1)),
        ),
        stat(
            "Brokers not covered",
            "Brokers that lead no partition of the heartbeat topic: nothing is measured there.",
            COUNT,
            "max(kraftpy_probe_brokers{@} - kraftpy_probe_brokers_covered{@})",
            CAUTION,
        ),
    ],
)

_LATENCY = Row(
    "Latency, 99th percentile by broker",
    [
        graph(
            "Produce",
            "From a message's sending to its acknowledgement by all in-sync replicas.",
            SECONDS,
            p99("kraftpy_probe_produce_seconds", "broker"),
        ),
        graph(
            "Round trip",
            "From a message's sending to its arrival at the consumer.",
            SECONDS,
            p99("kraftpy_probe_roundtrip_seconds", "broker"),
        ),
        graph(
            "Offset commit",
            "The commit of the consumer's positions, by coordinator.",
            SECONDS,
            p99("kraftpy_probe_offset_commit_seconds", "broker"),
        ),
    ],
)

_COUNTS = Row(
    "Messages and commits",
    [
        graph(
            "Messages",
            "Acknowledged, and arrived; each counted once.",
            PER_SECOND,
            _rate("kraftpy_probe_messages_produced_total", "acknowledged"),
            _rate("kraftpy_probe_messages_received_total", "arrived"),
        ),
        graph(
            "Trouble",
            "Lost: not there when the SLA was over. Late: came after all. Duplicated: came again.",
            PER_SECOND,
            _rate("kraftpy_probe_messages_failed_total", "not acknowledged"),
            _rate("kraftpy_probe_messages_lost_total", "lost"),
            _rate("kraftpy_probe_messages_late_total", "late"),
            _rate("kraftpy_probe_messages_duplicated_total", "duplicated"),
        ),
        graph(
            "Commits and SLA",
            "Commits of the consumer's positions, and steps that took longer than the SLA.",
            PER_SECOND,
            _rate("kraftpy_probe_offset_commits_total", "commits"),
            _rate("kraftpy_probe_offset_commits_failed_total", "failed commits"),
            (
                "sum by (step) (rate(kraftpy_probe_sla_broken_total{@}[$__rate_interval]))",
                "SLA broken by {{step}}",
            ),
        ),
    ],
)

BOARD = Board(
    "kraftpy-probe",
    "kraftpy: probe",
    "The cluster as a client sees it: what `kraftpy probe` measures from end to end.",
    [_STATE, _LATENCY, _COUNTS],
    about="kraftpy_probe_brokers",
)
