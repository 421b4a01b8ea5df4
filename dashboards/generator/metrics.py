"""dashboards/METRICS.md: the catalogue as tables."""

from __future__ import annotations

from kraftpy.metrics.catalog import CATALOG, NOT_SERVED, Family, Metric

_ABOUT = {
    Family.NATIVE: (
        "Native",
        "Base units; no label for a client or for a member of a group.",
    ),
    Family.KAFKA_EXPORTER: (
        "kafka_exporter",
        "Under the names of the exporter of that name, so that its boards and alerts work. Each "
        "broker serves what it leads or coordinates: the sum over the brokers is the cluster.",
    ),
    Family.JMX: (
        "Strimzi",
        "Under the names that Strimzi's rules give to Kafka's MBeans, as far as its boards use "
        "them and they mean something here.",
    ),
    Family.PROBE: ("The probe", "Served by `kraftpy probe`, at its own address."),
    Family.KMINION: (
        "kminion",
        "The probe's numbers under the names of kminion's end-to-end test.",
    ),
}
_HEADER = ["metric", "type", "labels", "unit", ""]


def document() -> str:
    """All of dashboards/METRICS.md."""
    parts = [
        "# Metrics",
        "What `/metrics` serves (`kraftpy.metrics.listener`), in the text format of Prometheus or "
        "OpenMetrics. Written from `kraftpy/metrics/catalog.py` by `make docs`.",
        "Metrics with the label `partition` are left out with `kraftpy.metrics.partitions=false`.",
    ]
    for family, (title, about) in _ABOUT.items():
        rows = [_row(metric) for metric in CATALOG.values() if metric.family is family]
        parts += [f"## {title}", about, _table(_HEADER, rows)]
    parts += [
        "## Not served",
        "What Strimzi's boards and kafka_exporter have besides.",
        _table(["metric", "why"], [[f"`{name}`", why] for name, why in NOT_SERVED.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def _row(metric: Metric) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.name}`", metric.kind.value, labels, metric.unit, metric.help]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
